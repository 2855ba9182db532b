"""D-RTRL: one trace per weight and hidden state, propagated by the per-position Jacobian.

    ε_a ← Σ_b D_ab ε_b + Df_a ⊗ ∂y/∂w ,      ∇w = Σ_a ⟨s_a , ε_a⟩

Exact wherever the recurrence is position-wise; memory ``O(B·|w|·S)``. Source: Wang et al., "Scalable and
efficient online learning for recurrent spiking networks" (D-RTRL); Murray, eLife 2019, for the diagonal cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._rule_calls import contract, instant, propagate, pull_sequence, trace_shapes, window
from etp_algorithms._algorithms._sweep import Row, Sweep, carried_inputs, recurs, sweep
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, Layout, link_key
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._compiler._trust import Trust
from etp_algorithms._engine import FoldedSteps, Operands, Signals, StepValues
from etp_algorithms._learner import Kernels, Learner, VjpMethod
from etp_core import FastPathRules, get_fast_path_rules

__all__ = ["D_RTRL", "ParamDimTraces", "ParamDimVjpAlgorithm", "add_trees", "check_trace_dtype"]

Trace = dict[str, jax.Array]


def check_trace_dtype(dtype: Any) -> None:
    """Raise unless traces can be stored in ``dtype``."""
    if dtype is not None and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"trace_dtype must be a floating-point type or None, got {jnp.dtype(dtype).name}.")


def add_trees(*trees: Any) -> Any:
    """The sum of pytrees."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


@dataclass(frozen=True)
class ParamDimTraces:
    """The trace algorithm of D-RTRL.

    Attributes:
        trace_dtype: the dtype in which traces are stored; None keeps the dtype of the operators' outputs.
        use_kernels: whether closed-form kernels stand in for the rules where they apply.
    """

    trace_dtype: Any = None
    use_kernels: bool = True
    name: str = "D_RTRL"

    def __post_init__(self) -> None:
        check_trace_dtype(self.trace_dtype)

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

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """One step of the recurrence for every relation and group."""
        return {
            link_key(relation, link): self._step(relation, link, traces, jacobian, values.xs[r], operands[r])
            for r, relation, link, jacobian in _links(graph, values)
        }

    def roll_window(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """``ε_K,a = Σ_b M_ab ε_0,b + Σ_t x_t ⊗ (P_t Df_t)_a``, the products ``P`` of a backward sweep, ``M = P_0``."""
        return self._roll_sweeps(graph, traces, values, operands, [_sweep(j, None) for j in values.jacobians])

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """``Σ ⟨s_a, ε_a⟩`` over groups and states."""
        solved = []
        for relation, weights in zip(graph.hidden_param_op_relations, operands, strict=False):
            parts = [
                part
                for link in relation.links
                for part in self._contractions(relation, link, signals, traces[link_key(relation, link)], weights)
            ]
            solved.append(add_trees(*parts))
        return tuple(solved)

    def _contractions(
        self, relation: HiddenParamOpRelation, link: GroupLink, signals: Signals, traces: Any, weights: Trace
    ) -> Iterator[Trace]:
        """The terms of one relation's gradient in one group."""
        laid_out = tuple(
            None if trace is None else link.layout.gather(signal)
            for signal, trace in zip(signals[link.group], traces, strict=True)
        )
        kernel = self._kernel(relation, link)
        if kernel is not None:
            yield kernel.solve(laid_out, traces, fold_batch=relation.primitive.batched)
            return
        for signal, trace in zip(laid_out, traces, strict=True):
            if signal is not None and trace is not None:
                yield contract(relation, link, signal, trace, weights)

    def _kernel(self, relation: HiddenParamOpRelation, link: GroupLink) -> FastPathRules | None:
        """The closed-form kernel of a relation, if there is one and it applies."""
        kernel = get_fast_path_rules(relation.primitive) if self.use_kernels and link.layout.lanes == 1 else None
        return kernel if kernel is not None and kernel.applicable(relation.static) else None

    def fold(self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands) -> tuple[Operands, Any]:
        """``∇w = xy_to_dw(x, ȳ + Dfᵀ λ) + ⟨λ_0, ε_0⟩``: one product over all steps, and one over the entry trace.

        The credits ``λ`` come from a backward sweep over the signals.
        """
        values = steps.values
        sweeps = [_sweep(j, s) for j, s in zip(values.jacobians, steps.signals, strict=True)]
        gradients = []
        for o, operator in enumerate(graph.operators):
            cotangent = steps.drives[o]
            for link in operator.links:
                jacobian = values.jacobians[link.group]
                assert jacobian is not None
                credits = _credits(sweeps[link.group], steps.signals[link.group])
                for df, credit in zip(jacobian.inputs[o], credits, strict=True):
                    if df is not None:
                        cotangent = cotangent + _meet(link.layout, df, credit)
            gradients.append(pull_sequence(operator, values.xs[o], cotangent, operands[o]))
        if traces is None:
            return tuple(gradients), None
        entry = tuple(
            tuple(s[0] for s in signal) if swept is None or swept.entry is None else swept.entry
            for signal, swept in zip(steps.signals, sweeps, strict=True)
        )
        for r, entered in enumerate(self.solve(graph, traces, entry, operands)):
            gradients[r] = add_trees(gradients[r], entered)
        return tuple(gradients), self._roll_sweeps(graph, traces, values, operands, sweeps)

    def _step(
        self,
        relation: HiddenParamOpRelation,
        link: GroupLink,
        traces: Any,
        jacobian: GroupJacobian,
        x: Any,
        weights: Trace,
    ) -> tuple[Trace | None, ...]:
        """One step for all states of one relation in one group."""
        df, kernel = jacobian.inputs[relation.index], self._kernel(relation, link)
        if kernel is not None:
            terms = kernel.instant(x, df, relation.static.get("has_bias", False))
        else:
            terms = [None if d is None else instant(relation, link, x, d, weights) for d in df]
        return self._advance(relation, link, traces, jacobian.transition, terms)

    def _roll_sweeps(
        self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands, sweeps: Sequence[Sweep | None]
    ) -> Any:
        rolled = {}
        for r, relation, link, jacobian in _links(graph, values):
            swept, xs = sweeps[link.group], values.xs[r]
            if swept is None:  # nothing recurs, so the last step alone is remembered
                last, x = jax.tree.map(lambda a: a[-1], jacobian), None if xs is None else xs[-1]
                rolled[link_key(relation, link)] = self._step(relation, link, traces, last, x, operands[r])
                continue
            carried = [carried_inputs(link.layout, suffix, jacobian.inputs[r]) for suffix in swept.suffixes]
            terms = [None if c is None else window(relation, link, xs, c, operands[r]) for c in carried]
            rolled[link_key(relation, link)] = self._advance(relation, link, traces, swept.whole, terms)
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
            tuple(None if f is None or e is None else link.layout.gather(f) for f, e in zip(row, old, strict=True))
            for row in factors
        )
        if kernel is not None:
            carried = kernel.recurrent(laid_out, old)
        else:
            carried = [self._carry(relation, link, row, old) for row in laid_out]
        new: list[Trace | None] = []
        for kept, *parts in zip(old, carried, terms, strict=True):
            present = [part for part in parts if part is not None]
            new.append(None if kept is None else _store(add_trees(*present), kept))
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


def _sweep(jacobian: GroupJacobian | None, signals: tuple[jax.Array, ...] | None) -> Sweep | None:
    """The backward sweep of one group; None where nothing recurs."""
    return sweep(jacobian.transition, signals) if jacobian is not None and recurs(jacobian.transition) else None


def _credits(swept: Sweep | None, signals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """``λ_1 … λ_K``; without recurrence the credit of a state is the signal at the next entry."""
    if swept is not None and swept.credits is not None:
        return swept.credits
    return tuple(jnp.concatenate([s[1:], jnp.zeros_like(s[:1])]) for s in signals)


def _links(
    graph: TraceGraph, values: StepValues
) -> Iterator[tuple[int, HiddenParamOpRelation, GroupLink, GroupJacobian]]:
    for r, relation in enumerate(graph.hidden_param_op_relations):
        for link in relation.links:
            jacobian = values.jacobians[link.group]
            assert jacobian is not None
            yield r, relation, link, jacobian


def _meet(layout: Layout, df: jax.Array, credit: jax.Array) -> jax.Array:
    """``Dfᵀ λ`` at every step, laid out like ``y``."""
    product = df * jax.vmap(layout.gather)(credit)
    return product.sum(1) if layout.lanes > 1 else product


class D_RTRL(Learner):
    """A learner that keeps one trace per weight and hidden state; exact where the recurrence is position-wise.

    Args:
        model: a module whose ``update`` is one step.
        vjp_method: ``"single-step"`` refuses :class:`MultiStepData`; ``"multi-step"`` and None allow both.
        trace_dtype: the dtype in which traces are stored, for example ``jnp.bfloat16``.
        strict: raise where a plain operation mixes positions and would be cut from the traces. Recurrence through
            marked operators, which the algorithm leaves out by definition, is no such path.
        kernels: see :class:`Learner`.
        memory_limit: see :class:`Learner`.

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
        kernels: Kernels = "auto",
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(
            model,
            ParamDimTraces(trace_dtype, kernels == "auto"),
            vjp_method=vjp_method,
            strict=strict,
            kernels=kernels,
            memory_limit=memory_limit,
        )


ParamDimVjpAlgorithm = D_RTRL
