"""Spiking neurons, the conductance cell and the leaky read-out."""

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from etp_ops import nn

NO_UNITS = dict(R=1.0, tau=5.0, V_th=1.0, dt=0.5)


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def ready(neuron, batch_size=2):
    brainstate.nn.init_all_states(neuron, batch_size=batch_size)
    return neuron


def test_the_membrane_is_integrated_as_by_exponential_euler():
    neuron = ready(nn.LIF(4, R=2.0 * u.ohm, V_rest=0.3 * u.mV, V_initializer=0.1 * u.mV))
    v = neuron.V.value
    for seed in range(8):
        x = (1.5 + array(seed, 2, 4)) * u.mA
        v = v - 1.0 * u.mV * (v >= 1.0 * u.mV)
        v = brainstate.nn.exp_euler_step(lambda v, x=x: (-v + 0.3 * u.mV + 2.0 * u.ohm * x) / (5.0 * u.ms), v)
        spikes = neuron(x)
        assert_allclose(neuron.V.value / u.mV, v / u.mV, rtol=1e-9)
        assert_array_equal(spikes, v >= 1.0 * u.mV)
    assert neuron.V.value.unit == u.mV


@pytest.mark.parametrize("kind", [nn.LIF, nn.ALIF])
def test_units_change_nothing_but_the_unit(kind):
    rise = {} if kind is nn.LIF else {"beta": 0.2, "tau_a": 30.0}
    plain = ready(kind(4, **NO_UNITS, **rise))
    scaled = {} if kind is nn.LIF else {"beta": 0.2e-3 * u.volt, "tau_a": 0.03 * u.second}
    physical = ready(kind(4, R=1e-3 * u.kohm, tau=5e3 * u.us, dt=0.5 * u.ms, V_th=1.0 * u.mV, **scaled))
    for seed in range(5):
        x = 2.0 + array(seed, 2, 4)
        assert_array_equal(plain(x), physical(x * u.mA))
        assert_allclose(plain.V.value, physical.V.value / u.mV, rtol=1e-12)


def test_adaptation_raises_the_threshold_by_its_filtered_spikes():
    neuron = ready(nn.ALIF(4, **NO_UNITS, beta=0.3, tau_a=20.0))
    run = brainstate.transform.jit(neuron.update)
    v, a = np.zeros((2, 4)), np.zeros((2, 4))
    draw = np.random.default_rng(0)
    for _ in range(20):
        x = 2.0 + draw.normal(size=(2, 4))
        s = (v >= 1.0 + 0.3 * a).astype(float)
        v = x + (v - s - x) * np.exp(-0.1)
        a = (a + s) * np.exp(-0.5 / 20.0)
        assert_array_equal(run(x), v >= 1.0 + 0.3 * a)
        assert_allclose(neuron.a.value, a, rtol=1e-12)


def test_a_hard_reset_sets_the_voltage_and_is_not_differentiated():
    neuron = ready(nn.LIF(4, **NO_UNITS, V_reset=-0.5, V_initializer=3.0, spk_reset="hard"))
    neuron(jnp.zeros((2, 4)))
    assert_allclose(neuron.V.value, -0.5 * np.exp(-0.1), rtol=1e-12)


def test_a_generalised_neuron_follows_its_equations():
    neuron = ready(nn.GIF(3, a=0.002 / u.ms, A1=0.3 * u.mA, A2=-0.1 * u.mA, R1=0.5), None)
    run = brainstate.transform.jit(neuron.update)
    v, threshold, i1, i2, dt = -70.0 * np.ones(3), -50.0 * np.ones(3), np.zeros(3), np.zeros(3), 0.5
    fired, draw = 0, np.random.default_rng(0)
    for _ in range(60):
        x = 1.5 + draw.normal(size=3)
        s = v >= threshold
        fired += s.sum()
        v, threshold = np.where(s, -70.0, v), np.where(s, np.maximum(threshold, -60.0), threshold)
        i1, i2 = np.where(s, 0.5 * i1 + 0.3, i1), np.where(s, i2 - 0.1, i2)
        i1, i2 = i1 * np.exp(-0.2 * dt), i2 * np.exp(-0.02 * dt)
        target = -70.0 + 20.0 * (x + i1 + i2)
        v = target + (v - target) * np.exp(-dt / 20.0)
        goal = -50.0 + 0.2 * (v + 70.0)
        threshold = goal + (threshold - goal) * np.exp(-0.01 * dt)
        assert_array_equal(run(x * u.mA), v >= threshold)
        assert_allclose(neuron.V.value / u.mV, v, rtol=1e-9)
        assert_allclose(neuron.V_th.value / u.mV, threshold, rtol=1e-9)
    assert fired > 0


def test_a_conductance_cell_follows_its_equations():
    cell = ready(nn.ConductanceEICell(3, 5, num_exc=3, w_init=array(0, 1, 5) * 0.5))
    w_e, w_i = (np.abs(w.weight.value) for w in (cell.W_e, cell.W_i))
    run = brainstate.transform.jit(cell.update)
    v, g_e, g_i, fired = np.full((2, 5), -60.0), np.zeros((2, 5)), np.zeros((2, 5)), 0
    draw = np.random.default_rng(0)
    for _ in range(40):
        x = np.abs(draw.normal(size=(2, 3)))
        s = (v >= -50.0).astype(float)
        fired += s[:, 3:].sum()
        g_e = g_e * np.exp(-0.5 / 5.0) + np.concatenate([x, s[:, :3]], -1) @ w_e
        g_i = g_i * np.exp(-0.5 / 10.0) + s[:, 3:] @ w_i
        total = 1.0 + g_e + g_i
        target = (-60.0 - 80.0 * g_i) / total
        v = target + (v - 10.0 * s - target) * np.exp(-0.5 * total / 20.0)
        assert_array_equal(run(x), v >= -50.0)
        assert_allclose(cell.V.value / u.mV, v, rtol=1e-9)
    assert fired > 0


def test_a_leaky_read_out_filters_its_layer():
    readout = ready(nn.LeakyRateReadout(3, 4, tau=2.0 * u.ms, r_init=brainstate.nn.init.Constant(0.5)))
    r = jnp.full((2, 4), 0.5)
    for seed in range(3):
        r = r * np.exp(-0.25) + array(seed, 2, 3) @ readout.weight.value
        assert_allclose(readout(array(seed, 2, 3)), r, rtol=1e-12)


STATES = {
    "LIF": (lambda: nn.LIF((2, 3)), {"V"}),
    "ALIF": (lambda: nn.ALIF((2, 3)), {"V", "a"}),
    "GIF": (lambda: nn.GIF((2, 3)), {"V", "V_th", "I1", "I2"}),
    "ConductanceEICell": (lambda: nn.ConductanceEICell(3, 6), {"V", "g_e", "g_i"}),
    "LeakyRateReadout": (lambda: nn.LeakyRateReadout(3, 6), {"r"}),
}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("name", STATES)
def test_states_are_hidden_have_the_batch_size_asked_for_and_are_reset(name, batch_size):
    make, names = STATES[name]
    neuron = ready(make(), batch_size)
    hidden = neuron.states(brainstate.HiddenState)
    assert {path[-1] for path in hidden} == names
    lead = () if batch_size is None else (batch_size,)
    assert {state.value.shape for state in hidden.values()} == {(*lead, *neuron.out_size)}
    before = {path: state.value for path, state in hidden.items()}
    drive = 1.0 if name in ("ConductanceEICell", "LeakyRateReadout") else 3.0 * u.mA
    brainstate.transform.jit(neuron.update)(jnp.ones((*lead, *neuron.in_size)) * drive)
    assert any(np.any(u.get_mantissa(state.value) != u.get_mantissa(before[path])) for path, state in hidden.items())
    brainstate.nn.reset_all_states(neuron, batch_size=batch_size)
    for path, state in hidden.items():
        assert_array_equal(u.get_mantissa(state.value), u.get_mantissa(before[path]))


@pytest.mark.parametrize("spike", [nn.surrogate.ReluGrad(), nn.surrogate.Sigmoid(25.0), nn.surrogate.Arctan()])
def test_one_neuron_far_below_threshold_leaves_every_gradient_finite(spike):
    start = jnp.asarray([0.9, -1e4, 0.5, 0.2], jnp.float32)
    layer = nn.Linear(3, 4, w_init=array(0, 3, 4).astype(jnp.float32), b_init=jnp.zeros(4, jnp.float32))
    neuron = nn.ALIF(
        4, **NO_UNITS, beta=0.1, tau_a=20.0, V_initializer=start, spk_fun=spike, a_initializer=np.float32(0)
    )

    def loss():
        brainstate.nn.init_all_states(neuron)
        return sum(neuron(layer(jnp.ones(3, jnp.float32))).sum() for _ in range(3))

    gradient = brainstate.transform.jit(brainstate.transform.grad(loss, layer.states(brainstate.ParamState)))()
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_the_time_step_comes_from_the_environment_or_the_argument():
    with brainstate.environ.context(dt=1.0 * u.ms):
        environment = ready(nn.LIF(4))
        environment(jnp.ones((2, 4)) * u.mA)
    argument = ready(nn.LIF(4, dt=1.0 * u.ms))
    argument(jnp.ones((2, 4)) * u.mA)
    assert_array_equal(environment.V.value.mantissa, argument.V.value.mantissa)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.LIF(4, spk_reset="none"), "'soft' or 'hard'"),
        (lambda: nn.LIF(4, V_th=1.0, V_rest=0.0 * u.mV), "LIF: V_rest is in mV but V_th is in no unit"),
        (lambda: nn.LIF(4, tau=jnp.ones(3) * u.ms), "tau has the shape"),
        (lambda: nn.ALIF(4, beta=0.1), "ALIF: beta"),
        (lambda: nn.GIF(4, V_reset=-70.0), "GIF: V_reset"),
        (lambda: nn.GIF(4, b=0.0 / u.ms), "b must be positive"),
        (lambda: nn.GIF(4, k1=0.1), "GIF: k1"),
        (lambda: nn.ConductanceEICell(3, 5, num_exc=5), "both kinds"),
        (lambda: nn.ConductanceEICell(3, 5, spk_reset="none"), "must be 'soft' or 'hard'"),
        (lambda: nn.ConductanceEICell(3, 5, E_i=-80.0), "ConductanceEICell: E_i"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_constructor(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_time_constant_without_unit_does_not_meet_a_time_step_with_one():
    neuron = ready(nn.LIF(4, tau=5.0))
    with pytest.raises(ValueError, match="dt in ms and tau in no unit"):
        neuron(jnp.ones((2, 4)) * u.mA)
