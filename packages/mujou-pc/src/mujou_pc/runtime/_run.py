"""A run: a network at work, and the handle by which the host talks to it."""

import math
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from mujou_pc.runtime._engine import Engine
from mujou_pc.runtime._errors import NetworkError, StuckError
from mujou_pc.runtime._lifecycle import Lifecycle
from mujou_pc.runtime._network import Part
from mujou_pc.runtime._node import Node
from mujou_pc.runtime._port import AnyPort, Channel, Message, Slot
from mujou_pc.runtime._schedule import NodeStats, stats_of
from mujou_pc.runtime._spec import freeze
from mujou_pc.runtime._stateful import State, check_same_keys, clone_state
from mujou_pc.runtime._subscription import Subscription
from mujou_pc.runtime._timer import RealTimer, Timer, Timestamp, nanoseconds
from mujou_pc.runtime._workers import Workers

__all__ = ["Run", "run"]

STOP_PATIENCE_S = 5.0


def run(root: Part, *, workers: int | None = None, timer: Timer | None = None) -> "Run":
    """Start a network in background threads.

    Args:
        root: a node, network or group. Its open ports are the host's to write and read.
        workers: number of threads; by default one for each node, at most one for each core. Each has its share of the
            cores as torch's intra-op threads.
        timer: the timer of the run; a ``RealTimer`` by default.

    Returns:
        The handle of the run; as a context manager it stops at the end of the block.

    Raises:
        NetworkError: an ``on_start`` raised.
        RuntimeError: a node is in another run.
        ValueError: ``workers`` is below 1.

    Example:
        >>> with run(Node(period=0.01)) as handle:
        ...     handle.sleep(0.05)
        ...     list(handle.nodes)
        ['node']
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, but got {workers}; leave it out for one per node and core")
    lives = Lifecycle(root, timer or RealTimer())
    cores = _cores()
    count = workers or min(cores, len(lives.cells))
    return Run(lives, Workers(lives, count=count, threads=max(1, cores // count)))


class Run:
    """The handle of a run. Made by ``run`` and ``mujou_pc.testing.run``.

    Every method may be called from any thread of the host. Once a node has failed, a call that waits raises
    ``NetworkError``.

    Args:
        lives: the nodes.
        engine: what makes them update.
    """

    def __init__(self, lives: Lifecycle, engine: Engine) -> None:
        self._lives = lives
        self._engine = engine
        self._write_lock = threading.Lock()
        self._pause_lock = threading.RLock()
        self._last_write_ns = 0
        self._paused = False
        weakref.finalize(self, _tell_failure, lives)
        lives.attach()
        engine.start()
        self._raise_failure()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.stop()
        except Exception:
            if kind is None:  # else the block's own exception goes on
                raise

    def __reduce__(self) -> NoReturn:
        raise TypeError("a run cannot be copied or pickled: save(run, path) and load(run, path) keep its state")

    @property
    def timer(self) -> Timer:
        """The timer of this run."""
        return self._lives.timer

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by path."""
        return {cell.path: cell.node for cell in self._lives.cells}

    @property
    def ports(self) -> dict[str, AnyPort]:
        """The open ports of the root by name: those the host can write and read."""
        return self._lives.open_ports

    def write(self, port: AnyPort, value: Any) -> Timestamp:
        """Write ``value`` to an open port of the root, in place of what was written before.

        Returns:
            The moment of the write. No two writes have the same.

        Raises:
            SpecError: ``value`` does not fit the port; for another batch size it names both shapes.
            NetworkError: a node failed.
        """
        self._raise_failure()
        slot = self._slot(port, "receives", lambda channel: channel.forward)
        if self._engine.ended:
            raise RuntimeError("the run has ended: start another with run(root)")
        frozen = freeze(slot.spec, value, port.name)
        with self._write_lock:
            self._last_write_ns = max(self.timer.now().ns, self._last_write_ns + 1)
            message = Message(frozen, Timestamp(self._last_write_ns))
            slot.put(message)
        return message.time

    def read(self, port: AnyPort, timeout: float | None = None) -> Any:
        """The latest value an open port of the root has sent, waiting for the first if there is none yet.

        Args:
            port: the port.
            timeout: seconds to wait, of the wall clock, or of the virtual timer in a run stepped by hand; None: no
                limit.

        Raises:
            TimeoutError: nothing came.
            NetworkError: a node failed.
        """
        slot = self._slot(port, "sends", lambda channel: channel.back)
        if not self._wait(lambda: slot.message.time.ns > 0, timeout):
            raise TimeoutError(f"{port.name} has sent nothing within {timeout} s, or the run ended before it did")
        return slot.message.value

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Block until ``condition()`` is true. It is looked at after updates, and in the thread of the caller.

        Args:
            condition: a function without arguments.
            timeout: seconds, as in ``read``.

        Raises:
            TimeoutError: it was not true within ``timeout``, or when the run ended.
            NetworkError: a node failed.
        """
        if not self._wait(condition, timeout):
            raise TimeoutError(f"the condition did not hold within {timeout} s, or before the run ended")

    def sleep(self, seconds: float) -> None:
        """Let the run go on for ``seconds`` of its timer.

        Raises:
            NetworkError: a node failed.
            RuntimeError: a run stepped by hand is paused.
            ValueError: ``seconds`` is negative or not finite.
        """
        self._lives.refuse_in_hook("sleep()")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"sleep() takes finite seconds, at least 0, but got {seconds}")
        self._engine.sleep(self.timer.now().ns + nanoseconds(seconds))
        self._raise_failure()

    def subscribe(self, port: AnyPort, *, maxlen: int | None = 1024) -> Subscription:
        """Receive every message that an open port of the root sends from now on.

        Args:
            port: the port.
            maxlen: messages kept for the host; beyond it the oldest are dropped. None: no limit.
        """
        slot = self._slot(port, "sends", lambda channel: channel.back)

        def receive(message: Message) -> None:
            subscription.put(message.value)
            self._engine.notify()

        def close(_: Subscription) -> None:
            slot.listeners = tuple(other for other in slot.listeners if other is not receive)

        subscription = Subscription(maxlen=maxlen, wait=self._wait, close=close)
        slot.listeners += (receive,)
        return subscription

    def pause(self) -> None:
        """Let the updates in progress finish, stop the timer, and call every ``on_pause``. Twice is once.

        Raises:
            NetworkError: an ``on_pause`` raised.
            RuntimeError: called from inside a hook.
        """
        self._lives.refuse_in_hook("pause()")
        with self._pause_lock:
            if self._paused or self._engine.ended:
                return
            self._paused = True
            self._engine.hold()
            self.timer.pause()
            self._call_all("on_pause")

    def resume(self) -> None:
        """Call every ``on_resume`` and go on from the moment of the pause.

        Raises:
            NetworkError: an ``on_resume`` raised.
            RuntimeError: called from inside a hook.
        """
        self._lives.refuse_in_hook("resume()")
        with self._pause_lock:
            if not self._paused or self._engine.ended:
                return
            self._paused = False
            self._call_all("on_resume")
            self.timer.resume()
            self._engine.release()

    def stop(self, timeout: float = STOP_PATIENCE_S) -> None:
        """End the run: let the updates in progress finish and call every ``on_stop``. Twice is once.

        From inside a hook it returns at once, and the run ends after that hook.

        Args:
            timeout: wall-clock seconds to wait for hooks that have not returned.

        Raises:
            StuckError: some had not, and are named.
            NetworkError: a node failed and no call has said so yet.
        """
        self._engine.stop(timeout)
        if not self._lives.failure_told and not self._lives.in_hook():
            self._raise_failure()

    def stats(self) -> dict[str, NodeStats]:
        """For each node, by path, how often it updated, how long that took, and how late it was."""
        return {cell.path: stats_of(cell) for cell in self._lives.cells}

    def state_dict(self) -> State:
        """A copy of everything the run goes on from: nodes, messages under way, due times and the time.

        All of one moment: no node updates meanwhile, and the timer stands still.
        """
        with self._quiet("state_dict()"):
            return clone_state(self._live_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: nodes, messages and due times, and the timer at the saved time.

        Raises:
            ValueError: ``state`` is of another network; names the differing keys. Nothing was changed.
        """
        with self._quiet("load_state_dict()"):
            check_same_keys(self._live_state(), state, "this network")
            for cell in self._lives.cells:
                cell.node.load_state_dict(state["nodes"][cell.path])
                due = state["schedule"][cell.path]
                cell.last_ns, cell.due_ns = due["last_ns"], due["due_ns"]
            for name, channel in self._lives.channels.items():
                for direction, slot in channel.slots().items():
                    saved = state["messages"][name][direction]
                    slot.message = Message(slot.spec.cast(saved["value"]), saved["time"])
            self._last_write_ns = state["last_write_ns"]
            self.timer.set(state["time"])
            self._engine.reschedule()

    def _live_state(self) -> State:
        return {
            "time": self.timer.now(),
            "last_write_ns": self._last_write_ns,
            "nodes": {cell.path: cell.node.state_dict() for cell in self._lives.cells},
            "schedule": {cell.path: {"last_ns": cell.last_ns, "due_ns": cell.due_ns} for cell in self._lives.cells},
            "messages": {
                name: {side: slot.message._asdict() for side, slot in channel.slots().items()}
                for name, channel in self._lives.channels.items()
            },
        }

    @contextmanager
    def _quiet(self, what: str) -> Generator[None]:
        self._lives.refuse_in_hook(what)
        with self._pause_lock:
            self._engine.hold()
            self.timer.pause()
            try:
                self._raise_failure()
                yield
            finally:
                if not self._paused:
                    self.timer.resume()
                self._engine.release()

    def _call_all(self, hook: str) -> None:
        for cell in self._lives.cells:
            if not self._lives.call_from_host(cell, hook):
                with suppress(StuckError):
                    self._engine.stop(STOP_PATIENCE_S)
                self._raise_failure()

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        self._lives.refuse_in_hook("waiting")
        held = self._engine.wait(condition, timeout)
        self._raise_failure()
        return held

    def _raise_failure(self) -> None:
        failure = self._lives.failure
        if failure is None:
            return
        self._lives.failure_told = True
        if isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        error = NetworkError(failure.node, failure.hook, failure.__cause__ or failure)
        for note in getattr(failure, "__notes__", ()):
            error.add_note(note)
        raise error from failure.__cause__

    def _slot(self, port: AnyPort, does: str, side: Callable[[Channel], Slot | None]) -> Slot:
        joined = self._lives.host_ports.get(id(port))
        slot = None if joined is None else side(joined[1])
        if slot is None:
            open_ones = [channel.ends[1] for _, channel in self._lives.host_ports.values()]
            names = [other.name for other in open_ones if getattr(other, does) is not None]
            raise ValueError(f"{port.name} is not an open port of this run that {does}; those are {names}")
        return slot


def _tell_failure(lives: Lifecycle) -> None:
    """When the handle is gone, or at exit: a failure that no call has told must not be lost."""
    if lives.failure is not None and not lives.failure_told:
        traceback.print_exception(lives.failure)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
