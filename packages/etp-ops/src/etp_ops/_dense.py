"""Dense products: ``y = x · weight_fn(W) (+ bias_fn(b))``.

Primitives ``etp_mm`` (``x`` of shape ``(B, I)``) and ``etp_mv`` (``x`` of shape ``(I,)``). The trace is kept
for the transformed weight ``V = weight_fn(W)``,

    ε_V[.., i, o] ← D[.., o] ε_V[.., i, o] + x[.., i] Df[.., o],    ε_b[.., o] ← D[.., o] ε_b[.., o] + Df[.., o],

and the derivative of the hook enters once, when a signal is contracted with it. The rules use ``...`` for
the batch axis, so one set serves both primitives. Memory: ``B · I · O`` numbers per hidden state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import bias_operands, fold_leading, split_data, split_weight
from etp_ops._rules import (
    Arrays,
    init_parameter_shaped,
    init_pp,
    solve_bias,
    sum_over_batch,
    trainable,
)

__all__ = ["etp_mm_p", "etp_mv_p", "matmul"]


def matmul(x: Any, weight: Any, bias: Any = None, *, weight_fn: Hook = None, bias_fn: Hook = None) -> Any:
    """``x · weight_fn(weight) (+ bias_fn(bias))``, with ``weight`` and ``bias`` marked for online learning.

    Args:
        x: data of shape ``(I,)`` or ``(..., I)``; leading axes beyond one are folded into one batch axis and
            unfolded after. Integers and booleans (spikes) are fine.
        weight: shape ``(I, O)``.
        bias: shape ``(O,)``, or None; any scale of the unit of ``x · weight``.
        weight_fn: shape-preserving function of the weight's mantissa.
        bias_fn: shape-preserving function of the bias's mantissa.

    Returns:
        Shape ``(..., O)``; the unit is the product of the units of ``x`` and ``weight``.

    Raises:
        ValueError: a rank or a shape does not fit, or a hook changes a shape.
        TypeError: a weight is not real and floating point, the bias has another dimension, or a hook is not a
            hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import matmul
        >>> matmul(jnp.ones((2, 3)), jnp.ones((3, 4)), weight_fn=jnp.negative).tolist()[0]
        [-3.0, -3.0, -3.0, -3.0]
    """
    x, x_unit = split_data(x, operator="matmul")
    weight, weight_unit = split_weight(weight, weight_fn, operator="matmul")
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"matmul takes x of shape (..., I) and weight of shape (I, O); got x {x.shape} and weight {weight.shape}. "
            f"For other contractions use einsum or grouped_matmul."
        )
    unit = unit_product(x_unit, weight_unit)
    biases = bias_operands(bias, bias_fn, unit, weight.shape[1:], operator="matmul")
    primitive = etp_mv_p if x.ndim == 1 else etp_mm_p
    x, unfold = fold_leading(x, 1)
    y = primitive.bind(x, weight, *biases, has_bias=bool(biases), weight_fn=weight_fn, bias_fn=bias_fn)
    return unfold(y, unit)


def _impl(
    x: jax.Array,
    weight: jax.Array,
    bias: Any = None,
    *,
    has_bias: bool = False,
    weight_fn: Hook = None,
    bias_fn: Hook = None,
) -> jax.Array:
    y = x @ apply_hook(weight_fn, weight)
    return y + apply_hook(bias_fn, bias) if has_bias else y


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    scaled = {"weight": trace["weight"] * hidden_dim[..., None, :]}
    return {**scaled, "bias": trace["bias"] * hidden_dim} if "bias" in trace else scaled


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    term = {"weight": x[..., :, None] * df[..., None, :]}
    return {**term, "bias": df} if "bias" in weights else term


def _window(x_seq: jax.Array, df_seq: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    term = {"weight": jnp.einsum("t...i,t...o->...io", x_seq, df_seq)}
    if "bias" in weights:
        term["bias"] = df_seq.sum(0)
    return term


def _xy_to_dw(
    x: jax.Array, hidden_dim: jax.Array, weights: Arrays, *, weight_fn: Hook = None, bias_fn: Hook = None, **_: Any
) -> Arrays:
    # laid out as the weight is: the product that JAX derives is transposed, which XLA does not undo for one sample
    total = jnp.outer(x, hidden_dim) if x.ndim == 1 else jnp.tensordot(x, hidden_dim, axes=(0, 0))
    gradient = {"weight": pull_hook(weight_fn, weights["weight"], total)}
    if "bias" in weights:
        found = hidden_dim.sum(0) if x.ndim > 1 else hidden_dim
        gradient["bias"] = pull_hook(bias_fn, weights["bias"], found)
    return gradient


def _solve(
    signal: jax.Array, trace: Arrays, weights: Arrays, *, weight_fn: Hook = None, bias_fn: Hook = None, **_: Any
) -> Arrays:
    total = signal * trace["weight"] if signal.ndim == 1 else sum_over_batch("o,io->io", signal, trace["weight"])
    gradient = {"weight": pull_hook(weight_fn, weights["weight"], total)}
    return {**gradient, **solve_bias(signal, trace, weights, bias_fn)}


etp_mm_p: ETPPrimitive = register_primitive("etp_mm", _impl, batched=True, trainable_invars_fn=trainable("weight"))
etp_mv_p: ETPPrimitive = register_primitive("etp_mv", _impl, trainable_invars_fn=trainable("weight"))
etp_mv_p.register_batched_twin(etp_mm_p)
for _primitive in (etp_mm_p, etp_mv_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=_xy_to_dw,
        init_drtrl=init_parameter_shaped(data_axes=1),
        init_pp=init_pp,
        instant=_instant,
        solve=_solve,
        window=_window,
    )
