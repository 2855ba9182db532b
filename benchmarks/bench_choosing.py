"""``choosing.py`` works: its smallest run, which covers every task and every kind of row."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # its neighbours are scripts, which import one another by name
import choosing
import choosing_tasks

import etp


def test_the_smallest_run_measures_every_task(tmp_path, capsys):
    file = tmp_path / "found.json"
    choosing.main(["--smoke", "--out", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert {row["task"] for row in rows} == set(choosing_tasks.TASKS)
    assert all(len(row["accuracies"]) == 1 and row["seconds_per_step"]["sequence"] > 0 for row in rows)
    assert [row["trace_bytes"] > 0 for row in rows] == [row["algorithm"] != "bptt" for row in rows]
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


def test_every_algorithm_has_a_row():
    assert {name for name, _ in choosing.ROWS.values()} == {None, *etp.ALGORITHMS}
