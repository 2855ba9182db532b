"""Traces that are the same for all outputs, as those of a linear leak are.

Where a state moves by known numbers and is driven by a known number,

    ε_io = φ_i ,      φ ← D φ + Df x ,

so a filter over the data stands in for the trace, and another one, over ones, for that of a bias. Factors are laid out
like ``y`` and the same along its last axis; their first column is enough.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._algorithms._rule_calls import pull_step
from etp_algorithms._algorithms._sweep import Row
from etp_algorithms._compiler._relations import HiddenParamOpRelation, Layout
from etp_algorithms._trees import add_trees
from etp_core import FastPathRules

__all__ = ["aligned", "contract_even", "even_carry", "even_term", "even_trace", "even_window", "expand_even", "is_even"]

Trace = dict[str, jax.Array]


def aligned(relation: HiddenParamOpRelation, layout: Layout, varshape: tuple[int, ...]) -> bool:
    """Whether the last axis of ``y`` lies within the last axis of the positions."""
    shape = tuple(relation.y.aval.shape)
    in_order = np.array_equal(layout.positions.reshape(-1), np.arange(int(np.prod(varshape, dtype=np.int64))))
    return bool(in_order and shape and varshape and varshape[-1] % max(shape[-1], 1) == 0)


def even_trace(relation: HiddenParamOpRelation, dtype: Any) -> Trace:
    """Zero filters."""
    assert relation.x is not None
    shape, dtype = relation.x.aval.shape, dtype or relation.y.aval.dtype
    return {"filter": jnp.zeros(shape, dtype), "ones": jnp.zeros((*shape[:-1], 1), dtype)}


def is_even(trace: Trace) -> bool:
    """Whether filters stand in for the trace."""
    return "filter" in trace


def expand_even(relation: HiddenParamOpRelation, kernel: FastPathRules, trace: Trace) -> Trace:
    """The trace that the filters stand for; a broadcast, which fuses into its reader."""
    one = jnp.ones(relation.y.aval.shape, trace["filter"].dtype)
    (whole,) = kernel.instant(trace["filter"], (one,), relation.static.get("has_bias", False))
    return {**whole, "bias": one * trace["ones"]} if "bias" in whole else whole


def contract_even(relation: HiddenParamOpRelation, signal: jax.Array, trace: Trace, weights: Trace) -> Trace:
    """``Σ_batch s ⊗ φ``."""
    data, ones = (trace[key].astype(signal.dtype) for key in ("filter", "ones"))
    found = pull_step(relation, data, signal, weights)
    if "bias" in found:
        found = {**found, "bias": pull_step(relation, data, signal * ones, weights)["bias"]}
    return found


def even_term(x: jax.Array, df: jax.Array) -> Trace:
    """What one step adds."""
    return {"filter": x * df[..., :1], "ones": df[..., :1]}


def even_window(xs: jax.Array | None, carried: jax.Array) -> Trace:
    """What several steps add, time leading."""
    assert xs is not None
    return {"filter": (xs * carried[..., :1]).sum(0), "ones": carried[..., :1].sum(0)}


def even_carry(row: Row, old: tuple[Trace | None, ...]) -> Trace | None:
    """``Σ_b D_b φ_b``."""
    parts = [
        {key: f[..., :1] * kept for key, kept in trace.items()}
        for f, trace in zip(row, old, strict=True)
        if f is not None and trace is not None
    ]
    return add_trees(*parts) if parts else None
