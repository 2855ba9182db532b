"""Values of parameters, masks and states from what a user may give for them."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

__all__ = [
    "KAIMING_NORMAL",
    "ORTHOGONAL",
    "XAVIER_NORMAL",
    "ZERO",
    "Initializer",
    "Size",
    "activation_of",
    "apply_mask",
    "as_size",
    "make_mask",
    "make_value",
    "matching_sizes",
]

Initializer = Callable[..., Any] | jax.typing.ArrayLike | u.Quantity
"""A function of a shape, an array that broadcasts to the shape, or a number."""

Size = int | Sequence[int]

KAIMING_NORMAL = brainstate.nn.init.KaimingNormal()
ORTHOGONAL = brainstate.nn.init.Orthogonal()
XAVIER_NORMAL = brainstate.nn.init.XavierNormal()
ZERO = brainstate.nn.init.ZeroInit()


def as_size(size: Size) -> tuple[int, ...]:
    """A size as a tuple; a number is one axis."""
    return tuple(map(operator.index, size)) if isinstance(size, Sequence) else (operator.index(size),)


def make_value(initializer: Any, shape: tuple[int, ...], *, name: str) -> Any:
    """An array (or quantity) of exactly ``shape``."""
    value = initializer(shape) if callable(initializer) else initializer
    if value is None:
        raise ValueError(f"{name} must be a function of a shape, an array or a number, got None.")
    value = u.math.asarray(value)
    if value.shape == shape:
        return value
    _check_broadcast(value.shape, shape, name)
    return u.math.broadcast_to(value, shape)


def make_mask(mask: Any, shape: tuple[int, ...], *, within: tuple[int, ...], name: str = "w_mask") -> Any:
    """A factor for weights of the shape ``within``, or None; a function is asked for ``shape``."""
    if mask is None:
        return None
    value = jnp.asarray(mask(shape) if callable(mask) else mask)
    _check_broadcast(value.shape, within, name)
    return value


def apply_mask(weight: Any, mask: Any) -> Any:
    """``weight`` times ``mask``; entries behind a zero have a gradient of exactly zero."""
    return weight if mask is None else weight * mask


def _check_broadcast(given: tuple[int, ...], shape: tuple[int, ...], name: str) -> None:
    fits = len(given) <= len(shape) and all(a in (1, b) for a, b in zip(given[::-1], shape[::-1], strict=False))
    if not fits:
        raise ValueError(f"{name} has the shape {given}, which does not broadcast to {shape}; give that shape.")


def matching_sizes(in_size: Size, out_size: Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both sizes as tuples that are the same but for the last entry."""
    given, wanted = as_size(in_size), as_size(out_size)
    if given[:-1] != wanted[:-1]:
        raise ValueError(f"in_size and out_size must agree in all but the last entry, got {given} and {wanted}.")
    return given, wanted


def activation_of(activation: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function of ``brainstate.nn`` called ``activation``, or ``activation`` itself."""
    found = vars(brainstate.nn).get(activation) if isinstance(activation, str) else activation
    if not callable(found) or (isinstance(activation, str) and isinstance(found, type)):
        raise ValueError(
            f"activation must be a function, or the name of one in brainstate.nn such as 'tanh' or 'relu'; "
            f"got {activation!r}."
        )
    return found
