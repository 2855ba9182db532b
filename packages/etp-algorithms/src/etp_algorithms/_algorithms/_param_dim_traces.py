"""One trace per weight and hidden state, propagated by the per-position Jacobian, as D-RTRL has it.

    ε_a ← Σ_b D_ab ε_b + Df_a ⊗ ∂y/∂w ,      ∇w = Σ_a ⟨s_a , ε_a⟩

Exact wherever the recurrence is position-wise; memory ``O(B·|w|·S)``. Sources: see ``_d_rtrl.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._even import (
    aligned,
    contract_even,
    even_carry,
    even_term,
    even_trace,
    even_window,
    expand_even,
    is_even,
)
from etp_algorithms._algorithms._factors import gathered, known_apart, spread
from etp_algorithms._algorithms._precision import check_known_decays, limit_note
from etp_algorithms._algorithms._recursion import JACOBIAN, TemporalRecursion
from etp_algorithms._algorithms._rule_calls import (
    closed_form,
    contract,
    instant,
    propagate,
    pull_pairs,
    pull_sequence,
    trace_shapes,
    window,
)
from etp_algorithms._algorithms._sweep import Row, Swept, sweep
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._compiler._trust import ParameterTrust
from etp_algorithms._compiler._uniform import spread_evenly
from etp_algorithms._engine import AT_ENTRY, FoldedSteps, LearningSignal
from etp_algorithms._report import bytes_of
from etp_algorithms._residuals import RecordedSteps
from etp_algorithms._step import Arrays, Operands, Signals, StepPoint, StepValues, evaluate_operands
from etp_algorithms._trees import add_trees
from etp_core import FastPathRules

__all__ = ["ParamDimTraces", "check_trace_dtype", "relation_keys"]

Trace = dict[str, jax.Array]
Pair = tuple[Any, jax.Array]
"""Data and a cotangent of what an operator made of it."""


def check_trace_dtype(dtype: Any) -> None:
    """Raise unless traces can be stored in ``dtype``."""
    if dtype is not None and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"trace_dtype must be a floating-point type or None, got {jnp.dtype(dtype).name}.")


@dataclass(frozen=True)
class ParamDimTraces:
    """Traces per weight and hidden state: D-RTRL and what differs from it in the recurrence or the signal.

    Attributes:
        trace_dtype: the dtype in which traces are stored; None keeps the dtype of the operators' outputs.
        use_kernels: whether closed-form kernels stand in for the rules where they apply.
        signal: where the credit comes from.
        recursion: how a trace moves from one step to the next.
        name: the algorithm's name.
    """

    trace_dtype: Any = None
    use_kernels: bool = True
    signal: LearningSignal = AT_ENTRY
    recursion: TemporalRecursion = JACOBIAN
    name: str = "D_RTRL"
    marked_only: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_trace_dtype(self.trace_dtype)
        self.recursion.check_signal(self.signal.place, self.name)

    @property
    def by_jacobian(self) -> bool:
        """Whether the traces move by the Jacobians of the step itself."""
        return self.recursion == JACOBIAN

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive lacks a rule, or a decay rounds to 1 in the trace's dtype."""
        for relation in graph.hidden_param_op_relations:
            for kind in ("dt_to_t", "xy_to_dw", "init_drtrl"):
                relation.primitive.require_rule(kind, self.name)
        states = {leaf.input.aval.dtype for g in graph.hidden_groups for leaf in g.leaves if leaf.differentiable}
        self.recursion.check_dtype(*states, *(() if self.trace_dtype is None else (self.trace_dtype,)))
        if self.trace_dtype is not None and self.recursion.kind == "jacobian":
            check_known_decays(graph, self.trace_dtype)
        self.signal.check(graph)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """The verdict of the graph, unless recurrence or signal are approximations of their own."""
        note = None if self.trace_dtype is None or not verdict.relations else limit_note(self.trace_dtype)
        verdict = verdict if note is None else replace(verdict, reasons=(*verdict.reasons, note))
        return self.signal.judge(graph, self.recursion.judge(verdict))

    def init(self, graph: TraceGraph) -> dict[str, tuple[Trace | None, ...]]:
        """Zero traces, one dictionary per relation, group and state; None for a state that stays zero."""
        traces = {}
        for relation in graph.hidden_param_op_relations:
            for link in relation.links:
                shapes = trace_shapes(relation, link, self.name)
                if relation.x is not None and self._forgets(graph, relation, link):
                    shapes = {"x": relation.x.aval, "df": relation.y.aval}
                zero = {key: jnp.zeros(s.shape, self.trace_dtype or s.dtype) for key, s in shapes.items()}
                present = self.recursion.present(link)
                even = self._even(graph, relation, link)
                filters = even_trace(relation, self.trace_dtype) if even else zero
                traces[link_key(relation, link)] = tuple(
                    dict(filters if even and even[a] else zero) if p else None for a, p in enumerate(present)
                )
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

    def read(self, point: StepPoint) -> StepValues:
        """The data of every operator and the Jacobians that the recursion makes of the step's."""
        return StepValues(point.xs, known_apart(point, self.recursion.jacobians(point)))

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """One step of the recurrence for every relation and group."""
        return {
            link_key(relation, link): self._step(graph, relation, link, traces, jacobian, values.xs[r], operands[r])
            for r, relation, link, jacobian in _links(graph, values)
        }

    def roll_window(self, graph: TraceGraph, traces: Any, steps: RecordedSteps, operands: Operands) -> Any:
        """``ε_K,a = Σ_b M_ab ε_0,b + Σ_t x_t ⊗ (P_t Df_t)_a``, the products ``P`` of a backward sweep, ``M = P_0``."""
        return self._roll_swept(graph, traces, steps, operands, sweep(graph, steps, None))

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """``Σ ⟨s_a, ε_a⟩`` over groups and states."""
        return self._contract_all(graph, traces, self.recursion.signals(signals), operands)

    def _contract_all(
        self, graph: TraceGraph, traces: Any, signals: Any, operands: Operands, within: Sequence[Pair | None] = ()
    ) -> Operands:
        """``Σ ⟨s_a, ε_a⟩`` for every relation.

        With ``within``, data and a cotangent of the output or None for every operator, also what these give, in one
        product with what a trace of two factors gives.
        """
        solved = []
        pairs_of = [[] if pair is None else [pair] for pair in within] or [[] for _ in graph.hidden_param_op_relations]
        for operator, weights, pairs in zip(graph.operators, operands, pairs_of, strict=False):
            parts = []
            for link in operator.links:
                kept = traces[link_key(operator, link)]
                laid_out = tuple(
                    None if trace is None or signal is None else link.layout.gather(signal)
                    for signal, trace in zip(signals[link.group], kept, strict=True)
                )
                if self._forgets(graph, operator, link):
                    pairs += _remembered(kept, laid_out)
                else:
                    parts += self._contractions(operator, link, laid_out, kept, weights)
            parts = [pull_pairs(operator, pairs, weights), *parts] if pairs or not parts else parts
            solved.append(add_trees(*parts))
        return tuple(solved)

    def _contractions(
        self, relation: HiddenParamOpRelation, link: GroupLink, laid_out: Row, kept: Any, weights: Trace
    ) -> Iterator[Trace]:
        """The terms of one relation's gradient in one group."""
        kernel = self._kernel(relation, link)
        if kernel is not None:
            for signal, trace in zip(laid_out, kept, strict=True):
                if signal is not None and trace is not None and is_even(trace):
                    yield contract_even(relation, signal, trace, weights)
            whole = tuple(None if e is None or is_even(e) else e for e in kept)
            if any(s is not None and e is not None for s, e in zip(laid_out, whole, strict=True)):
                yield kernel.solve(laid_out, whole, fold_batch=relation.primitive.batched)
        else:
            for signal, trace in zip(laid_out, kept, strict=True):
                if signal is not None and trace is not None:
                    yield contract(relation, link, signal, trace, weights)

    def _kernel(self, relation: HiddenParamOpRelation, link: GroupLink) -> FastPathRules | None:
        """The closed-form kernel of a relation, if there is one and it applies."""
        return closed_form(relation) if self.use_kernels and link.layout.lanes == 1 else None

    def _forgets(self, graph: TraceGraph, relation: HiddenParamOpRelation, link: GroupLink) -> bool:
        """Whether the trace is always the last step's ``Df ⊗ x``, so that its two factors are kept in its place."""
        if relation.x is None or self._kernel(relation, link) is None:
            return False
        recursion, coupling = self.recursion, graph.hidden_groups[link.group].coupling
        moves = recursion.coupled or any(map(any, coupling)) if recursion.kind == "jacobian" else bool(recursion.leak)
        return not (moves or recursion.kappa)

    def _even(self, graph: TraceGraph, relation: HiddenParamOpRelation, link: GroupLink) -> tuple[bool, ...]:
        """The states whose trace is the same for all outputs, so that a filter over the data is kept in its place."""
        recursion, group = self.recursion, graph.hidden_groups[link.group]
        plain = recursion.kind == "jacobian" and not (recursion.coupled or recursion.kappa)
        if relation.x is None or not plain or self._kernel(relation, link) is None:
            return ()
        if self._forgets(graph, relation, link) or not aligned(relation, link.layout, group.varshape):
            return ()
        return spread_evenly(graph, link.group, relation.index)

    def fold(
        self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands, *, last: bool = False
    ) -> tuple[Operands, Any]:
        """``∇w = xy_to_dw(x, ȳ + Dfᵀ λ) + ⟨λ_0, ε_0⟩``: one product over all steps, and one over the entry trace.

        The credits ``λ`` come from a backward sweep over the signals.
        """
        if traces is not None and steps.values.length == 1 and steps.ahead is None:
            return self._fold_one(graph, traces, steps, operands)
        recorded, signals = steps.values, self.recursion.signals(steps.signals)
        swept = sweep(
            graph,
            recorded,
            signals,
            steps.drives,
            spacing=steps.spacing,
            ahead=steps.ahead,
            at_exit=self.signal.place == "exit",
            products=not last,
        )
        xs = recorded.stacked.xs
        gradients = [
            jax.tree.map(jnp.zeros_like, weights) if met is None else pull_sequence(operator, x, met, weights)
            for operator, x, met, weights in zip(graph.operators, xs, swept.cotangents, operands, strict=True)
        ]
        if traces is not None:
            for r, entered in enumerate(self._contract_all(graph, traces, swept.entry, operands)):
                gradients[r] = add_trees(gradients[r], entered)
            if not last:  # the traces are read before they move: else XLA would keep a copy of them
                traces, gradients = jax.lax.optimization_barrier((traces, gradients))
        return tuple(gradients), None if last else self._roll_swept(graph, traces, recorded, operands, swept)

    def _fold_one(self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands) -> tuple[Operands, Any]:
        """A single step: the signal meets the traces where it is, and each pass over them is one pass over memory.

        At the exit that are the new traces, so no product is spent on what the step has just written into them.
        """
        # made once, not again for every element of the traces
        values = jax.lax.optimization_barrier(steps.values.last())
        signals, drives = jax.tree.map(lambda s: s[0], (steps.signals, steps.drives))
        within = [None if d is None else (x, d) for x, d in zip(values.xs, drives, strict=True)]
        signals = self.recursion.signals(signals)
        if self.signal.place == "exit":
            traces = jax.lax.optimization_barrier(self.roll(graph, traces, values, operands))
            return self._contract_all(graph, traces, signals, operands, within), traces
        gradients = self._contract_all(graph, traces, signals, operands, within)
        # the traces are read before they move: else XLA would keep a copy of them
        traces, gradients = jax.lax.optimization_barrier((traces, gradients))
        return gradients, self.roll(graph, traces, values, operands)

    def _step(
        self,
        graph: TraceGraph,
        relation: HiddenParamOpRelation,
        link: GroupLink,
        traces: Any,
        jacobian: GroupJacobian,
        x: Any,
        weights: Trace,
    ) -> tuple[Trace | None, ...]:
        """One step for all states of one relation in one group."""
        known, kernel = jacobian.inputs[relation.index], self._kernel(relation, link)
        df = tuple(None if d is None else spread(relation, link.layout, d) for d in known)
        if self._forgets(graph, relation, link):
            kept = traces[link_key(relation, link)]
            return tuple(
                None if e is None else _store({"x": x, "df": jnp.zeros_like(e["df"]) if d is None else d}, e)
                for e, d in zip(kept, df, strict=True)
            )
        if kernel is not None:
            kept = traces[link_key(relation, link)]
            whole = tuple(None if e is None or is_even(e) else d for e, d in zip(kept, df, strict=True))
            terms = list(kernel.instant(x, whole, relation.static.get("has_bias", False)))
            for a, (e, d) in enumerate(zip(kept, df, strict=True)):
                if e is not None and d is not None and is_even(e):
                    terms[a] = even_term(x, d)
        else:
            terms = [None if d is None else instant(relation, link, x, d, weights) for d in df]
        return self._advance(relation, link, traces, jacobian.transition, terms)

    def _roll_swept(
        self, graph: TraceGraph, traces: Any, steps: RecordedSteps, operands: Operands, swept: Swept
    ) -> Any:
        """The traces after recorded steps; None for traces that are zero before them."""
        rolled, xs, last = {}, steps.stacked.xs, steps.last()
        known, traces = traces is not None, self.init(graph) if traces is None else traces
        for r, relation, link, jacobian in _links(graph, last):
            key = link_key(relation, link)
            if link.group not in swept.whole:  # nothing recurs, so the last step alone is remembered
                rolled[key] = self._step(graph, relation, link, traces, jacobian, last.xs[r], operands[r])
                continue
            terms = [
                None
                if c is None or e is None
                else even_window(xs[r], c)
                if is_even(e)
                else window(relation, link, xs[r], c, operands[r])
                for c, e in zip(swept.carried[r, link.group], traces[key], strict=True)
            ]
            whole = swept.whole[link.group] if known else tuple((None,) * len(row) for row in swept.whole[link.group])
            rolled[key] = self._advance(relation, link, traces, whole, terms)
        return rolled

    def _advance(
        self,
        relation: HiddenParamOpRelation,
        link: GroupLink,
        traces: Any,
        factors: Sequence[Row],
        terms: Sequence[Trace | None],
    ) -> tuple[Trace | None, ...]:
        """``Σ_b factors_ab ε_b + terms_a`` for every state, stored in the dtype of the traces."""
        old, kernel = traces[link_key(relation, link)], self._kernel(relation, link)
        laid_out = tuple(
            tuple(
                None if f is None or e is None else gathered(relation, link.layout, f)
                for f, e in zip(row, old, strict=True)
            )
            for row in factors
        )
        if kernel is not None:
            even = [e is not None and is_even(e) for e in old]
            spread_out = tuple(
                expand_even(relation, kernel, e) if e is not None and flag else e
                for e, flag in zip(old, even, strict=True)
            )
            rows = tuple(tuple(None for _ in row) if flag else row for row, flag in zip(laid_out, even, strict=True))
            carried = list(kernel.recurrent(rows, spread_out))
            for a, flag in enumerate(even):
                carried[a] = even_carry(laid_out[a], old) if flag else carried[a]
        else:
            carried = [self._carry(relation, link, row, old) for row in laid_out]
        new: list[Trace | None] = []
        for kept, *parts in zip(old, carried, terms, strict=True):
            present = [part for part in parts if part is not None]
            moved = add_trees(*present) if present else jax.tree.map(jnp.zeros_like, kept)
            new.append(None if kept is None else _store(moved, kept))
        return tuple(new)

    def _carry(self, relation: HiddenParamOpRelation, link: GroupLink, row: Row, old: Any) -> Trace | None:
        """``Σ_b row_b ε_b`` by the rules."""
        parts = [
            propagate(relation, link, f, e) for f, e in zip(row, old, strict=True) if f is not None and e is not None
        ]
        return add_trees(*parts) if parts else None


def _store(trace: Trace, kept: Trace) -> Trace:
    """``trace`` in the dtype of the stored one."""
    return jax.tree.map(lambda new, old: new.astype(old.dtype), trace, kept)


def _remembered(kept: Any, laid_out: Row) -> list[Pair]:
    """The data and the cotangents that the last step's factors give, one pair per state."""
    return [
        (trace["x"].astype(signal.dtype), signal * trace["df"].astype(signal.dtype))
        for signal, trace in zip(laid_out, kept, strict=True)
        if signal is not None and trace is not None
    ]


def _links(
    graph: TraceGraph, values: StepValues
) -> Iterator[tuple[int, HiddenParamOpRelation, GroupLink, GroupJacobian]]:
    for r, relation in enumerate(graph.hidden_param_op_relations):
        for link in relation.links:
            jacobian = values.jacobians[link.group]
            assert jacobian is not None
            yield r, relation, link, jacobian


def relation_keys(graph: TraceGraph, verdict: ParameterTrust) -> list[str]:
    """The names of the traces of one parameter."""
    relations = [graph.hidden_param_op_relations[n] for n in verdict.relations]
    return [link_key(relation, link) for relation in relations for link in relation.links]
