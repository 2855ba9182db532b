"""DNI: what lies beyond the window is predicted by a model of the gradient that is learned along.

    ∇θ = ∂(L_window + ⟨M(h_K) , h_K⟩)/∂θ at fixed h₀ ,      M(h) ≈ ∂L_later/∂h

Truncated backpropagation whose last state gets a synthetic gradient ``M``; no trace is kept, and every parameter
gets the credit, marked or not. Source: Jaderberg et al., "Decoupled neural interfaces using synthetic gradients",
ICML 2017.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import AT_ENTRY, LearningSignal
from etp_algorithms._learner import Learner
from etp_algorithms._step import Arrays, Signals, StepPoint

__all__ = ["DNI", "SyntheticGradients"]


@dataclass(frozen=True)
class SyntheticGradients:
    """The algorithm of DNI: per hidden group an affine map from its states to their gradient, over the last axis.

    Attributes:
        signal: where the credit comes from.
        name: the algorithm's name.
    """

    signal: LearningSignal = AT_ENTRY
    name: str = "DNI"
    marked_only: bool = field(default=False, init=False)

    def check(self, graph: TraceGraph) -> None:
        """Every model can be learned this way."""

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """Whatever influences a later step has a predicted credit."""
        if verdict.trust is Trust.UNUSED or (verdict.trust is Trust.EXACT and not verdict.relations):
            return verdict
        return replace(verdict, trust=Trust.BOOTSTRAPPED, reasons=("later steps enter by a synthetic gradient",))

    def init(self, graph: TraceGraph) -> dict[str, dict[str, jax.Array]]:
        """Maps that predict zero: ``weight`` ``(width·S, width·S)`` and ``bias`` ``(width·S,)`` for every group."""
        made = {}
        for group in graph.hidden_groups:
            width = (group.varshape[-1] if group.varshape else 1) * group.num_state
            dtype = group.leaves[0].input.aval.dtype
            made[group.name] = {"weight": jnp.zeros((width, width), dtype), "bias": jnp.zeros(width, dtype)}
        return made

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """The maps are kept: they belong to the task, not to a sequence."""
        return traces

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """No parameter has a trace."""
        return 0

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> tuple[()]:
        """Nothing is traced."""
        return ()

    def read(self, point: StepPoint) -> None:
        """Nothing is read."""

    def roll(self, graph: TraceGraph, traces: Any, values: Any, tracked: Any) -> Any:
        """Steps leave the maps as they are; :func:`train_synthetic_gradient` changes them."""
        return traces

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Any) -> tuple[()]:
        """Nothing is traced."""
        return ()

    def predict(self, graph: TraceGraph, traces: Mapping[str, Any], states: Signals) -> Signals:
        """``M(h)``, group by group."""
        return tuple(
            _affine(traces[group.name], values) for group, values in zip(graph.hidden_groups, states, strict=True)
        )


def _affine(maps: Mapping[str, jax.Array], values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    whole = jnp.concatenate([jnp.atleast_1d(v) for v in values], axis=-1)
    parts = jnp.split(whole @ maps["weight"] + maps["bias"], len(values), axis=-1)
    return tuple(part.reshape(v.shape).astype(v.dtype) for part, v in zip(parts, values, strict=True))


class DNI(Learner):
    """A learner that credits the end of each window by a synthetic gradient; memory independent of the parameters.

    Args:
        model: a module whose ``update`` is one step.
        **options: those of :class:`Learner`.

    The maps start at zero, which is truncated backpropagation; :func:`train_synthetic_gradient` learns them.
    """

    def __init__(self, model: brainstate.nn.Module, **options: Any) -> None:
        super().__init__(model, SyntheticGradients(), **options)
