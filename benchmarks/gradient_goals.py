"""The goals that the comparison is judged by, as data."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["GOALS", "Goal", "median_of", "verdicts"]

PEER_STREAMS = ("D_RTRL stream", "D_RTRL rules stream", "D_RTRL vmap stream")
PEER_SEQUENCES = ("D_RTRL", "D_RTRL rules", "D_RTRL vmap")


class Goal(NamedTuple):
    """``theirs`` takes at least ``at_least`` times as long as ``ours``, the fastest of each, in each cell of ``where``.

    Without ``at_least`` the worst cell is reported and nothing is asked of it.
    """

    text: str
    where: Callable[[dict], bool]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    at_least: float | None
    other: str = "braintrace"


def large(cell):
    """The sizes that most goals are for."""
    return cell["width"] >= 256 and cell["batch"] >= 16


def single(cell):
    """One sample at a time."""
    return cell["batch"] == 1


GOALS = (
    Goal("streaming step, peer's default", large, ("D_RTRL exit stream",), ("D_RTRL stream",), 12.0),
    Goal("streaming step, peer's best mode", large, ("D_RTRL exit stream",), PEER_STREAMS, 4.0),
    Goal("streaming step, entry, peer's default", large, ("D_RTRL stream",), ("D_RTRL stream",), None),
    Goal("known sequence, D_RTRL, peer's best mode", large, ("D_RTRL",), PEER_SEQUENCES, 1.0),
    Goal("known sequence, pp_prop exit", large, ("pp_prop exit",), ("pp_prop",), 1.0),
    Goal("B = 1: streaming step, peer's best mode", single, ("D_RTRL exit stream",), PEER_STREAMS, 1.0),
    Goal("B = 1: known sequence, D_RTRL, peer's best mode", single, ("D_RTRL",), PEER_SEQUENCES, 1.0),
    Goal("B = 1: known sequence, pp_prop exit", single, ("pp_prop exit",), ("pp_prop",), 1.0),
    Goal("known sequence, D_RTRL, BPTT", large, ("D_RTRL",), ("bptt",), 1 / 1.1, "etp"),
    Goal("known sequence, D_RTRL exit, BPTT", large, ("D_RTRL exit",), ("bptt",), 1 / 0.8, "etp"),
    Goal("known sequence, D_RTRL window 25, BPTT", large, ("D_RTRL window 25",), ("bptt",), 1 / 1.5, "etp"),
    Goal("known sequence, D_RTRL chunked, BPTT", large, ("D_RTRL chunked",), ("bptt",), 1 / 1.5, "etp"),
    Goal("known sequence, pp_prop exit, BPTT", large, ("pp_prop exit",), ("bptt",), 1 / 0.7, "etp"),
)


class Verdict(NamedTuple):
    """The worst ratio of one family, where it was, and whether the goal is met; None where nothing was asked."""

    ratio: float
    cell: dict
    met: bool | None
    cells: int


def verdicts(cells, families):
    """For every goal a verdict per family; None where no cell was measured."""
    return [(goal, [_verdict(goal, [c for c in cells if c["family"] == f]) for f in families]) for goal in GOALS]


def _verdict(goal, cells):
    ratios = []
    for cell in filter(goal.where, cells):
        ours = [t for case in goal.ours if (t := median_of(cell, "etp", case)) is not None]
        theirs = [t for case in goal.theirs if (t := median_of(cell, goal.other, case)) is not None]
        if ours and theirs:
            ratios.append((min(theirs) / min(ours), cell))
    if not ratios:
        return None
    ratio, cell = min(ratios, key=lambda found: found[0])
    return Verdict(ratio, cell, None if goal.at_least is None else ratio >= goal.at_least, len(ratios))


def median_of(cell, library, case):
    """Seconds per step, the median; None if it was not measured."""
    for record in cell["records"]:
        if (record["library"], record["case"]) == (library, case) and record["seen"]:
            return statistics.median(record["seen"])
    return None
