"""The grid of sizes that two libraries are compared at, and how one cell of it is measured.

A cell is a family, a width n, a batch B and a length T. All cases of a cell are compiled first; then every repetition
goes through all of them, so that whatever else the machine does falls on all alike.
"""

import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path

from gradient_models import FAMILIES
from workers import import_times

__all__ = ["BATCHES", "LENGTHS", "WIDTHS", "load", "measure", "ordered_cells", "run_grid", "size_of"]

WIDTHS, BATCHES, LENGTHS = (64, 256, 512), (1, 16, 64), (100, 1000)
OWN_CASES = (
    "bptt",
    "D_RTRL",
    "D_RTRL exit",
    "D_RTRL window 25",
    "D_RTRL chunked",
    "pp_prop",
    "pp_prop exit",
)
PEER_CASES = ("D_RTRL", "D_RTRL rules", "D_RTRL vmap", "D_RTRL window 25", "pp_prop")
# One step per call costs the same whatever T is, so these are timed at the shortest length.
OWN_STEPS = ("traffic", "D_RTRL stream", "D_RTRL exit stream", "pp_prop exit stream")
PEER_STEPS = ("D_RTRL stream", "D_RTRL rules stream", "D_RTRL vmap stream", "pp_prop stream")
PEER_LONG = ("D_RTRL", "D_RTRL window 25", "pp_prop")  # at the other lengths: the default


def ordered_cells(families=FAMILIES, widths=WIDTHS, batches=BATCHES, lengths=LENGTHS):
    """The cells, short before long; those that the goals name first: n ≥ 256 and B ≥ 16, then B = 1, then the rest."""
    cells = itertools.product(lengths, widths, batches, families)

    def urgency(cell):
        steps, width, batch, family = cell
        rank = 0 if width >= 256 and batch >= 16 else 1 if batch == 1 else 2
        return steps, rank, width, batch, families.index(family)

    return [
        {"family": family, "width": width, "batch": batch, "steps": steps}
        for steps, width, batch, family in sorted(cells, key=urgency)
    ]


def cases_of(library, steps):
    """The cases of one library at one length."""
    own = library == "etp"
    if steps == min(LENGTHS):
        return (*OWN_CASES, *OWN_STEPS) if own else (*PEER_CASES, *PEER_STEPS)
    return OWN_CASES if own else PEER_LONG


def run_grid(workers, cells, path, *, minutes, repeat, limit_s, only=None):
    """Measure the cells that the file lacks, each saved at once, until the time is over; how many are left."""
    began, longest = time.monotonic(), {}
    head, measured = load(path)
    done = set(map(size_of, measured))
    missing = [cell for cell in cells if size_of(cell) not in done]
    if head is None:
        _append(path, {"imports": _imports(workers), "machine": machine()})
    for n, cell in enumerate(missing):
        started = time.monotonic()
        if started - began + longest.get(cell["steps"], 0.0) > 60 * minutes:
            return len(missing) - n
        before = os.getloadavg()[0]
        records = measure(workers, cell, repeat=repeat, limit_s=limit_s, only=only)
        spent = time.monotonic() - started
        longest[cell["steps"]] = max(longest.get(cell["steps"], 0.0), spent)
        at = time.strftime("%Y-%m-%d %H:%M")
        _append(path, {**cell, "at": at, "load": [before, os.getloadavg()[0]], "spent_s": spent, "records": records})
        failed = sum("error" in record for record in records)
        print(f"{cell} {spent:.0f} s, load {before:.1f}, {failed} failed", file=sys.stderr, flush=True)
    return 0


def measure(workers, cell, *, repeat, limit_s, only=None):
    """One record per library and case; a case that fails says why, and the others go on."""
    records = []
    for worker in workers:
        for case in cases_of(worker.library, cell["steps"]):
            if only and case not in only and case != "bptt":
                continue
            answer = worker.ask(do="build", case=case, size=cell, limit_s=limit_s)
            records.append((worker, {"library": worker.library, "case": case, **answer, "seen": []}))
    for _ in range(repeat):
        for worker, record in records:
            if "error" in record or _costs_too_much(record, 2 * limit_s):
                continue
            now = time.monotonic()
            answer = worker.ask(do="run", case=record["case"])
            record["spent_s"] = record.get("spent_s", 0.0) + time.monotonic() - now
            if "error" in answer:
                record["error"] = answer["error"]
            else:
                record["seen"].append(answer["seconds"])
    for worker in workers:
        worker.ask(do="forget")
    return [record for _, record in records]


def _costs_too_much(record, limit_s):
    """Three repetitions are the least, two where a call is slow enough to be scaled."""
    return len(record["seen"]) >= (2 if "scaled" in record else 3) and record["spent_s"] > limit_s


def machine():
    """What the figures depend on."""
    cpu = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {"python": platform.python_version(), "cores": os.cpu_count(), "cpu": cpu[0] if cpu else platform.machine()}


def load(path):
    """What is known about the machine (or None), and the cells measured so far."""
    lines = [json.loads(line) for line in _lines(path) if line.strip()]
    return next((line for line in lines if "imports" in line), None), [line for line in lines if "records" in line]


def size_of(cell):
    """A cell's family, width, batch and length."""
    return cell["family"], cell["width"], cell["batch"], cell["steps"]


def _imports(workers):
    found = {}
    for worker in workers:
        try:
            found[worker.library] = import_times(worker.python, worker.library)
        except Exception as error:  # the environment is broken, which every case will say as well
            found[worker.library] = {"error": str(error)[:200]}
        found[worker.library] |= {"version": worker.ask(do="forget").get("version")}
    return found


def _append(path, line):
    path.parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a") as out:
        out.write(json.dumps(line) + "\n")


def _lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []
