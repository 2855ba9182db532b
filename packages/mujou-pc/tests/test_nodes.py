"""Input, Layer and Output, as they update."""

import copy
import functools
import gc
import math
import weakref

import pytest
import torch
from torch import nn

import mujou_pc as pc
from mujou_pc.runtime import MultiPort, Node, Port, TensorSpec, Timestamp

from .helpers import PERIOD, SLOW_SGD, USUAL, deltas, dense, make_chain, make_sample, parameters


def started(chain, **fields):
    run = pc.testing.run(chain)
    sample = make_sample(chain, **fields)
    return run, sample, run.write(chain.prev, sample)


# What flows.


def test_the_ports_face_as_the_messages_flow():
    chain = make_chain(1)
    kinds = [(type(node.prev), type(node.next)) for node in (chain.input, chain.layers[0], chain.output)]
    assert kinds == [(Port, MultiPort), (Port, MultiPort), (Port, Port)]
    assert chain.input.prev.sends is None
    assert chain.output.next.receives is None


def test_a_prediction_carries_the_target_mask_and_time_of_its_own_sample_through_any_depth():
    chain = make_chain(5, batch=2)
    run = pc.testing.run(chain)
    wanted, made = {}, []
    with run.subscribe(chain.next) as predictions:
        for step in range(60):  # written faster than it flows through
            sample = make_sample(chain, mask=torch.rand(2) < 0.5)
            wanted[run.write(chain.prev, sample)] = sample
            run.step([chain.input, *reversed(chain.layers), chain.output][:: 1 if step % 2 else -1], dt=0.3 * PERIOD)
            made += predictions.drain()
    made = [p for p in made if p["time"].ns]
    assert len(made) > 50
    for p in made:
        sample = wanted[p["time"]]
        h = sample["x"]
        for module in chain.modules:
            h = module(h)
        torch.testing.assert_close(p["y_hat"], h.detach())
        assert torch.equal(p["y"], sample["y"])
        assert torch.equal(p["mask"], sample["mask"])


def test_mask_and_reset_are_true_when_left_out():
    chain = make_chain(1)
    run, _, _ = started(chain)
    run.step([chain.input])
    activity = chain.layers[0].prev.read()
    assert bool(activity["mask"].all())
    assert bool(activity["reset"].all())


def test_before_the_first_write_everything_is_finite_and_nothing_learns():
    chain = make_chain(2, learn_interval=None, optimizer=pc.optim.SGD(tau=1e-3))
    before = [p.clone() for p in parameters(chain)]
    run = pc.testing.run(chain)
    for _ in range(50):
        run.step()
    assert run.read(chain.next)["time"] == Timestamp(ns=0)
    assert torch.isfinite(run.read(chain.next)["y_hat"]).all()
    assert all(float(layer.r.abs().max()) == float(layer.lam.abs().max()) == 0 for layer in chain.layers)
    assert all(torch.equal(*pair) for pair in zip(parameters(chain), before, strict=True))


def test_input_sends_the_time_of_the_write():
    chain = make_chain(1)
    run, _, time = started(chain)
    run.step()
    assert chain.layers[0].prev.read()["time"] == time == run.read(chain.next)["time"]


def test_another_batch_size_is_refused_at_the_write_with_both_shapes():
    chain = make_chain(1, batch=4)
    run = pc.testing.run(chain)
    with pytest.raises(ValueError, match=r"\[4, 6\].*\[3, 6\]"):
        run.write(chain.prev, {"x": torch.zeros(3, 6), "y": torch.zeros(3, dtype=torch.int64)})


# One update.


def test_the_module_is_called_once_in_every_update_also_when_learning():
    chain = make_chain(1, learn_interval=None)
    calls = []
    for module in chain.modules:
        module.register_forward_hook(lambda *_: calls.append(1))
    run, _, _ = started(chain)
    for sweep in range(1, 5):
        run.step()
        assert len(calls) == 2 * sweep


def test_a_layer_reads_ticks_sends_back_relaxes_sends_on_and_learns_in_this_order():
    chain = make_chain(1, learn_interval=None)
    layer, events = chain.layers[0], []

    def watch(owner, name, label):
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kw: (events.append(label), original(*args, **kw))[1])

    watch(layer.prev, "read", "read")
    watch(layer.clock, "tick", "tick")
    watch(layer.prev, "send", "g_in")
    watch(layer.relaxer, "step_", "relax")
    watch(layer.next, "send", "activity")
    watch(layer.optimizer, "step_", "learn")
    run, _, _ = started(chain)
    run.step()
    assert events == ["read", "tick", "g_in", "relax", "activity", "learn"]


def test_the_error_sent_back_is_that_from_before_the_relaxation():
    chain = make_chain(2)
    run, _, _ = started(chain)
    for _ in range(2):
        run.step()
    last = chain.layers[1]
    assert float((last.r + last.lam).abs().max()) > 0
    # The second update moved delta, but sent what delta was before: zero.
    assert float(chain.layers[0].next.read()[0].abs().max()) == 0


def test_two_updates_at_one_moment_change_nothing_the_second_time():
    chain = make_chain(2, learn_interval=None, optimizer=pc.optim.SGD(tau=1.0))
    run, _, _ = started(chain)
    for _ in range(3):
        run.step()
    before = [t.clone() for t in [*deltas(chain), *parameters(chain)]]
    run.step(dt=0.0)
    assert all(torch.equal(*pair) for pair in zip([*deltas(chain), *parameters(chain)], before, strict=True))


def test_gradients_of_several_peers_are_summed():
    layer = pc.Layer(
        nn.Identity(),
        pc.msg.activity_spec(TensorSpec((2, 3)), TensorSpec((2, 3))),
        tau=USUAL,
        optimizer=SLOW_SGD,
        learn_interval=math.inf,
    )

    class Sends(Node):
        def __init__(self, value):
            super().__init__(period=PERIOD)
            self.value = value
            self.prev = Port(receives=layer.spec, sends=TensorSpec((2, 3)))

        def on_update(self, dt):
            self.prev.send(torch.full((2, 3), self.value))

    peers = {name: Sends(value) for name, value in (("a", 1.0), ("b", 0.25))}
    network = pc.runtime.Network(
        {"layer": layer, **peers},
        connect=[(layer.next, peer.prev) for peer in peers.values()],
        ports={"prev": layer.prev},
    )
    run = pc.testing.run(network)
    run.step([peers["a"], layer])
    torch.testing.assert_close(layer.r + layer.lam, torch.full((2, 3), -1.0))  # b has not sent: zeros
    run.step([peers["b"], layer])
    torch.testing.assert_close(layer.r + layer.lam, torch.full((2, 3), -1.25))


def test_a_layer_without_peers_relaxes_without_a_gradient():
    layer = pc.Layer(
        dense(3, 3),
        pc.msg.activity_spec(TensorSpec((2, 3)), TensorSpec((2, 3))),
        tau=USUAL,
        optimizer=SLOW_SGD,
        learn_interval=None,
    )
    network = pc.runtime.Network({"layer": layer}, ports={"prev": layer.prev})
    run = pc.testing.run(network)
    layer.r.fill_(1.0)
    for _ in range(60):
        run.step()
    assert float(layer.r.abs().max()) < 1e-15


# Batches.


@pytest.mark.parametrize("batch", [8, 64])
def test_a_row_moves_the_same_alone_and_in_a_batch(batch):
    torch.manual_seed(3)
    modules = [dense(6, 6), dense(6, 6), nn.Linear(6, 3)]
    x, y = torch.randn(batch, 6), torch.randint(0, 3, (batch,))
    trajectories = []
    for rows in (slice(0, 1), slice(0, batch)):
        chain = make_chain(modules=modules, batch=len(x[rows]))
        run = pc.testing.run(chain)
        run.write(chain.prev, {"x": x[rows], "y": y[rows]})
        steps = []
        for _ in range(12):
            run.step()
            steps += [torch.stack([layer.r[0], layer.lam[0]]) for layer in chain.layers]
        trajectories.append(torch.stack(steps))
    torch.testing.assert_close(*trajectories, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_of_a_row_leave_what_the_optimizer_gets_unchanged(copies):
    torch.manual_seed(3)
    modules = [dense(6, 6), nn.Linear(6, 3)]
    x, y = torch.randn(2, 6), torch.randint(0, 3, (2,))
    seen = []
    for n in (1, copies):
        chain = make_chain(modules=modules, batch=2 * n, learn_interval=6 * PERIOD)
        for node in (*chain.layers, chain.output):
            node.optimizer.step_ = lambda grads, elapsed: seen.append(torch.cat([g.flatten() for g in grads]))
        run = pc.testing.run(chain)
        run.write(chain.prev, {"x": x.repeat(n, 1), "y": y.repeat(n)})
        run.sleep(6 * PERIOD)
    torch.testing.assert_close(torch.cat(seen[:2]), torch.cat(seen[2:]), rtol=1e-10, atol=1e-13)


# Masks.


def test_with_every_mask_false_nothing_learns_predictions_are_the_forward_pass_and_the_credit_fades():
    chain = make_chain(2, learn_interval=5 * PERIOD, optimizer=pc.optim.SGD(tau=0.01))
    run, _, _ = started(chain)
    run.sleep(0.2)
    before = [p.clone() for p in parameters(chain)]
    sample = make_sample(chain, mask=torch.zeros(4, dtype=torch.bool), reset=torch.zeros(4, dtype=torch.bool))
    with run.subscribe(chain.next) as predictions:
        time = run.write(chain.prev, sample)
        run.sleep(1.0)
        made = [p for p in predictions.drain() if p["time"] == time]
    wanted = nn.Sequential(*chain.modules)(sample["x"]).detach()
    assert len(made) > 90
    assert all(torch.equal(p["y_hat"], made[0]["y_hat"]) for p in made)
    torch.testing.assert_close(made[0]["y_hat"], wanted)
    assert all(torch.equal(*pair) for pair in zip(parameters(chain), before, strict=True))
    assert max(float(d.abs().max()) for d in deltas(chain)) < 1e-12


def add_sums(sums, batch, grads, elapsed):
    sums.extend(g * batch for g in grads)


@pytest.mark.parametrize("reset", [True, False])
def test_a_masked_row_sends_nothing_back_and_teaches_nothing(reset):
    torch.manual_seed(3)
    modules = [dense(6, 6), dense(6, 6), nn.Linear(6, 3)]
    first, second = torch.randn(4, 6), torch.randn(4, 6)
    y = torch.randint(0, 3, (4,))
    found = []
    for kept, mask in ((slice(0, 4), torch.tensor([True, True, False, False])), (slice(0, 2), None)):
        chain = make_chain(modules=modules, batch=len(y[kept]), learn_interval=8 * PERIOD)
        run = pc.testing.run(chain)
        run.write(chain.prev, {"x": first[kept], "y": y[kept]})
        run.sleep(6 * PERIOD)  # every row has credit, and nothing has learned
        sums = []
        for node in (*chain.layers, chain.output):
            node.optimizer.step_ = functools.partial(add_sums, sums, len(y[kept]))
        sample = {"x": second[kept], "y": y[kept], "reset": torch.full((len(y[kept]),), reset)}
        if mask is not None:
            sample |= {"mask": mask, "y": torch.where(mask, y, torch.tensor(-100))}
        run.write(chain.prev, sample)
        run.sleep(8.5 * PERIOD)
        found.append(sums)
        if mask is not None:
            g_in = chain.layers[0].next.read()[0]
            assert float(g_in[2:].abs().max()) == 0 < float(g_in[:2].abs().max())
    assert len(found[0]) == len(found[1]) == 6
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e300])
def test_what_a_masked_row_holds_changes_no_weight_and_no_other_row(poison):
    torch.manual_seed(3)
    modules = [dense(6, 6), dense(6, 6), nn.Linear(6, 2)]
    x, y = torch.randn(4, 6), torch.randn(4, 2)
    found = []
    for held in (0.0, poison):
        chain = pc.Chain(
            copy.deepcopy(modules),
            x=TensorSpec((4, 6)),
            y=TensorSpec((4, 2)),
            loss=pc.loss.MSELoss(),
            tau=USUAL,
            optimizer=pc.optim.AdamW(tau=1.0, tau_m=0.1, tau_v=1.0),
            learn_interval=6 * PERIOD,
        )
        run = pc.testing.run(chain)
        run.write(chain.prev, {"x": x, "y": y})
        run.sleep(20 * PERIOD)
        mask = torch.tensor([True, False, True, True])
        rows = mask[:, None]
        sample = {"x": torch.where(rows, x + 1, held), "y": torch.where(rows, y, held), "mask": mask}
        run.write(chain.prev, sample | {"reset": torch.zeros(4, dtype=torch.bool)})
        run.sleep(20 * PERIOD)
        y_hat = run.read(chain.next)["y_hat"][mask]
        run.write(chain.prev, {"x": x, "y": y, "reset": torch.zeros(4, dtype=torch.bool)})  # the row comes back
        run.sleep(20 * PERIOD)
        found.append([*parameters(chain), *deltas(chain), y_hat, run.read(chain.next)["y_hat"]])
    assert all(torch.isfinite(t).all() for t in found[1])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


# What was shown before the targets were seen.


def test_no_prediction_before_the_first_learning_step_depends_on_the_target():
    made = []
    for seed in (0, 1):
        torch.manual_seed(7)
        chain = make_chain(2, learn_interval=20 * PERIOD, optimizer=pc.optim.SGD(tau=0.01))
        run = pc.testing.run(chain)
        sample = make_sample(chain)
        torch.manual_seed(seed)
        sample["y"] = torch.randint(0, 3, (4,))
        with run.subscribe(chain.next) as predictions:
            run.write(chain.prev, sample)
            run.sleep(19 * PERIOD)
            made.append(torch.stack([p["y_hat"] for p in predictions.drain()]))
    assert torch.equal(*made)


# Modules and their weights.


def test_frozen_weights_are_not_bound_and_do_not_move():
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module[0].requires_grad_(False)
    chain = make_chain(modules=[module, nn.Linear(6, 3)], learn_interval=3 * PERIOD, optimizer=pc.optim.SGD(tau=0.1))
    before = [p.clone() for p in module.parameters()]
    run, _, _ = started(chain)
    run.sleep(1.0)
    moved = [not torch.equal(*pair) for pair in zip(module.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]


def test_learning_moves_the_same_parameter_objects_and_the_next_prediction_uses_them():
    chain = make_chain(1, learn_interval=3 * PERIOD, optimizer=pc.optim.SGD(tau=0.1))
    places = [(id(p), p.data_ptr()) for p in parameters(chain)]
    run, sample, _ = started(chain)
    run.sleep(1.0)
    chain.layers[0].load_state_dict(chain.layers[0].state_dict())
    run.step()
    run.step()
    assert [(id(p), p.data_ptr()) for p in parameters(chain)] == places
    wanted = nn.Sequential(*chain.modules)(sample["x"]).detach()
    run.step([chain.input, *chain.layers, chain.output], dt=0.0)
    torch.testing.assert_close(run.read(chain.next)["y_hat"], wanted)


@pytest.mark.parametrize(("kind", "setting"), [(nn.Dropout, 0.5), (nn.BatchNorm1d, 6)])
def test_a_module_that_is_random_in_training_mode_is_warned_of(kind, setting):
    noisy = kind(setting)
    with pytest.warns(UserWarning, match=r"eval\(\)"):
        make_chain(modules=[nn.Sequential(nn.Linear(6, 6), noisy), nn.Linear(6, 3)])
    make_chain(modules=[nn.Sequential(nn.Linear(6, 6), noisy).eval(), nn.Linear(6, 3)])


def test_making_a_node_leaves_statistics_and_mode_of_its_module_as_they_were():
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
    with pytest.warns(UserWarning, match="BatchNorm"):
        make_chain(modules=[module, nn.Linear(6, 3)])
    assert all(inner.training for inner in module.modules())
    assert int(module[1].num_batches_tracked) == 0


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=dropout, batch_first=True)

    def forward(self, h):
        return self.attention(h[:, None], h[:, None], h[:, None], need_weights=False)[0][:, 0]


def test_dropout_inside_attention_is_warned_of_and_a_dropout_of_nothing_is_not():
    with pytest.warns(UserWarning, match="MultiheadAttention in training mode"):
        make_chain(modules=[Attention(0.5), nn.Linear(6, 3)])
    make_chain(modules=[nn.Sequential(Attention(0.0), nn.Dropout(0.0)), nn.Linear(6, 3)])


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Linear(5, 6), r"Linear failed on an input torch.float32 \[4, 6\] on cpu: .*4x6 and 5x6"),
        (nn.Linear(6, 6, dtype=torch.bfloat16), r"Linear failed on an input torch.float32"),
        (nn.Linear(6, 6, device="meta"), r"Linear failed on an input .* on cpu: .*meta"),
        (nn.ReLU(inplace=True), r"ReLU failed on an input .*in-place"),
    ],
    ids=["width", "dtype", "device", "in place"],
)
def test_a_module_that_does_not_take_the_input_is_refused_while_the_node_is_made(module, told):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(ValueError, match=told):
        make_chain(modules=[module, nn.Linear(6, 3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_modules_of_another_dtype_run_and_learn_in_theirs(dtype):
    torch.set_default_dtype(dtype)
    chain = make_chain(2, learn_interval=5 * PERIOD, optimizer=pc.optim.AdamW(tau=1.0, tau_m=0.1, tau_v=1.0))
    before = [p.clone() for p in parameters(chain)]
    run, _, _ = started(chain)
    run.sleep(10.5 * PERIOD)
    y_hat = run.read(chain.next)["y_hat"]
    assert y_hat.dtype == dtype
    assert bool(torch.isfinite(y_hat).all())
    assert all(not torch.equal(*pair) for pair in zip(parameters(chain), before, strict=True))


def test_an_input_that_is_not_contiguous_or_requires_gradients_is_as_any_other():
    chain = make_chain(1)
    x = torch.randn(6, 4).t().requires_grad_()
    run, sample, _ = started(chain, x=x)
    run.sleep(5 * PERIOD)
    wanted = nn.Sequential(*chain.modules)(sample["x"]).detach()
    torch.testing.assert_close(run.read(chain.next)["y_hat"], wanted)
    assert x.grad is None


def test_a_batch_of_no_samples_runs_and_teaches_nothing():
    chain = make_chain(1, batch=0, learn_interval=None, optimizer=pc.optim.SGD(tau=1e-3))
    before = [p.clone() for p in parameters(chain)]
    run, _, _ = started(chain)
    run.sleep(5 * PERIOD)
    assert run.read(chain.next)["y_hat"].shape == (0, 3)
    assert all(torch.equal(*pair) for pair in zip(parameters(chain), before, strict=True))


def test_in_inference_mode_the_credit_arrives_and_the_weights_learn():
    chain = make_chain(1, learn_interval=5 * PERIOD, optimizer=pc.optim.SGD(tau=0.1))
    before = [p.clone() for p in parameters(chain)]
    with torch.inference_mode():
        run, _, _ = started(chain)
        run.sleep(8 * PERIOD)
    assert float(deltas(chain)[0].abs().max()) > 0
    assert all(not torch.equal(*pair) for pair in zip(parameters(chain), before, strict=True))


def replace_weight(module):
    module[0].weight = nn.Parameter(torch.zeros(6, 6))


@pytest.mark.parametrize("change", [replace_weight, lambda module: module.requires_grad_(False)], ids=["new", "frozen"])
def test_weights_that_changed_after_their_node_was_made_are_told_at_the_start(change):
    chain = make_chain(1)
    change(chain.modules[0])
    with pytest.raises(pc.runtime.NetworkError, match="'layer0' raised RuntimeError in on_start: the weights of Seq"):
        pc.testing.run(chain)


def test_a_loss_that_does_not_take_the_targets_is_refused_while_the_node_is_made():
    with pytest.raises(ValueError, match=r"failed on predictions .*\[4, 3\].* and targets torch.int32 \[4\]"):
        pc.Chain(
            [nn.Linear(6, 3)],
            x=TensorSpec((4, 6)),
            y=TensorSpec((4,), torch.int32),
            loss=pc.loss.CrossEntropyLoss(),
            tau=USUAL,
            optimizer=SLOW_SGD,
            learn_interval=None,
        )


def test_a_module_that_returns_a_tuple_is_refused_with_the_remedy():
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(TypeError, match="wrap the module"):
        make_chain(modules=[Two(), nn.Linear(6, 3)])


def test_a_module_that_changes_the_batch_is_refused():
    with pytest.raises(ValueError, match="must stay the batch"):
        make_chain(modules=[nn.Flatten(0), nn.Linear(6, 3)])


def test_a_loss_with_another_shape_is_refused_when_the_output_is_made():
    with pytest.raises(ValueError, match=r"\(B,\) = \[4\]"):
        pc.Output(
            nn.Linear(6, 3),
            pc.msg.activity_spec(TensorSpec((4, 6)), TensorSpec((4, 3))),
            loss=lambda y_hat, y: (y_hat - y).square().mean(),
            tau=USUAL,
            optimizer=SLOW_SGD,
            learn_interval=None,
        )


def test_a_spec_that_is_not_of_an_activity_is_refused():
    with pytest.raises(ValueError, match=r"msg.activity_spec"):
        pc.Layer(
            nn.Linear(6, 3),
            pc.msg.sample_spec(TensorSpec((4, 6)), TensorSpec((4, 3))),
            tau=USUAL,
            optimizer=SLOW_SGD,
            learn_interval=None,
        )


def test_an_activity_and_a_target_of_different_batches_are_refused():
    with pytest.raises(ValueError, match="same batch"):
        pc.msg.activity_spec(TensorSpec((4, 6)), TensorSpec((3,)))


# Memory.


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_3000_updates_keep_the_number_of_tensors_and_no_graph():
    chain = make_chain(2, learn_interval=5 * PERIOD, optimizer=pc.optim.AdamW(tau=10.0, tau_m=0.1, tau_v=1.0))
    run, sample, _ = started(chain)
    for _ in range(20):
        run.step()
    before = live_tensors()
    for k in range(750):
        if k % 10 == 0:
            run.write(chain.prev, sample)
        run.step()
    assert live_tensors() <= before
    for message in (chain.layers[1].prev.read()["h"], *chain.layers[1].next.read(), run.read(chain.next)["y_hat"]):
        assert message.grad_fn is None
        assert not message.requires_grad
    assert all(t.grad_fn is None and not t.requires_grad for layer in chain.layers for t in (layer.r, layer.lam))


def test_an_activity_is_released_two_updates_after_it_was_read():
    chain = make_chain(2)
    run, _, _ = started(chain)
    run.step()
    old = weakref.ref(chain.layers[1].prev.read()["h"])
    assert old() is not None
    run.step()
    run.step()
    assert old() is None
