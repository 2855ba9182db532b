import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from etp_ops.nn import surrogate

KINDS = {
    "ReluGrad": lambda alpha: surrogate.ReluGrad(alpha=alpha),
    "Sigmoid": lambda alpha: surrogate.Sigmoid(alpha=alpha),
    "Arctan": lambda alpha: surrogate.Arctan(alpha=alpha),
    "SuperSpike": lambda alpha: surrogate.SuperSpike(alpha=alpha),
}
FORMULAS = {
    "ReluGrad": lambda a, x: a * np.maximum(0, 1 - np.abs(x)),
    "Sigmoid": lambda a, x: a * np.exp(-np.abs(a * x)) / (1 + np.exp(-np.abs(a * x))) ** 2,
    "Arctan": lambda a, x: 0.5 * a / (1 + (0.5 * np.pi * a * x) ** 2),
    "SuperSpike": lambda a, x: 1 / (1 + a * np.abs(x)) ** 2,
}
ALPHAS = [1.0, 25.0, 100.0]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
POINTS = np.concatenate([np.linspace(-100, 100, 401), np.linspace(-1, 1, 41)])


def derivative(spike, x):
    return jax.vmap(jax.grad(spike))(x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_finite_symmetric_and_those_of_the_formula(kind, alpha, dtype):
    x = jnp.asarray(POINTS, dtype)
    found = derivative(KINDS[kind](alpha), x)
    assert found.dtype == x.dtype
    found = np.asarray(found, np.float64)
    assert np.all(np.isfinite(found))
    assert_array_equal(found, derivative(KINDS[kind](alpha), -x).astype(jnp.float64))
    expected = FORMULAS[kind](alpha, np.asarray(x, np.float64))
    # what is relevant is the peak: a product alpha·x is rounded where the bump is steep
    assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * expected.max() * max(1.0, np.log2(alpha)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_numbers_of_a_dtype_have_a_finite_derivative(kind, dtype):
    top = float(jnp.finfo(dtype).max)
    x = jnp.asarray([-top, top, -1e4, 1e4, 0.0, -0.0], dtype)
    assert np.all(np.isfinite(np.asarray(derivative(KINDS[kind](100.0), x), np.float64)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_forward_pass_is_a_step_in_the_dtype_of_its_input(kind):
    spike = KINDS[kind](2.0)
    assert_array_equal(spike(jnp.asarray([-1.0, 0.0, 2.0], jnp.float32)), jnp.asarray([0, 1, 1], jnp.float32))
    assert spike(jnp.ones(2, jnp.float16)).dtype == jnp.float16


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_reverse_mode_agree(kind):
    spike, x = KINDS[kind](2.0), jnp.linspace(-2, 2, 9)
    assert_array_equal(jax.jvp(spike, (x,), (jnp.ones_like(x),))[1], derivative(spike, x))


def test_equal_surrogates_are_equal_so_that_nothing_is_retraced():
    assert surrogate.Sigmoid(3.0) == surrogate.Sigmoid(3.0)
    assert hash(surrogate.ReluGrad(0.5)) == hash(surrogate.ReluGrad(0.5))
    count = []

    @jax.jit
    def run(x):
        count.append(x)
        return surrogate.Sigmoid(3.0)(x)

    run(jnp.ones(2)), run(jnp.zeros(2))
    assert len(count) == 1


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_slope_that_is_not_positive_and_finite_is_refused(kind, alpha):
    with pytest.raises(ValueError, match="alpha must be positive and finite"):
        KINDS[kind](alpha)


def test_a_quantity_is_refused():
    import brainunit as u

    with pytest.raises(ValueError, match="divide by a voltage"):
        surrogate.ReluGrad()(1.0 * u.mV)
