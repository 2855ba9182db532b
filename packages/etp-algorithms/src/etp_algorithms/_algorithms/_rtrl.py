"""RTRL: the influence of every parameter on every hidden state, propagated by the whole Jacobian of the step.

    E ← J E + ∂h′/∂θ ,      J = ∂h′/∂h ,      ∇θ = ∂L/∂h · E

Exact for every model whose memory is in its hidden states, marked weights or not; it is the reference that the other
algorithms approximate. With ``N`` hidden values, the batch included, memory is ``O(N·|θ|)`` and time ``O(N²·|θ|)``.
Source: Williams and Zipser, "A learning algorithm for continually running fully recurrent neural networks", Neural
Computation 1989.
"""

from dataclasses import dataclass, field
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._flat_states import (
    check_reversible,
    flatten_states,
    influencing,
    judge_whole,
    parameters_by_name,
    state_count,
)
from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import AT_ENTRY, LearningSignal, SignalPlace
from etp_algorithms._learner import Learner
from etp_algorithms._step import Arrays, Signals, StepPoint

__all__ = ["RTRL", "InfluenceMatrix"]

_DEFAULT_LIMIT = 2**30


@dataclass(frozen=True)
class InfluenceMatrix:
    """The trace algorithm of RTRL.

    Attributes:
        limit: the largest memory of the influence matrix and the Jacobian, in bytes.
        signal: where the credit comes from.
        name: the algorithm's name.
    """

    limit: int = _DEFAULT_LIMIT
    signal: LearningSignal = AT_ENTRY
    name: str = "RTRL"
    marked_only: bool = field(default=False, init=False)
    moves_by_derivative: bool = field(default=True, init=False)  # so a reset in the step is all that a reset takes

    def check(self, graph: TraceGraph) -> None:
        """Raise if the matrices would be larger than the limit, or a loop has no derivative."""
        check_reversible(graph, self.name)
        made = jax.eval_shape(lambda: self.init(graph))
        count = state_count(graph)
        needed = sum(a.size * a.dtype.itemsize for a in made.values()) + count**2 * 8
        if needed > self.limit:
            raise CompilationError(
                f"{self.name} would keep the influence of every parameter on {count} hidden values: {needed:,} bytes, "
                f"more than the limit of {self.limit:,}. Raise influence_limit, make the model or the batch smaller, "
                f"or use D_RTRL or SnAp."
            )

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """Exact, unless something is remembered outside the hidden states."""
        return judge_whole(graph, verdict, Trust.EXACT)

    def init(self, graph: TraceGraph) -> dict[str, jax.Array]:
        """Zero influence, ``(N, *shape)`` for every parameter array that can influence a hidden state."""
        leaves = {name: graph.step.parameters[n].input.aval for name, n in influencing(graph).items()}
        return {name: jnp.zeros((state_count(graph), *a.shape), a.dtype) for name, a in leaves.items()}

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """Zero influence again."""
        return self.init(graph)

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """The influence of one parameter."""
        influence = traces.get(verdict.name)
        return 0 if influence is None else influence.size * influence.dtype.itemsize

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> dict[str, jax.Array]:
        """The parameter arrays themselves."""
        return parameters_by_name(graph, parameters)

    def read(self, point: StepPoint) -> tuple[jax.Array, dict[str, jax.Array]]:
        """``J`` and ``∂h′/∂θ``, a row for every hidden value."""
        graph, states = point.graph, point.states

        def advance(states: Signals, parameters: Arrays) -> jax.Array:
            return flatten_states(point.advance(states, parameters))

        new, pull = jax.vjp(advance, states, list(point.parameters))
        rows, by_parameter = jax.vmap(pull)(jnp.eye(new.size, dtype=new.dtype))
        jacobian = jnp.concatenate([value.reshape(new.size, -1) for group in rows for value in group], axis=1)
        return jacobian, {name: by_parameter[n] for name, n in influencing(graph).items()}

    def roll(self, graph: TraceGraph, traces: Any, values: Any, tracked: Any) -> Any:
        """``J E + ∂h′/∂θ``."""
        jacobian, direct = values
        return {name: (jnp.tensordot(jacobian, e, 1) + direct[name]).astype(e.dtype) for name, e in traces.items()}

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Any) -> Any:
        """``∂L/∂h · E``."""
        signal = flatten_states(signals)
        return {name: jnp.tensordot(signal, e, 1) for name, e in traces.items()}


class RTRL(Learner):
    """A learner with the full influence matrix: exact, and expensive.

    Args:
        model: a module whose ``update`` is one step.
        signal: ``"entry"`` or ``"exit"``; see :class:`D_RTRL`.
        influence_limit: the largest memory of influence matrix and Jacobian, in bytes; 1 GiB by default.
        **options: those of :class:`Learner`.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        *,
        signal: SignalPlace = "entry",
        influence_limit: int = _DEFAULT_LIMIT,
        **options: Any,
    ) -> None:
        super().__init__(model, InfluenceMatrix(influence_limit, LearningSignal(signal)), **options)
