"""Import every module of an installed package, and look for its type marker.

    python -I .ci/import_all.py etp_ops            # without extras
    python -I .ci/import_all.py etp_ops --strict   # with every extra installed

Without ``--strict`` a module may need an extra, if its ImportError says which one to install.
"""

import argparse
import importlib
import pkgutil
import sys
import warnings
from pathlib import Path


def main() -> int:
    """Print what was imported; return 1 if something could not be."""
    parser = argparse.ArgumentParser(description="Import every module of an installed package.")
    parser.add_argument("package")
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args()

    warnings.simplefilter("error")
    package = importlib.import_module(arguments.package)
    (location,) = package.__path__
    failures = [] if (Path(location) / "py.typed").exists() else ["no py.typed in the wheel"]
    imported = 1
    for name in _submodules(location, arguments.package):
        try:
            importlib.import_module(name)
            imported += 1
        except ImportError as error:
            if arguments.strict or "pip install" not in str(error):
                failures.append(f"{name}: {error!r}")
            else:
                print(f"{name} asks for an extra: {error}")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    print(f"{arguments.package}: {imported} modules imported from {location}")
    return 1 if failures else 0


def _submodules(location: str, prefix: str) -> list[str]:
    """Names from the files, so that a package that fails to import hides nothing below it."""
    names = []
    for module in pkgutil.iter_modules([location]):
        name = f"{prefix}.{module.name}"
        names.append(name)
        if module.ispkg:
            names += _submodules(str(Path(location) / module.name), name)
    return names


if __name__ == "__main__":
    sys.exit(main())
