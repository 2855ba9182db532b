"""Dense products: ``y = x · weight_fn(W) (+ bias_fn(b))``.

Primitives ``etp_mm`` (``x`` of shape ``(B, I)``) and ``etp_mv`` (``x`` of shape ``(I,)``). The trace is kept
for the transformed weight ``V = weight_fn(W)``,

    ε_V[.., i, o] ← D[.., o] ε_V[.., i, o] + x[.., i] Df[.., o],    ε_b[.., o] ← D[.., o] ε_b[.., o] + Df[.., o],

and the derivative of the hook enters once, when a signal is contracted with it. The rules use ``...`` for
the batch axis, so one set serves both primitives.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from etp_core import register_primitive
from etp_core.units import join_unit, mantissa_in, split_unit, unit_product
from etp_ops._hooks import Hook, apply_hook, check_hook, pull_hook

__all__ = ["etp_mm_p", "etp_mv_p", "matmul"]

Arrays = dict[str, jax.Array]


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
        TypeError: the bias has another dimension, or a hook is not a function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import matmul
        >>> matmul(jnp.ones((2, 3)), jnp.ones((3, 4)), weight_fn=jnp.negative).tolist()[0]
        [-3.0, -3.0, -3.0, -3.0]
    """
    x, x_unit = split_unit(x)
    weight, weight_unit = split_unit(weight)
    unit = unit_product(x_unit, weight_unit)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"matmul takes x of shape (..., I) and weight of shape (I, O); got x {x.shape} and weight {weight.shape}. "
            f"For other contractions use einsum or grouped_matmul."
        )
    check_hook(weight_fn, weight, operator="matmul", name="weight_fn")
    operands = [x.reshape(-1, x.shape[-1]) if x.ndim > 2 else x, weight]
    if bias is not None:
        bias = mantissa_in(bias, unit, what="matmul: bias")
        if bias.shape != weight.shape[1:]:
            raise ValueError(f"matmul takes a bias of shape {weight.shape[1:]}, one per output; got {bias.shape}.")
        check_hook(bias_fn, bias, operator="matmul", name="bias_fn")
        operands.append(bias)
    elif bias_fn is not None:
        raise ValueError("matmul: bias_fn is given but bias is None; give a bias or leave out bias_fn.")
    primitive = etp_mv_p if x.ndim == 1 else etp_mm_p
    y = primitive.bind(*operands, has_bias=bias is not None, weight_fn=weight_fn, bias_fn=bias_fn)
    return join_unit(y.reshape(*x.shape[:-1], weight.shape[1]), unit)


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


def _trainable(static: Mapping[str, Any]) -> dict[str, int]:
    return {"weight": 1, "bias": 2} if static.get("has_bias", False) else {"weight": 1}


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    scaled = {"weight": trace["weight"] * hidden_dim[..., None, :]}
    if "bias" in trace:
        scaled["bias"] = trace["bias"] * hidden_dim
    return scaled


def _xy_to_dw(x: jax.Array, hidden_dim: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    return jax.vjp(lambda w: _impl(x, w["weight"], w.get("bias"), **static), weights)[1](hidden_dim)[0]


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    term = {"weight": x[..., :, None] * df[..., None, :]}
    if "bias" in weights:
        term["bias"] = df
    return term


def _solve(
    signal: jax.Array, trace: Arrays, weights: Arrays, *, weight_fn: Hook = None, bias_fn: Hook = None, **_: Any
) -> Arrays:
    batch = "b" * (signal.ndim - 1)
    gradient = {
        "weight": pull_hook(
            weight_fn, weights["weight"], jnp.einsum(f"{batch}o,{batch}io->io", signal, trace["weight"])
        )
    }
    if "bias" in weights:
        total = (signal * trace["bias"]).reshape(-1, signal.shape[-1]).sum(0)
        gradient["bias"] = pull_hook(bias_fn, weights["bias"], total)
    return gradient


def _init_drtrl(x_var: Any, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> Arrays:
    batch = x_var.aval.shape[:-1]
    dtype = jnp.result_type(y_var.aval.dtype)
    return {key: jnp.zeros((*batch, *var.aval.shape, num_hidden_state), dtype) for key, var in weight_vars.items()}


def _init_pp(x_var: Any, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> jax.Array:
    return jnp.zeros((*y_var.aval.shape, num_hidden_state), y_var.aval.dtype)


etp_mm_p = register_primitive("etp_mm", _impl, batched=True, trainable_invars_fn=_trainable)
etp_mv_p = register_primitive("etp_mv", _impl, trainable_invars_fn=_trainable)
etp_mv_p.register_batched_twin(etp_mm_p)
for _primitive in (etp_mm_p, etp_mv_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=_xy_to_dw,
        init_drtrl=_init_drtrl,
        init_pp=_init_pp,
        instant=_instant,
        solve=_solve,
    )
