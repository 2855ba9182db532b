"""A node: its hooks, its ports and its state."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mujou_pc.runtime._port import MultiPort, Port
from mujou_pc.runtime._stateful import State, attribute_state, check_same_keys
from mujou_pc.runtime._timer import Timer, nanoseconds

__all__ = ["Node"]


class Node:
    """Something that updates itself every ``period`` seconds and talks to others through its ports.

    Make the ports in ``__init__`` and keep them in attributes. Attributes that are ``Stateful`` or ``torch.nn.Module``,
    and tensors given to ``register_state``, are the state of the node. A hook that raises stops the whole run.

    Args:
        period: seconds between two updates.

    Raises:
        ValueError: ``period`` is not finite and at least a nanosecond.

    Example:
        >>> from mujou_pc import testing
        >>> class Counts(Node):
        ...     count = 0
        ...
        ...     def on_update(self, dt):
        ...         self.count += 1
        >>> node = Counts(period=0.01)
        >>> with testing.run(node) as run:
        ...     run.sleep(0.05)
        >>> node.count
        5
    """

    def __init__(self, *, period: float) -> None:
        if not math.isfinite(period) or nanoseconds(period) < 1:
            raise ValueError(f"period must be finite and at least 1e-9 seconds, but got {period}")
        self.period = period
        self._registered: tuple[str, ...] = ()
        self._timer: Timer | None = None
        self._placed = False

    def on_start(self) -> None:
        """Called once, before the first update of any node."""

    def on_update(self, dt: float) -> None:
        """One update, ``dt`` seconds of the run's timer after the one before (the first: after the start)."""

    def on_pause(self) -> None:
        """Called when the run was paused; no node is in an update."""

    def on_resume(self) -> None:
        """Called when the run is about to go on."""

    def on_exception(self, exc: BaseException) -> None:
        """Called when another hook of this node raised ``exc``, in place of ``on_stop``. The run stops."""

    def on_stop(self) -> None:
        """Called once at the end, also when another node failed (then even if ``on_start`` was never reached)."""

    @property
    def timer(self) -> Timer:
        """The timer of the run this node is in.

        Raises:
            RuntimeError: it is in none.
        """
        if self._timer is None:
            raise RuntimeError(f"{type(self).__name__} is not in a run, so it has no timer: start one with run(root)")
        return self._timer

    def register_state(self, name: str, tensor: Tensor) -> Tensor:
        """Make the tensor in the attribute ``name`` part of the node's state.

        Args:
            name: the attribute, set by this call.
            tensor: its value; write into it in place or rebind the attribute.

        Returns:
            ``tensor``.
        """
        self._registered += (name,)
        setattr(self, name, tensor)
        return tensor

    def state_dict(self) -> State:
        """The state by attribute name. Tensors are the live ones."""
        state = {name: part for name, value in vars(self).items() if (part := attribute_state(value)) is not None}
        return state | {name: getattr(self, name) for name in self._registered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state``, in place: tensors keep their identity, dtype and device.

        Raises:
            ValueError: ``state`` has other keys or shapes.
        """
        check_same_keys(self.state_dict(), state, type(self).__name__)
        for name, value in state.items():
            own = getattr(self, name)
            if name in self._registered:
                own.copy_(value)
            else:
                own.load_state_dict(value)

    def ports(self) -> dict[str, Port[Any, Any] | MultiPort[Any, Any]]:
        """The ports by attribute name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Port | MultiPort)}
