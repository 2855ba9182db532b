"""Embeddings: ``y = weight_fn(T)[index]``, a row of a table per index.

Primitives ``etp_emb`` (``B`` indices) and ``etp_emb_v`` (one index). An index is a one-hot vector ``x`` over
the ``N`` rows, and the trace is that of the dense product with it, kept for ``V = weight_fn(T)``,

    ε_V[.., n, d] ← D[.., d] ε_V[.., n, d] + [n = index] Df[.., d].

Memory: ``B · N · D`` numbers per hidden state. A live step touches all of them, since a row that was read once
fades at the pace of its hidden state; a window touches them once, and a complete sequence that is folded never
(it scatters into the rows that were read). For a large vocabulary on a stream use a factorised trace (pp_prop:
``N + D`` numbers), which low-passes the one-hot view of the index (``pp_input``).

Out of range means what it means in JAX: negative indices count from the end, others are clipped to the table.
"""

from typing import Any

import jax
import jax.numpy as jnp

from etp_core import ETPPrimitive, register_primitive
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import fold_leading, split_data, split_weight
from etp_ops._rules import Arrays, init_parameter_shaped, init_pp, pull_back, sum_over_batch, trainable

__all__ = ["embedding", "etp_emb_p", "etp_emb_v_p"]


def embedding(indices: Any, weight: Any, *, weight_fn: Hook = None) -> Any:
    """The rows ``weight_fn(weight)[indices]``, with ``weight`` marked for online learning.

    Args:
        indices: integers, of any shape; axes beyond one are folded into one batch axis and unfolded after.
        weight: the table, shape ``(N, D)``.
        weight_fn: shape-preserving function of the table's mantissa.

    Returns:
        Shape ``(*indices.shape, D)``, in the unit of ``weight``.

    Raises:
        ValueError: the table is not a matrix with a row, or the hook changes its shape.
        TypeError: the indices are not integers, the table is not real and floating point, or the hook is not a
            hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import embedding
        >>> embedding(2, jnp.eye(3)).tolist()
        [0.0, 0.0, 1.0]
    """
    indices, indices_unit = split_data(indices, operator="embedding", name="indices")
    weight, unit = split_weight(weight, weight_fn, operator="embedding")
    if not jnp.issubdtype(indices.dtype, jnp.integer) or not indices_unit.is_unitless:
        raise TypeError(
            f"embedding takes integers without unit as indices, got {indices.dtype} with the unit {indices_unit}; "
            f"convert them first, or use matmul for one-hot data."
        )
    if weight.ndim != 2 or weight.shape[0] == 0:
        raise ValueError(f"embedding takes a table of shape (N, D) with N > 0, got {weight.shape}.")
    primitive = etp_emb_v_p if indices.ndim == 0 else etp_emb_p
    indices, unfold = fold_leading(indices, 0)
    return unfold(primitive.bind(indices, weight, weight_fn=weight_fn), unit)


def _impl(x: jax.Array, weight: jax.Array, *, weight_fn: Hook = None) -> jax.Array:
    table = apply_hook(weight_fn, weight)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return table[_row(x, weight)]
    return x @ table  # the low-passed one-hot view


def _row(index: jax.Array, weight: jax.Array) -> jax.Array:
    rows = weight.shape[0]
    index = index.astype(jnp.result_type(int))  # wide enough to add the number of rows
    return jnp.clip(jnp.where(index < 0, index + rows, index), 0, rows - 1)


def _one_hot(x: jax.Array, weights: Arrays, **_: Any) -> jax.Array:
    weight = weights["weight"]
    return jax.nn.one_hot(_row(x, weight), weight.shape[0], dtype=weight.dtype)


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    return {"weight": trace["weight"] * hidden_dim[..., None, :]}


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    return {"weight": _one_hot(x, weights)[..., :, None] * df[..., None, :]}


def _window(x_seq: jax.Array, df_seq: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    """Only the rows that were read are written."""
    weight, batch = weights["weight"], x_seq.shape[1:]
    rows = _row(x_seq, weight)
    lanes = (jnp.broadcast_to(jnp.arange(batch[0]), x_seq.shape),) if batch else ()
    return {"weight": jnp.zeros((*batch, *weight.shape), df_seq.dtype).at[(*lanes, rows)].add(df_seq)}


def _solve(signal: jax.Array, trace: Arrays, weights: Arrays, *, weight_fn: Hook = None) -> Arrays:
    total = signal * trace["weight"] if signal.ndim == 1 else sum_over_batch("d,nd->nd", signal, trace["weight"])
    return {"weight": pull_hook(weight_fn, weights["weight"], total)}


etp_emb_p: ETPPrimitive = register_primitive("etp_emb", _impl, batched=True, trainable_invars_fn=trainable("weight"))
etp_emb_v_p: ETPPrimitive = register_primitive("etp_emb_v", _impl, trainable_invars_fn=trainable("weight"))
etp_emb_v_p.register_batched_twin(etp_emb_p)
for _primitive in (etp_emb_p, etp_emb_v_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=pull_back(_impl, "weight"),
        init_drtrl=init_parameter_shaped(data_axes=0),
        init_pp=init_pp,
        instant=_instant,
        solve=_solve,
        window=_window,
        pp_input=_one_hot,
    )
