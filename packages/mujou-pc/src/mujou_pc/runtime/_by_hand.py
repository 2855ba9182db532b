"""Stepping by hand: nodes update in the thread of the host, on a virtual timer, always in the same order."""

import threading
from collections.abc import Callable, Iterable

from mujou_pc.runtime._lifecycle import Lifecycle
from mujou_pc.runtime._schedule import Cell, Schedule
from mujou_pc.runtime._timer import VirtualTimer, nanoseconds

__all__ = ["ByHand"]


class ByHand:
    """An engine without threads: whoever waits makes the updates that are due meanwhile.

    Args:
        lives: the nodes.
        timer: their timer.
    """

    def __init__(self, lives: Lifecycle, timer: VirtualTimer) -> None:
        self._lives = lives
        self._timer = timer
        self._schedule: Schedule | None = None
        self._held = 0
        self._stopping = False
        self._turn = threading.RLock()  # one thread of the host at a time; a hook is in its thread's turn
        self.ended: bool = False

    def start(self) -> None:
        self._lives.on_failure = self._request_stop
        self._lives.start()
        self._finish_if_stopping()

    def step(self, cells: Iterable[Cell], dt: float) -> None:
        """Move the timer by ``dt`` seconds and update these nodes, in this order."""
        with self._turn:
            self._refuse_if_held()
            self._timer.advance(dt)
            self._schedule = None
            for cell in cells:
                self._update(cell)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        limit_ns = None if timeout is None else self._timer.now().ns + nanoseconds(timeout)
        while not condition():
            if self.ended or not self._update_next(limit_ns):
                return False
        return True

    def sleep(self, until_ns: int) -> None:
        while not self.ended and self._update_next(until_ns):
            pass

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1

    def reschedule(self) -> None:
        self._schedule = None

    def notify(self) -> None:
        pass

    def stop(self, timeout: float) -> None:
        self._request_stop()
        if not self._lives.in_hook():
            with self._turn:
                self._finish_if_stopping()

    def _update_next(self, limit_ns: int | None) -> bool:
        """Make the next update that is due until the limit; when there is none, go to the limit."""
        with self._turn:
            self._refuse_if_held()
            schedule = self._schedule = self._schedule or self._waiting()
            due = schedule.first_due()
            if due is None or (limit_ns is not None and due > limit_ns):
                self._timer.advance_to(limit_ns or 0)
                return False
            cell = schedule.take()
            self._timer.advance_to(due)
            self._update(cell)
            schedule.add(cell)
            return True

    def _update(self, cell: Cell) -> None:
        if not self.ended:
            self._lives.update(cell, self._timer.now().ns)
            if self._stopping:
                self._finish_if_stopping()

    def _waiting(self) -> Schedule:
        schedule = Schedule()
        for cell in self._lives.cells:
            schedule.add(cell)
        return schedule

    def _refuse_if_held(self) -> None:
        if self._held:
            raise RuntimeError("the run is paused, so no node updates: call resume() first")

    def _request_stop(self) -> None:
        self._stopping = True

    def _finish_if_stopping(self) -> None:
        if self._stopping and not self.ended:
            self._lives.end(self._lives.cells)
            self.ended = True
            self._lives.detach()
