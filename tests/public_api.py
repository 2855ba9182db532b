"""The public API as data: ``python tests/public_api.py --write`` brings public_api.txt up to date.

A public name is one that a public module (no underscore in its path) lists in ``__all__``.
"""

import argparse
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("etp_core", "etp_ops", "etp_algorithms", "etp_fastpath", "mujou_pc")
FILE = Path(__file__).with_name("public_api.txt")


def public_names() -> list[str]:
    """Every public name as ``module.name``, package by package."""
    return [
        f"{module}.{name}"
        for package in PACKAGES
        for module in public_modules(package)
        for name in sorted(importlib.import_module(module).__all__)
    ]


def public_modules(name: str) -> Iterator[str]:
    """A package and its public submodules, depth first."""
    yield name
    for module in pkgutil.iter_modules(getattr(importlib.import_module(name), "__path__", [])):
        if not module.name.startswith("_"):
            yield from public_modules(f"{name}.{module.name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show the public API, or write it down.")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    text = "".join(f"{name}\n" for name in public_names())
    if parser.parse_args().write:
        FILE.write_text(text)
    else:
        print(text, end="")
