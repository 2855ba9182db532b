"""A chain at rest is backpropagation; until then the credit is on its way."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

from .helpers import PERIOD, USUAL, backpropagation, deltas, largest_error, make_chain, make_sample


def shown(chain):
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    run.write(chain.prev, sample)
    return run, backpropagation(chain.modules, sample)[0]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 32])
def test_stepped_by_hand_the_credit_is_exact_at_sweep_2l_and_not_before(depth):
    chain = make_chain(depth)
    run, credit = shown(chain)
    for _ in range(2 * depth - 1):
        run.step()
    assert float(deltas(chain)[0].abs().max()) == 0
    run.step()
    assert largest_error(deltas(chain), credit) < 1e-12
    for _ in range(5):
        run.step()
        assert largest_error(deltas(chain), credit) < 1e-12


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_updated_from_the_output_to_the_input_the_credit_is_exact_2l_sweeps_after_the_input_was_sent(depth):
    chain = make_chain(depth)
    run, credit = shown(chain)
    run.step([chain.input], dt=0.0)
    nodes = [chain.output, *reversed(chain.layers), chain.input]
    for _ in range(2 * depth):
        run.step(nodes)
    assert largest_error(deltas(chain), credit) < 1e-12


def test_after_one_update_only_the_last_layer_has_an_error():
    chain = make_chain(4)
    run, credit = shown(chain)
    run.step()  # the prediction reaches the output, which answers
    run.step()
    *others, last = deltas(chain)
    assert all(float(delta.abs().max()) == 0 for delta in others)
    assert largest_error([last], credit[-1:]) < 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_with_any_phases_the_credit_arrives_within_2l_periods(seed):
    depth = random.Random(seed).choice([1, 2, 4, 8, 16])
    assert error_with_phases(seed, depth) < 1e-6


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9), depth=st.integers(1, 24))
def test_with_arbitrary_phases_the_credit_arrives_within_2l_periods(seed, depth):
    assert error_with_phases(seed, depth) < 1e-6


def error_with_phases(seed, depth):
    chain = make_chain(depth)
    run, credit = shown(chain)
    run.step([chain.input], dt=0.0)
    nodes = [*chain.layers, chain.output]
    phases = {node: random.Random(seed + i).randrange(1, 10**7) for i, node in enumerate(nodes)}
    start = run.timer.now().ns
    # One more period than 2 L, as a node whose last update was less than a period ago may do that one at once.
    events = sorted((phases[n] + k * 10**7, i) for k in range(2 * depth + 1) for i, n in enumerate(nodes))
    for ns, i in events:
        run.step([nodes[i]], dt=(start + ns - run.timer.now().ns) / 1e9)
    return largest_error(deltas(chain), credit)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_in_any_order_of_the_updates_the_credit_arrives(order):
    chain = make_chain(3)
    run, credit = shown(chain)
    run.step([chain.input], dt=0.0)
    nodes = [*chain.layers, chain.output]
    for _ in range(6):
        run.step([nodes[i] for i in order])
    assert largest_error(deltas(chain), credit) < 1e-12


def test_updates_up_to_30_percent_late_still_bring_the_credit():
    chain = make_chain(6)
    run, credit = shown(chain)
    late = random.Random(3)
    for _ in range(16):  # 2.55 L
        run.step(dt=PERIOD * late.uniform(1, 1.3))
    assert largest_error(deltas(chain), credit) < 1e-9


def test_64_layers_stay_within_5_percent_of_the_credit_when_the_timer_delivers_three_periods_at_once():
    chain = make_chain(64, width=16)
    run, credit = shown(chain)
    top = max(float(c.abs().max()) for c in credit)
    worst = 0.0
    for _ in range(3 * 64):
        run.step(dt=3 * PERIOD)
        worst = max(worst, *(float(d.abs().max()) for d in deltas(chain)))
    assert worst < 1.05 * top
    assert largest_error(deltas(chain), credit) < 1e-9


@pytest.mark.parametrize("held_back", [1, 5, 31])
def test_gradients_that_come_late_do_not_destabilise_a_chain(held_back):
    chain = make_chain(3)
    run, credit = shown(chain)
    top = max(float(c.abs().max()) for c in credit)
    worst = 0.0
    for sweep in range(8 * (held_back + 1)):
        run.step([chain.input, *chain.layers])
        if sweep % (held_back + 1) == 0:  # only now does the output answer, and do the layers read it
            run.step([chain.output], dt=0.0)
        worst = max(worst, *(float(d.abs().max()) for d in deltas(chain)))
    assert worst < 2 * top
    assert largest_error(deltas(chain), credit) < 1e-6


@pytest.mark.parametrize("activation", [nn.Tanh, pytest.param(nn.ReLU, marks=pytest.mark.thorough)])
def test_in_20000_updates_on_one_input_the_deviation_decays_to_rounding_and_the_dual_stays(activation):
    torch.set_default_dtype(torch.float32)
    chain = make_chain(2, activation=activation)
    run, credit = shown(chain)
    for _ in range(1000):
        run.step()
    early = [layer.lam.clone() for layer in chain.layers]
    for sweep in range(9_000):  # of two layers
        run.step([*chain.layers, chain.output] if sweep % 10 == 0 else chain.layers, dt=PERIOD)
    assert max(float(layer.r.abs().max()) for layer in chain.layers) < 1e-6
    assert largest_error([layer.lam for layer in chain.layers], early) < 1e-6
    duals = torch.stack([layer.lam.flatten() for layer in chain.layers])
    assert float(torch.cosine_similarity(duals, torch.stack([c.flatten() for c in credit])).min()) > 1 - 1e-5


@pytest.mark.parametrize(("share_of_2l", "sees_credit"), [(1.5, True), (0.25, False)])
def test_learning_has_the_gradient_of_backpropagation_only_once_the_credit_has_arrived(share_of_2l, sees_credit):
    depth, seen = 8, {}

    class Recorder(pc.optim.Optimizer):
        def bind(self, params):
            return Recording(params)

    class Recording(pc.optim.BoundOptimizer):
        def __init__(self, params):
            self.key = id(params[0])

        def step_(self, grads, elapsed):
            seen.setdefault(self.key, torch.cat([g.flatten() for g in grads]))

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    interval = (share_of_2l * 2 * depth + 1) * PERIOD
    warns = pytest.warns(UserWarning, match="shorter than") if not sees_credit else pytest.MonkeyPatch.context()
    with warns:
        chain = make_chain(depth, learn_interval=interval, optimizer=Recorder())
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    _, wanted = backpropagation(chain.modules, sample)
    run.write(chain.prev, sample)
    run.sleep(interval + PERIOD)
    found = [seen[id(next(module.parameters()))] for module in chain.modules]
    cosines = [
        float(torch.cosine_similarity(ours, torch.cat([g.flatten() for g in theirs]), 0))
        for ours, theirs in zip(found, wanted, strict=True)
    ]
    assert (min(cosines) > 1 - 1e-12) if sees_credit else (min(cosines) < 0.9)


def settle(modules, x, y, loss, sweeps=40, **settings):
    chain = pc.Chain(
        modules,
        x=TensorSpec(tuple(x.shape), x.dtype),
        y=TensorSpec(tuple(y.shape), y.dtype),
        loss=loss,
        tau=USUAL,
        optimizer=pc.optim.SGD(tau=1.0),
        learn_interval=math.inf,
    )
    run = pc.testing.run(chain)
    run.write(chain.prev, {"x": x, "y": y})
    for _ in range(sweeps):
        run.step()
    return chain


class LastStep(nn.Module):
    """A recurrent cell over the second axis."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(5, 7)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 7)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(
    ("modules", "x"),
    [
        ([LastStep(), nn.Linear(7, 3)], torch.randn(4, 6, 5)),
        ([Attention(), nn.Sequential(nn.Flatten(), nn.Linear(24, 3))], torch.randn(4, 3, 8)),
        ([nn.Embedding(9, 6), nn.Sequential(nn.Flatten(), nn.Linear(12, 3))], torch.randint(0, 9, (4, 2))),
        ([nn.Flatten(), nn.Identity(), nn.Linear(6, 3)], torch.randn(4, 2, 3)),
        ([nn.Linear(6, 3)], torch.randn(4, 6)),
    ],
    ids=["recurrent cell", "attention", "embedding", "no weights", "output alone"],
)
def test_any_module_can_be_a_node(modules, x):
    modules = [module.double() for module in modules]
    x = x.double() if x.is_floating_point() else x
    y = torch.randint(0, 3, (4,))
    x_of_a_graph = x.clone().requires_grad_(x.is_floating_point())
    credit, _ = backpropagation(modules, {"x": x_of_a_graph, "y": y})
    chain = settle(modules, x, y, pc.loss.CrossEntropyLoss())
    assert len(deltas(chain)) == len(credit)
    assert all(torch.allclose(*pair, rtol=1e-10) for pair in zip(deltas(chain), credit, strict=True))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_chain_equals_backpropagation_and_keeps_the_shape_of_its_gradients(memory_format):
    torch.set_default_dtype(torch.float32)
    modules = [
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 3),
    ]
    x = torch.randn(2, 1, 8, 8).to(memory_format=memory_format)
    y = torch.randint(0, 3, (2,))
    credit, _ = backpropagation(modules, {"x": x, "y": y})
    chain = settle(modules, x, y, pc.loss.CrossEntropyLoss())
    assert largest_error(deltas(chain), credit) < 1e-5
    assert [layer.prev.sends.shape for layer in chain.layers] == [(2, 1, 8, 8), (2, 4, 4, 4), (2, 6, 4, 4)]


def test_sending_the_activity_in_place_of_the_prediction_diverges():
    class SendsActivity(pc.Layer):
        def on_update(self, dt):
            deviation = self.r.clone()
            send = self.next.send
            self.next.send = lambda activity, **how: send({**activity, "h": activity["h"] + deviation}, **how)
            super().on_update(dt)
            del self.next.send

    def sweep(kind):
        torch.manual_seed(0)
        spec = (TensorSpec((4, 6)), TensorSpec((4, 6)))
        settings = {"tau": USUAL, "optimizer": pc.optim.SGD(tau=1.0), "learn_interval": math.inf}
        nodes = [pc.Input(*spec, period=PERIOD)]
        for _ in range(8):
            module = nn.Linear(6, 6, bias=False)
            nn.init.orthogonal_(module.weight, gain=1.5)
            nodes.append(kind(module, nodes[-1].spec, **settings))
        nodes.append(pc.Output(nn.Linear(6, 6), nodes[-1].spec, loss=pc.loss.MSELoss(), **settings))
        network = pc.runtime.Network(
            {f"n{i}": node for i, node in enumerate(nodes)},
            connect=[(a.next, b.prev) for a, b in itertools.pairwise(nodes)],
            ports={"prev": nodes[0].prev, "next": nodes[-1].next},
        )
        run = pc.testing.run(network)
        run.write(nodes[0].prev, {"x": torch.randn(4, 6), "y": torch.randn(4, 6)})
        for _ in range(200):
            run.step()
        return max(float(node.r.abs().max()) for node in nodes[1:-1])

    assert sweep(pc.Layer) < 1e-9
    assert not sweep(SendsActivity) < 1e6


def test_a_learn_interval_shorter_than_the_way_of_the_credit_is_warned_of():
    with pytest.warns(UserWarning, match="2 L periods"):
        make_chain(4, learn_interval=7.9 * PERIOD)
    make_chain(4, learn_interval=8 * PERIOD)


def test_a_chain_without_modules_is_refused():
    with pytest.raises(ValueError, match="at least one module"):
        pc.Chain(
            [],
            x=TensorSpec((1, 1)),
            y=TensorSpec((1, 1)),
            loss=pc.loss.MSELoss(),
            tau=USUAL,
            optimizer=pc.optim.SGD(tau=1.0),
            learn_interval=None,
        )


def test_the_parts_of_a_chain_have_names_and_the_keys_of_their_state():
    chain = make_chain(2)
    run = pc.testing.run(chain)
    assert list(run.nodes) == ["input", "layer0", "layer1", "output"]
    nodes = run.state_dict()["nodes"]
    assert set(nodes["input"]) == set()
    assert set(nodes["layer0"]) == {"module", "clock", "optimizer", "relaxer", "r", "lam"}
    assert set(nodes["output"]) == {"module", "clock", "optimizer"}
    assert nodes["layer0"]["relaxer"] == {}
