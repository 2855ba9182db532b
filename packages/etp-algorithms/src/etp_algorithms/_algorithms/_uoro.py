"""UORO: an unbiased rank-one estimate of the influence of all parameters on all hidden states.

With the whole Jacobian ``J`` of the step and random signs ``ν``,

    d = J s̃ ,   p = νᵀ ∂h′/∂θ ,   ρ₀ = √(‖θ̃‖ / ‖d‖) ,   ρ₁ = √(‖p‖ / ‖ν‖)
    s̃ ← ρ₀ d + ρ₁ ν ,      θ̃ ← θ̃ / ρ₀ + p / ρ₁ ,      ∇θ = ⟨∂L/∂h , s̃⟩ θ̃ ,      E[s̃ ⊗ θ̃] = ∂h/∂θ .

One derivative forward and one backward per step; memory ``O(|h| + |θ|)``. Source: Tallec and Ollivier, "Unbiased
online recurrent optimization", ICLR 2018.
"""

from dataclasses import dataclass, field
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._flat_states import (
    check_reversible,
    influencing,
    judge_whole,
    parameters_by_name,
)
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import AT_ENTRY, LearningSignal, SignalPlace
from etp_algorithms._feedback import key_data_of
from etp_algorithms._learner import Learner
from etp_algorithms._report import bytes_of
from etp_algorithms._step import Arrays, Signals, StepPoint

__all__ = ["UORO", "RankOneInfluence"]

_LEAST_NORM = 1e-12


@dataclass(frozen=True)
class RankOneInfluence:
    """The trace algorithm of UORO.

    Attributes:
        key: the raw data of the random key that the signs are drawn from.
        signal: where the credit comes from.
        name: the algorithm's name.
    """

    key: tuple[int, ...]
    signal: LearningSignal = AT_ENTRY
    name: str = "UORO"
    marked_only: bool = field(default=False, init=False)
    moves_by_derivative: bool = field(default=True, init=False)  # so a reset in the step is all that a reset takes

    def check(self, graph: TraceGraph) -> None:
        """Raise if a loop has no derivative."""
        check_reversible(graph, self.name)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """Unbiased, unless something is remembered outside the hidden states."""
        return judge_whole(graph, verdict, Trust.UNBIASED)

    def init(self, graph: TraceGraph) -> dict[str, Any]:
        """A zero estimate, and the key."""
        states = tuple(
            tuple(jnp.zeros(group.varshape, group.leaves[i].input.aval.dtype) for i, _ in group.states)
            for group in graph.hidden_groups
        )
        leaves = {name: graph.step.parameters[n].input.aval for name, n in influencing(graph).items()}
        weights = {name: jnp.zeros(a.shape, a.dtype) for name, a in leaves.items()}
        return {"states": states, "weights": weights, "key": jnp.asarray(self.key, jnp.uint32)}

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """A zero estimate; the random signs go on."""
        return {**self.init(graph), "key": traces["key"]}

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """The share of one parameter in the rank-one estimate."""
        return bytes_of(traces["weights"].get(verdict.name, ()))

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> dict[str, jax.Array]:
        """The parameter arrays themselves."""
        return parameters_by_name(graph, parameters)

    def read(self, point: StepPoint) -> StepPoint:
        """The step itself: it is differentiated in random directions."""
        return point

    def roll(self, graph: TraceGraph, traces: Any, values: StepPoint, tracked: Any) -> Any:
        """One step of the estimate."""
        key, draw = jax.random.split(jax.random.wrap_key_data(traces["key"]))
        states, weights, parameters = traces["states"], traces["weights"], list(values.parameters)
        signs = _random_signs(draw, states)
        new, pull = jax.vjp(values.advance, values.states, parameters)
        (moved,) = jax.linear_transpose(lambda c: pull(c)[0], new)(states)  # forward, though rules are backward only
        pulled = pull(signs)[1]
        direct = {name: pulled[n] for name, n in influencing(graph).items()}
        balance_old = jnp.sqrt((_norm(weights) + _LEAST_NORM) / (_norm(moved) + _LEAST_NORM))
        balance_new = jnp.sqrt((_norm(direct) + _LEAST_NORM) / (_norm(signs) + _LEAST_NORM))
        return {
            "states": _combine(balance_old, moved, balance_new, signs, states),
            "weights": _combine(1.0 / balance_old, weights, 1.0 / balance_new, direct, weights),
            "key": jax.random.key_data(key),
        }

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Any) -> Any:
        """``⟨∂L/∂h , s̃⟩ θ̃``."""
        pairs = zip(jax.tree.leaves(signals), jax.tree.leaves(traces["states"]), strict=True)
        credit = sum((jnp.vdot(signal, state) for signal, state in pairs), jnp.zeros(()))
        return jax.tree.map(lambda w: (credit * w).astype(w.dtype), traces["weights"])


def _random_signs(key: jax.Array, like: Signals) -> Signals:
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        tree, [jax.random.rademacher(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
    )


def _norm(tree: Any) -> jax.Array:
    """The Euclidean norm over all leaves, at least in single precision."""
    squares = [jnp.sum(jnp.square(a.astype(jnp.promote_types(a.dtype, jnp.float32)))) for a in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros(())))


def _combine(a: jax.Array, x: Any, b: jax.Array, y: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, y, kept: (a * x + b * y).astype(kept.dtype), x, y, like)


class UORO(Learner):
    """A learner with an unbiased estimate of rank one; memory as for the parameters themselves, noise high.

    Args:
        model: a module whose ``update`` is one step.
        projection_key: an int seed or a JAX random key for the random signs.
        signal: ``"entry"`` or ``"exit"``; see :class:`D_RTRL`.
        **options: those of :class:`Learner`.
    """

    def __init__(
        self, model: brainstate.nn.Module, *, projection_key: Any = 42, signal: SignalPlace = "entry", **options: Any
    ) -> None:
        super().__init__(model, RankOneInfluence(key_data_of(projection_key), LearningSignal(signal)), **options)
