"""What every operator does to its operands: units off, types checked, leading axes folded."""

import math
from collections.abc import Callable
from typing import Any

import brainunit as u
import jax
import jax.numpy as jnp

from etp_core.units import join_unit, mantissa_in, split_unit
from etp_ops._hooks import Hook, check_hook

__all__ = ["Unfold", "bias_operands", "fold_leading", "split_data", "split_weight"]

Unfold = Callable[[jax.Array, u.Unit], Any]


def split_data(value: Any, *, operator: str, name: str = "x") -> tuple[jax.Array, u.Unit]:
    """The mantissa and the unit of a data operand: real numbers, integers or booleans."""
    mantissa, unit = split_unit(value)
    if jnp.issubdtype(mantissa.dtype, jnp.complexfloating):
        _refuse_complex(operator, name, mantissa)
    return mantissa, unit


def split_weight(value: Any, hook: Hook, *, operator: str, name: str = "weight") -> tuple[jax.Array, u.Unit]:
    """The mantissa and the unit of a marked weight, floating point, with its hook checked."""
    mantissa, unit = split_unit(value)
    if jnp.issubdtype(mantissa.dtype, jnp.complexfloating):
        _refuse_complex(operator, name, mantissa)
    if not jnp.issubdtype(mantissa.dtype, jnp.floating):
        raise TypeError(
            f"{operator}: {name} must be floating point to be learned, got {mantissa.dtype}; "
            f"convert it first, {name}.astype(float)."
        )
    check_hook(hook, mantissa, operator=operator, name=_hook_name(name))
    return mantissa, unit


def _refuse_complex(operator: str, name: str, value: jax.Array) -> None:
    raise TypeError(
        f"{operator}: {name} is {value.dtype}, and traces are kept for real numbers; "
        f"write the product with real and imaginary parts, one {operator} for each."
    )


def _hook_name(name: str) -> str:
    return f"{name.lower()}_fn"


def bias_operands(
    bias: Any, bias_fn: Hook, unit: u.Unit, shape: tuple[int, ...], *, operator: str
) -> tuple[()] | tuple[jax.Array]:
    """The bias in ``unit`` as a tuple of operands, empty without a bias."""
    if bias is None:
        if bias_fn is not None:
            raise ValueError(f"{operator}: bias_fn is given but bias is None; give a bias or leave out bias_fn.")
        return ()
    mantissa = mantissa_in(bias, unit, what=f"{operator}: bias")
    if mantissa.shape != shape:
        raise ValueError(f"{operator} takes a bias of shape {shape}, one number per output; got {mantissa.shape}.")
    return (split_weight(mantissa, bias_fn, operator=operator, name="bias")[0],)


def fold_leading(x: jax.Array, rank: int) -> tuple[jax.Array, Unfold]:
    """``x`` with at most one axis before its last ``rank``, and the function that unfolds ``y`` and gives it a unit."""
    lead = x.shape[: x.ndim - rank]
    folded = x if len(lead) < 2 else x.reshape(math.prod(lead), *x.shape[len(lead) :])

    def unfold(y: jax.Array, unit: u.Unit) -> Any:
        return join_unit(y if len(lead) < 2 else y.reshape(*lead, *y.shape[1:]), unit)

    return folded, unfold
