"""The gallery's full runs: ``python .ci/gallery.py`` writes what the examples print and draw to docs/_static.

``python .ci/gallery.py pc_conv`` runs one of them. It takes about half an hour on two cores for all.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

COMMANDS: dict[str, list[str]] = {
    "online_digits": ["--compare", "--quiet"],
    "delayed_match": ["--quiet"],
    "motion_stream": [],
    "spoken_vowels": ["--quiet"],
    "pc_digits": ["--virtual"],
    "pc_drift": ["--virtual"],
    "pc_conv": [],
    "pc_merge": [],
}
STATIC = ROOT / "docs" / "_static"


def run(name: str) -> None:
    """Run one example in full; its pictures land in docs/_static, its output in docs/_static/gallery."""
    command = [sys.executable, ROOT / "examples" / f"{name}.py", *COMMANDS[name]]
    done = subprocess.run(
        command, cwd=STATIC, env={**os.environ, "MPLBACKEND": "Agg"}, stdout=subprocess.PIPE, text=True, check=True
    )
    shown = done.stdout.strip().replace(f"{ROOT}/", "")
    (STATIC / "gallery" / f"{name}.txt").write_text(f"{shown}\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or COMMANDS:
        print(name, flush=True)
        run(name)
