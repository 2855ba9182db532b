"""Numbers that can be checked on paper.

LEAK is ``h ← 0.5 h + w x + b`` with ``w = 1``, ``b = 0`` and ``x = 1, 2, 3``: ``h = 1, 2.5, 4.25``. STACK2 is two
of them, the second fed by the first through a weight of its own, with ``x = 1, 1, 1``.
"""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData
from etp_ops import element_wise, matmul

from .helpers import gradient_of, quietly
from .models import Cell

WINDOWS = {"1": (1, 1, 1), "2+1": (2, 1), "1+2": (1, 2), "3": (3,)}
windows = pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
batches = pytest.mark.parametrize("batch", [None, 1, 3])
losses = pytest.mark.parametrize("summed", [False, True], ids=["last step", "summed"])


def one(value):
    return jnp.full((1, 1), value)


def leak_with_separate_bias():
    def step(self, x):
        self.h.value = 0.5 * self.h.value + matmul(x, self.w.value, self.b.value)
        return self.h.value

    return Cell(step, {"w": one(1.0), "b": jnp.zeros(1)}, {"h": (1,)})


def leak_with_one_dictionary():
    def step(self, x):
        self.h.value = 0.5 * self.h.value + matmul(x, self.p.value["w"], self.p.value["b"])
        return self.h.value

    return Cell(step, {"p": {"w": one(1.0), "b": jnp.zeros(1)}}, {"h": (1,)})


def leak_with_learned_decay():
    def step(self, x):
        self.h.value = element_wise(self.a.value) * self.h.value + x
        return self.h.value

    return Cell(step, {"a": jnp.full(1, 0.5)}, {"h": (1,)})


def stack_of_two():
    def step(self, x):
        self.h1.value = 0.5 * self.h1.value + matmul(x, self.w1.value)
        self.h2.value = 0.5 * self.h2.value + matmul(self.h1.value, self.w2.value)
        return self.h2.value

    return Cell(step, {"w1": one(1.0), "w2": one(1.0)}, {"h1": (1,), "h2": (1,)})


def learn(model, numbers, windows, batch, summed, algorithm=ea.D_RTRL):
    """The gradients of the last output, or of the sum of all, window by window, per lane."""
    brainstate.nn.init_all_states(model, **({} if batch is None else {"batch_size": batch}))
    xs = jnp.asarray(numbers)[:, None] if batch is None else jnp.tile(jnp.asarray(numbers)[:, None, None], (batch, 1))
    learner = algorithm(model)
    quietly(learner.compile_graph, xs[0])
    total, start = None, 0
    for size in windows:
        gate = jnp.asarray([summed or t == len(xs) - 1 for t in range(start, start + size)], float)
        window = xs[start : start + size]

        def loss(window=window, gate=gate, size=size):
            out = learner(MultiStepData(window)) if size > 1 else learner(window[0])[None]
            return jnp.sum(out.reshape(size, -1).sum(1) * gate)

        gradients, _ = gradient_of(learner, loss)
        total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
        start += size
    return jax.tree.map(lambda g: np.asarray(g) / (batch or 1), total)


@windows
@batches
@losses
def test_leak_learns_weight_and_bias(windows, batch, summed):
    found = learn(leak_with_separate_bias(), (1.0, 2.0, 3.0), windows, batch, summed)
    dw, db = (7.75, 4.25) if summed else (4.25, 1.75)
    np.testing.assert_allclose(found["w"], [[dw]], atol=1e-12)
    np.testing.assert_allclose(found["b"], [db], atol=1e-12)


@windows
@losses
def test_leak_learns_weight_and_bias_of_one_dictionary(windows, summed):
    found = learn(leak_with_one_dictionary(), (1.0, 2.0, 3.0), windows, 1, summed)["p"]
    dw, db = (7.75, 4.25) if summed else (4.25, 1.75)
    np.testing.assert_allclose(found["w"], [[dw]], atol=1e-12)
    np.testing.assert_allclose(found["b"], [db], atol=1e-12)


@windows
@batches
@losses
def test_leak_learns_its_decay(windows, batch, summed):
    found = learn(leak_with_learned_decay(), (1.0, 2.0, 3.0), windows, batch, summed)
    # d(h_t)/da = a d(h_{t-1})/da + h_{t-1}:  0, 1, 3
    np.testing.assert_allclose(found["a"], [4.0 if summed else 3.0], atol=1e-12)


@losses
def test_a_stack_learned_step_by_step_gives_the_credit_of_each_layer_alone(summed):
    found = learn(stack_of_two(), (1.0, 1.0, 1.0), (1, 1, 1), 1, summed)
    np.testing.assert_allclose(found["w1"], [[4.25 if summed else 1.75]], atol=1e-12)


@losses
def test_a_stack_in_one_window_is_backpropagation(summed):
    found = learn(stack_of_two(), (1.0, 1.0, 1.0), (3,), 1, summed)
    np.testing.assert_allclose(found["w1"], [[5.75 if summed else 2.75]], atol=1e-12)


@windows
@losses
def test_the_upper_layer_of_a_stack_is_exact_in_every_window(windows, summed):
    found = learn(stack_of_two(), (1.0, 1.0, 1.0), windows, 1, summed)
    # h1 = 1, 1.5, 1.75; the trace of w2 is 1, 2, 2.75
    np.testing.assert_allclose(found["w2"], [[5.75 if summed else 2.75]], atol=1e-12)
