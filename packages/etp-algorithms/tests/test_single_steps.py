"""One step per call, as a learner in a loop is driven: the gradient of the rules, in as few products as it takes."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_algorithms import D_RTRL, oracle, pp_prop

from . import models
from .helpers import compiled

thorough = pytest.mark.thorough
MODELS = [
    models.gru,
    pytest.param(models.indrnn, marks=thorough),
    pytest.param(models.width_one_gate, marks=thorough),
    pytest.param(models.adaptive_spiking, marks=thorough),
]
ALGORITHMS = {"d_rtrl": D_RTRL, "pp_prop": lambda model, **options: pp_prop(model, (0.8, 0.6), **options)}


def gradient(learner, xs):
    return learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2))


@pytest.mark.parametrize("factory", MODELS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("signal", ["entry", "exit"])
@pytest.mark.parametrize("batch", [2, pytest.param(None, marks=thorough)])
def test_a_single_step_has_the_gradient_and_the_traces_of_the_rules(factory, algorithm, signal, batch):
    xs = models.inputs(steps=4, batch=batch)
    made = {}
    for kernels in ("auto", "reference"):
        learner = compiled(factory, xs[0], batch, ALGORITHMS[algorithm], kernels=kernels, signal=signal)
        gradient(learner, xs[:3])
        made[kernels] = gradient(learner, xs[3:]), learner.traces.value
    (found, traces), (expected, expected_traces) = made["auto"], made["reference"]
    assert oracle.gradient_norm(expected) > 1e-3
    assert oracle.relative_deviation(found, expected) < 1e-13
    for a, b in zip(jax.tree.leaves(traces), jax.tree.leaves(expected_traces), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("signal", ["entry", "exit"])
def test_a_single_step_of_filters_takes_one_product_per_weight(signal):
    x = models.inputs()[:1]
    learner = compiled(models.dense_tanh, x[0], 2, ALGORITHMS["pp_prop"], signal=signal)
    stateful = brainstate.transform.StatefulFunction(lambda x: gradient(learner, x), return_only_write=False)
    stateful.make_jaxpr(x)
    (rows, columns) = (*learner.param_states.values(),)[0].value.shape
    assert str(stateful.get_jaxpr(x)).count(f"f64[{rows},{columns}] = dot_general") == 1
