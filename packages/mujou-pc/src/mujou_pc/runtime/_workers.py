"""Worker threads: each takes the node that is due first, again and again."""

import atexit
import math
import os
import threading
import time
from collections.abc import Callable

import torch

from mujou_pc.runtime._errors import StuckError
from mujou_pc.runtime._lifecycle import Lifecycle
from mujou_pc.runtime._schedule import Cell, Schedule

__all__ = ["Workers"]

EXIT_PATIENCE_S = 2.0


class Workers:
    """An engine of threads.

    One idle worker, the leader, sleeps until the first node is due; the others sleep until it has gone to work. So
    a due node wakes one thread, whatever their number.

    Args:
        lives: the nodes.
        count: number of threads.
        threads: torch's intra-op threads in each.
    """

    def __init__(self, lives: Lifecycle, *, count: int, threads: int) -> None:
        self._lives = lives
        self._threads = threads
        self._count = self._alive = count
        self._schedule = Schedule()
        self._lock = threading.Lock()
        self._leader = threading.Condition(self._lock)
        self._followers = threading.Condition(self._lock)
        self._watchers = threading.Condition(self._lock)  # hosts that wait for a condition
        self._sleepers = threading.Condition(self._lock)  # hosts that wait for a moment
        self._leading = self._stopping = False
        self._active = self._held = self._watching = self._changes = 0
        self._ended = threading.Event()
        self._process = os.getpid()

    # Threads do not survive a fork, and a lock may be held for ever in the child: for it the run has ended.
    @property
    def ended(self) -> bool:
        return self._ended.is_set() or self._forked()

    def start(self) -> None:
        self._lives.timer.listen(self._timer_changed)
        self._lives.on_failure = self._request_stop
        self._lives.start()
        if self._lives.failure is not None:
            self._finish()
            return
        self.reschedule()
        atexit.register(self._at_exit)
        self._start_threads()

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._changes
            if condition():
                return True
            left = deadline - time.monotonic()
            if left <= 0 or self._over():
                return False
            with self._lock:
                self._watching += 1
                if self._changes == seen:
                    self._watchers.wait(None if left == math.inf else left)
                self._watching -= 1

    def sleep(self, until_ns: int) -> None:
        timer = self._lives.timer
        if self._forked():
            return
        with self._lock:
            while timer.now().ns < until_ns and not self._over():
                self._sleepers.wait(timer.wall_seconds_until(until_ns))

    def hold(self) -> None:
        if self._forked():
            return
        with self._lock:
            self._held += 1
            self._watching += 1
            while self._active and not self._stopping:
                self._watchers.wait()
            self._watching -= 1

    def release(self) -> None:
        if self._forked():
            return
        with self._lock:
            self._held -= 1
            self._leader.notify()
            self._followers.notify()

    def reschedule(self) -> None:
        with self._lock:
            self._schedule.clear()
            for cell in self._lives.cells:
                self._schedule.add(cell)

    def notify(self) -> None:
        with self._lock:
            self._wake_watchers()

    def stop(self, timeout: float) -> None:
        if self._forked():
            if not self._stopping:
                self._stopping = True
                self._lives.detach()
            return
        self._request_stop()
        if self._lives.in_hook() or self._ended.wait(timeout):
            return
        stuck = self._lives.hooks()
        if not stuck and self._ended.wait(timeout):
            return
        self._lives.end([cell for cell in self._lives.cells if cell.path not in stuck])
        raise StuckError(stuck, timeout)

    # The workers.

    def _start_threads(self) -> None:
        host_threads = torch.get_num_threads()
        ready = threading.Barrier(self._count + 1)
        for i in range(self._count):
            thread = threading.Thread(target=self._work, args=(ready,), name=f"mujou-{i}", daemon=True)
            thread.start()
        ready.wait()
        torch.set_num_threads(host_threads)

    def _work(self, ready: threading.Barrier) -> None:
        _set_intra_op_threads(self._threads)
        ready.wait()
        cell = None
        while (cell := self._next(cell)) is not None:
            self._lives.update(cell, self._lives.timer.now().ns)
        with self._lock:
            self._alive -= 1
            last = self._alive == 0
        if last:
            self._finish()

    def _next(self, done: Cell | None) -> Cell | None:
        """Give back the node that was updated, and take the next that is due; None when the run ends."""
        with self._lock:
            if done is not None:
                self._active -= 1
                self._schedule.add(done)
                self._wake_watchers()
            while not self._stopping:
                cell, rest = self._look()
                if self._leading and done is not None and self._schedule.first_due() == done.due_ns:
                    self._leader.notify()  # it sleeps for another node than the one now first
                if cell is not None:
                    return cell
                done = None
                self._rest(rest)
        return None

    def _look(self) -> tuple[Cell | None, float | None]:
        """The node to update now, or how long there is none."""
        due = self._schedule.first_due()
        if self._held or due is None:
            return None, None
        if due > self._lives.timer.now().ns:
            return None, self._lives.timer.wall_seconds_until(due)
        cell = self._schedule.take()
        cell.hook = "on_update"
        self._active += 1
        if not self._leading:
            self._followers.notify()
        return cell, None

    def _rest(self, seconds: float | None) -> None:
        if self._leading:
            self._followers.wait()
            return
        self._leading = True
        self._leader.wait(seconds)
        self._leading = False

    # The end.

    def _request_stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._leader.notify_all()
            self._followers.notify_all()
            self._wake_hosts()

    def _finish(self) -> None:
        self._lives.end(self._lives.cells)
        self._lives.timer.listen(None)
        self._lives.detach()
        atexit.unregister(self._at_exit)
        self._ended.set()
        with self._lock:
            self._wake_hosts()

    def _at_exit(self) -> None:
        """A forgotten stop: end the nodes, and let no stuck one keep the interpreter."""
        if not self._forked():
            self._request_stop()
            self._ended.wait(EXIT_PATIENCE_S)

    # Waking.

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _over(self) -> bool:
        return self.ended or self._lives.failure is not None

    def _wake_watchers(self) -> None:
        self._changes += 1
        if self._watching:
            self._watchers.notify_all()

    def _wake_hosts(self) -> None:
        self._wake_watchers()
        self._sleepers.notify_all()

    def _timer_changed(self) -> None:
        with self._lock:
            self._leader.notify()
            self._wake_hosts()


# torch keeps the number of intra-op threads per thread, but takes it from a number common to all when a thread first
# asks. So the worker asks at once; afterwards the host puts the common number back to its own.
def _set_intra_op_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.get_num_threads()
