"""Whatever the step: what the compiler promises is what comes out."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings

import etp_algorithms as ea
from etp_algorithms import oracle

from .helpers import compiled, quietly, trusts
from .models import inputs
from .random_models import programs

STEPS = 4
SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}


def check(program, kernels):
    """Every promise of the report, against backpropagation through time."""
    xs = inputs(steps=STEPS, batch=program.batch)
    try:
        learner = compiled(program, xs[0], program.batch)
    except ea.CompilationError:
        return
    report = trusts(learner)
    expected = oracle.bptt_param_gradients(program, xs, batch_size=program.batch)
    kept = [path for path in expected if report.get(".".join(path)) == "exact"]
    unused = [path for path in expected if report.get(".".join(path), "unused") == "unused"]
    assert all(float(abs(expected[path]).max()) == 0 for path in unused)
    if kept:
        found = quietly(
            oracle.chunked_online_param_gradients,
            program,
            xs,
            algo_factory=functools.partial(ea.D_RTRL, kernels=kernels),
            chunk_size=1,
            batch_size=program.batch,
        )
        oracle.assert_param_gradients_close(found, expected, atol=1e-11, rtol=1e-9, keys=kept)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@settings(max_examples=15, **SETTINGS)
@given(program=programs)
def test_a_parameter_that_is_called_exact_is_exact_whatever_the_step(kernels, program):
    check(program, kernels)


@pytest.mark.property
@pytest.mark.parametrize("kernels", ["auto", "reference"])
@settings(max_examples=500, **SETTINGS)
@given(program=programs)
def test_a_parameter_that_is_called_exact_is_exact_in_a_thousand_steps(kernels, program):
    check(program, kernels)
