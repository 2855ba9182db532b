"""Parameter hooks: shape-preserving functions that an operator applies to a stored weight."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.core import Tracer

from etp_core import jaxpr

__all__ = ["Hook", "apply_hook", "check_hook", "pull_hook"]

Hook = Callable[[jax.Array], jax.Array] | None


def check_hook(hook: Hook, weight: jax.Array, *, operator: str, name: str) -> None:
    """Refuse a hook that is no function of one array, keeps no shape, or holds what cannot be a static parameter."""
    if hook is None:
        return
    what = f"{operator}: {name}"
    if not callable(hook):
        raise TypeError(f"{what} must be a function of one array or None, got {type(hook).__name__}.")
    try:
        hash(hook)
    except TypeError as error:
        raise TypeError(
            f"{what} must be hashable, since it is compared from call to call; a {type(hook).__name__} is not. "
            f"Give a plain function, or transform the weight before the operator."
        ) from error
    program = jaxpr.trace(hook, jax.ShapeDtypeStruct(weight.shape, weight.dtype))
    shapes = [out.aval.shape for out in program.outputs]
    if shapes != [weight.shape]:
        got = shapes[0] if len(shapes) == 1 else f"{len(shapes)} arrays"
        raise ValueError(
            f"{what} must keep the shape of its weight, {weight.shape}, but returns {got}. "
            f"Reshape the weight before the operator instead."
        )
    if not jnp.issubdtype(program.outputs[0].aval.dtype, jnp.floating):
        raise TypeError(f"{what} must return real floating-point numbers, but returns {program.outputs[0].aval.dtype}.")
    operands = [operand for equation in program.equations for operand in equation.inputs]
    if any(isinstance(o, jaxpr.Constant) and isinstance(o.value, Tracer) for o in operands):
        raise ValueError(
            f"{what} uses an array that is being traced (an argument of the surrounding jit, grad or scan), so it "
            f"cannot be a static parameter. Transform the weight before the operator: {operator} learns it as exactly."
        )


def apply_hook(hook: Hook, weight: jax.Array) -> jax.Array:
    """``hook(weight)``; ``weight`` itself without a hook."""
    return weight if hook is None else hook(weight)


def pull_hook(hook: Hook, weight: jax.Array, cotangent: jax.Array) -> jax.Array:
    """The cotangent of ``hook(weight)``, in any precision, pulled back to the stored ``weight``."""
    if hook is None:
        return cotangent.astype(weight.dtype)
    value, pull = jax.vjp(hook, weight)
    return pull(cotangent.astype(value.dtype))[0]
