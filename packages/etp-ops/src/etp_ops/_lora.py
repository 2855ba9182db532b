"""Low-rank products: ``y = α · x · b_fn(B) · a_fn(A) (+ bias_fn(b))``.

Primitives ``etp_lora_mm`` (``x`` of shape ``(B, I)``) and ``etp_lora_mv`` (``x`` of shape ``(I,)``). The
input-facing factor ``B (I, r)`` is named ``lora_b``, the output-facing ``A (r, O)`` ``lora_a``. With the
transformed factors ``P = b_fn(B)`` and ``Q = a_fn(A)``,

    ∂y_o/∂P[i, r] = α x_i Q[r, o]        ∂y_o/∂Q[r, o] = α (x P)_r

A hidden position ``o`` depends on every entry of ``P``, but only through the effective matrix ``P Q``: its
trace ``ε_W[i, o]`` is what is kept under ``lora_b``, and ``Q`` enters when a signal is contracted with it,

    ε_W[.., i, o] ← D[.., o] ε_W[.., i, o] + x[.., i] Df[.., o]         ∂L/∂P = α (Σ signal · ε_W) Qᵀ
    ε_Q[.., r, o] ← D[.., o] ε_Q[.., r, o] + α (x P)[.., r] Df[.., o]   ∂L/∂Q = Σ signal · ε_Q

Both are exact. Memory: ``B · O · (I + r)`` numbers per hidden state.
"""

import numbers
from typing import Any

import jax
import jax.numpy as jnp

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import bias_operands, fold_leading, split_data, split_weight
from etp_ops._rules import Arrays, init_pp, pull_back, solve_bias, sum_over_batch, trainable

__all__ = ["etp_lora_mm_p", "etp_lora_mv_p", "lora_matmul"]


def lora_matmul(
    x: Any,
    B: Any,
    A: Any,
    *,
    alpha: float | int = 1.0,
    bias: Any = None,
    b_fn: Hook = None,
    a_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """``α · x · b_fn(B) · a_fn(A) (+ bias_fn(bias))``, with ``B``, ``A`` and ``bias`` marked for online learning.

    Args:
        x: data of shape ``(I,)`` or ``(..., I)``; leading axes beyond one are folded into one batch axis and
            unfolded after. Integers and booleans (spikes) are fine.
        B: the input-facing factor, shape ``(I, r)``.
        A: the output-facing factor, shape ``(r, O)``.
        alpha: a Python number; a learned or traced scale belongs into a factor.
        bias: shape ``(O,)``, or None; any scale of the unit of ``x · B · A``.
        b_fn: shape-preserving function of the mantissa of ``B``.
        a_fn: shape-preserving function of the mantissa of ``A``.
        bias_fn: shape-preserving function of the bias's mantissa.

    Returns:
        Shape ``(..., O)``; the unit is the product of the units of ``x``, ``B`` and ``A``.

    Raises:
        ValueError: a rank or a shape does not fit, or a hook changes a shape.
        TypeError: a weight is not real and floating point, ``alpha`` is not a number, the bias has another
            dimension, or a hook is not a hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import lora_matmul
        >>> lora_matmul(jnp.ones(3), jnp.ones((3, 2)), jnp.ones((2, 1)), alpha=0.5).tolist()
        [3.0]
    """
    x, x_unit = split_data(x, operator="lora_matmul")
    B, b_unit = split_weight(B, b_fn, operator="lora_matmul", name="B")
    A, a_unit = split_weight(A, a_fn, operator="lora_matmul", name="A")
    if B.ndim != 2 or A.ndim != 2 or x.ndim == 0 or x.shape[-1] != B.shape[0] or B.shape[1] != A.shape[0]:
        raise ValueError(
            f"lora_matmul takes x of shape (..., I), B of shape (I, r) and A of shape (r, O); got x {x.shape}, "
            f"B {B.shape} and A {A.shape}. The input-facing factor comes first."
        )
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
        raise TypeError(
            f"lora_matmul: alpha must be a Python number, got {type(alpha).__name__}; "
            f"multiply a factor by a scale that is computed or learned."
        )
    unit = unit_product(x_unit, b_unit, a_unit)
    biases = bias_operands(bias, bias_fn, unit, A.shape[1:], operator="lora_matmul")
    primitive = etp_lora_mv_p if x.ndim == 1 else etp_lora_mm_p
    x, unfold = fold_leading(x, 1)
    static = {"alpha": float(alpha), "has_bias": bool(biases), "b_fn": b_fn, "a_fn": a_fn, "bias_fn": bias_fn}
    return unfold(primitive.bind(x, B, A, *biases, **static), unit)


def _impl(
    x: jax.Array,
    lora_b: jax.Array,
    lora_a: jax.Array,
    bias: Any = None,
    *,
    alpha: float = 1.0,
    has_bias: bool = False,
    b_fn: Hook = None,
    a_fn: Hook = None,
    bias_fn: Hook = None,
) -> jax.Array:
    y = alpha * ((x @ apply_hook(b_fn, lora_b)) @ apply_hook(a_fn, lora_a))
    return y + apply_hook(bias_fn, bias) if has_bias else y


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    scaled = {key: trace[key] * hidden_dim[..., None, :] for key in ("lora_b", "lora_a")}
    return {**scaled, "bias": trace["bias"] * hidden_dim} if "bias" in trace else scaled


def _instant(
    x: jax.Array, df: jax.Array, weights: Arrays, *, alpha: float = 1.0, b_fn: Hook = None, **_: Any
) -> Arrays:
    inner = alpha * (x @ apply_hook(b_fn, weights["lora_b"]))
    term = {"lora_b": x[..., :, None] * df[..., None, :], "lora_a": inner[..., :, None] * df[..., None, :]}
    return {**term, "bias": df} if "bias" in weights else term


def _window(
    x_seq: jax.Array, df_seq: jax.Array, weights: Arrays, *, alpha: float = 1.0, b_fn: Hook = None, **_: Any
) -> Arrays:
    inner = alpha * (x_seq @ apply_hook(b_fn, weights["lora_b"]))
    term = {key: jnp.einsum("t...i,t...o->...io", data, df_seq) for key, data in (("lora_b", x_seq), ("lora_a", inner))}
    return {**term, "bias": df_seq.sum(0)} if "bias" in weights else term


def _solve(
    signal: jax.Array,
    trace: Arrays,
    weights: Arrays,
    *,
    alpha: float = 1.0,
    b_fn: Hook = None,
    a_fn: Hook = None,
    bias_fn: Hook = None,
    **_: Any,
) -> Arrays:
    if signal.ndim == 1:
        effective, outer = (signal * trace[key] for key in ("lora_b", "lora_a"))
    else:
        effective, outer = (sum_over_batch("o,io->io", signal, trace[key]) for key in ("lora_b", "lora_a"))
    inner = alpha * (effective @ apply_hook(a_fn, weights["lora_a"]).T)
    gradient = {
        "lora_b": pull_hook(b_fn, weights["lora_b"], inner),
        "lora_a": pull_hook(a_fn, weights["lora_a"], outer),
    }
    return {**gradient, **solve_bias(signal, trace, weights, bias_fn)}


def _init_drtrl(x_var: Any, y_var: Any, weight_vars: Any, num_hidden_state: int) -> Arrays:
    batch, y = x_var.aval.shape[:-1], y_var.aval
    shapes = {key: var.aval.shape for key, var in weight_vars.items()}
    shapes["lora_b"] = (x_var.aval.shape[-1], y.shape[-1])
    return {key: jnp.zeros((*batch, *shape, num_hidden_state), y.dtype) for key, shape in shapes.items()}


etp_lora_mm_p: ETPPrimitive = register_primitive(
    "etp_lora_mm", _impl, batched=True, trainable_invars_fn=trainable("lora_b", "lora_a")
)
etp_lora_mv_p: ETPPrimitive = register_primitive(
    "etp_lora_mv", _impl, trainable_invars_fn=trainable("lora_b", "lora_a")
)
etp_lora_mv_p.register_batched_twin(etp_lora_mm_p)
for _primitive in (etp_lora_mm_p, etp_lora_mv_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=pull_back(_impl, "lora_b", "lora_a"),
        init_drtrl=_init_drtrl,
        init_pp=init_pp,
        instant=_instant,
        solve=_solve,
        window=_window,
    )
