"""The grid of the gradient benchmark: its order, its judgement, and what it does when a case or a process fails."""

import sys

import pytest

from .layout import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, which import one another by name
import gradient_goals
import gradient_grid
import gradient_tables
from workers import Worker

FAMILIES = gradient_grid.FAMILIES
CELL = {"family": "rnn", "width": 256, "batch": 16, "steps": 100}


class Scripted:
    """A worker that answers from a table: seconds, or words for what is wrong."""

    python = "python"

    def __init__(self, library, answers):
        self.library, self.answers, self.asked = library, answers, []

    def ask(self, *, do, case=None, **request):
        self.asked.append((do, case))
        answer = self.answers.get(case, 1.0)
        if do == "forget" or not isinstance(answer, float):
            return {"error": answer} if do == "build" else {}
        return {"seconds": answer} if do == "run" else {"peak_mb": 1.0, "compile_s": 0.1}


@pytest.fixture(autouse=True)
def _no_imports(monkeypatch):
    monkeypatch.setattr(gradient_grid, "import_times", lambda *_: {"jax": 1.0})


def run(workers, path, cells=(CELL,), minutes=1.0):
    return gradient_grid.run_grid(workers, list(cells), path, minutes=minutes, repeat=3, limit_s=1.0)


def test_the_cells_that_the_goals_name_come_first():
    cells = gradient_grid.ordered_cells()
    assert len(cells) == 4 * 3 * 3 * 2
    assert all(cell["width"] >= 256 and cell["batch"] >= 16 and cell["steps"] == 100 for cell in cells[:16])


def test_a_case_that_fails_says_why_and_the_others_are_measured(tmp_path):
    path = tmp_path / "found.jsonl"
    assert run([Scripted("etp", {}), Scripted("braintrace", {"D_RTRL vmap": "refused"})], path) == 0
    head, (cell,) = gradient_grid.load(path)
    failed = [r for r in cell["records"] if "error" in r]
    assert [(r["case"], r["error"]) for r in failed] == [("D_RTRL vmap", "refused")]
    assert all(len(r["seen"]) == 3 for r in cell["records"] if r not in failed)
    assert "| rnn | 256 | 16 | 100 | peer D_RTRL vmap | refused |" in gradient_tables.page(head, [cell])


def test_what_is_measured_is_not_measured_again(tmp_path):
    worker = Scripted("etp", {})
    run([worker], tmp_path / "found.jsonl")
    asked = len(worker.asked)
    run([worker], tmp_path / "found.jsonl")
    assert len(worker.asked) == asked


def test_no_cell_is_begun_when_the_time_is_over(tmp_path):
    assert run([Scripted("etp", {})], tmp_path / "found.jsonl", minutes=0.0) == 1
    assert gradient_grid.load(tmp_path / "found.jsonl")[1] == []


def test_a_goal_is_judged_by_the_worst_cell_of_each_family_and_by_the_fastest_mode():
    def cell(width, peer, best):
        times = {("etp", "D_RTRL exit stream"): 1.0, ("braintrace", "D_RTRL stream"): peer}
        times["braintrace", "D_RTRL vmap stream"] = best
        records = [{"library": k, "case": c, "seen": [t]} for (k, c), t in times.items()]
        return {**CELL, "width": width, "records": records}

    found = dict(gradient_goals.verdicts([cell(256, 20.0, 5.0), cell(512, 13.0, 3.0)], FAMILIES))
    default, best, *_ = gradient_goals.GOALS
    assert [(v.ratio, v.met, v.cells) for v in (found[default][0], found[best][0])] == [
        (13.0, True, 2),
        (3.0, False, 2),
    ]
    assert found[default][1:] == [None, None, None]


def test_a_process_that_ends_is_an_error_with_its_last_words_and_the_next_request_starts_another():
    worker = Worker("false", "etp")
    for _ in range(2):
        assert worker.ask(do="build", case="bptt").get("error") == "the process ended"
