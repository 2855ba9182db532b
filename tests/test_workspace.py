"""The layout that ARCHITECTURE.md and CONTRIBUTING.md describe."""

import ast
import graphlib
import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from .layout import DISTRIBUTIONS, MEMBERS, ROOT, import_name, pyproject, source

each_member = pytest.mark.parametrize("member", sorted(MEMBERS))
each_distribution = pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
SETTINGS = pyproject("etp-suite")


def requirements(distribution: str, *, tests: bool = False) -> list[Requirement]:
    """Everything a distribution asks for, extras included; with or without its test group."""
    project = pyproject(distribution)["project"]
    extras = project.get("optional-dependencies", {}).values()
    asked = [*project["dependencies"], *itertools.chain(*extras)]
    if tests:
        asked += pyproject(distribution)["dependency-groups"]["test"]
    return [Requirement(text) for text in asked]


def siblings(distribution: str, *, tests: bool = False) -> Iterator[Requirement]:
    found = requirements(distribution, tests=tests)
    return (r for r in found if r.name in DISTRIBUTIONS and r.name != distribution)


@each_member
def test_a_member_has_the_files_of_a_distribution(member):
    wanted = ["pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "src", "tests"]
    assert [name for name in wanted if not (MEMBERS[member] / name).exists()] == []


@each_distribution
def test_a_distribution_carries_its_type_marker_and_the_licence(distribution):
    directory = DISTRIBUTIONS[distribution]
    assert (source(distribution) / "py.typed").read_bytes() == b""
    assert not (directory / "LICENSE").is_symlink()
    assert (directory / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@each_member
def test_a_member_holds_no_settings_of_shared_tools(member):
    tables = pyproject(member)
    assert set(tables) == {"build-system", "project", "dependency-groups", "tool"}
    assert set(tables["tool"]) == {"hatch"}
    assert set(tables["dependency-groups"]) == {"test"}


@each_distribution
def test_a_distribution_shares_its_build_and_metadata(distribution):
    ours, root = pyproject(distribution), SETTINGS
    assert ours["build-system"] == root["build-system"]
    for key in ["requires-python", "license", "license-files", "authors", "classifiers"]:
        assert ours["project"][key] == root["project"][key]
    assert ours["project"]["name"] == distribution


def test_the_pythons_of_the_checks_are_those_of_the_metadata():
    pythons = (ROOT / ".python-version").read_text().split()
    project = SETTINGS["project"]
    assert project["requires-python"] == f">={min(pythons)}"
    prefix = "Programming Language :: Python :: "
    assert {f"{prefix}{python}" for python in pythons} == {c for c in project["classifiers"] if c.startswith(prefix)}


def test_sources_and_settings_name_every_distribution():
    names = {import_name(distribution) for distribution in DISTRIBUTIONS}
    assert set(SETTINGS["tool"]["uv"]["sources"]) == set(DISTRIBUTIONS)
    assert set(SETTINGS["tool"]["importlinter"]["root_packages"]) == names
    (hook,) = (o for o in SETTINGS["tool"]["pytest"]["addopts"] if "jaxtyping" in o)
    assert set(hook.partition("=")[2].split(",")) == {*names - {"etp"}, "beartype.beartype"}


@each_member
def test_a_member_takes_siblings_of_its_own_minor_version(member):
    for sibling in siblings(member, tests=True):
        current = Version(pyproject(sibling.name)["project"]["version"])
        floor, cap = sorted(sibling.specifier, key=lambda s: Version(s.version))
        assert (floor.operator, cap.operator) == (">=", "<"), sibling
        assert Version(floor.version) <= current < Version(cap.version), sibling
        assert Version(cap.version) == Version(f"{current.major}.{current.minor + 1}"), sibling


def test_the_meta_package_reaches_every_member_by_floors_alone():
    found = list(siblings("etp-suite"))
    assert {sibling.name for sibling in found} == set(MEMBERS)
    for sibling in found:
        assert [s.operator for s in sibling.specifier] == [">="], sibling
        assert sibling.specifier.contains(pyproject(sibling.name)["project"]["version"]), sibling


@each_member
def test_every_other_requirement_has_a_floor_and_nothing_else(member):
    others = [r for r in requirements(member, tests=True) if r.name not in DISTRIBUTIONS]
    loose = [str(r) for r in others if [s.operator for s in r.specifier] != [">="]]
    assert not loose


def test_the_requirements_of_code_and_tests_form_no_cycle():
    graph = {m: {s.name for s in siblings(m, tests=True)} for m in MEMBERS}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(MEMBERS)


@each_distribution
def test_the_changelog_has_a_section_for_the_current_version(distribution):
    version = pyproject(distribution)["project"]["version"]
    assert f"\n## {version}\n" in (DISTRIBUTIONS[distribution] / "CHANGELOG.md").read_text()


def test_the_citation_is_of_the_current_version():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    project = SETTINGS["project"]
    assert f"version: {project['version']}" in lines
    assert f"license: {project['license']}" in lines
    assert f'  - name: "{project["authors"][0]["name"]}"' in lines
    assert [line for line in lines if line.removeprefix("  - ") in project["keywords"]] == [
        f"  - {keyword}" for keyword in project["keywords"]
    ]


@each_distribution
def test_a_distribution_says_what_it_is_about(distribution):
    project = pyproject(distribution)["project"]
    assert re.fullmatch(r"\S.*[^.\s]", project["description"])
    assert len(project["keywords"]) == len(set(project["keywords"])) >= 3
    assert project["readme"] == "README.md"


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_pins_what_it_uses_and_holds_no_more_rights_than_it_needs(workflow):
    text = workflow.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []
    assert "\npermissions:\n  contents: read\n" in text
    rights = re.findall(r"(\S+): write", text)
    assert rights == (["id-token"] if workflow.stem == "release" else [])


def test_no_test_directory_is_a_package():
    assert [*ROOT.glob("packages/*/tests/**/__init__.py"), *ROOT.glob("tests/**/__init__.py")] == []


def test_no_lock_file_and_no_address_of_a_registry_is_tracked():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    assert "uv.lock" not in listing.stdout.split()
    constraints = (ROOT / "constraints.txt").read_text()
    assert "://" not in constraints
    assert "--hash" not in constraints


@each_member
def test_nobody_imports_what_a_sibling_marks_as_private(member):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MEMBERS[member].glob("**/*.py")
        for line, name in imported_names(path)
        if name.split(".")[0] in map(import_name, set(MEMBERS) - {member})
        if any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    ]
    assert found == []


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
