"""Spikes with a surrogate derivative: forward a step, ``1`` where ``x ≥ 0``; backward a smooth bump.

Each is a small frozen value, equal to every other with the same numbers, so using one never retraces. Derivatives are
written so that no input, however large and in whatever precision, overflows to a number that is not finite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import brainunit as u
import jax
import jax.numpy as jnp

__all__ = ["Arctan", "ReluGrad", "Sigmoid", "SuperSpike", "Surrogate"]


@runtime_checkable
class Surrogate(Protocol):
    """A spike function that knows its surrogate derivative."""

    def __call__(self, x: Any) -> jax.Array:
        """``1`` where ``x ≥ 0``, else ``0``, in the dtype of ``x``."""
        ...

    def derivative(self, x: jax.Array) -> jax.Array:
        """The surrogate derivative at ``x``."""
        ...


@dataclass(frozen=True)
class ReluGrad:
    """A triangle, ``s′(x) = α max(0, width − |x|)``.

    Args:
        alpha: its slope.
        width: half its base.

    Raises:
        ValueError: a number is not positive.

    Source: Bohte 2011; Esser et al. 2016.

    Example:
        >>> import jax
        >>> from etp_ops.nn import surrogate
        >>> spike = surrogate.ReluGrad(alpha=0.5)
        >>> float(spike(0.5)), float(jax.grad(spike)(0.5))
        (1.0, 0.25)
    """

    alpha: float = 0.3
    width: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, alpha=self.alpha, width=self.width)

    def __call__(self, x: Any) -> jax.Array:
        return _spike(x, self.derivative)

    def derivative(self, x: jax.Array) -> jax.Array:
        return self.alpha * jax.nn.relu(self.width - jnp.abs(x))


@dataclass(frozen=True)
class Sigmoid:
    """The derivative of a logistic function, ``s′(x) = α σ(αx) σ(−αx)``.

    Args:
        alpha: its slope.

    Raises:
        ValueError: ``alpha`` is not positive.

    Source: Zenke and Ganguli 2018; Neftci et al. 2019.
    """

    alpha: float = 4.0

    def __post_init__(self) -> None:
        _check_positive(self, alpha=self.alpha)

    def __call__(self, x: Any) -> jax.Array:
        return _spike(x, self.derivative)

    def derivative(self, x: jax.Array) -> jax.Array:
        # both factors saturate to zero; 1 − σ would lose the right tail in low precision
        return self.alpha * (jax.nn.sigmoid(self.alpha * x) * jax.nn.sigmoid(-self.alpha * x))


@dataclass(frozen=True)
class Arctan:
    """The derivative of an arc tangent, ``s′(x) = α/2 / (1 + (π/2 αx)²)``.

    Args:
        alpha: its slope.

    Raises:
        ValueError: ``alpha`` is not positive.

    Source: Fang et al. 2021, Incorporating learnable membrane time constant.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, alpha=self.alpha)

    def __call__(self, x: Any) -> jax.Array:
        return _spike(x, self.derivative)

    def derivative(self, x: jax.Array) -> jax.Array:
        return 0.5 * self.alpha / (1.0 + (0.5 * jnp.pi * self.alpha * x) ** 2)


@dataclass(frozen=True)
class SuperSpike:
    """The derivative of a fast sigmoid, ``s′(x) = 1 / (1 + α|x|)²``.

    Args:
        alpha: its slope.

    Raises:
        ValueError: ``alpha`` is not positive.

    Source: Zenke and Ganguli 2018, SuperSpike.
    """

    alpha: float = 10.0

    def __post_init__(self) -> None:
        _check_positive(self, alpha=self.alpha)

    def __call__(self, x: Any) -> jax.Array:
        return _spike(x, self.derivative)

    def derivative(self, x: jax.Array) -> jax.Array:
        return 1.0 / (1.0 + self.alpha * jnp.abs(x)) ** 2


def _check_positive(surrogate: Any, **numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{type(surrogate).__name__}: {name} must be positive and finite, got {value}.")


def _spike(x: Any, derivative: Callable[[jax.Array], jax.Array]) -> jax.Array:
    mantissa, unit = u.split_mantissa_unit(x)
    if not unit.is_unitless:
        raise ValueError(f"a spike function takes a number without unit, got {unit}; divide by a voltage first.")
    mantissa = jnp.asarray(mantissa)
    return _step(mantissa if jnp.issubdtype(mantissa.dtype, jnp.floating) else mantissa.astype(float), derivative)


def _heaviside(x: jax.Array, derivative: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return (x >= 0).astype(x.dtype)


_step = jax.custom_jvp(_heaviside, nondiff_argnums=(1,))


@_step.defjvp
def _step_jvp(derivative: Callable[[jax.Array], jax.Array], primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    return _step(x, derivative), derivative(x).astype(x.dtype) * tangent
