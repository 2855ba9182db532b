"""How a trace per weight moves from one step to the next: the Jacobian itself, or what is put in its place.

    ε ← D ε + Df ⊗ ∂y/∂w ,      ē ← κ ē + ε

``D`` is the per-position Jacobian, that Jacobian with each position's own coupling through marked operators, a
constant leak, or nothing. The filter ``κ`` doubles the states: with ``(ε, ē)`` for ``ε`` the recurrence is again
linear, ``D`` becomes ``[[D, 0], [D, κ]]`` and ``Df`` becomes ``(Df, Df)``; signals meet ``ē`` alone.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._coupling import coupled_jacobians
from etp_algorithms._algorithms._precision import check_decay_holds
from etp_algorithms._algorithms._sweep import Row
from etp_algorithms._compiler._relations import GroupLink
from etp_algorithms._compiler._transitions import Factors, GroupJacobian
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import SignalPlace
from etp_algorithms._step import Signals, StepPoint

__all__ = ["JACOBIAN", "Recursion", "TemporalRecursion", "check_decay"]

Recursion = Literal["jacobian", "scalar_leak", "none"]


def check_decay(name: str, value: Any) -> float:
    """``value`` as a decay in ``[0, 1)``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number in [0, 1), got {value!r}.")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value}.")
    return float(value)


@dataclass(frozen=True, slots=True)
class TemporalRecursion:
    """The recurrence of a trace per weight.

    Attributes:
        kind: ``"jacobian"`` of the states; ``"scalar_leak"``, the same decay for all; ``"none"``, no memory.
        coupled: the Jacobian contains each position's own coupling through marked operators.
        leak: the decay of ``"scalar_leak"``.
        kappa: decay of the filter over the traces; 0 for none.
    """

    kind: Recursion = "jacobian"
    coupled: bool = False
    leak: float = 0.0
    kappa: float = 0.0

    def check_signal(self, place: SignalPlace, algorithm: str) -> None:
        """Raise if the filter would meet a signal that it was not made for."""
        if self.kappa and place != "exit":
            raise ValueError(
                f"{algorithm}: a filter over the traces (kappa={self.kappa}) stands for a leaky read-out after the "
                f"exit of each step; use it with signal='exit', or set it to 0."
            )

    def check_dtype(self, *dtypes: Any) -> None:
        """Raise if a filter would stall in one of the dtypes that it is computed and stored in."""
        for dtype in dtypes:
            check_decay_holds("decay leak =", self.leak, dtype)
            check_decay_holds("decay kappa =", self.kappa, dtype)

    def judge(self, verdict: ParameterTrust) -> ParameterTrust:
        """The verdict on a traced parameter, with what this recurrence adds to it."""
        if not verdict.relations:
            return verdict
        notes: list[str] = []
        if self.kind != "jacobian":
            what = "a constant leak" if self.kind == "scalar_leak" else "nothing"
            notes.append(f"{what} stands for the Jacobian of the states")
        if self.kappa:
            notes.append(f"traces pass a filter of decay {self.kappa:g}")
        lowered = Trust.DIAGONAL if notes and verdict.trust is Trust.EXACT else verdict.trust
        return replace(verdict, trust=lowered, reasons=(*verdict.reasons, *notes))

    def present(self, link: GroupLink) -> tuple[bool, ...]:
        """For every state of the trace whether it can differ from zero."""
        if self.kind != "jacobian":
            present = link.fed
        elif self.coupled:
            present = tuple(True for _ in link.present)
        else:
            present = link.present
        return present * 2 if self.kappa else present

    def signals(self, signals: Signals) -> tuple[Row, ...]:
        """The signals at the states of the traces."""
        return tuple((*(None for _ in s), *s) if self.kappa else s for s in signals)

    def jacobians(self, point: StepPoint) -> tuple[GroupJacobian | None, ...]:
        """The Jacobians that the traces move by."""
        found = coupled_jacobians(point) if self.coupled else point.jacobians
        shapes = _varshapes(point)
        return tuple(None if j is None else self._adapt(j, shape) for j, shape in zip(found, shapes, strict=True))

    def _adapt(self, jacobian: GroupJacobian, like: jax.ShapeDtypeStruct) -> GroupJacobian:
        transition = self._transition(jacobian.transition, like)
        if not self.kappa:
            return GroupJacobian(transition, jacobian.inputs)
        states = range(len(transition))
        none: Row = tuple(None for _ in states)
        kept = jnp.full(like.shape, self.kappa, like.dtype)
        filtered = tuple((*row, *(kept if a == b else None for b in states)) for a, row in enumerate(transition))
        return GroupJacobian(
            (*((*row, *none) for row in transition), *filtered), {n: (*df, *df) for n, df in jacobian.inputs.items()}
        )

    def _transition(self, transition: Factors, like: jax.ShapeDtypeStruct) -> Factors:
        if self.kind == "jacobian":
            return transition
        states = range(len(transition))
        leak = jnp.full(like.shape, self.leak, like.dtype) if self.kind == "scalar_leak" and self.leak else None
        return tuple(tuple(leak if a == b else None for b in states) for a in states)


JACOBIAN = TemporalRecursion()


def _varshapes(point: StepPoint) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(group.varshape, group.leaves[0].input.aval.dtype) for group in point.graph.hidden_groups
    ]
