"""When each node is due, and how late it was."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from mujou_pc.runtime._node import Node

__all__ = ["Cell", "NodeStats", "Schedule", "stats_of"]

LATENESS_KEPT = 4096


@dataclass(slots=True)
class Cell:
    """A node in a run, and what the run knows of it."""

    index: int
    path: str
    node: Node
    period_ns: int
    last_ns: int = 0
    due_ns: int = 0
    hook: str | None = None  # the hook it is in
    thread: int = 0  # the thread that is in the hook
    ended: bool = False  # on_stop or on_exception was called
    visited: bool = False  # the host is in one of its hooks
    updates: int = 0
    update_seconds: float = 0.0
    skipped: int = 0
    lateness: deque[int] = field(default_factory=lambda: deque(maxlen=LATENESS_KEPT))


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one node did since the run started.

    Args:
        updates: number of updates.
        update_seconds: wall-clock seconds spent in them.
        lateness_p50: median seconds from when an update was due to when it began, of the last 4096.
        lateness_p99: their 99th percentile.
        skipped: updates left out because the node was more than a period late.
    """

    updates: int
    update_seconds: float
    lateness_p50: float
    lateness_p99: float
    skipped: int


class Schedule:
    """The nodes that wait for their next update, the one due first on top; ties by the order in the network."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Cell]] = []

    def add(self, cell: Cell) -> None:
        """Put a node back to wait until ``cell.due_ns``."""
        heapq.heappush(self._heap, (cell.due_ns, cell.index, cell))

    def first_due(self) -> int | None:
        """When the first node is due, in nanoseconds; None when none waits."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> Cell:
        """Take the node that is due first."""
        return heapq.heappop(self._heap)[2]

    def clear(self) -> None:
        """Take every node."""
        self._heap.clear()


def begin_update(cell: Cell, now_ns: int) -> float:
    """Count an update that begins now; the seconds since the one before.

    The next one is due a whole number of periods after this one was, and in the future: a node that comes late gets one
    update with a longer dt, never several at once.
    """
    dt = (now_ns - cell.last_ns) / 1e9
    late_ns = max(0, now_ns - cell.due_ns)
    missed = late_ns // cell.period_ns
    if now_ns >= cell.due_ns:
        cell.due_ns += (missed + 1) * cell.period_ns
    cell.last_ns = now_ns
    cell.updates += 1
    cell.skipped += missed
    cell.lateness.append(late_ns)
    return dt


def stats_of(cell: Cell) -> NodeStats:
    """The statistics of one node."""
    late = sorted(cell.lateness.copy()) or [0]
    p50, p99 = (late[min(len(late) - 1, int(share * len(late)))] / 1e9 for share in (0.5, 0.99))
    return NodeStats(cell.updates, cell.update_seconds, p50, p99, cell.skipped)
