"""One pass over the steps of a window, backward in time, at every position at once.

With ``D_1 … D_K`` the per-position transitions of a group, signals ``s`` at the entry of each step, ``λ_K = 0`` and
``P_K = 1``,

    λ_t−1 = s_t + D_tᵀ λ_t ,      P_t−1 = P_t D_t ,      t = K … 1 .

``λ_t`` is the credit of the state after step ``t``; with signals ``s_t`` at the exit of step ``t`` it is

    λ_t = s_t + D_t+1ᵀ λ_t+1 ,      λ_0 = D_1ᵀ λ_1 .

``P_t`` carries what step ``t`` writes to the end of the window. Neither is kept: each step hands out what meets the
data, ``ȳ_t + Df_tᵀ λ_t`` and ``P_t Df_t``. State axes are unrolled: a matrix over the states is a tuple of rows, and
None is a structural zero. Groups in which no state depends on the step before take no part in the pass.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._engine import spread_in_time
from etp_algorithms._residuals import RecordedSteps

__all__ = ["Row", "Swept", "meet", "passed_back", "recurs", "sweep"]

Row = tuple[Any, ...]
"""For every state an array, a known number (:class:`Uniform`), or None for a structural zero."""
Jacobians = tuple[GroupJacobian | None, ...]


class Swept(NamedTuple):
    """What a backward pass over ``K`` steps finds.

    Attributes:
        cotangents: for every marked operator that of its output at every step, ``ȳ + Dfᵀ λ``, time leading; None for
            a structural zero.
        entry: ``λ_0`` per group and state.
        carried: for every relation and group that recurs ``(P_t Df_t)_a`` per state, laid out like ``y``.
        whole: ``P_0`` for every group that recurs.
    """

    cotangents: tuple[jax.Array | None, ...]
    entry: tuple[Row, ...]
    carried: Mapping[tuple[int, int], Row]
    whole: Mapping[int, tuple[Row, ...]]


def recurs(transition: Sequence[Row]) -> bool:
    """Whether any state depends on the step before."""
    return any(factor is not None for row in transition for factor in row)


def sweep(
    graph: TraceGraph,
    steps: RecordedSteps,
    signals: Sequence[Row] | None,
    drives: Sequence[jax.Array | None] = (),
    *,
    spacing: int = 1,
    ahead: Sequence[Row] | None = None,
    at_exit: bool = False,
    products: bool = True,
) -> Swept:
    """Pass backward over a window.

    Args:
        graph: the compiled step.
        steps: recorded steps that read as values with ``jacobians``, time leading.
        signals: ``s`` per group and state, each ``(K, *varshape)`` or None for a state without any; None for the
            products alone.
        drives: ``ȳ`` of every marked operator, time leading, or None for zero.
        spacing: there are signals at one step in so many, the first of each.
        ahead: ``λ_K`` with signals at the entry; None for zero.
        at_exit: the signals are those of the states after the steps, not before them.
        products: whether ``P`` is asked for.
    """
    shape_of = jax.eval_shape(lambda s: steps.read(jax.tree.map(lambda a: a[0], s)).jacobians, steps.saved)
    moving = [g for g, j in enumerate(shape_of) if j is not None and recurs(j.transition)]
    cotangents = list(drives)
    entry: list[Row] = [()] * len(shape_of)
    if signals is not None:
        still = [g for g, j in enumerate(shape_of) if j is not None and g not in moving]
        jacobians = steps.stacked.jacobians if still else ()
        for g in still:
            each = [None if s is None else spread_in_time(s, spacing) for s in signals[g]]
            after = (None,) * len(each) if ahead is None else ahead[g]
            credits = tuple(each) if at_exit else tuple(map(_next, each, after))
            entry[g] = tuple(None if at_exit or s is None else s[0] for s in signals[g])
            for r, link in _links_of(graph, g):
                met_at = jax.vmap(lambda df, credit, link=link: meet(link, df, credit))
                cotangents[r] = _sum(cotangents[r], met_at(jacobians[g].inputs[r], credits))
    if not moving:
        return Swept(tuple(cotangents), tuple(entry), {}, {})
    driven = sorted({r for g in moving for r, _ in _links_of(graph, g)}) if signals is not None else []
    reached = {g: _closure(shape_of[g].transition) for g in moving}
    start = {
        g: (
            None if signals is None else _no_credit(graph, g, signals[g]) if ahead is None else ahead[g],
            _identity(graph, g, reached[g]) if products else None,
        )
        for g in moving
    }
    given = {} if signals is None else {(g, a): s for g in moving for a, s in enumerate(signals[g]) if s is not None}
    buffers, within = _buffers(graph, driven, cotangents, given if spacing == 1 else {}, steps.length)
    outside = {key: s for key, s in given.items() if key not in within.values()}

    def back(carry: Any, now: Any) -> Any:
        (behind, buffers), (values, (asked, t)) = carry, now
        jacobians, carried, earlier = values.jacobians, {}, {}
        if spacing > 1:
            asked = {key: _first_in(s, t, spacing) for key, s in outside.items()}
        here = {r: jax.lax.dynamic_index_in_dim(buffer, t, keepdims=False) for r, buffer in buffers.items()}
        here, buffers = jax.lax.optimization_barrier((here, buffers))
        asked = {**asked, **{key: here.pop(r) for r, key in within.items()}}
        met: dict[int, Any] = {r: here.get(r) if cotangents[r] is not None else None for r in driven}
        for g in moving:
            d, (credit, product) = jacobians[g].transition, behind[g]
            if credit is not None:
                found = tuple(asked.get((g, a)) for a in range(len(credit)))
                if at_exit:
                    credit = tuple(map(_sum, credit, found))
                for r, link in _links_of(graph, g):
                    met[r] = _sum(met[r], meet(link, jacobians[g].inputs[r], credit))
                flows = (_sum(None if at_exit else s, passed_back(d, credit, b)) for b, s in enumerate(found))
                credit = tuple(map(_or_zero, flows, behind[g][0]))
            if product is not None:
                for r, link in _links_of(graph, g):
                    carried[r, g] = tuple(_carry(link, row, jacobians[g].inputs[r]) for row in product)
                product = tuple(
                    tuple(_or_zero(passed_back(d, row, b), kept) for b, kept in enumerate(row)) for row in product
                )
            earlier[g] = credit, product
        buffers = {
            r: jax.lax.dynamic_update_index_in_dim(buffer, _or_zero(met[r], buffer[0]), t, 0)
            for r, buffer in buffers.items()
        }
        return (earlier, buffers), carried

    each = (outside if spacing == 1 else {}, jnp.arange(steps.length))
    (last, buffers), carried = steps.scan(back, (start, buffers), each, reverse=True)
    for r in driven:
        cotangents[r] = buffers[r]
    whole = {}
    for g, (credit, product) in last.items():
        entry[g] = credit if credit is not None else ()
        if product is not None:
            whole[g] = tuple(
                tuple(p if found else None for p, found in zip(*pair, strict=True))
                for pair in zip(product, reached[g], strict=True)
            )
    return Swept(tuple(cotangents), tuple(entry), carried, whole)


def _buffers(
    graph: TraceGraph,
    driven: Sequence[int],
    drives: Sequence[jax.Array | None],
    signals: Mapping[Any, jax.Array],
    length: int,
) -> tuple[dict[int, jax.Array], dict[int, Any]]:
    """Where the pass writes the cotangents of operators, in place of what it reads at the same step.

    That is the drive of the operator; if it has none, a signal of the same shape; else new memory.

    Returns:
        An array per operator, and for those that hold a signal which one.
    """
    buffers: dict[int, jax.Array] = {}
    within: dict[int, Any] = {}
    for r in driven:
        y, drive = graph.hidden_param_op_relations[r].y.aval, drives[r]
        if drive is None:
            like = (length, *y.shape), y.dtype
            free = (key for key, s in signals.items() if key not in within.values() and (s.shape, s.dtype) == like)
            key = next(free, None)
            if key is not None:
                within[r] = key
            drive = jnp.zeros(*like) if key is None else signals[key]
        buffers[r] = drive
    return buffers, within


def _no_credit(graph: TraceGraph, g: int, signals: Row) -> Row:
    """``λ_K = 0``."""
    group = graph.hidden_groups[g]
    zero = jnp.zeros(group.varshape, group.leaves[0].input.aval.dtype)
    return tuple(zero if s is None else jnp.zeros_like(s[0]) for s in signals)


def _identity(graph: TraceGraph, g: int, reached: list[list[bool]]) -> tuple[Row, ...]:
    """``P_K = 1``, zeros where anything will be."""
    group = graph.hidden_groups[g]
    shape, dtype = group.varshape, group.leaves[0].input.aval.dtype
    zero, one = jnp.zeros(shape, dtype), jnp.ones(shape, dtype)
    states = range(len(reached))
    return tuple(tuple(one if a == b else zero if reached[a][b] else None for b in states) for a in states)


def _links_of(graph: TraceGraph, g: int) -> list[tuple[int, GroupLink]]:
    relations = enumerate(graph.hidden_param_op_relations)
    return [(r, link) for r, relation in relations for link in relation.links if link.group == g]


def meet(link: GroupLink, inputs: Row, credit: Row) -> jax.Array | None:
    """``Dfᵀ λ``, laid out like ``y``."""
    terms = (d * link.layout.gather(c) for d, c in zip(inputs, credit, strict=True) if d is not None and c is not None)
    found = _sum(*terms)
    return found.sum(0) if found is not None and link.layout.lanes > 1 else found


def _carry(link: GroupLink, row: Row, inputs: Row) -> jax.Array | None:
    """``(P Df)_a`` for one state, laid out like ``y``; None if it is structurally zero."""
    return _sum(
        *(link.layout.gather(p) * d for p, d in zip(row, inputs, strict=True) if p is not None and d is not None)
    )


def passed_back(transition: Sequence[Row], row: Row, b: int) -> Any:
    """``Σ_a row_a D_ab``."""
    return _sum(*(r * d[b] for r, d in zip(row, transition, strict=True) if r is not None and d[b] is not None))


def _closure(transition: Sequence[Row]) -> list[list[bool]]:
    """``[a][b]``: whether state ``a`` depends on state ``b`` after one step or more."""
    states = range(len(transition))
    reached = [[factor is not None for factor in row] for row in transition]
    for c in states:
        for a in states:
            for b in states:
                reached[a][b] = reached[a][b] or (reached[a][c] and reached[c][b])
    return reached


def _sum(*terms: Any) -> Any:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def _or_zero(value: Any, kept: jax.Array | None) -> jax.Array | None:
    """A carry keeps its structure: an entry that turns structurally zero becomes zeros."""
    if kept is None:
        return None
    return jnp.zeros_like(kept) if value is None else jnp.asarray(value, kept.dtype)


def _first_in(signal: jax.Array, t: jax.Array, spacing: int) -> jax.Array:
    """The signal at step ``t``, of signals at one step in ``spacing``."""
    found = jax.lax.dynamic_index_in_dim(signal, t // spacing, keepdims=False)
    return jnp.where(t % spacing == 0, found, 0)


def _next(signal: jax.Array | None, after: jax.Array | None) -> jax.Array | None:
    """Of every step the signal at the entry of the next one; after the last there is ``after``, or None for zero."""
    if signal is None:
        return None
    return jnp.concatenate([signal[1:], jnp.zeros_like(signal[:1]) if after is None else after[None]])
