"""The same neuron in millivolts, in volts and without units learns the same."""

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData, oracle
from etp_ops import matmul

from .helpers import compiled, gradient_of, initialised, relation_set, tree_sum, trusts
from .models import IN, N, array, inputs, spike

XS = inputs(batch=2)
ONE = u.UNITLESS


class LIF(brainstate.nn.Module):
    """τ dv/dt = −v + R·(x W), a spike above threshold, an adaptation without unit.

    ``volt`` is the unit of the potential, ``second`` that of time; the weight is in ``volt / amp``, its value in
    units of ``weight``.
    """

    def __init__(self, volt, second, weight):
        super().__init__()
        self.volt, self.tau, self.dt = volt, quantity(20.0, second[0]), quantity(1.0, second[0])
        if second[1]:  # the same durations written in seconds
            self.tau, self.dt = quantity(0.020, second[1]), quantity(0.001, second[1])
        self.W = brainstate.ParamState(quantity(array(0, IN, N, scale=40.0) * weight[1], weight[0]))

    def init_state(self, batch_size=None, **kwargs):
        self.v = brainstate.HiddenState(quantity(jnp.zeros((batch_size, N)), self.volt))
        self.a = brainstate.HiddenState(jnp.zeros((batch_size, N)))

    def update(self, x):
        millivolt = 1.0 if self.volt is ONE else u.mV
        current = matmul(x, self.W.value)
        v = self.v.value + self.dt / self.tau * (current - self.v.value)
        level = v if self.volt is ONE else v.to_decimal(u.mV)
        s = spike(level - 1.0 - self.a.value)
        self.a.value = 0.9 * self.a.value + 0.2 * s
        self.v.value = v - s * (0.5 * millivolt)
        return level + s


def quantity(value, unit):
    return value if unit is ONE else value * unit


def plain():
    return LIF(ONE, (ONE, None), (ONE, 1.0))


def in_millivolts():
    return LIF(u.mV, (u.ms, None), (u.mV, 1.0))


def in_volts():
    return LIF(u.volt, (u.ms, u.second), (u.volt, 1e-3))


def gradient(factory, window):
    learner = compiled(factory, XS[0], 2)
    windows = [MultiStepData(XS[t : t + window]) for t in range(0, 6, window)]
    found = tree_sum([gradient_of(learner, lambda w=w: jnp.sum(u.get_mantissa(learner(w)) ** 2))[0] for w in windows])
    return found["W"]


def per_millivolt(found, unit):
    """dL per mV of weight."""
    return np.asarray(u.get_mantissa(found)) * (1e-3 if unit is u.volt else 1.0)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("factory", "unit"), [(in_millivolts, u.mV), (in_volts, u.volt)], ids=["mV ms", "V s"])
def test_a_neuron_with_units_learns_what_the_same_neuron_without_units_learns(factory, unit, window):
    expected = np.asarray(gradient(plain, window))
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(per_millivolt(gradient(factory, window), unit), expected, rtol=1e-10)


@pytest.mark.parametrize("factory", [plain, in_millivolts, in_volts])
def test_a_neuron_with_units_equals_backpropagation_through_windows(factory):
    expected = oracle.bptt_param_gradients(factory, XS, batch_size=2)
    found = oracle.chunked_online_param_gradients(factory, XS, algo_factory=ea.D_RTRL, chunk_size=1, batch_size=2)
    assert oracle.relative_deviation(found, expected) < 1e-12


@pytest.mark.parametrize("factory", [in_millivolts, in_volts])
def test_states_of_different_units_form_one_group_and_are_exact(factory):
    learner = compiled(factory, XS[0], 2)
    (group,) = learner.graph.hidden_groups
    assert group.num_state == 2
    assert relation_set(learner) == [("etp_mm", "W", group.name)]
    assert trusts(learner) == {"W": "exact"}


def test_outputs_and_states_keep_their_units():
    learner = compiled(in_millivolts, XS[0], 2)
    learner(XS[0])
    assert u.get_unit(learner.model.v.value) == u.mV


def test_a_gradient_has_the_structure_of_its_parameter_so_that_an_optimizer_can_step():
    learner = compiled(in_millivolts, XS[0], 2)
    found = gradient(in_millivolts, 1)
    stepped = jax.tree.map(lambda w, g: w - 0.1 * g, learner.model.W.value, found)
    assert u.get_unit(stepped) == u.mV


def test_a_state_whose_unit_changed_since_compilation_is_refused_by_name():
    learner = compiled(in_millivolts, XS[0], 2)
    learner.model.v = brainstate.HiddenState(jnp.zeros((2, N)) * u.volt)
    with pytest.raises(ValueError, match="the state v changed its structure"):
        learner(XS[0])


def test_an_input_of_another_unit_is_refused():
    learner = compiled(plain, XS[0], 2)
    with pytest.raises(ValueError, match="structure and units"):
        learner(XS[0] * u.mA)


def test_the_zoo_of_units_starts_from_the_same_neuron():
    outs = [np.asarray(u.get_mantissa(initialised(f, 2).update(XS[0]))) for f in (plain, in_millivolts, in_volts)]
    np.testing.assert_allclose(outs[1], outs[0], rtol=1e-12)
    np.testing.assert_allclose(outs[2], outs[0], rtol=1e-12)
