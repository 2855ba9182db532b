"""One contract over the table of layers: what the trust report calls exact equals backpropagation through time.

Run as a script, this file prints the table of layer, trust and cosine as Markdown.
"""

import functools
from dataclasses import dataclass
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms
from etp_algorithms import oracle
from etp_ops import nn

pytestmark = pytest.mark.thorough

STEPS, BATCH = 6, 2


@pytest.fixture(autouse=True)
def time_step():
    with brainstate.environ.context(dt=0.5 * u.ms):
        yield


class Leaky(brainstate.nn.Module):
    """A layer that drives a leaky hidden state, position by position."""

    def __init__(self, layer, out_size=None):
        super().__init__()
        self.layer = layer
        self.size = layer.out_size if out_size is None else out_size

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, *self.size)))

    def update(self, x):
        self.h.value = jnp.tanh(0.7 * self.h.value + self.layer(x))
        return self.h.value


class Driven(brainstate.nn.Module):
    """Spiking neurons behind a dense layer, read out by spikes and voltage."""

    def __init__(self, neuron, weight, bias, unit=1.0, scale=1.0):
        super().__init__()
        self.layer = nn.Linear(3, neuron.in_size, w_init=weight, b_init=bias)
        self.neuron, self.unit, self.scale = neuron, unit, scale

    def update(self, x):
        spikes = self.neuron(self.layer(x) * self.unit)
        return spikes, self.scale * u.get_mantissa(self.neuron.V.value)


class Read(brainstate.nn.Module):
    """A spiking cell read out by spikes and voltage."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def update(self, x):
        return self.cell(x), 0.1 * u.get_mantissa(self.cell.V.value)


def array(seed, *shape, scale=0.5):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale)


def normal(seed=0, scale=0.5):
    """A seeded initialiser that gives every call other numbers."""
    draw = np.random.default_rng(seed)
    return lambda shape: jnp.asarray(draw.normal(size=shape) * scale)


@dataclass(frozen=True)
class Row:
    """A layer in a model, its trust, and the shape of one input."""

    build: Any
    trust: str = "exact"
    in_size: tuple[int, ...] = (3,)
    rows: int | None = None
    positive: bool = False


def sparse():
    return u.sparse.CSR.fromdense(array(1, 3, 4) * (np.arange(12).reshape(3, 4) % 3 > 0))


def driven(kind, **options):
    return lambda: Driven(kind(4, spk_fun=nn.surrogate.Sigmoid(alpha=2.0), **options), normal(0, 3.0), normal(1), u.mA)


def gif():
    neuron = nn.GIF(4, a=0.002 / u.ms, A1=0.3 * u.mA, A2=-0.1 * u.mA, spk_fun=nn.surrogate.Sigmoid(alpha=2.0))
    return Driven(neuron, normal(0, 2.0), normal(1, 1.0), u.mA, scale=0.01)


def plain_lif():
    neuron = nn.LIF(4, R=1.0, tau=5.0, V_th=1.0, dt=0.5, spk_reset="hard", spk_fun=nn.surrogate.Arctan())
    return Driven(neuron, normal(0, 3.0), normal(1))


def conductance():
    return Read(nn.ConductanceEICell(3, 5, num_exc=3, w_init=normal(), spk_fun=nn.surrogate.Sigmoid(alpha=2.0)))


def rnn(kind, **options):
    return lambda: kind(3, 4, w_init=normal(), b_init=normal(1), **options)


def lru():
    with brainstate.random.seed_context(0):
        return nn.LRUCell(3, 4, r_min=0.3, r_max=0.95, max_phase=1.5)


def urlstm():
    with brainstate.random.seed_context(0):
        return nn.URLSTMCell(3, 4, w_init=normal())


MASK = np.arange(12).reshape(3, 4) % 3 > 0
KERNEL_MASK = np.arange(3 * 2 * 3).reshape(3, 2, 3) % 4 > 0

LAYERS = {
    "Linear": Row(lambda: Leaky(nn.Linear(3, 4, normal(), normal(1)))),
    "Linear, masked": Row(lambda: Leaky(nn.Linear(3, 4, normal(), normal(1), w_mask=MASK))),
    "SignedWLinear": Row(lambda: Leaky(nn.SignedWLinear(3, 4, normal(), w_sign=np.sign(array(1, 3, 4))))),
    "ScaledWSLinear": Row(lambda: Leaky(nn.ScaledWSLinear(3, 4, normal(), normal(1), w_mask=MASK))),
    "SparseLinear": Row(lambda: Leaky(nn.SparseLinear(sparse(), b_init=normal()))),
    "GroupedLinear": Row(lambda: Leaky(nn.GroupedLinear(2, 3, 2, normal(), normal(1))), in_size=(2, 3)),
    "LoRA": Row(lambda: Leaky(nn.LoRA(3, 2, 4, kernel_init=normal(), base_module=nn.Linear(3, 4, normal(2))))),
    "Embedding": Row(lambda: Leaky(nn.Embedding(5, 4, normal(), padding_idx=1)), in_size=(), rows=5),
    "Conv1d": Row(
        lambda: Leaky(nn.Conv1d((6, 2), 3, 3, stride=2, w_init=normal(), b_init=normal(5), w_mask=KERNEL_MASK)),
        in_size=(6, 2),
    ),
    "Conv2d": Row(
        lambda: Leaky(nn.Conv2d((2, 4, 4), 2, 2, groups=2, w_init=normal(), b_init=normal(5), channel_first=True)),
        in_size=(2, 4, 4),
    ),
    "Conv3d": Row(
        lambda: Leaky(nn.Conv3d((2, 3, 2, 1), 2, 2, padding="VALID", w_init=normal(), b_init=normal(5))),
        in_size=(2, 3, 2, 1),
    ),
    "LeakyRateReadout": Row(lambda: nn.LeakyRateReadout(3, 4, w_init=normal())),
    "LRUCell": Row(lru),
    "LIF": Row(driven(nn.LIF)),
    "LIF, no units, hard reset": Row(plain_lif),
    "ALIF": Row(driven(nn.ALIF, tau_a=20.0 * u.ms, beta=0.3 * u.mV)),
    "GIF": Row(gif),
    "ConductanceEICell": Row(conductance, "diagonal", positive=True),
    "ValinaRNNCell": Row(rnn(nn.ValinaRNNCell, activation="tanh"), "diagonal"),
    "MinimalRNNCell": Row(rnn(nn.MinimalRNNCell), "diagonal"),
    "GRUCell": Row(rnn(nn.GRUCell), "diagonal"),
    "MGUCell": Row(rnn(nn.MGUCell), "diagonal"),
    "CFNCell": Row(rnn(nn.CFNCell), "diagonal"),
    "MiniGRU": Row(rnn(nn.MiniGRU), "diagonal"),
    "LSTMCell": Row(rnn(nn.LSTMCell), "diagonal"),
    "URLSTMCell": Row(urlstm, "diagonal"),
    "MiniLSTM": Row(rnn(nn.MiniLSTM), "diagonal"),
}
EXACT = [name for name, row in LAYERS.items() if row.trust == "exact"]
APPROXIMATE = [name for name in LAYERS if name not in EXACT]


def make_inputs(row):
    draw = np.random.default_rng(7)
    if row.rows is not None:
        return jnp.asarray(draw.integers(row.rows, size=(STEPS, BATCH)))
    x = jnp.asarray(draw.normal(size=(STEPS, BATCH, *row.in_size)))
    return jnp.abs(x) if row.positive else x


def fresh(row):
    """A factory of equal models in which no number is exactly zero."""

    def build():
        model = row.build()
        draw = np.random.default_rng(11)
        for path, state in sorted(model.states(brainstate.ParamState).items(), key=lambda item: str(item[0])):
            if path[-1] == "weight":
                state.value = jax.tree.map(lambda w: w + 0.1 * jnp.asarray(draw.normal(size=w.shape)), state.value)
        return model

    return build


def by_name(gradients):
    """Gradients by the names of the trust report."""
    found = {}
    for path, value in gradients.items():
        for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            found[".".join([*map(str, path), *(str(key.key) for key in keys)])] = np.asarray(leaf)
    return found


def learner_of(model):
    return etp_algorithms.D_RTRL(model)


@functools.cache
def backpropagated(name):
    row = LAYERS[name]
    return oracle.bptt_param_gradients(fresh(row), make_inputs(row), batch_size=BATCH)


@functools.cache
def report_of(name):
    model = fresh(LAYERS[name])()
    brainstate.nn.init_all_states(model, batch_size=BATCH)
    learner = learner_of(model)
    learner.compile_graph(make_inputs(LAYERS[name])[0])
    return learner.report


@functools.cache
def learned(name, window):
    row = LAYERS[name]
    return oracle.chunked_online_param_gradients(
        fresh(row), make_inputs(row), algo_factory=learner_of, chunk_size=window, batch_size=BATCH
    )


def worst_exact_error(name, window):
    """The largest relative error of a parameter that is promised to be exact."""
    expected, actual = by_name(backpropagated(name)), by_name(learned(name, window))
    promised = [parameter.name for parameter in report_of(name).parameters if parameter.trust.value == "exact"]
    return max((np.linalg.norm(actual[p] - expected[p]) / np.linalg.norm(expected[p]) for p in promised), default=0.0)


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_is_alive(name):
    oracle.assert_model_is_live(fresh(LAYERS[name]), make_inputs(LAYERS[name]), batch_size=BATCH)


@pytest.mark.parametrize("name", LAYERS)
def test_the_report_gives_the_trust_of_the_table_for_every_parameter(name):
    report = report_of(name)
    assert {parameter.name for parameter in report.parameters} == by_name(backpropagated(name)).keys()
    assert {parameter.trust.value for parameter in report.parameters} == {LAYERS[name].trust}
    assert report.diagnostics == ()


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_promised_exact_equals_backpropagation_through_time(name, window):
    assert worst_exact_error(name, window) < 1e-7


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximated_layer_is_exact_within_one_window_and_differs_across_windows(name):
    oracle.assert_param_gradients_close(learned(name, STEPS), backpropagated(name), atol=1e-12, rtol=1e-9)
    oracle.assert_gradients_differ(learned(name, 1), backpropagated(name))


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximated_layer_points_the_way_of_backpropagation_through_time(name):
    assert oracle.cosine_similarity(learned(name, 1), backpropagated(name)) > 0.8


def table():
    """The rows of the documentation, in Markdown."""
    yield "| layer | trust | cosine to BPTT, step by step | worst relative error of `exact` |"
    yield "|---|---|---|---|"
    for name in LAYERS:
        trust = sorted({parameter.trust.value for parameter in report_of(name).parameters})
        cosine = oracle.cosine_similarity(learned(name, 1), backpropagated(name))
        error = f"{max(worst_exact_error(name, window) for window in (1, 3)):.0e}" if "exact" in trust else "–"
        yield f"| {name} | {', '.join(trust)} | {cosine:.4f} | {error} |"


if __name__ == "__main__":
    brainstate.environ.set(precision=64, dt=0.5 * u.ms)
    print(*table(), sep="\n")
