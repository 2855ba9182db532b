"""D-RTRL: one trace per weight and hidden state, propagated by the per-position Jacobian.

    ε_a ← Σ_b D_ab ε_b + Df_a ⊗ ∂y/∂w ,      ∇w = Σ_a ⟨s_a , ε_a⟩

Exact wherever the recurrence is position-wise; memory ``O(B·|w|·S)``. Source: Wang et al., "Scalable and
efficient online learning for recurrent spiking networks" (D-RTRL); Murray, eLife 2019, for the diagonal cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._rule_calls import contract, instant, propagate, trace_shapes
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._compiler._trust import Trust
from etp_algorithms._engine import Operands, Signals, StepValues
from etp_algorithms._learner import Learner, VjpMethod

__all__ = ["D_RTRL", "ParamDimTraces", "ParamDimVjpAlgorithm", "add_trees"]

Trace = dict[str, jax.Array]


def add_trees(*trees: Any) -> Any:
    """The sum of pytrees."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


@dataclass(frozen=True)
class ParamDimTraces:
    """The trace algorithm of D-RTRL.

    Attributes:
        trace_dtype: the dtype in which traces are stored; None keeps the dtype of the operators' outputs.
    """

    trace_dtype: Any = None
    name: str = "D_RTRL"

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive lacks a rule."""
        for relation in graph.hidden_param_op_relations:
            for kind in ("dt_to_t", "xy_to_dw", "init_drtrl"):
                relation.primitive.require_rule(kind, self.name)

    def grade(self, trust: Trust) -> Trust:
        """The trust of a traced parameter, as the graph gives it."""
        return trust

    def init(self, graph: TraceGraph) -> dict[str, tuple[Trace | None, ...]]:
        """Zero traces, one dictionary per relation, group and state; None for a state that stays zero."""
        traces = {}
        for relation in graph.hidden_param_op_relations:
            for link in relation.links:
                shapes = trace_shapes(relation, link, self.name)
                zero = {key: jnp.zeros(s.shape, self.trace_dtype or s.dtype) for key, s in shapes.items()}
                traces[link_key(relation, link)] = tuple(dict(zero) if p else None for p in link.present)
        return traces

    def by_link(self, traces: Any) -> Mapping[str, Any]:
        """The traces of every relation and group by their stable name."""
        return traces

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues) -> Any:
        """One step of the recurrence for every relation and group."""
        rolled = {}
        for r, relation in enumerate(graph.hidden_param_op_relations):
            for link in relation.links:
                jacobian = values.jacobians[link.group]
                assert jacobian is not None
                old, df = traces[link_key(relation, link)], jacobian.inputs[r]
                rolled[link_key(relation, link)] = tuple(
                    self._roll_state(relation, link, old, row, df[a], values.xs[r], values.operands[r])
                    if old[a] is not None
                    else None
                    for a, row in enumerate(jacobian.transition)
                )
        return rolled

    def _roll_state(
        self,
        relation: HiddenParamOpRelation,
        link: GroupLink,
        old: tuple[Trace | None, ...],
        row: tuple[jax.Array | None, ...],
        df: jax.Array | None,
        x: jax.Array | None,
        weights: Trace,
    ) -> Trace:
        terms = [
            propagate(relation, link, link.layout.gather(factor), trace)
            for factor, trace in zip(row, old, strict=True)
            if factor is not None and trace is not None
        ]
        if df is not None:
            terms.append(instant(relation, link, x, df, weights))
        stored = next(trace for trace in old if trace is not None)
        return jax.tree.map(lambda new, kept: new.astype(kept.dtype), add_trees(*terms), stored)

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """``Σ ⟨s_a, ε_a⟩`` over groups and states."""
        solved = []
        for relation, weights in zip(graph.hidden_param_op_relations, operands, strict=True):
            parts = [
                contract(relation, link, link.layout.gather(signal), trace, weights)
                for link in relation.links
                for signal, trace in zip(signals[link.group], traces[link_key(relation, link)], strict=True)
                if trace is not None
            ]
            solved.append(add_trees(*parts))
        return tuple(solved)


class D_RTRL(Learner):
    """A learner that keeps one trace per weight and hidden state; exact where the recurrence is position-wise.

    Args:
        model: a module whose ``update`` is one step.
        vjp_method: ``"single-step"`` refuses :class:`MultiStepData`; ``"multi-step"`` and None allow both.
        trace_dtype: the dtype in which traces are stored, for example ``jnp.bfloat16``.
        strict: raise where the compiler would have to leave a path out of the traces.

    Example:
        >>> import etp_algorithms, jax.numpy as jnp
        >>> learner = etp_algorithms.D_RTRL(model)  # doctest: +SKIP
        >>> learner.compile_graph(jnp.zeros((16, 3)))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        *,
        vjp_method: VjpMethod | None = None,
        trace_dtype: Any = None,
        strict: bool = False,
    ) -> None:
        super().__init__(model, ParamDimTraces(trace_dtype), vjp_method=vjp_method, strict=strict)


ParamDimVjpAlgorithm = D_RTRL
