"""One pass over the steps of a window, backward in time, at every position at once.

With ``D_1 … D_K`` the per-position transitions of a group, signals ``s`` at the entry of each step, ``λ_K = 0`` and
``P_K = 1``,

    λ_t−1 = s_t + D_tᵀ λ_t ,      P_t−1 = P_t D_t ,      t = K … 1 .

``λ_t`` is the credit of the state after step ``t``; with signals ``s_t`` at the exit of step ``t`` it is

    λ_t = s_t + D_t+1ᵀ λ_t+1 ,      λ_0 = D_1ᵀ λ_1 .

``P_t`` carries what step ``t`` writes to the end of the
window. State axes are unrolled: a matrix over the states is a tuple of rows, and None is a structural zero.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._factors import gathered_sequence
from etp_algorithms._compiler._relations import Layout

__all__ = ["Row", "Sweep", "carried_inputs", "recurs", "sweep"]

Row = tuple[Any, ...]
"""For every state an array, a known number (:class:`Uniform`), or None for a structural zero."""


class Sweep(NamedTuple):
    """What a backward pass over ``K`` steps finds.

    Attributes:
        credits: ``λ_1 … λ_K`` per state, time leading; None if no signals were given.
        entry: ``λ_0`` per state.
        suffixes: ``P_1 … P_K``, time leading; None if they were not asked for.
        whole: ``P_0``.
    """

    credits: tuple[jax.Array, ...] | None
    entry: tuple[jax.Array, ...] | None
    suffixes: tuple[Row, ...] | None
    whole: tuple[Row, ...] | None


def recurs(transition: Sequence[Row]) -> bool:
    """Whether any state depends on the step before."""
    return any(factor is not None for row in transition for factor in row)


def sweep(
    transition: Sequence[Row],
    signals: Row | None,
    *,
    like: jax.ShapeDtypeStruct,
    length: int,
    at_exit: bool = False,
    products: bool = True,
) -> Sweep:
    """Pass backward over a window.

    Args:
        transition: ``D[a][b]``, each ``(K, *varshape)`` or a known number; at least one is present.
        signals: ``s[a]``, each ``(K, *varshape)`` or None for a state without any; None for the products alone.
        like: shape and dtype of a factor at one step.
        length: ``K``.
        at_exit: the signals are those of the states after the steps, not before them.
        products: whether ``P`` is asked for.
    """
    states = range(len(transition))
    zero, reached = jnp.zeros(like.shape, like.dtype), _closure(transition)
    start = None
    if products:
        one = jnp.ones(like.shape, like.dtype)
        start = tuple(tuple(one if a == b else zero if reached[a][b] else None for b in states) for a in states)
    last = None if signals is None else tuple(zero if s is None else jnp.zeros_like(s[0]) for s in signals)

    def back(carry: Any, now: Any) -> Any:
        (credit, product), (d, s) = carry, now
        earlier = moved = None
        if s is not None and last is not None and at_exit:
            credit = tuple(_sum(credit[a], s[a]) for a in states)
            earlier = tuple(_or_zero(_sum(*(_times(d[a][b], credit[a]) for a in states)), last[b]) for b in states)
        elif s is not None and last is not None:
            flows = (_sum(s[b], *(_times(d[a][b], credit[a]) for a in states)) for b in states)
            earlier = tuple(map(_or_zero, flows, last))
        if product is not None:
            moved = tuple(
                tuple(
                    _or_zero(_sum(*(_times(product[a][c], d[c][b]) for c in states)), kept)
                    for b, kept in zip(states, product[a], strict=True)
                )
                for a in states
            )
        return (earlier, moved), (credit, product)

    (entry, whole), (credits, suffixes) = jax.lax.scan(
        back, (last, start), (transition, signals), length=length, reverse=True
    )
    if whole is not None:
        whole = tuple(tuple(p if reached[a][b] else None for b, p in enumerate(row)) for a, row in enumerate(whole))
    return Sweep(credits, entry, suffixes, whole)


def carried_inputs(layout: Layout, suffix: Row, inputs: Row) -> jax.Array | None:
    """``(P_t Df_t)_a`` for one state ``a`` at every step, laid out like ``y``; None if it is structurally zero."""
    return _sum(
        *(
            gathered_sequence(layout, factor) * df
            for factor, df in zip(suffix, inputs, strict=True)
            if factor is not None and df is not None
        )
    )


def _closure(transition: Sequence[Row]) -> list[list[bool]]:
    """``[a][b]``: whether state ``a`` depends on state ``b`` after one step or more."""
    states = range(len(transition))
    reached = [[factor is not None for factor in row] for row in transition]
    for c in states:
        for a in states:
            for b in states:
                reached[a][b] = reached[a][b] or (reached[a][c] and reached[c][b])
    return reached


def _times(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


def _sum(*terms: Any) -> Any:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def _or_zero(value: jax.Array | None, kept: jax.Array | None) -> jax.Array | None:
    """A carry keeps its structure: an entry that turns structurally zero becomes zeros."""
    return None if kept is None else jnp.zeros_like(kept) if value is None else value
