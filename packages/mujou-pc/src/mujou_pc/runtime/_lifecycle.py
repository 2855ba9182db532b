"""The nodes of a run from start to end: hooks are called here, and a hook that raises ends the run."""

import threading
import time
from collections.abc import Callable
from typing import Any

from mujou_pc.runtime._errors import NetworkError
from mujou_pc.runtime._network import Part, channels, open_ports, walk
from mujou_pc.runtime._port import AnyPort, Channel, Port
from mujou_pc.runtime._schedule import Cell, begin_update
from mujou_pc.runtime._timer import Timer, nanoseconds

__all__ = ["Lifecycle"]


class Lifecycle:
    """The nodes and channels of one run, and how far they are. ``on_failure`` is called when a hook raised.

    Args:
        root: the network to run; its open ports are joined to the host.
        timer: the timer of the run.
    """

    on_failure: Callable[[], None]

    def __init__(self, root: Part, timer: Timer) -> None:
        self.timer = timer
        self.cells: list[Cell] = [
            Cell(i, path or "node", node, nanoseconds(node.period)) for i, (path, node) in enumerate(walk(root))
        ]
        for cell in self.cells:
            if cell.node._timer is not None:
                raise RuntimeError(f"node {cell.path!r} is in another run: stop that one first")
        self.open_ports: dict[str, AnyPort] = dict(open_ports(root))
        self.host_ports: dict[int, tuple[Port[Any, Any], Channel]] = {
            id(port): _join_host(name, port) for name, port in self.open_ports.items()
        }
        self.channels: dict[str, Channel] = dict(channels(root)) | {
            channel.name: channel for _, channel in self.host_ports.values()
        }
        self.failure: NetworkError | None = None
        self.failure_told = False
        self.on_failure = lambda: None
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)  # the host has left a hook

    def attach(self) -> None:
        """Give the nodes their timer, and the channels their first messages."""
        now = self.timer.now().ns
        for cell in self.cells:
            cell.node._timer = self.timer
            cell.last_ns, cell.due_ns = now, now + cell.period_ns
            for port in cell.node.ports().values():
                port._now = self.timer.now
        for host, _ in self.host_ports.values():
            host._now = self.timer.now
        for channel in self.channels.values():
            channel.clear()

    def detach(self) -> None:
        """Let the nodes go, so that another run can have them."""
        for cell in self.cells:
            cell.node._timer = None
            for port in cell.node.ports().values():
                port._now = None
        for _, channel in self.host_ports.values():
            channel.detach()

    def start(self) -> None:
        """Call ``on_start`` of every node; a failure ends the run."""
        for cell in self.cells:
            if not self.call(cell, "on_start"):
                return

    def update(self, cell: Cell, now_ns: int) -> None:
        """One update of one node; a failure ends the run."""
        began = time.perf_counter()
        self.call(cell, "on_update", begin_update(cell, now_ns))
        cell.update_seconds += time.perf_counter() - began

    def call(self, cell: Cell, hook: str, *args: Any) -> bool:
        """Call one hook; whether it returned. An exception becomes the failure of the run."""
        cell.hook, cell.thread = hook, threading.get_ident()
        try:
            getattr(cell.node, hook)(*args)
        except BaseException as cause:
            self._failed(cell, hook, cause)
            return False
        finally:
            cell.hook, cell.thread = None, 0
        return True

    def call_from_host(self, cell: Cell, hook: str) -> bool:
        """The same, for a hook that the host calls while the run may end: none follows a node's last one."""
        with self._lock:
            if cell.ended:
                return True
            cell.visited = True
        try:
            return self.call(cell, hook)
        finally:
            with self._lock:
                cell.visited = False
                self._left.notify_all()

    def end(self, cells: list[Cell]) -> None:
        """Call ``on_stop`` of those nodes that have not ended yet."""
        for cell in cells:
            if self._claim_end(cell):
                self.call(cell, "on_stop")

    def hooks(self) -> dict[str, str]:
        """The nodes that are in a hook, and which."""
        return {cell.path: hook for cell in self.cells if (hook := cell.hook) is not None}

    def in_hook(self) -> bool:
        """Whether the calling thread is inside a hook of this run."""
        return any(cell.thread == threading.get_ident() for cell in self.cells)

    def refuse_in_hook(self, what: str) -> None:
        """Refuse a call that would wait for the very hook it is made from."""
        if self.in_hook():
            raise RuntimeError(f"{what} from inside a hook would wait for that hook: call it from the host")

    def _claim_end(self, cell: Cell) -> bool:
        """Whether the caller is the one to call the node's last hook; a hook that the host is in is waited for."""
        with self._lock:
            claimed = not cell.ended
            cell.ended = True
            while claimed and cell.visited and cell.thread != threading.get_ident():
                self._left.wait()
        return claimed

    def _failed(self, cell: Cell, hook: str, cause: BaseException) -> None:
        error = NetworkError(cell.path, hook, cause)
        with self._lock:
            first = self.failure is None
            if first:
                self.failure = error
        if not first and self.failure is not None:
            self.failure.add_note(f"then node {cell.path!r} raised {cause!r} in {hook}")
        self.on_failure()
        if hook not in ("on_stop", "on_exception"):
            self._claim_end(cell)
            self.call(cell, "on_exception", cause)


def _join_host(name: str, port: AnyPort) -> tuple[Port[Any, Any], Channel]:
    host: Port[Any, Any] = Port(receives=port.sends, sends=port.receives)
    host.name = f"host.{name}"
    channel = Channel(host, port)
    return host, channel
