"""Mantissas inside, quantities outside: the unit handling that every operator shares.

For authors of operators; users of operators never need it.
"""

from typing import Any

import brainunit as u
import jax

__all__ = ["join_unit", "mantissa_in", "split_unit", "unit_product"]


def split_unit(value: Any) -> tuple[jax.Array, u.Unit]:
    """The mantissa and the unit of ``value``; plain arrays have the unit ``UNITLESS``."""
    mantissa, unit = u.split_mantissa_unit(value)
    return jax.numpy.asarray(mantissa), unit


def unit_product(*units: u.Unit) -> u.Unit:
    """The unit of a product."""
    product = u.UNITLESS
    for unit in units:
        product = product * unit
    return product


def mantissa_in(value: Any, unit: u.Unit, *, what: str) -> jax.Array:
    """The mantissa of ``value`` in ``unit``.

    Raises:
        TypeError: the dimensions differ; the message names the operand (``what``), its unit and the unit wanted.
    """
    given = u.get_unit(value)
    if not given.has_same_dim(unit):
        raise TypeError(
            f"{what} has the unit {_show(given)} but the result has the unit {_show(unit)}; "
            f"give {what} in {_show(unit)} or a scaled form of it."
        )
    if not isinstance(value, u.Quantity):
        value = u.Quantity(value)
    return jax.numpy.asarray(value.in_unit(unit).mantissa)


def join_unit(mantissa: jax.Array, unit: u.Unit) -> Any:
    """``mantissa`` with its unit; a plain array where the unit is dimensionless."""
    return u.maybe_decimal(u.Quantity(mantissa, unit=unit))


def _show(unit: u.Unit) -> str:
    return "1 (no unit)" if unit.is_unitless else str(unit)
