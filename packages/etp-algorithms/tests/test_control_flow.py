"""Marked operators inside branches and loops are found, and their gradients are those of the real control flow."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import element_wise, matmul

from .helpers import compiled, initialised, online, reference, trusts
from .models import IN, N, array, cell, inputs, simple

WINDOWS = [1, 3]


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def branch_of_two_weights(self, x):
    """Each branch has its own operator."""
    h = self.h.value
    self.h.value = lax.cond(
        x.sum() > 0,
        lambda h, x: 0.7 * h + matmul(x, self.W.value),
        lambda h, x: jnp.tanh(0.5 * h - matmul(x, self.V.value)),
        h,
        x,
    )
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def switch_of_three(self, x):
    """Three branches, one without an operator, one with a transformed weight."""
    branches = [
        lambda h: 0.9 * h,
        lambda h: 0.7 * h + matmul(x, jnp.tanh(self.W.value)),
        lambda h: h * element_wise(self.u.value) + matmul(2 * x, self.W.value),
    ]
    index = jnp.floor(6 * x.sum()).astype(int) % 3
    self.h.value = lax.switch(index, branches, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def nested_branches(self, x):
    def outer(h):
        y = matmul(x, self.W.value)
        return lax.cond(x[..., 1].sum() > 0, lambda h: 0.8 * h + y, lambda h: 0.6 * h - matmul(x, self.V.value), h)

    self.h.value = lax.cond(x[..., 0].sum() > -1.5, outer, lambda h: 0.5 * h, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def euler_short(self, x):
    """Four sub-steps that share input and leak: each operator is one relation."""

    def substep(_, h):
        return h + 0.1 * (matmul(x, self.W.value) - h * jax.nn.sigmoid(element_wise(self.u.value)))

    self.h.value = lax.fori_loop(0, 4, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def euler_long(self, x):
    """The same with 200 sub-steps."""

    def substep(_, h):
        return h + 0.01 * (matmul(x, self.W.value) - h * jax.nn.sigmoid(element_wise(self.u.value)))

    self.h.value = lax.fori_loop(0, 200, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N)})
def sliced_parameter(self, x):
    """A scan over the layers of one stacked parameter, with stacked outputs."""

    def layer(h, w):
        h = jnp.tanh(0.6 * h + matmul(x, w))
        return h, h.sum()

    self.h.value, sums = lax.scan(layer, self.h.value, self.W.value)
    return self.h.value, sums


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N)})
def sliced_parameter_backwards(self, x):
    def layer(h, w):
        h = jnp.tanh(0.6 * h + matmul(x, 2.0 * w))
        return h, h

    self.h.value, all_h = lax.scan(layer, self.h.value, self.W.value, reverse=True)
    return self.h.value, all_h[0]


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def branch_inside_loop(self, x):
    def substep(i, h):
        return lax.cond(
            i % 2 == 0,
            lambda h: 0.9 * h + matmul(x * (1 + i), self.W.value),
            lambda h: jnp.tanh(h) * matmul(x, self.V.value),
            h,
        )

    self.h.value = lax.fori_loop(0, 3, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N), "V": array(1, IN, N)})
def loop_inside_branch(self, x):
    def settle(h):
        return lax.scan(lambda h, w: (jnp.tanh(0.8 * h + matmul(x, w)), None), h, self.W.value)[0]

    self.h.value = lax.cond(x.sum() > 0, settle, lambda h: 0.7 * h + matmul(x, self.V.value), self.h.value)
    return self.h.value


@simple()
def mapped_inside_branch(self, x):
    def drive(x):
        return jax.vmap(lambda row: matmul(row, self.W.value))(x) if x.ndim == 2 else matmul(x, self.W.value)

    self.h.value = 0.7 * self.h.value + lax.cond(x.sum() > 0, drive, lambda x: -drive(x), x)
    return self.h.value


INSIDE = {
    "branch_of_two_weights": (branch_of_two_weights, 2),
    "switch_of_three": (switch_of_three, 3),
    "nested_branches": (nested_branches, 2),
    "euler_short": (euler_short, 2),
    "euler_long": (euler_long, 2),
    "sliced_parameter": (sliced_parameter, 3),
    "sliced_parameter_backwards": (sliced_parameter_backwards, 3),
    "branch_inside_loop": (branch_inside_loop, 6),
    "loop_inside_branch": (loop_inside_branch, 4),
    "mapped_inside_branch": (mapped_inside_branch, 2),
}
"""Models with operators inside control flow, with their number of relations."""


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("name", INSIDE)
def test_operators_inside_control_flow_learn_exactly(name, batch, window):
    factory = INSIDE[name][0]
    deviation = oracle.relative_deviation(online(factory, batch, window), reference(factory, batch))
    assert deviation < 1e-12


@pytest.mark.parametrize("name", INSIDE)
def test_operators_inside_control_flow_are_all_found_and_exact(name):
    factory, count = INSIDE[name]
    learner = compiled(factory, inputs()[0], 2)
    assert len(learner.graph.hidden_param_op_relations) == count
    assert set(trusts(learner).values()) == {"exact"}
    assert learner.report.diagnostics == ()
