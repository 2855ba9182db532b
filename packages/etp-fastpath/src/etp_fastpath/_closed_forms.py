"""Closed forms for dense, grouped and element-wise weights without hooks.

Traces, factors and signals are tuples over the states of a hidden group; None is a structural zero. With ``y`` a
sum over the contracted axis ``i`` of ``x`` (absent for element-wise weights),

    instant:    x_i Df_o,a              recurrent:   Σ_b D_o,ab ε_io,b          solve:   Σ_batch Σ_a s_o,a ε_io,a .

No array has a state axis or an axis of size one, so every line is one fused pass.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from etp_core import FastPathRules

__all__ = ["DENSE", "ELEMENT_WISE"]

_FEW = 4  # blocks that are written out one by one: XLA compiles equal blocks once, but every loop
_MOST = 8  # samples that one fused loop adds up: with more, XLA's CPU back-end reads at half the speed

Trace = dict[str, jax.Array]
Row = tuple[jax.Array | None, ...]


def _dense_instant(x: jax.Array, df: Row, has_bias: bool) -> tuple[Trace | None, ...]:
    def term(d: jax.Array) -> Trace:
        outer = {"weight": x[..., :, None] * d[..., None, :]}
        return {**outer, "bias": d} if has_bias else outer

    return tuple(None if d is None else term(d) for d in df)


def _dense_recurrent(factors: tuple[Row, ...], traces: tuple[Trace | None, ...]) -> tuple[Trace | None, ...]:
    def product(d: jax.Array, trace: Trace) -> Trace:
        return {key: e * (d[..., None, :] if key == "weight" else d) for key, e in trace.items()}

    return _rows(product, factors, traces)


def _dense_solve(signals: Row, traces: tuple[Trace | None, ...], *, fold_batch: bool = False) -> Trace:
    pairs = [(s, t) for s, t in zip(signals, traces, strict=True) if s is not None and t is not None]
    return _solve(lambda s, e, key: e * (s[..., None, :] if key == "weight" else s), pairs, fold_batch)


def _element_wise_instant(x: None, df: Row, has_bias: bool) -> tuple[Trace | None, ...]:
    return tuple(None if d is None else {"weight": d} for d in df)


def _element_wise_recurrent(factors: tuple[Row, ...], traces: tuple[Trace | None, ...]) -> tuple[Trace | None, ...]:
    return _rows(lambda d, trace: {"weight": d * trace["weight"]}, factors, traces)


def _element_wise_solve(signals: Row, traces: tuple[Trace | None, ...], *, fold_batch: bool = False) -> Trace:
    pairs = [(s, t) for s, t in zip(signals, traces, strict=True) if s is not None and t is not None]
    return _solve(lambda s, e, key: s * e, pairs, fold_batch)


def _rows(
    product: Callable[[jax.Array, Trace], Trace], factors: tuple[Row, ...], traces: tuple[Trace | None, ...]
) -> tuple[Trace | None, ...]:
    """``Σ_b product(factors[a][b], traces[b])`` for every state ``a``; None for an empty sum."""
    rows: list[Trace | None] = []
    for row in factors:
        terms = [product(d, t) for d, t in zip(row, traces, strict=True) if d is not None and t is not None]
        rows.append({key: sum((t[key] for t in terms[1:]), terms[0][key]) for key in terms[0]} if terms else None)
    return tuple(rows)


def _solve(
    product: Callable[[jax.Array, jax.Array, str], jax.Array], pairs: list[tuple[jax.Array, Trace]], fold_batch: bool
) -> Trace:
    """``Σ_a product(s_a, ε_a)``; with ``fold_batch`` also over the leading axis, all states in one pass."""

    def over_states(pairs: list[tuple[jax.Array, Trace]]) -> Trace:
        terms = [{key: product(s, e, key) for key, e in trace.items()} for s, trace in pairs]
        return {key: sum((t[key] for t in terms[1:]), terms[0][key]) for key in terms[0]}

    if not fold_batch:
        return over_states(pairs)

    def whole(pairs: Any) -> Trace:
        return {key: g.sum(0) for key, g in over_states(pairs).items()}

    def unrolled(pairs: Any) -> Trace:
        samples = [over_states(jax.tree.map(operator.itemgetter(b), pairs)) for b in range(_batch(pairs))]
        return functools.reduce(add, samples)

    def streamed(pairs: Any) -> Trace:
        batch = _batch(pairs)
        block = next(size for size in range(_MOST, 0, -1) if batch % size == 0)
        if batch == block:
            return unrolled(pairs)
        if batch <= _FEW * block:
            return written_out(pairs, block)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(whole, pairs))

        def add_block(total: Trace, start: jax.Array) -> tuple[Trace, None]:
            # sliced, not reshaped: a reshape would be fused with the update of the trace, which then runs twice
            taken = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, block), pairs)
            return add(total, unrolled(taken)), None

        return jax.lax.scan(add_block, zero, jnp.arange(0, batch, block))[0]

    def written_out(pairs: Any, block: int) -> Trace:
        # barriers keep the blocks apart, from one another and from the update of the trace
        apart = jax.lax.optimization_barrier
        pairs = apart(pairs)
        blocks = [jax.tree.map(operator.itemgetter(slice(n, n + block)), pairs) for n in range(0, _batch(pairs), block)]
        return functools.reduce(lambda total, b: apart(add(total, unrolled(b))), blocks[1:], apart(unrolled(blocks[0])))

    add = functools.partial(jax.tree.map, jnp.add)
    # XLA's CPU back-end reduces a leading axis far below the speed at which it streams
    return jax.lax.platform_dependent(pairs, cpu=streamed, default=whole)


def _batch(pairs: list[tuple[jax.Array, Trace]]) -> int:
    return pairs[0][0].shape[0]


def _without_hooks(static: Mapping[str, Any]) -> bool:
    return static.get("weight_fn") is None and static.get("bias_fn") is None


DENSE = FastPathRules(_dense_instant, _dense_recurrent, _dense_solve, _without_hooks)
"""``etp_mm``, ``etp_mv``, ``etp_gmm``, ``etp_gmv``: the output axis is last, the contracted one before it."""
ELEMENT_WISE = FastPathRules(_element_wise_instant, _element_wise_recurrent, _element_wise_solve, _without_hooks)
"""``etp_elemwise``."""
