"""Grouped dense products: ``y[.., g, n] = Σ_k x[.., g, k] V[g, k, n] (+ bias_fn(b)[g, n])``, ``V = weight_fn(W)``.

Primitives ``etp_gmm`` (``x`` of shape ``(B, G, K)``) and ``etp_gmv`` (``x`` of shape ``(G, K)``): ``G`` dense
products side by side, as for heads or populations. The trace is kept for ``V``,

    ε_V[.., g, k, n] ← D[.., g, n] ε_V[.., g, k, n] + x[.., g, k] Df[.., g, n],    ε_b ← D ε_b + Df,

and costs ``B · G · K · N`` numbers per hidden state.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import bias_operands, fold_leading, split_data, split_weight
from etp_ops._rules import Arrays, init_parameter_shaped, init_pp, pull_back, solve_bias, sum_over_batch, trainable

__all__ = ["etp_gmm_p", "etp_gmv_p", "grouped_matmul"]


def grouped_matmul(x: Any, weight: Any, bias: Any = None, *, weight_fn: Hook = None, bias_fn: Hook = None) -> Any:
    """One dense product per group, with ``weight`` and ``bias`` marked for online learning.

    Args:
        x: data of shape ``(G, K)`` or ``(..., G, K)``; leading axes beyond one are folded into one batch axis
            and unfolded after. Integers and booleans (spikes) are fine.
        weight: shape ``(G, K, N)``.
        bias: shape ``(G, N)``, or None; any scale of the unit of the product.
        weight_fn: shape-preserving function of the weight's mantissa.
        bias_fn: shape-preserving function of the bias's mantissa.

    Returns:
        Shape ``(..., G, N)``; the unit is the product of the units of ``x`` and ``weight``.

    Raises:
        ValueError: a rank or a shape does not fit, or a hook changes a shape.
        TypeError: a weight is not real and floating point, the bias has another dimension, or a hook is not a
            hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import grouped_matmul
        >>> grouped_matmul(jnp.ones((2, 3)), jnp.ones((2, 3, 1)), jnp.ones((2, 1))).tolist()
        [[4.0], [4.0]]
    """
    x, x_unit = split_data(x, operator="grouped_matmul")
    weight, weight_unit = split_weight(weight, weight_fn, operator="grouped_matmul")
    if weight.ndim != 3 or x.ndim < 2 or x.shape[-2:] != weight.shape[:2]:
        raise ValueError(
            f"grouped_matmul takes x of shape (..., G, K) and weight of shape (G, K, N); got x {x.shape} and weight "
            f"{weight.shape}. For one product over all groups use matmul, for other contractions einsum."
        )
    unit = unit_product(x_unit, weight_unit)
    bias_shape = (weight.shape[0], weight.shape[2])
    biases = bias_operands(bias, bias_fn, unit, bias_shape, operator="grouped_matmul")
    primitive = etp_gmv_p if x.ndim == 2 else etp_gmm_p
    x, unfold = fold_leading(x, 2)
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
    y = jnp.einsum("...gk,gkn->...gn", x, apply_hook(weight_fn, weight))
    return y + apply_hook(bias_fn, bias) if has_bias else y


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    scaled = {"weight": trace["weight"] * hidden_dim[..., None, :]}
    return {**scaled, "bias": trace["bias"] * hidden_dim} if "bias" in trace else scaled


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    term = {"weight": x[..., :, None] * df[..., None, :]}
    return {**term, "bias": df} if "bias" in weights else term


def _window(x_seq: jax.Array, df_seq: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    term = {"weight": jnp.einsum("t...gk,t...gn->...gkn", x_seq, df_seq)}
    return {**term, "bias": df_seq.sum(0)} if "bias" in weights else term


def _solve(
    signal: jax.Array, trace: Arrays, weights: Arrays, *, weight_fn: Hook = None, bias_fn: Hook = None, **_: Any
) -> Arrays:
    if signal.ndim == 2:
        total = signal[..., None, :] * trace["weight"]
    else:
        total = sum_over_batch("gn,gkn->gkn", signal, trace["weight"])
    gradient = {"weight": pull_hook(weight_fn, weights["weight"], total)}
    return {**gradient, **solve_bias(signal, trace, weights, bias_fn)}


def _adjacency(x_shape: tuple[int, ...], y_shape: tuple[int, ...], **static: Any) -> np.ndarray:
    return np.kron(np.eye(x_shape[0], dtype=bool), np.ones((y_shape[1], x_shape[1]), bool))


etp_gmm_p: ETPPrimitive = register_primitive("etp_gmm", _impl, batched=True, trainable_invars_fn=trainable("weight"))
etp_gmv_p: ETPPrimitive = register_primitive("etp_gmv", _impl, trainable_invars_fn=trainable("weight"))
etp_gmv_p.register_batched_twin(etp_gmm_p)
for _primitive in (etp_gmm_p, etp_gmv_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=pull_back(_impl, "weight"),
        init_drtrl=init_parameter_shaped(data_axes=2),
        init_pp=init_pp,
        instant=_instant,
        solve=_solve,
        window=_window,
        adjacency=_adjacency,
    )
