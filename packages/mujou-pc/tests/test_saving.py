"""A run in a file."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch
from torch import nn

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec, Timestamp
from mujou_pc.runtime._safetensors import read_safetensors, write_safetensors

from .helpers import PERIOD, make_chain, make_sample, parameters
from .runtime.parts import TensorNode

ADAMW = pc.optim.AdamW(tau=1.0, tau_m=0.3, tau_v=3.0)


def stream(chain, seed):
    torch.manual_seed(seed)
    for _ in itertools.count():
        yield make_sample(chain, mask=torch.rand(4) < 0.7, reset=torch.rand(4) < 0.5)


def learner(seed=0):
    torch.manual_seed(seed)
    return make_chain(2, learn_interval=5 * PERIOD, optimizer=ADAMW)


def _flat(state, path=""):
    flat = {}
    for name, value in state.items():
        flat |= _flat(value, f"{path}{name}/") if hasattr(value, "items") else {f"{path}{name}": value}
    return flat


def same(one, other):
    one, other = _flat(one), _flat(other)
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one
    )


def test_a_run_saved_in_the_middle_of_a_stream_goes_on_as_if_it_had_not_stopped(tmp_path):
    chain = learner()
    run = pc.testing.run(chain)
    samples = stream(chain, 1)
    for _ in range(5):
        pc.show(run, next(samples), seconds=7 * PERIOD)
    run.write(chain.prev, next(samples))
    run.sleep(2.4 * PERIOD)  # in the middle of a sample, and of a period
    pc.save(run, tmp_path / "run")
    rest = [next(samples) for _ in range(5)]

    other = learner(seed=99)
    resumed = pc.testing.run(other)
    pc.load(resumed, tmp_path / "run")
    assert same(run.state_dict(), resumed.state_dict())
    for a_run in (run, resumed):
        a_run.sleep(4.6 * PERIOD)
        for sample in rest:
            pc.show(a_run, sample, seconds=7 * PERIOD)
    assert same(run.state_dict(), resumed.state_dict())


def test_loading_writes_into_the_tensors_that_are_there(tmp_path):
    run = pc.testing.run(learner())
    run.sleep(0.1)
    pc.save(run, tmp_path / "run")
    chain = learner(seed=3)
    places = [(id(p), p.data_ptr()) for p in parameters(chain)]
    pc.load(pc.testing.run(chain), tmp_path / "run")
    assert [(id(p), p.data_ptr()) for p in parameters(chain)] == places


def test_a_float64_run_loads_into_a_float32_one_and_both_go_on_alike(tmp_path):
    chain = learner()
    run = pc.testing.run(chain)
    samples = [next(stream(chain, 1)) for _ in range(4)]
    for sample in samples[:2]:
        pc.show(run, sample, seconds=7 * PERIOD)
    pc.save(run, tmp_path / "run")
    torch.set_default_dtype(torch.float32)
    other = learner(seed=5)
    resumed = pc.testing.run(other)
    pc.load(resumed, tmp_path / "run")
    for sample in samples[2:]:
        pc.show(run, sample, seconds=7 * PERIOD)
        pc.show(resumed, sample | {"x": sample["x"].float()}, seconds=7 * PERIOD)
    assert {p.dtype for p in parameters(other)} == {torch.float32}
    assert other.layers[0].optimizer.state_dict()["m"]["0"].dtype == torch.float32
    for p, q in zip(parameters(chain), parameters(other), strict=True):
        torch.testing.assert_close(q, p.float(), rtol=1e-4, atol=1e-5)


def test_a_network_of_another_shape_is_refused_with_the_differing_keys_and_nothing_changes(tmp_path):
    run = pc.testing.run(make_chain(2, optimizer=ADAMW))
    pc.save(run, tmp_path / "run")
    other = pc.testing.run(make_chain(3))
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"missing: .*nodes/layer2/r.*unexpected: .*optimizer/m/0"):
        pc.load(other, tmp_path / "run")
    wider = pc.testing.run(make_chain(2, batch=5, optimizer=ADAMW))
    with pytest.raises(ValueError, match=r"of another shape: .*nodes/layer0/r \(here \[5, 6\], given \[4, 6\]\)"):
        pc.load(wider, tmp_path / "run")
    assert same(before, other.state_dict())


def test_a_threaded_run_is_saved_and_loaded_while_it_runs(tmp_path):
    chain = learner()
    with pc.run(chain) as run:
        run.write(chain.prev, next(stream(chain, 1)))
        run.sleep(0.1)
        pc.save(run, tmp_path / "run")
        run.sleep(0.05)
        pc.load(run, tmp_path / "run")
        saved = safetensors.torch.load_file(tmp_path / "run")
        assert saved["nodes/layer0/r"].shape == (4, 6)
        run.sleep(0.05)


def test_the_state_of_all_nodes_is_of_one_moment():
    class Pair(pc.runtime.Node):
        def __init__(self):
            super().__init__(period=1e-4)
            self.a = self.register_state("a", torch.zeros(()))
            self.b = self.register_state("b", torch.zeros(()))

        def on_update(self, dt):
            self.a += 1
            self.b += 1

    node = Pair()
    with pc.run(node) as run:
        for _ in range(50):
            state = run.state_dict()["nodes"]["node"]
            assert state["a"] == state["b"]


def test_a_file_that_is_not_a_saved_run_is_refused(tmp_path):
    run = pc.testing.run(TensorNode())
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "tensors")
    with pytest.raises(ValueError, match="not the state of a run"):
        pc.load(run, tmp_path / "tensors")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        pc.load(run, tmp_path / "text")


@pytest.mark.parametrize("cut", [4, 40, -8])
def test_a_file_that_was_cut_short_is_refused(tmp_path, cut):
    run = pc.testing.run(TensorNode())
    pc.save(run, tmp_path / "run")
    (tmp_path / "cut").write_bytes((tmp_path / "run").read_bytes()[:cut])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        pc.load(run, tmp_path / "cut")


def test_a_state_that_cannot_be_saved_is_named_and_leaves_no_file(tmp_path):
    class Odd(TensorNode):
        def state_dict(self):
            return super().state_dict() | {"odd": object()}

    with pytest.raises(TypeError, match="nodes/node/odd is a object"):
        pc.save(pc.testing.run(Odd()), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    run = pc.testing.run(TensorNode())
    pc.save(run, tmp_path / "run")
    old = (tmp_path / "run").read_bytes()
    run.step()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        pc.save(run, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_bytes() == old


SAVES_FOREVER = """
import sys, torch, mujou_pc as pc
class Big(pc.runtime.Node):
    def __init__(self):
        super().__init__(period=0.01)
        self.values = self.register_state("values", torch.zeros(500_000))
    def on_update(self, dt):
        self.values += 1
run = pc.testing.run(Big())
for k in range(10**9):
    run.step()
    pc.save(run, sys.argv[1])
    print(k, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_a_file_that_can_be_read(tmp_path):
    path = tmp_path / "run"
    for attempt in range(2):
        saver = subprocess.Popen([sys.executable, "-c", SAVES_FOREVER, str(path)], stdout=subprocess.PIPE)
        saver.stdout.readline()
        time.sleep(0.005 * attempt)  # anywhere in a save
        os.kill(saver.pid, signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        tensors, metadata = read_safetensors(bytearray(path.read_bytes()))
        values = tensors["nodes/node/values"]
        assert float(values.min()) == float(values.max()) >= 1
        assert json.loads(metadata["mujou_pc"])["nodes"]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool],
    ids=str,
)
def test_the_file_format_is_that_of_safetensors(tmp_path, dtype):
    tensors = {
        "a": torch.randn(3, 5).to(dtype),
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.zeros(0, 2, dtype=dtype),
        "transposed": torch.randn(2, 3).t().to(dtype),
    }
    with (tmp_path / "ours").open("wb") as file:
        write_safetensors(file, tensors, {"note": "é"})
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    assert all(torch.equal(theirs[name], tensor) for name, tensor in tensors.items())
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "theirs", {"note": "é"})
    ours, note = read_safetensors(bytearray((tmp_path / "theirs").read_bytes()))
    assert note == {"note": "é"}
    assert all(torch.equal(ours[name], tensor) for name, tensor in tensors.items())


def test_tensors_of_a_dtype_the_format_does_not_know_are_refused(tmp_path):
    with (tmp_path / "ours").open("wb") as file, pytest.raises(ValueError, match="complex128"):
        write_safetensors(file, {"a": torch.zeros(1, dtype=torch.complex128)}, {})


def test_the_timer_goes_on_from_the_saved_time(tmp_path):
    run = pc.testing.run(TensorNode())
    run.sleep(3.0)
    pc.save(run, tmp_path / "run")
    other = pc.testing.run(TensorNode())
    pc.load(other, tmp_path / "run")
    assert other.timer.now() == Timestamp(ns=4_000_000_000)
    other.step()
    assert float(other.nodes["node"].value[0]) == 301


def test_a_node_refuses_a_state_of_another_shape():
    chain = pc.Layer(
        nn.Linear(2, 2),
        pc.msg.activity_spec(TensorSpec((1, 2)), TensorSpec((1, 2))),
        tau=pc.TimeConstants(h=0.02, lam=0.01, r=0.02),
        optimizer=ADAMW,
        learn_interval=None,
    )
    with pytest.raises(ValueError, match=r"missing: .*module/weight"):
        chain.load_state_dict({"r": torch.zeros(1, 2)})
