import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_ops
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


@pytest.mark.parametrize("batch", [1, 2])
def test_the_gradient_of_a_dense_weight_is_made_in_the_layout_of_the_weight(batch):
    pull = etp_ops.etp_mm_p.require_rule("xy_to_dw", "a test")
    x, g, weights = jnp.ones((batch, 48)), jnp.ones((batch, 32)), {"weight": jnp.ones((48, 32))}
    program = jax.jit(lambda x, g: pull(x, g, weights, weight_fn=None, bias_fn=None)).lower(x, g).compile().as_text()
    assert "f64[48,32]{1,0}" in program
    assert "f64[48,32]{0,1}" not in program  # which would be copied
