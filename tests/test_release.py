"""What a release writes into the tree, walked on a copy of the files that it touches."""

import re
import shutil
import subprocess
import sys

import pytest

from .layout import DISTRIBUTIONS, MEMBERS, ROOT, pyproject


def run(tree, *arguments):
    command = [sys.executable, tree / ".ci" / "release.py", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


def git(tree, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A repository with the metadata of every distribution, something unreleased in each."""
    files = [ROOT / ".ci" / "release.py", ROOT / "CITATION.cff"]
    files += [directory / name for directory in DISTRIBUTIONS.values() for name in ("pyproject.toml", "CHANGELOG.md")]
    for file in files:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        if file.name == "CHANGELOG.md":
            copy.write_text(re.sub(r"^# .*\n", "# Changelog\n\n## Unreleased\n\n- News.\n", file.read_text()))
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "before")
    return tmp_path


def changed(tree):
    shown = subprocess.run(["git", "diff", "--name-only"], cwd=tree, capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


def next_minor(package):
    major, minor, _ = map(int, pyproject(package)["project"]["version"].split("."))
    return f"{major}.{minor + 1}.0", f"{major}.{minor + 2}"


@pytest.mark.parametrize("package", sorted(MEMBERS))
def test_a_minor_release_bumps_the_version_and_moves_the_ranges_of_the_siblings(tree, package):
    done = run(tree, package, "minor")
    assert done.returncode == 0, done.stderr
    version, cap = next_minor(package)
    assert f'\nversion = "{version}"\n' in (tree / "packages" / package / "pyproject.toml").read_text()
    assert f"\n## {version}\n\n- News.\n" in (tree / "packages" / package / "CHANGELOG.md").read_text()
    for name, directory in DISTRIBUTIONS.items():
        text = (tree / directory.relative_to(ROOT) / "pyproject.toml").read_text()
        found = set(re.findall(rf'"{package}(?:\[[^\]]*\])?(>=[^"]*)"', text))
        assert found <= {f">={version}" if name == "etp-suite" else f">={version},<{cap}"}, name
        assert f"{directory.relative_to(ROOT) / 'pyproject.toml'}" in done.stdout or not found


def test_a_patch_release_changes_nothing_but_the_package(tree):
    assert run(tree, "etp-core", "patch").returncode == 0
    assert changed(tree) == {"packages/etp-core/pyproject.toml", "packages/etp-core/CHANGELOG.md"}


def test_a_release_of_the_meta_package_is_what_is_cited(tree):
    assert run(tree, "etp-suite", "minor").returncode == 0
    assert changed(tree) == {"pyproject.toml", "CHANGELOG.md", "CITATION.cff"}
    assert f"\nversion: {next_minor('etp-suite')[0]}\n" in (tree / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "release: give a package and a part, for example 'etp-core minor'; got []."),
        (("etp-cor", "minor"), "release: there is no package 'etp-cor'; there are etp-algorithms, etp-core, "),
        (("etp-core", "mayor"), "release: the part is minor or patch, got 'mayor'."),
    ],
)
def test_a_wrong_name_or_part_is_refused_in_one_line(tree, arguments, message):
    done = run(tree, *arguments)
    assert (done.returncode, done.stdout, changed(tree)) == (1, "", set())
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)


def test_a_tree_with_changes_is_refused_in_one_line(tree):
    (tree / "note.txt").write_text("")
    done = run(tree, "etp-core", "minor")
    assert done.returncode == 1
    assert done.stderr == "release: the working tree has changes (note.txt); commit them first.\n"


def test_a_changelog_without_news_is_refused_in_one_line(tree):
    file = tree / "packages" / "etp-core" / "CHANGELOG.md"
    file.write_text(file.read_text().replace("- News.\n", ""))
    git(tree, "commit", "--all", "--message", "no news")
    done = run(tree, "etp-core", "patch")
    assert (done.returncode, changed(tree)) == (1, set())
    assert done.stderr.startswith("release: the CHANGELOG of etp-core says nothing under '## Unreleased' or '## ")
