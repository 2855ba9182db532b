"""Element-wise weights: ``y = weight_fn(w)``, one trainable number per position and no data operand.

The primitive ``etp_elemwise`` marks leaks, thresholds and diagonal recurrences. It is the only operator that
is identity-like (``gradient_enabled``): another marked weight may reach a hidden state through it. The trace
is kept for the transformed weight, ``ε ← D ε + Df``; where a hidden state broadcasts ``y`` over a batch, the
compiler gives every position a trace of its own.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import join_unit
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import split_weight
from etp_ops._rules import Arrays, init_pp

__all__ = ["element_wise", "etp_elemwise_p"]


def element_wise(weight: Any, *, weight_fn: Hook = None) -> Any:
    """``weight_fn(weight)``, with ``weight`` marked for online learning.

    Args:
        weight: any shape.
        weight_fn: shape-preserving function of the weight's mantissa.

    Returns:
        The shape and unit of ``weight``.

    Raises:
        ValueError: the hook changes the shape.
        TypeError: the weight is not real and floating point, or the hook is not a hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import element_wise
        >>> element_wise(jnp.zeros(2), weight_fn=jnp.cos).tolist()
        [1.0, 1.0]
    """
    weight, unit = split_weight(weight, weight_fn, operator="element_wise")
    return join_unit(etp_elemwise_p.bind(weight, weight_fn=weight_fn), unit)


def _impl(weight: jax.Array, *, weight_fn: Hook = None) -> jax.Array:
    return apply_hook(weight_fn, weight)


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    return {"weight": trace["weight"] * hidden_dim}


def _xy_to_dw(x: None, hidden_dim: jax.Array, weights: Arrays, *, weight_fn: Hook = None) -> Arrays:
    return {"weight": pull_hook(weight_fn, weights["weight"], hidden_dim)}


def _instant(x: None, df: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    return {"weight": df}


def _window(x_seq: None, df_seq: jax.Array, weights: Arrays, **_: Any) -> Arrays:
    return {"weight": df_seq.sum(0)}


def _solve(signal: jax.Array, trace: Arrays, weights: Arrays, *, weight_fn: Hook = None) -> Arrays:
    return {"weight": pull_hook(weight_fn, weights["weight"], signal * trace["weight"])}


def _init_drtrl(x_var: None, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> Arrays:
    return {"weight": jnp.zeros((*y_var.aval.shape, num_hidden_state), y_var.aval.dtype)}


etp_elemwise_p: ETPPrimitive = register_primitive(
    "etp_elemwise",
    _impl,
    gradient_enabled=True,
    trainable_invars_fn=lambda static: {"weight": 0},
    x_invar_index=None,
)
etp_elemwise_p.register_etp_rules(
    dt_to_t=_dt_to_t,
    xy_to_dw=_xy_to_dw,
    init_drtrl=_init_drtrl,
    init_pp=init_pp,
    instant=_instant,
    solve=_solve,
    window=_window,
)
