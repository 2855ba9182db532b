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
def test_the_gallery_shows_what_a_full_run_printed(script):
    page = (ROOT / "docs" / "gallery.md").read_text()
    kept = f"_static/gallery/{script.stem}.txt"
    assert (ROOT / "docs" / kept).exists(), f"nox -s gallery -- {script.stem}"
    assert f"`{script.stem}.py`" in page
    assert kept in page
