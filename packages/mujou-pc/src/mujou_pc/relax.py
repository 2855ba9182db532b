"""Relaxers: how the deviation r of a node moves along the force on it.

A setting is a value without state; each Layer binds it to its own r, and the bound relaxer holds
the state. To write one, inherit ``Relaxer`` and ``BoundRelaxer``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mujou_pc.runtime import State, Stateful

__all__ = ["BoundRelaxer", "Euler", "Relaxer"]


class BoundRelaxer(Stateful):
    """A relaxer bound to the deviation of one node.

    Its fixed point must be where the force is 0 and its own state at rest: else the dual does not
    settle at the credit of backpropagation.
    """

    @abstractmethod
    def step_(self, r: Tensor, force: Tensor, dt: float, tau_h: float) -> None:
        """Move r in place, against the force.

        Args:
            r: the deviation, (B, ...).
            force: the force on it, (B, ...); free to be overwritten.
            dt: seconds.
            tau_h: the time constant of r in seconds.
        """

    @abstractmethod
    def reset_(self, samples: Tensor) -> None:
        """Forget what is remembered of the samples that start anew.

        Args:
            samples: bool (B,).
        """


class Relaxer(ABC):
    """The setting of a relaxer: a value without state, which can be given to every node."""

    @abstractmethod
    def bind(self, r: Tensor) -> BoundRelaxer:
        """A relaxer with a state of its own, of r's shape, dtype and device.

        Args:
            r: the deviation, (B, ...).
        """


@dataclass(frozen=True, slots=True)
class Euler(Relaxer):
    """One explicit step: ``r -= dt / tau_h * force``.

    Example:
        >>> import torch
        >>> r = torch.ones(2)
        >>> Euler().bind(r).step_(r, force=torch.ones(2), dt=0.01, tau_h=0.02)
        >>> r
        tensor([0.5000, 0.5000])
    """

    def bind(self, r: Tensor) -> BoundRelaxer:
        """Bind to the deviation of one node."""
        return _BoundEuler()


class _BoundEuler(BoundRelaxer):
    def step_(self, r: Tensor, force: Tensor, dt: float, tau_h: float) -> None:
        r.sub_(force, alpha=dt / tau_h)

    def reset_(self, samples: Tensor) -> None:
        pass

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
