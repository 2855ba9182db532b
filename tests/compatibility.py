"""Did the public API break since a package's last tag? ``python tests/compatibility.py`` says so, package by package.

What a release wrote into public_signatures.txt is compared with what is there now. A patch release breaks nothing; a
minor release of ``0.x`` may, and then its CHANGELOG says what.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTS = ("tests/public_api.txt", "tests/public_signatures.txt")


def last_tag(package: str, *, repository: Path = ROOT) -> str | None:
    """The newest tag ``package-vX.Y.Z`` that the present commit descends from."""
    command = ["git", "tag", "--list", f"{package}-v*", "--merged", "HEAD", "--sort=-version:refname"]
    tags = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.split()
    return tags[0] if tags else None


def breaks_since(tag: str, package: str, *, repository: Path = ROOT) -> list[str]:
    """What a user of the tagged version would miss now."""
    name = package.replace("-", "_")
    then = [read_api(_at(tag, file, repository).splitlines(), name) for file in LISTS]
    now = [read_api((repository / file).read_text().splitlines(), name) for file in LISTS]
    return list(broken(then[0] | then[1], now[0] | now[1]))


def read_api(lines: Iterable[str], package: str) -> dict[str, str]:
    """Parameters by dotted name; an empty string for what is no function."""
    found = (line.partition("(") for line in lines if re.match(rf"{package}\b", line))
    return {name: bracket + rest for name, bracket, rest in found}


def broken(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Names that are gone, and calls that no longer work."""
    for name, before in then.items():
        if name not in now:
            yield f"{name} is gone"
        elif before and now[name] and not accepts(now[name], before):
            yield f"{name}{before} is now {name}{now[name]}"


def verdict(package: str, tag: str | None, found: Iterable[str]) -> str:
    """What to tell whoever changed the API, with the two ways out."""
    lines = [f"  {line}" for line in found]
    if tag is None:
        return f"{package}: no tag yet, nothing to compare with"
    if not lines:
        return f"{package}: nothing breaks since {tag}"
    remedy = (
        f"Keep the old name or argument until the next minor release, with a DeprecationWarning that says the new one; "
        f"or make this release a minor one, nox -s release -- {package} minor, and say in its CHANGELOG what changed."
    )
    return "\n".join([f"{package}: a user of {tag} would miss", *lines, remedy])


def accepts(now: str, before: str) -> bool:
    """Whether every call that fits the signature ``before`` fits ``now`` too and means the same."""
    old_places, old_names, old_needed = _parse(before)
    places, names, needed = _parse(now)
    catches_all = "**" in now
    kept = all(name in names for name in old_names) or catches_all
    return kept and places[: len(old_places)] == old_places and set(needed) <= set(old_needed)


def _parse(signature: str) -> tuple[list[str], list[str], list[str]]:
    """Positional parameters in order, those that can be named, and those without default."""
    places, names, needed, named_only, place_only = [], [], [], False, []
    for part in filter(None, (p.strip() for p in signature.strip("()").split(","))):
        name = part.removesuffix("=")
        if part == "/":
            place_only, names = [*names], []
        elif part.startswith("**"):
            continue
        elif part.startswith("*"):
            named_only = True
        else:
            names.append(name)
            places += [] if named_only else [name]
            needed += [] if part.endswith("=") else [name]
    return places, [n for n in names if n not in place_only], needed


def _at(tag: str, file: str, repository: Path) -> str:
    shown = subprocess.run(["git", "show", f"{tag}:{file}"], cwd=repository, capture_output=True, text=True)
    return shown.stdout


if __name__ == "__main__":
    failed = False
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        package = path.parent.name
        tag = last_tag(package)
        found = breaks_since(tag, package) if tag else []
        failed |= bool(found)
        print(verdict(package, tag, found))
    sys.exit(failed)
