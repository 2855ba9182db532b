"""Weights at a point where a dead branch is not defined poison nothing: values, traces and gradients stay finite."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import element_wise, lora_matmul, matmul

from .helpers import compiled, largest_error, reference, trusts
from .models import IN, N, array, cell, inputs

pytestmark = pytest.mark.thorough
XS = inputs(steps=4)


def negative(seed, *shape):
    """Weights of which neither root nor logarithm exists."""
    return -jnp.abs(array(seed, *shape))


def choose(self, x, dead, alive):
    """``dead`` is taken for inputs that never come."""
    self.h.value = lax.cond(x.min() > 100.0, dead, alive, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": negative(0, IN, N), "V": array(1, IN, N)})
def root_of_a_weight(self, x):
    dead = lambda h: 0.5 * h + matmul(x, jnp.sqrt(self.W.value))  # noqa: E731
    return choose(self, x, dead, lambda h: 0.7 * h + matmul(x, self.V.value) + matmul(x**2, self.W.value))


@cell({"h": (N,)}, lambda: {"W": negative(0, IN, N), "V": array(1, IN, N)})
def root_by_a_hook(self, x):
    dead = lambda h: 0.5 * h + matmul(x, self.W.value, weight_fn=jnp.sqrt)  # noqa: E731
    return choose(self, x, dead, lambda h: 0.7 * h + matmul(x, self.V.value) + matmul(x**2, self.W.value))


@cell({"h": (N,)}, lambda: {"A": negative(0, 2, N), "B": array(1, IN, 2)})
def logarithm_of_a_factor(self, x):
    dead = lambda h: 0.5 * h + lora_matmul(x, self.B.value, jnp.log(self.A.value))  # noqa: E731
    return choose(self, x, dead, lambda h: 0.7 * h + lora_matmul(x, self.B.value, self.A.value))


@cell({"h": (N,)}, lambda: {"A": negative(0, 2, N), "B": array(1, IN, 2)})
def root_of_a_factor_by_a_hook(self, x):
    dead = lambda h: 0.5 * h + lora_matmul(x, self.B.value, self.A.value, a_fn=jnp.sqrt)  # noqa: E731
    return choose(self, x, dead, lambda h: 0.7 * h + lora_matmul(x, self.B.value, self.A.value))


@cell({"h": (N,)}, lambda: {"u": negative(0, N), "V": array(1, IN, N)})
def root_of_a_time_constant(self, x):
    dead = lambda h: h * element_wise(jnp.log(self.u.value)) + element_wise(self.u.value, weight_fn=jnp.sqrt)  # noqa: E731
    return choose(self, x, dead, lambda h: element_wise(self.u.value) * h + matmul(x, self.V.value))


@cell({"h": (N,)}, lambda: {"W": negative(0, 2, IN, N), "V": array(1, IN, N)})
def root_inside_a_loop(self, x):
    def dead(h):
        return lax.scan(lambda h, w: (0.5 * h + matmul(x, jnp.sqrt(w)), None), h, jnp.log(self.W.value))[0]

    return choose(self, x, dead, lambda h: 0.7 * h + matmul(x, self.V.value) + matmul(x**2, self.W.value[0]))


MODELS = {
    factory.__name__: factory
    for factory in (
        root_of_a_weight,
        root_by_a_hook,
        logarithm_of_a_factor,
        root_of_a_factor_by_a_hook,
        root_of_a_time_constant,
        root_inside_a_loop,
    )
}


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_past_an_undefined_weight_is_that_of_the_real_conditional(name, kernels):
    expected = reference(MODELS[name], 2, steps=4)
    found = oracle.chunked_online_param_gradients(
        MODELS[name], XS, algo_factory=lambda m: ea.D_RTRL(m, kernels=kernels), chunk_size=1, batch_size=2
    )
    assert oracle.relative_deviation(found, expected) < 1e-13
    assert set(trusts(compiled(MODELS[name], XS[0], 2)).values()) == {"exact"}


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_past_an_undefined_weight_is_folded_to_the_same_gradient(name):
    learner = compiled(MODELS[name], XS[0], 2)
    gradients = learner.etrace_grad(XS, step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")
    expected = reference(MODELS[name], 2, steps=4)
    assert largest_error(gradients, expected) < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_factorised_traces_stay_finite_past_an_undefined_weight(name):
    learner = compiled(MODELS[name], XS[0], 2, lambda m: ea.pp_prop(m, decay_or_rank=0.9))
    gradient = brainstate.transform.grad(lambda x: jnp.sum(learner(x) ** 2), grad_states=learner.param_states)
    found = [gradient(x) for x in XS]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((found, learner.traces.value)))
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(found[-1]))
