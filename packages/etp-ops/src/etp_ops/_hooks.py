"""Parameter hooks: shape-preserving functions that an operator applies to a stored weight."""

from collections.abc import Callable

import jax

__all__ = ["Hook", "apply_hook", "check_hook", "pull_hook"]

Hook = Callable[[jax.Array], jax.Array] | None


def check_hook(hook: Hook, weight: jax.Array, *, operator: str, name: str) -> None:
    """Refuse a hook that is not a function or that changes the shape of its weight."""
    if hook is None:
        return
    if not callable(hook):
        raise TypeError(f"{operator}: {name} must be a function of one array or None, got {type(hook).__name__}.")
    out = jax.eval_shape(hook, jax.ShapeDtypeStruct(weight.shape, weight.dtype))
    shape = getattr(out, "shape", None)
    if shape != weight.shape:
        raise ValueError(
            f"{operator}: {name} must keep the shape of its weight, {weight.shape}, but returns {shape}. "
            f"Reshape the weight before the operator instead."
        )


def apply_hook(hook: Hook, weight: jax.Array) -> jax.Array:
    """``hook(weight)``; ``weight`` itself without a hook."""
    return weight if hook is None else hook(weight)


def pull_hook(hook: Hook, weight: jax.Array, cotangent: jax.Array) -> jax.Array:
    """The cotangent of ``hook(weight)`` pulled back to the stored ``weight``."""
    return cotangent if hook is None else jax.vjp(hook, weight)[1](cotangent)[0]
