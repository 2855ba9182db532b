"""Every script in examples/ runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .layout import ROOT

EXAMPLES = sorted(ROOT.glob("examples/*.py"))
each_example = pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)


def run(script: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@each_example
def test_example_runs_its_smoke_test(script, tmp_path):
    finished = run(script, "--smoke", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()


@each_example
def test_example_refuses_an_unknown_option_and_names_it(script, tmp_path):
    finished = run(script, "--no-such-option", cwd=tmp_path)
    assert finished.returncode == 2
    assert "--no-such-option" in finished.stderr.splitlines()[-1]
    assert "--no-such-option" in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr


@each_example
def test_the_gallery_runs_the_example_and_shows_what_a_full_run_printed(script):
    page = (ROOT / "docs" / "gallery.md").read_text()
    kept = ROOT / "docs" / "_static" / "gallery" / f"{script.stem}.txt"
    assert f'smoke("{script.stem}")' in page
    assert kept.exists() == (f"_static/gallery/{script.stem}.txt" in page), "nox -s gallery -- NAME"
