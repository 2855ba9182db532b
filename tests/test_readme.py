"""The README keeps its promises."""

import doctest
import re
import subprocess
import sys

import pytest

from .layout import DISTRIBUTIONS, ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = {
    name: path.read_text()
    for name, directory in DISTRIBUTIONS.items()
    if "```python" in (path := directory / "README.md").read_text()
}


def fenced(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("distribution", EXAMPLES)
def test_the_example_prints_the_output_shown(distribution, tmp_path):
    (program,) = fenced("python", EXAMPLES[distribution])
    (shown,) = fenced("text", EXAMPLES[distribution])
    finished = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert doctest.OutputChecker().check_output(shown, finished.stdout, doctest.ELLIPSIS), finished.stdout


def test_there_are_two_commands_and_ci_runs_the_second():
    (commands,) = fenced("bash")
    main, test = [line for line in commands.splitlines() if line and not line.startswith("#")]
    script = re.search(r"\S+\.py", main)
    assert script
    assert (ROOT / script[0]).exists()
    ci = (ROOT / ".ci/run").read_text()
    assert all(step in ci for step in test.split(" && "))


def test_the_root_shows_an_example():
    assert "etp-suite" in EXAMPLES


def test_every_distribution_and_every_picture_is_there():
    assert all(name in README for name in DISTRIBUTIONS)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).exists() for picture in pictures)
