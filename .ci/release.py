"""Write a release of one package into the tree: ``python .ci/release.py etp-core minor``.

The version goes up, the CHANGELOG's ``## Unreleased`` becomes its heading, and after a minor release the siblings that
name the package take this minor version and no other. Nothing is committed or tagged. A tree with changes is refused.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
META = "etp-suite"
PARTS = ("minor", "patch")


def main(arguments: list[str], root: Path = ROOT) -> str:
    """Do it; print what changed, and return the new version."""
    package, part = check(arguments, root)
    old = version_of(package, root)
    new = bumped(old, part)
    changed = {folder(package, root) / "CHANGELOG.md": with_heading(package, new, root)}
    for name in [*members(root), META]:
        path = folder(name, root) / "pyproject.toml"
        text = path.read_text()
        text = with_range(text, package, new) if part == "minor" else text
        changed[path] = text.replace(f'\nversion = "{old}"\n', f'\nversion = "{new}"\n') if name == package else text
    if package == META:
        citation = root / "CITATION.cff"
        changed[citation] = citation.read_text().replace(f"\nversion: {old}\n", f"\nversion: {new}\n")
    for path, text in changed.items():
        if text != path.read_text():
            path.write_text(text)
            print(f"{path.relative_to(root)}: {package} {new}")
    return new


def check(arguments: list[str], root: Path) -> tuple[str, str]:
    """Package and part, or one line that says what is wrong with them or with the tree."""
    known = [*members(root), META]
    if len(arguments) != 2:
        raise SystemExit(f"release: give a package and a part, for example 'etp-core minor'; got {arguments}.")
    package, part = arguments
    if package not in known:
        raise SystemExit(f"release: there is no package {package!r}; there are {', '.join(known)}.")
    if part not in PARTS:
        raise SystemExit(f"release: the part is {' or '.join(PARTS)}, got {part!r}.")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    if lines := status.stdout.splitlines():
        names = ", ".join(line[3:] for line in lines[:3]) + (", ..." if len(lines) > 3 else "")
        raise SystemExit(f"release: the working tree has changes ({names}); commit them first.")
    return package, part


def bumped(version: str, part: str) -> str:
    """The next version."""
    major, minor, patch = map(int, version.split("."))
    return f"{major}.{minor + 1}.0" if part == "minor" else f"{major}.{minor}.{patch + 1}"


def with_heading(package: str, version: str, root: Path) -> str:
    """The CHANGELOG with a heading for this version, and something under it."""
    text = (folder(package, root) / "CHANGELOG.md").read_text()
    text = text.replace("\n## Unreleased\n", f"\n## {version}\n")
    section = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None or not section[1].strip():
        raise SystemExit(f"release: the CHANGELOG of {package} says nothing under '## Unreleased' or '## {version}'.")
    return text


def with_range(text: str, package: str, version: str) -> str:
    """A pyproject.toml that takes this minor version of the package: a floor, and a cap where there was one."""
    major, minor, _ = version.split(".")
    pattern = rf'"({re.escape(package)}(?:\[[^\]]*\])?)>=[\d.]+(,<[\d.]+)?"'
    return re.sub(pattern, lambda m: f'"{m[1]}>={version}{f",<{major}.{int(minor) + 1}" if m[2] else ""}"', text)


def members(root: Path) -> list[str]:
    """The packages of the workspace."""
    return sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml"))


def folder(package: str, root: Path) -> Path:
    """Where a package has its metadata."""
    return root if package == META else root / "packages" / package


def version_of(package: str, root: Path) -> str:
    """The version in the tree."""
    return tomllib.loads((folder(package, root) / "pyproject.toml").read_text())["project"]["version"]


if __name__ == "__main__":
    main(sys.argv[1:])
