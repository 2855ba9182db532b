"""SnAp-n: the influence of a weight is followed to the positions that it can reach within ``n`` steps.

    ε_k ← Σ_k′ J[p_k, p_k′] ε_k′ + Df_k ⊗ ∂y/∂w ,      ∇w = Σ_k ⟨s[p_k] , ε_k⟩

``p_k`` are the positions that the output of the operator reaches within ``n`` steps of the group's coupling, the
recurrent operators included, and ``J`` is the whole Jacobian at those positions. With ``n = 1`` each position keeps
its own coupling; once the pattern is saturated nothing within the group is left out. Memory ``O(B·|w|·K·S)`` for ``K``
positions. Source: Menick et al., "Practical real time recurrent learning with a sparse approximation", ICLR 2021.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._coupling import ColouredJacobian, coloured_jacobian
from etp_algorithms._algorithms._flat_states import check_reversible, other_memories
from etp_algorithms._algorithms._neighbours import Neighbourhood, find_neighbourhoods, is_saturated
from etp_algorithms._algorithms._param_dim_traces import check_trace_dtype, relation_keys
from etp_algorithms._algorithms._rule_calls import contract, instant, propagate, trace_shapes
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import AT_ENTRY, LearningSignal, SignalPlace
from etp_algorithms._learner import Learner
from etp_algorithms._report import bytes_of
from etp_algorithms._step import Arrays, Operands, Signals, StepPoint, evaluate_operands
from etp_algorithms._trees import add_trees

__all__ = ["NeighbourTraces", "SnAp"]

Trace = dict[str, jax.Array]


class _Values(NamedTuple):
    xs: Any
    jacobians: Any
    coloured: tuple[ColouredJacobian | None, ...]


@dataclass(frozen=True)
class NeighbourTraces:
    """The trace algorithm of SnAp-n.

    Attributes:
        steps: ``n``.
        trace_dtype: the dtype in which traces are stored; None keeps the dtype of the operators' outputs.
        signal: where the credit comes from.
        name: the algorithm's name.
    """

    steps: int
    trace_dtype: Any = None
    signal: LearningSignal = AT_ENTRY
    name: str = "SnAp"
    marked_only: bool = field(default=True, init=False)
    moves_by_derivative: bool = field(default=True, init=False)  # so a reset in the step is all that a reset takes

    def __post_init__(self) -> None:
        check_trace_dtype(self.trace_dtype)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int):
            raise TypeError(f"n must be an int, got {self.steps!r}.")
        if self.steps < 1:
            raise ValueError(f"n must be at least 1, got {self.steps}.")

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive lacks a rule, or a loop has no derivative."""
        for relation in graph.hidden_param_op_relations:
            for kind in ("dt_to_t", "xy_to_dw", "init_drtrl"):
                relation.primitive.require_rule(kind, self.name)
        check_reversible(graph, self.name)
        self.signal.check(graph)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """Exact where the pattern is saturated and nothing is remembered outside the one group."""
        return self.signal.judge(graph, self._judge_reach(graph, verdict))

    def _judge_reach(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        if not verdict.relations or verdict.trust is Trust.EXACT:
            return verdict
        if is_saturated(graph, verdict, self.steps) and not other_memories(graph, verdict):
            return replace(verdict, trust=Trust.EXACT, reasons=("every position that it reaches is followed",))
        reason = f"recurrence is followed for {self.steps} steps of its pattern, within a group"
        return replace(verdict, reasons=(*verdict.reasons, reason))

    def init(self, graph: TraceGraph) -> Any:
        """Zero traces per relation, group and state; where there is more than one position, they lead."""
        traces = {}
        for relation in graph.hidden_param_op_relations:
            for link in relation.links:
                near = self._near(graph, relation, link)
                shapes = trace_shapes(relation, near.link, self.name)
                zero = {key: jnp.zeros(s.shape, self.trace_dtype or s.dtype) for key, s in shapes.items()}
                states = graph.hidden_groups[link.group].num_state
                traces[link_key(relation, link)] = tuple(dict(zero) for _ in range(states))
        return traces

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """Zero traces again."""
        return self.init(graph)

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """The traces of the relations that the parameter enters."""
        return bytes_of([traces[key] for key in relation_keys(graph, verdict)])

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> Operands:
        """The operands of the marked operators."""
        return evaluate_operands(graph, parameters)

    def read(self, point: StepPoint) -> _Values:
        """Data, per-position Jacobians, and the whole Jacobian of every group that is traced."""
        coloured = tuple(None if j is None else coloured_jacobian(point, g) for g, j in enumerate(point.jacobians))
        return _Values(point.xs, point.jacobians, coloured)

    def roll(self, graph: TraceGraph, traces: Any, values: _Values, tracked: Operands) -> Any:
        """One step of the recurrence for every relation and group."""
        rolled = {}
        for r, relation in enumerate(graph.hidden_param_op_relations):
            for link in relation.links:
                near, old = self._near(graph, relation, link), traces[link_key(relation, link)]
                coloured = values.coloured[link.group]
                assert coloured is not None
                new = []
                for a, df in enumerate(values.jacobians[link.group].inputs[r]):
                    parts = [near.carry(coloured[a][b], old[b], _propagator(relation, near)) for b in range(len(old))]
                    if df is not None:
                        parts.append(instant(relation, near.link, values.xs[r], near.spread(df), tracked[r]))
                    new.append(jax.tree.map(lambda n, o: n.astype(o.dtype), add_trees(*parts), old[a]))
                rolled[link_key(relation, link)] = tuple(new)
        return rolled

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Operands) -> Any:
        """``Σ ⟨s[p_k] , ε_k⟩`` over groups, states and positions."""
        solved = []
        for relation, weights in zip(graph.hidden_param_op_relations, tracked, strict=False):
            parts = []
            for link in relation.links:
                near = self._near(graph, relation, link).link
                for signal, trace in zip(signals[link.group], traces[link_key(relation, link)], strict=True):
                    parts.append(contract(relation, near, near.layout.gather(signal), trace, weights))
            solved.append(add_trees(*parts))
        return tuple(solved)

    def _near(self, graph: TraceGraph, relation: HiddenParamOpRelation, link: GroupLink) -> Neighbourhood:
        return find_neighbourhoods(graph, self.steps)[link_key(relation, link)]


def _propagator(relation: HiddenParamOpRelation, near: Neighbourhood) -> Any:
    return lambda factor, trace: propagate(relation, near.link, factor, trace)


class SnAp(Learner):
    """A learner that follows the influence of a weight through recurrent operators for ``n`` steps of their pattern.

    Args:
        model: a module whose ``update`` is one step.
        n: how far the influence is followed; 1 is each position's own coupling.
        signal: ``"entry"`` or ``"exit"``; see :class:`D_RTRL`.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.

    Sparse recurrent weights (``sparse_matmul``, ``grouped_matmul``, or a primitive with an ``adjacency`` rule) keep the
    neighbourhoods small; a dense one reaches every position at ``n = 2``.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        n: int = 2,
        *,
        signal: SignalPlace = "entry",
        trace_dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model, NeighbourTraces(n, trace_dtype, LearningSignal(signal)), **options)
