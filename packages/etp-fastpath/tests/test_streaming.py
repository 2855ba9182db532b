import jax.numpy as jnp
import numpy as np
import pytest

from etp_fastpath import roll_and_solve


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def step(states, sizes=(3, 32, 16)):
    batch, rows, columns = sizes
    signals = tuple(array(a, batch, columns) for a in range(states))
    factors = tuple(
        tuple(array(10 * a + b, batch, columns) if b <= a else None for b in range(states)) for a in range(states)
    )
    df = (array(50, batch, columns), *(None for _ in range(states - 1)))
    return signals, factors, array(60, batch, rows), df, tuple(array(70 + a, *sizes) for a in range(states))


@pytest.mark.parametrize("kernel", ["reference", "interpret"])
@pytest.mark.parametrize("states", [1, 2])
def test_one_pass_gives_the_gradient_at_the_old_traces_and_the_new_traces(kernel, states):
    signals, factors, x, df, traces = step(states)
    gradient, new = roll_and_solve(signals, factors, x, df, traces, kernel=kernel)
    expected = sum(np.einsum("bo,bio->io", s, e) for s, e in zip(signals, traces, strict=True))
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    for a in range(states):
        moved = sum(np.asarray(factors[a][b])[:, None, :] * traces[b] for b in range(a + 1))
        moved = moved if df[a] is None else moved + np.einsum("bi,bo->bio", x, df[a])
        np.testing.assert_allclose(new[a], moved, rtol=1e-12)


@pytest.mark.parametrize("kernel", ["reference", "interpret"])
def test_narrow_traces_stay_narrow_and_the_gradient_does_not(kernel):
    signals, factors, x, df, traces = step(1)
    gradient, (new,) = roll_and_solve(signals, factors, x, df, (traces[0].astype(jnp.bfloat16),), kernel=kernel)
    assert (gradient.dtype, new.dtype) == (signals[0].dtype, jnp.bfloat16)


def test_the_kernel_of_an_accelerator_refuses_sizes_that_no_tile_divides():
    with pytest.raises(ValueError, match="kernel='reference'"):
        roll_and_solve(*step(1, (2, 5, 7)), kernel="pallas")


@pytest.mark.gpu
def test_the_compiled_kernel_agrees_with_plain_jax():
    given = step(2, (8, 288, 256))
    for found, expected in zip(roll_and_solve(*given, kernel="pallas")[1], roll_and_solve(*given)[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
