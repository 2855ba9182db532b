"""The public API as data: ``python tests/public_api.py --write`` brings both public_*.txt up to date.

A public name is one that a public module (no underscore in its path) lists in ``__all__``.
"""

import argparse
import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("etp_core", "etp_ops", "etp_algorithms", "etp_fastpath", "mujou_pc")
FILE = Path(__file__).with_name("public_api.txt")
SIGNATURES = Path(__file__).with_name("public_signatures.txt")


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


def public_signatures() -> list[str]:
    """Functions, constructors and methods as ``module.name(x, *, option=)``; ``=`` marks what has a default."""
    return [line for name in public_names() for line in _signatures(name, _resolve(name))]


def _signatures(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, type):
        if _is_ours(value):
            yield name + _parameters(value)
        return
    if issubclass(value, (BaseException, enum.Enum)):
        return
    if _is_ours(value.__init__):
        yield name + _parameters(value.__init__, bound=True)
    for key, member in sorted(vars(value).items()):
        plain = isinstance(member, (staticmethod, classmethod))
        function = member.__func__ if plain else member
        if not key.startswith("_") and _is_ours(function):
            yield f"{name}.{key}{_parameters(function, bound=not isinstance(member, staticmethod))}"


def _is_ours(value: object) -> bool:
    ours = (getattr(value, "__module__", None) or "").partition(".")[0] in PACKAGES
    return ours and inspect.isfunction(inspect.unwrap(value)) if callable(value) else False


def _parameters(function: object, *, bound: bool = False) -> str:
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    blank = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _DEFAULT) for p in parameters]
    return str(inspect.Signature(blank))


class _Default:
    def __repr__(self) -> str:
        return ""


_DEFAULT = _Default()


def _resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show the public API, or write it down.")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name} and {SIGNATURES.name}")
    texts = {FILE: public_names(), SIGNATURES: public_signatures()}
    if parser.parse_args().write:
        for file, lines in texts.items():
            file.write_text("".join(f"{line}\n" for line in lines))
    else:
        print(*texts[SIGNATURES], sep="\n")
