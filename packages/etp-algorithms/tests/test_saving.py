"""Saving a learner and going on with it, in this process and in another."""

import os
import subprocess
import sys
from pathlib import Path

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_ops import matmul

from .helpers import compiled, initialised
from .models import EXACT, IN, Cell, N, array, inputs

XS = inputs(steps=10, batch=2)
ALGORITHMS = {
    "d_rtrl": ea.D_RTRL,
    "pp_prop": lambda m: ea.pp_prop(m, 0.9),
    "three_factor": getattr(ea, "ThreeFactor", None),
    "uoro": getattr(ea, "UORO", None),
    "rtrl": getattr(ea, "RTRL", None),
}
ALGORITHMS = {name: make for name, make in ALGORITHMS.items() if make is not None}


class Noisy(Cell):
    """Noise in the step, a counter and a running mean beside a cell with a learned decay."""

    def __init__(self):
        super().__init__(None, {"p": {"W": array(0, IN, N), "b": array(1, N)}}, {"h": (N,)})

    def init_state(self, batch_size=None, **kwargs):
        super().init_state(batch_size)
        self.count = brainstate.HiddenState(jnp.zeros((), jnp.int32))
        self.mean = brainstate.LongTermState(jnp.zeros(N))

    def update(self, x):
        noise = brainstate.random.normal(size=(N,))
        self.count.value = self.count.value + 1
        self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, self.p.value["W"], self.p.value["b"]) + 0.1 * noise)
        self.mean.value = 0.9 * self.mean.value + jax.lax.stop_gradient(self.h.value.mean(0))
        return self.h.value


def learner_of(name, seed):
    brainstate.random.seed(seed)
    return compiled(Noisy, XS[0], 2, algorithm=ALGORITHMS[name])


def run(learner, xs):
    """Learn from ``xs`` step by step, with descent; the gradients of all steps."""
    modulated = learner.algorithm.signal.modulated

    @brainstate.transform.jit
    def step(x):
        options = {"modulator": x.sum()} if modulated else {}
        fn = brainstate.transform.grad(lambda: jnp.sum(learner(x, **options) ** 2), learner.param_states)
        (gradient,) = fn().values()
        learner.model.p.value = jax.tree.map(lambda w, g: w - 0.01 * g, learner.model.p.value, gradient)
        return gradient

    return [step(x) for x in xs]


def write(path, learners):
    arrays = {f"{name}/{key}": value for name, one in learners.items() for key, value in one.state_dict().items()}
    np.savez(path, **arrays)


def read(path, name):
    with np.load(path) as arrays:
        return {key.removeprefix(f"{name}/"): arrays[key] for key in arrays if key.startswith(f"{name}/")}


def go_on(source, target):
    """What the other process does: build, load, run the rest, save."""
    learners = {}
    for name in ALGORITHMS:
        learners[name] = learner_of(name, seed=99)
        learners[name].load_state_dict(read(source, name))
        run(learners[name], XS[5:])
    write(target, learners)


def test_another_process_goes_on_bit_for_bit(tmp_path):
    learners = {name: learner_of(name, seed=0) for name in ALGORITHMS}
    for learner in learners.values():
        run(learner, XS[:5])
    write(tmp_path / "half.npz", learners)
    child = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tests.conftest; from tests.test_saving import go_on; go_on(sys.argv[2], sys.argv[3])"
    )
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run(
        [sys.executable, "-c", child, str(here.parent), tmp_path / "half.npz", tmp_path / "whole.npz"],
        check=True, env=environment,
    )  # fmt: skip
    for name, learner in learners.items():
        learner.load_state_dict(read(tmp_path / "half.npz", name))
        run(learner, XS[5:])
        found, expected = read(tmp_path / "whole.npz", name), learner.state_dict()
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
        assert found["model.count"] == 10


def test_the_keys_name_relations_and_states():
    keys = learner_of("d_rtrl", 0).state_dict().keys()
    assert keys == {
        "traces.0:etp_mm->0.0.bias",
        "traces.0:etp_mm->0.0.weight",
        "start.0",
        "start.1",
        "model.p.W",
        "model.p.b",
        "model.h",
        "model.count",
        "model.mean",
        "model.outside_0",
    }


def test_random_keys_are_saved_as_unsigned_integers():
    assert learner_of("d_rtrl", 0).state_dict()["model.outside_0"].dtype == jnp.uint32


def test_traces_can_be_saved_alone():
    learner, other = (compiled(EXACT["leaky"], XS[0], 2) for _ in range(2))
    learner.etrace_evolve(XS)
    other.load_state_dict(learner.state_dict(model=False))
    for found, expected in zip(jax.tree.leaves(other.traces.value), jax.tree.leaves(learner.traces.value), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert float(jnp.abs(other.model.h.value).max()) == 0


def test_a_saved_state_of_another_batch_size_is_refused_and_nothing_is_changed():
    saved = compiled(EXACT["leaky"], inputs(batch=3)[0], 3).state_dict()
    learner = compiled(EXACT["leaky"], XS[0], 2)
    before = learner.state_dict()
    with pytest.raises(ValueError, match=r"saved with shape \(3, .*batch size and precision"):
        learner.load_state_dict(saved)
    assert all(value is after for value, after in zip(before.values(), learner.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("model.h"), "lacks model.h"),
        (lambda d: d.update(more=1), "has more, which this learner does not know"),
        (lambda d: d.update({"model.h": d["model.h"].astype(jnp.float32)}), "dtype float32; this learner has"),
    ],
)
def test_a_saved_state_that_does_not_fit_is_refused_by_name(change, message):
    learner = compiled(EXACT["leaky"], XS[0], 2)
    saved = learner.state_dict()
    change(saved)
    with pytest.raises(ValueError, match=message):
        learner.load_state_dict(saved)


def test_a_learner_that_is_not_compiled_has_no_state():
    with pytest.raises(RuntimeError, match="not compiled"):
        ea.D_RTRL(initialised(EXACT["leaky"], 2)).state_dict()


def round_trip(save, load):
    learner, other = (compiled(Noisy, XS[0], 2, trace_dtype=jnp.bfloat16) for _ in range(2))
    learner.etrace_evolve(XS)
    other.load_state_dict(load(save(learner.state_dict())))
    for key, value in learner.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[key], value, err_msg=key)


def test_a_learner_goes_through_safetensors(tmp_path):
    flax = pytest.importorskip("safetensors.flax")
    path = tmp_path / "learner.safetensors"
    round_trip(lambda arrays: flax.save_file(arrays, path), lambda _: flax.load_file(path))


def test_a_learner_goes_through_orbax(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        path = tmp_path / "learner"
        round_trip(lambda arrays: checkpointer.save(path, arrays), lambda _: wait_and_load(checkpointer, path))


def wait_and_load(checkpointer, path):
    checkpointer.wait_until_finished()
    return checkpointer.restore(path)
