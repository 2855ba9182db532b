"""A patch release breaks nothing: the public API beside that of each package's last tag."""

import subprocess

import pytest
from packaging.version import Version

from .compatibility import accepts, breaks_since, broken, last_tag, verdict
from .layout import MEMBERS, pyproject
from .public_api import SIGNATURES, public_signatures


def test_the_signatures_are_what_public_signatures_txt_says():
    written, found = set(SIGNATURES.read_text().splitlines()), set(public_signatures())
    assert found == written, (
        f"new: {sorted(found - written)}; gone: {sorted(written - found)}. "
        "If this is meant: nox -s api, and a line in that package's CHANGELOG."
    )


@pytest.mark.parametrize("package", sorted(MEMBERS))
def test_a_package_breaks_nothing_before_its_next_minor_version(package):
    tag = last_tag(package)
    if tag is None:
        print(f"{package}: no tag yet, nothing to compare with")
        return
    released, current = Version(tag.rpartition("-v")[2]), Version(pyproject(package)["project"]["version"])
    if (released.major, released.minor) == (current.major, current.minor):
        found = breaks_since(tag, package)
        assert not found, verdict(package, tag, found)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("(x, w)", "(x, w, b=)"),
        ("(x, w)", "(x, w, *, option=)"),
        ("(x, *, a=)", "(x, *, b=, a=)"),
        ("(x, w)", "(x, w=)"),
        ("(x, *, a=)", "(x, **options)"),
        ("(*args, a=)", "(*args, a=, b=)"),
    ],
)
def test_a_signature_that_takes_every_old_call_is_compatible(before, now):
    assert accepts(now, before)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("(x, w)", "(w, x)"),
        ("(x, w)", "(x, *, w)"),
        ("(x, w=)", "(x, w)"),
        ("(x)", "(x, w)"),
        ("(x, *, a=)", "(x)"),
        ("(x)", "(value)"),
        ("(x)", "(x, /)"),
    ],
)
def test_a_signature_that_refuses_an_old_call_is_not(before, now):
    assert not accepts(now, before)


def test_a_name_that_is_gone_is_a_break():
    assert list(broken({"a.b": "", "a.c": "(x)"}, {"a.c": "(x)"})) == ["a.b is gone"]


def test_the_verdict_names_what_is_missed_and_two_ways_out():
    assert verdict("etp-core", None, []) == "etp-core: no tag yet, nothing to compare with"
    assert verdict("etp-core", "etp-core-v0.1.0", []) == "etp-core: nothing breaks since etp-core-v0.1.0"
    said = verdict("etp-core", "etp-core-v0.1.0", ["etp_core.f is gone"])
    assert said.startswith("etp-core: a user of etp-core-v0.1.0 would miss\n  etp_core.f is gone\nKeep the old name")
    assert "nox -s release -- etp-core minor" in said


def test_the_last_tag_of_a_package_is_the_newest_of_its_own(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "tests").mkdir()
    git("init")
    for version, line in {"0.2.0": "etp_core.f(x)", "0.10.0": "etp_core.f(x, y)"}.items():
        (tmp_path / "tests" / "public_api.txt").write_text("etp_core.f\n")
        (tmp_path / "tests" / "public_signatures.txt").write_text(f"{line}\n")
        git("add", ".")
        git("commit", "--message", version)
        git("tag", f"etp-core-v{version}")
    git("tag", "etp-ops-v9.0.0")
    assert last_tag("etp-core", repository=tmp_path) == "etp-core-v0.10.0"
    assert last_tag("etp-fastpath", repository=tmp_path) is None
    assert breaks_since("etp-core-v0.10.0", "etp-core", repository=tmp_path) == []
    assert breaks_since("etp-core-v0.2.0", "etp-core", repository=tmp_path) == ["etp_core.f(x) is now etp_core.f(x, y)"]
