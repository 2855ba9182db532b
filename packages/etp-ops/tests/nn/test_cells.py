"""The gated cells: against brainstate's own, or against their equations."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import sigmoid
from numpy.testing import assert_allclose, assert_array_equal

from etp_ops import nn


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def seeded(make, batch_size=2):
    with brainstate.random.seed_context(0):
        cell = make()
    brainstate.nn.init_all_states(cell, batch_size=batch_size)
    return cell


SHARED = ["ValinaRNNCell", "GRUCell", "MGUCell", "LSTMCell", "URLSTMCell"]


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("options", [{}, {"activation": jnp.sin, "state_init": brainstate.nn.init.Constant(0.5)}])
def test_cells_are_brainstates_cells_parameter_by_parameter_and_step_by_step(name, options):
    ours, theirs = (seeded(lambda module=m: getattr(module, name)(3, 4, **options)) for m in (nn, brainstate.nn))
    assert isinstance(ours, brainstate.nn.RNNCell)
    values = [{path: state.value for path, state in cell.states().items()} for cell in (ours, theirs)]
    assert values[0].keys() == values[1].keys()
    jax.tree.map(assert_array_equal, *values)
    run_ours, run_theirs = (brainstate.transform.jit(cell.update) for cell in (ours, theirs))
    for seed in range(3):
        assert_allclose(run_ours(array(seed, 2, 3)), run_theirs(array(seed, 2, 3)), rtol=1e-12)
    for path, state in theirs.states(brainstate.HiddenState).items():
        assert_allclose(ours.states()[path].value, state.value, rtol=1e-12)


@pytest.mark.parametrize("name", SHARED)
def test_arguments_stand_where_brainstates_stand(name):
    import inspect

    ours, theirs = (list(inspect.signature(getattr(m, name).__init__).parameters) for m in (nn, brainstate.nn))
    assert ours == theirs


def dense(layer, *parts):
    return jnp.concatenate(parts, -1) @ layer.weight.value["weight"] + layer.weight.value["bias"]


def cfn(cell, x, h):
    f, i = sigmoid(dense(cell.Wf, x, h)), sigmoid(dense(cell.Wi, x, h))
    return f * jnp.tanh(h) + i * jnp.tanh(dense(cell.Wh, x))


def minimal(cell, x, h):
    z = dense(cell.phi, x)
    f = sigmoid(dense(cell.W_u, z, h))
    return f * h + (1 - f) * z


def mini_gru(cell, x, h):
    z = sigmoid(dense(cell.W_z, x, h))
    return (1 - z) * h + z * dense(cell.W_x, x)


def mini_lstm(cell, x, h):
    return sigmoid(dense(cell.W_f, x, h)) * h + sigmoid(dense(cell.W_i, x, h)) * dense(cell.W_x, x)


@pytest.mark.parametrize(
    ("make", "step"),
    [(nn.CFNCell, cfn), (nn.MinimalRNNCell, minimal), (nn.MiniGRU, mini_gru), (nn.MiniLSTM, mini_lstm)],
)
def test_cells_follow_their_equations(make, step):
    cell = seeded(lambda: make(3, 4, b_init=brainstate.nn.init.Normal()))
    h, run, by_hand = cell.h.value, brainstate.transform.jit(cell.update), jax.jit(lambda x, h: step(cell, x, h))
    for seed in range(3):
        h = by_hand(array(seed, 2, 3), h)
        assert_allclose(run(array(seed, 2, 3)), h, rtol=1e-12)


def test_a_minimal_cell_takes_any_map_of_its_input():
    cell = seeded(lambda: nn.MinimalRNNCell(3, 3, phi=jnp.tanh))
    assert cell(array(0, 2, 3)).shape == (2, 3)
    assert set(cell.states(brainstate.ParamState)) == {("W_u", "weight")}


def test_a_linear_recurrent_unit_follows_its_complex_equations():
    cell = seeded(lambda: nn.LRUCell(3, 4, r_min=0.2, r_max=0.9, max_phase=1.0))
    assert {".".join(path) for path in cell.states(brainstate.ParamState)} == {
        "nu_log", "theta_log", "gamma_log", "B_re.weight", "B_im.weight", "C_re.weight", "C_im.weight", "D",
    }  # fmt: skip
    eigenvalue = jnp.exp(-jnp.exp(cell.nu_log.value) + 1j * jnp.exp(cell.theta_log.value))
    assert np.all((np.abs(eigenvalue) >= 0.2) & (np.abs(eigenvalue) <= 0.9) & (np.angle(eigenvalue) <= 1.0))
    assert_allclose(jnp.exp(cell.gamma_log.value) ** 2, 1 - jnp.abs(eigenvalue) ** 2, rtol=1e-9)
    b_re, b_im, c_re, c_im = (w.weight.value["weight"] for w in (cell.B_re, cell.B_im, cell.C_re, cell.C_im))
    b, c = b_re + 1j * b_im, c_re + 1j * c_im
    gain, b, c, d = map(np.asarray, (jnp.exp(cell.gamma_log.value), b, c, cell.D.value))
    h, run = np.zeros((2, 4)), brainstate.transform.jit(cell.update)
    for seed in range(3):
        x = np.asarray(array(seed, 2, 3))
        h = np.asarray(eigenvalue) * h + gain * (x @ b)
        assert_allclose(run(x), (h @ c).real + d * x, rtol=1e-9)


@pytest.mark.parametrize("name", [*SHARED, "CFNCell", "MinimalRNNCell", "MiniGRU", "MiniLSTM", "LRUCell"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_states_have_the_batch_size_asked_for_and_are_reset(name, batch_size):
    cell = seeded(lambda: getattr(nn, name)(3, 4), batch_size)
    hidden = cell.states(brainstate.HiddenState)
    lead = () if batch_size is None else (batch_size,)
    assert {state.value.shape for state in hidden.values()} == {(*lead, 4)}
    brainstate.transform.jit(cell.update)(jnp.ones((*lead, 3)))
    assert any(np.any(state.value != 0) for state in hidden.values())
    brainstate.nn.reset_all_states(cell, batch_size=batch_size)
    assert all(np.all(state.value == 0) for state in hidden.values())


def test_an_array_or_a_number_initialises_every_sample():
    for init in (jnp.arange(4.0), 0.5):
        cell = seeded(lambda value=init: nn.GRUCell(3, 4, state_init=value))
        assert_array_equal(cell.h.value, jnp.broadcast_to(jnp.asarray(init), (2, 4)))


@pytest.mark.parametrize("activation", ["no_such_function", "Linear", 3])
def test_an_unknown_activation_is_refused(activation):
    with pytest.raises((ValueError, TypeError), match="activation"):
        nn.GRUCell(3, 4, activation=activation)


@pytest.mark.parametrize("options", [{"r_min": 0.9, "r_max": 0.5}, {"r_max": 1.5}, {"max_phase": 0.0}])
def test_an_impossible_ring_of_eigenvalues_is_refused(options):
    with pytest.raises(ValueError, match="0 <= r_min < r_max <= 1"):
        nn.LRUCell(3, 4, **options)


def test_the_sizes_under_their_names_in_braintrace_work_and_warn():
    with pytest.warns(DeprecationWarning, match="GRUCell: out_size is called num_out"):
        cell = nn.GRUCell(3, out_size=4)
    assert (cell.in_size, cell.out_size) == ((3,), (4,))
    with pytest.raises(TypeError, match="GRUCell needs num_out"):
        nn.GRUCell(3)
