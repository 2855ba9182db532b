"""Rules that operators share. ``...`` is the batch axis of a batched primitive, absent in its unbatched twin."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from etp_ops._hooks import Hook, pull_hook

__all__ = ["Arrays", "init_parameter_shaped", "init_pp", "pull_back", "solve_bias", "sum_over_batch", "trainable"]

Arrays = dict[str, jax.Array]


def trainable(*names: str) -> Callable[[Mapping[str, Any]], dict[str, int]]:
    """The layout ``x, *names[, bias]``, the bias present where ``has_bias`` is set."""

    def layout(static: Mapping[str, Any]) -> dict[str, int]:
        given = (*names, "bias") if static.get("has_bias", False) else names
        return {name: index for index, name in enumerate(given, start=1)}

    return layout


def pull_back(impl: Callable[..., jax.Array], *names: str) -> Callable[..., Arrays]:
    """``xy_to_dw`` of ``impl(x, *names[, bias])``: its VJP in the raw weights, hooks included."""

    def xy_to_dw(x: jax.Array, hidden_dim: jax.Array, weights: Arrays, **static: Any) -> Arrays:
        def forward(w: Arrays) -> jax.Array:
            return impl(x, *(w[name] for name in (*names, "bias") if name in w), **static)

        return jax.vjp(forward, weights)[1](hidden_dim)[0]

    return xy_to_dw


def init_parameter_shaped(data_axes: int) -> Callable[..., Arrays]:
    """The ``init_drtrl`` of zero traces shaped like the weights, after the axes of ``x`` before its ``data_axes``."""

    def init_drtrl(x_var: Any, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> Arrays:
        batch = x_var.aval.shape[: len(x_var.aval.shape) - data_axes]
        dtype = y_var.aval.dtype
        return {key: jnp.zeros((*batch, *var.aval.shape, num_hidden_state), dtype) for key, var in weight_vars.items()}

    return init_drtrl


def init_pp(x_var: Any, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> jax.Array:
    """The zero output trace."""
    return jnp.zeros((*y_var.aval.shape, num_hidden_state), y_var.aval.dtype)


def solve_bias(signal: jax.Array, trace: Arrays, weights: Arrays, bias_fn: Hook) -> Arrays:
    """``{"bias": Σ_batch signal · ε_b}`` pulled through its hook; nothing without a bias."""
    if "bias" not in weights:
        return {}
    bias = weights["bias"]
    total = (signal * trace["bias"]).sum(tuple(range(signal.ndim - bias.ndim)))
    return {"bias": pull_hook(bias_fn, bias, total)}


def sum_over_batch(equation: str, signal: jax.Array, trace: jax.Array) -> jax.Array:
    """``einsum(equation, signal[b], trace[b])`` summed over the leading batch axis, reading the trace once.

    XLA's CPU back-end would first transpose the whole trace to make this one dot product; a running sum over
    the batch streams it. Elsewhere it is one contraction.
    """
    operands, result = equation.split("->")
    signal_axes, trace_axes = operands.split(",")

    def contraction(signal: jax.Array, trace: jax.Array) -> jax.Array:
        return jnp.einsum(f"z{signal_axes},z{trace_axes}->{result}", signal, trace)

    def running_sum(signal: jax.Array, trace: jax.Array) -> jax.Array:
        def add(total: jax.Array, b: jax.Array) -> tuple[jax.Array, None]:
            # by index, since a slice ``trace[1:]`` would be a copy
            now = (jax.lax.dynamic_index_in_dim(a, b, keepdims=False) for a in (signal, trace))
            return total + jnp.einsum(equation, *now), None

        first = jnp.einsum(equation, signal[0], trace[0])
        return jax.lax.scan(add, first, jnp.arange(1, trace.shape[0]))[0]

    return jax.lax.platform_dependent(signal, trace, cpu=running_sum, default=contraction)
