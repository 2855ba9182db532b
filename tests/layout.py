"""Where things are, for the tests of the workspace as a whole."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEMBERS = {path.parent.name: path.parent for path in ROOT.glob("packages/*/pyproject.toml")}
DISTRIBUTIONS = {**MEMBERS, "etp-suite": ROOT}


def import_name(distribution: str) -> str:
    """The name that ``import`` wants."""
    return "etp" if distribution == "etp-suite" else distribution.replace("-", "_")


def pyproject(distribution: str) -> dict[str, Any]:
    """The parsed pyproject.toml of a distribution."""
    return tomllib.loads((DISTRIBUTIONS[distribution] / "pyproject.toml").read_text())


def source(distribution: str) -> Path:
    """The directory of the import package."""
    return DISTRIBUTIONS[distribution] / "src" / import_name(distribution)
