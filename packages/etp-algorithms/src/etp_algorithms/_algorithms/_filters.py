"""The filters of pp_prop over a known sequence.

With decays ``α`` and ``α_f``, ``g_t = Σ_a s_t,a ε_f,a / c`` and the signal at the exit, the sum over steps is

    Σ_t ε_x,t ⊗ g_t ,   ε_x,t = Σ_k≤t α^(t−k) x_k      =      Σ_k x_k ⊗ γ_k ,   γ_k = g_k + α γ_k+1 ,

one product with the data as it is. A signal at the entry meets the filters of the step before,
``γ_k = g_k+1 + α γ_k+1``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["decayed_sum", "filter_back"]


def filter_back(
    decay: float,
    outputs: Callable[[Any], Sequence[jax.Array]],
    steps: Any,
    drives: Sequence[jax.Array | None],
    at_exit: bool,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """``γ_1 … γ_K``, each plus the drive of its step; and ``γ_0``, which meets the input filter before the window.

    Args:
        decay: ``α``.
        outputs: gives ``g`` of one step, one per operator, from the slice of ``steps``.
        steps: time leading.
        drives: what else meets the data of each step.
        at_exit: where the signals in ``g`` are.
    """
    if not drives:
        return (), ()

    def back(later: tuple[jax.Array, ...], now: Any) -> Any:
        g = tuple(outputs(now[0]))
        here = tuple(a + b for a, b in zip(g, later, strict=True)) if at_exit else later
        found = tuple(h if d is None else d + h for d, h in zip(now[1], here, strict=True))
        earlier = here if at_exit else tuple(a + decay * b for a, b in zip(g, later, strict=True))
        return (tuple(decay * h for h in earlier) if at_exit else earlier), found

    shapes = jax.eval_shape(lambda now: tuple(outputs(jax.tree.map(lambda a: a[0], now))), steps)
    start = tuple(jnp.zeros(g.shape, g.dtype) for g in shapes)
    first, found = jax.lax.scan(back, start, (steps, tuple(drives)), reverse=True)
    return found, first


def decayed_sum(decay: float, start: jax.Array, terms: jax.Array) -> jax.Array:
    """``α^K start + Σ_t α^(K−t) terms_t``."""
    length = terms.shape[0]
    dtype = jnp.promote_types(jnp.promote_types(start.dtype, terms.dtype), jnp.float32)  # which holds a decay near 1
    weights = jnp.asarray(decay, dtype) ** jnp.arange(length - 1, -1, -1)
    return jnp.asarray(decay, dtype) ** length * start.astype(dtype) + jnp.tensordot(weights, terms.astype(dtype), 1)
