import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_ops._rules import sum_over_batch


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize(
    ("equation", "signal", "trace"), [("o,io->io", (4,), (3, 4)), ("gn,gkn->gkn", (2, 4), (2, 3, 4))]
)
def test_a_sum_over_the_batch_is_the_sum_of_the_samples(equation, signal, trace, batch):
    rng = np.random.default_rng(0)
    signals, traces = rng.normal(size=(batch, *signal)), rng.normal(size=(batch, *trace))
    expected = sum(np.einsum(equation, s, t) for s, t in zip(signals, traces, strict=True))
    np.testing.assert_allclose(
        sum_over_batch(equation, jnp.asarray(signals), jnp.asarray(traces)), expected, rtol=1e-12
    )


def test_a_sum_over_the_batch_reads_the_trace_where_it_lies():
    signal, trace = jnp.ones((8, 16)), jnp.ones((8, 64, 16))
    compiled = jax.jit(sum_over_batch, static_argnums=0).lower("o,io->io", signal, trace).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < trace.nbytes / 4
