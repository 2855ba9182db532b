"""Nodes to test the runtime with."""

import itertools
import threading

from mujou_pc.runtime import DictSpec, IntSpec, MultiPort, Network, Node, Port, TensorSpec

PERIOD = 0.01
HOOKS = ["on_start", "on_update", "on_pause", "on_resume", "on_stop"]
COUNT = DictSpec({"count": IntSpec(), "total": IntSpec()})


class Fault(Exception):
    """What a hook raises on purpose."""


class Recorder(Node):
    """Writes down every hook, and sends on what it receives."""

    def __init__(self, *, period=PERIOD, fails_in=()):
        super().__init__(period=period)
        self.prev = Port(receives=IntSpec())
        self.next = MultiPort(sends=IntSpec())
        self.calls = []
        self.dts = []
        self.fails_in = fails_in
        self.inside = 0
        self.overlapped = False

    def _call(self, hook):
        self.calls.append(hook)
        if hook in self.fails_in:
            raise Fault(hook)

    def on_start(self):
        self._call("on_start")

    def on_update(self, dt):
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.dts.append(dt)
        self.next.send(self.prev.read() + 1)
        self._call("on_update")
        self.inside -= 1

    def on_pause(self):
        self._call("on_pause")

    def on_resume(self):
        self._call("on_resume")

    def on_exception(self, exc):
        self.inside = 0
        self._call("on_exception")

    def on_stop(self):
        self._call("on_stop")


class Stuck(Recorder):
    """Does not return from an update until it is let go."""

    def __init__(self, *, hook="on_update"):
        super().__init__()
        self.let_go = threading.Event()
        self.reached = threading.Event()
        self.hook = hook

    def _call(self, hook):
        super()._call(hook)
        if hook == self.hook:
            self.reached.set()
            self.let_go.wait(30)


def row(nodes, **more):
    """Nodes joined one after the other, the first open to writing and the last to reading."""
    names = {f"n{i}": node for i, node in enumerate(nodes)}
    joins = [(a.next, b.prev) for a, b in itertools.pairwise(nodes)]
    return Network(names | more, connect=joins, ports={"prev": nodes[0].prev, "next": nodes[-1].next})


class TensorNode(Node):
    """Holds a tensor as state, and sends it."""

    def __init__(self, *, period=PERIOD):
        super().__init__(period=period)
        self.next = Port(sends=TensorSpec((2,)))
        self.value = self.register_state("value", TensorSpec((2,)).zero())

    def on_update(self, dt):
        self.value += 1
        self.next.send(self.value)
