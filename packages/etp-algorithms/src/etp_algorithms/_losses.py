"""Losses of a sequence and their weights: one loss or several, for the batch or by lane."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["check_losses", "read_mask", "reduce_losses", "scales_of", "weighted_sum"]


def read_mask(mask: Any, length: int, warm_up: int) -> Any:
    """The weights of the losses of every step, zero in the first ``warm_up`` steps; one array, or a pytree of them."""
    counted = (jnp.arange(length) >= warm_up).astype(jnp.result_type(float))
    if mask is None:
        return counted

    def read(leaf: Any) -> jax.Array:
        gates = jnp.asarray(leaf)
        if gates.shape[:1] != (length,):
            raise ValueError(
                f"mask must have one weight per step, shape ({length},), or one per step and lane, ({length}, B); got "
                f"{gates.shape}."
            )
        return gates.astype(counted.dtype) * counted.reshape(-1, *(1,) * (gates.ndim - 1))

    return jax.tree.map(read, mask)


def scales_of(gates: Any, reduction: str) -> Any:
    """What the sum of each loss is multiplied by."""
    return jax.tree.map(lambda g: 1.0 / jnp.maximum(g.sum(), 1.0) if reduction == "mean" else jnp.ones(()), gates)


def check_losses(losses: Any, gates: Any, windowed: bool) -> Any:
    """The losses of one call, if they have the shape of their weights."""

    def check(loss: Any, gate: jax.Array) -> jax.Array:
        loss = jnp.asarray(loss)
        if loss.shape != gate.shape:
            raise ValueError(
                f"step_fn must return a loss of shape {gate.shape}"
                f"{' (one per step of the chunk)' if windowed else '' if gate.shape else ' (a scalar)'}, got "
                f"{loss.shape}. One loss per lane needs a mask of shape (T, B)."
            )
        return loss

    return _map_losses(check, losses, gates)


def weighted_sum(losses: Any, gates: Any, scales: Any) -> jax.Array:
    """The scalar whose gradient is taken."""
    terms = _map_losses(lambda loss, gate, scale: jnp.sum(loss * gate) * scale, losses, gates, scales)
    return sum(jax.tree.leaves(terms), jnp.zeros(()))


def reduce_losses(losses: Any, gates: Any, scales: Any, loss_output: str) -> Any:
    """The losses of a whole sequence as they are returned."""
    if loss_output == "per_step":
        return losses
    if loss_output == "masked":
        return _map_losses(lambda loss, gate: loss * gate, losses, gates)
    return _map_losses(lambda loss, gate, scale: jnp.sum(loss * gate) * scale, losses, gates, scales)


def _map_losses(fn: Callable[..., Any], losses: Any, *weights: Any) -> Any:
    """``fn(loss, weight, …)`` for every loss; a weight that stands for a whole subtree goes to each of its losses."""
    tree = jax.tree.structure(weights[0])
    try:
        below = tree.flatten_up_to(losses)
    except ValueError:
        raise ValueError(
            f"mask must be one array, or a pytree of arrays like the losses; the mask is {tree}, the losses are "
            f"{jax.tree.structure(losses)}."
        ) from None
    columns = zip(*(jax.tree.leaves(w) for w in weights), strict=True)
    mapped = [jax.tree.map(lambda loss, c=c: fn(loss, *c), part) for part, c in zip(below, columns, strict=True)]
    return jax.tree.unflatten(tree, mapped)
