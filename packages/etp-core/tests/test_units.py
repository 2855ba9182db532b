"""Mantissas inside, quantities outside."""

import brainunit as u
import jax.numpy as jnp
import pytest

from etp_core.units import join_unit, mantissa_in, split_unit, unit_product


@pytest.mark.parametrize("value", [1.5, [1.0, 2.0], jnp.ones(3), 2 * u.mV, jnp.ones(2) * u.siemens])
def test_splitting_and_joining_gives_the_value_back(value):
    again = join_unit(*split_unit(value))
    assert u.get_unit(again) == u.get_unit(value)
    assert jnp.array_equal(u.get_mantissa(again), jnp.asarray(u.get_mantissa(value)))


def test_a_plain_array_has_no_unit():
    mantissa, unit = split_unit(jnp.ones(2))
    assert unit.is_unitless
    assert not isinstance(join_unit(mantissa, unit), u.Quantity)


def test_units_multiply():
    assert unit_product(u.volt, u.siemens) == u.amp
    assert unit_product().is_unitless


def test_a_scaled_unit_is_converted():
    assert mantissa_in(3 * u.mV, u.volt, what="bias") == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1.0, u.volt, r"bias has the unit 1 \(no unit\) but the result has the unit V"),
        (1.0 * u.volt, u.UNITLESS, r"bias has the unit V but the result has the unit 1 \(no unit\)"),
        (1.0 * u.second, u.mV, "bias has the unit s but the result has the unit mV; give bias in mV or a scaled form"),
    ],
)
def test_another_dimension_is_refused_with_both_units(value, unit, words):
    with pytest.raises(TypeError, match=words):
        mantissa_in(value, unit, what="bias")


def test_a_dimensionless_scale_is_converted():
    percent = u.Quantity(50.0) * (u.mV / u.volt)
    assert mantissa_in(percent, u.UNITLESS, what="bias") == pytest.approx(0.05)
