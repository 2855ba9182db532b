"""Stepping a network by hand, on a virtual timer: the same steps give the same run, to the last bit."""

from collections.abc import Iterable

from mujou_pc.runtime._by_hand import ByHand
from mujou_pc.runtime._lifecycle import Lifecycle
from mujou_pc.runtime._network import Part
from mujou_pc.runtime._node import Node
from mujou_pc.runtime._run import Run
from mujou_pc.runtime._schedule import Cell
from mujou_pc.runtime._timer import VirtualTimer

__all__ = ["ManualRun", "run"]


def run(root: Part) -> "ManualRun":
    """Start a network whose nodes update only when told.

    Args:
        root: a node, network or group.

    Raises:
        NetworkError: an ``on_start`` raised.

    Example:
        >>> run(Node(period=0.01)).nodes.keys()
        dict_keys(['node'])
    """
    timer = VirtualTimer()
    lives = Lifecycle(root, timer)
    return ManualRun(lives, ByHand(lives, timer))


class ManualRun(Run):
    """A run without threads.

    ``sleep``, ``wait`` and ``read`` make the updates that are due meanwhile; ``step`` makes those you name.

    Args:
        lives: the nodes.
        engine: what steps them.

    Example:
        >>> manual = run(Node(period=0.01))
        >>> manual.step()
        >>> manual.sleep(0.05)
        >>> manual.stats()["node"].updates
        6
    """

    def __init__(self, lives: Lifecycle, engine: ByHand) -> None:
        super().__init__(lives, engine)
        self._by_hand = engine
        self._cell_of = {id(cell.node): cell for cell in lives.cells}
        self._shortest_period = min(cell.node.period for cell in lives.cells)

    def __enter__(self) -> "ManualRun":
        return self

    def step(self, nodes: Iterable[Node] | None = None, *, dt: float | None = None) -> None:
        """Move the timer on, then update these nodes once each, in the order given.

        Args:
            nodes: which; all, in the order of the network, by default. One may come twice: its second update has a dt
                of 0.
            dt: seconds to move the timer; the shortest period of the network by default.

        Raises:
            NetworkError: a node failed; every other one has stopped.
            RuntimeError: the run is paused.
            ValueError: a node is not of this run, or ``dt`` is negative.
        """
        chosen = self._lives.cells if nodes is None else [self._cell(node) for node in nodes]
        self._by_hand.step(chosen, self._shortest_period if dt is None else dt)
        if self._lives.failure is not None:
            self._raise_failure()

    def _cell(self, node: Node) -> Cell:
        cell = self._cell_of.get(id(node))
        if cell is None:
            raise ValueError(f"{node!r} is not a node of this run; those are {list(self.nodes)}")
        return cell
