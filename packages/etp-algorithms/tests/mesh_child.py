"""What the tests of meshes run in processes of their own: ``python mesh_child.py CASE [process count coordinator]``.

Prints one JSON object of what it found.
"""

import json
import re
import sys

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import etp_algorithms as ea
from etp_ops import element_wise, matmul

IN, N, OUT, B, T = 4, 8, 2, 16, 6


class Net(brainstate.nn.Module):
    """Gated recurrence with marked and plain weights, and a read-out that is plain."""

    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(0).normal
        self.W = brainstate.ParamState(jnp.asarray(draw(size=(IN, N))))
        self.R = brainstate.ParamState(jnp.asarray(draw(size=(N, N)) * 0.3))
        self.a = brainstate.ParamState(jnp.asarray(draw(size=(N,))))
        self.O = brainstate.ParamState(jnp.asarray(draw(size=(N, OUT))))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(jnp.zeros((*(() if batch_size is None else (batch_size,)), N)))

    def update(self, x):
        drive = matmul(x, self.W.value) + matmul(self.h.value, self.R.value)
        self.h.value = jnp.tanh(jax.nn.sigmoid(element_wise(self.a.value)) * self.h.value + drive)
        return self.h.value @ self.O.value


XS = np.random.default_rng(1).normal(size=(T, B, IN))
YS = np.random.default_rng(2).normal(size=(T, B, OUT))
MASK = np.random.default_rng(3).random((T, B))
RESETS = np.random.default_rng(4).random((T, B)) < 0.3
MAKERS = {
    "d_rtrl": lambda **o: ea.compile(Net(), ea.D_RTRL, jnp.asarray(XS[0]), batch_size=B, **o),
    "pp_prop": lambda **o: ea.compile(Net(), ea.pp_prop, jnp.asarray(XS[0]), batch_size=B, decay_or_rank=0.9, **o),
    "mapped": lambda **o: ea.compile(Net(), ea.D_RTRL, jnp.asarray(XS[0]), batch_size=B, vmap=True, **o),
}
OPTIONS = {
    "folded": {},
    "windows": {"chunk_size": 3},
    "resets": {"resets": RESETS},
}


def step_of(learner, windowed):
    def step(x, y):
        out = learner(ea.MultiStepData(x) if windowed else x)
        return jnp.mean((out - y) ** 2, axis=-1)

    return step


def drive(learner, xs, ys, mask, options):
    step = step_of(learner, "chunk_size" in options)
    return learner.etrace_grad(xs, ys, step_fn=step, mask=mask, **options)


def compare(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(jnp.asarray(np.asarray(a)) - np.asarray(b)).max()) for a, b in pairs)


def collectives(text):
    """The collectives of a compiled program: those in bodies of loops, and the others."""
    inside, outside = [], []
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    for part in re.split(r"\n(?=%?[\w.\-]+ \(|ENTRY)", text):
        found = re.findall(
            r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", part
        )
        name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", part)
        (inside if name and name.group(1) in bodies else outside).extend(kind for _, kind in found)
    return inside, outside


def specs(tree):
    return [[*map(str, leaf.sharding.spec)] for leaf in jax.tree.leaves(tree)]


def on_mesh(mesh, maker, option, model=None):
    options = OPTIONS[option]
    alone, learner = MAKERS[maker](), MAKERS[maker]()
    expected = drive(alone, XS, YS, MASK, options)
    learner.place_on(mesh, model=model)
    put = lambda a: jax.device_put(a, NamedSharding(mesh, PartitionSpec(None, "data")))  # noqa: E731
    xs, ys, mask = map(put, (XS, YS, MASK))

    def run(xs, ys, mask):
        return drive(learner, xs, ys, mask, options)

    staged = brainstate.transform.StatefulFunction(run)
    staged.make_jaxpr(xs, ys, mask)
    values = [state.value for state in staged.get_states(xs, ys, mask)]
    call = jax.jit(lambda values, *args: staged.jaxpr_call(values, *args))
    inside, outside = collectives(call.lower(values, xs, ys, mask).compile().as_text())
    found = brainstate.transform.jit(run)(xs, ys, mask)
    return {
        "gradient": compare(found, expected),
        "traces": compare(learner.traces.value, alone.traces.value),
        "hidden": compare(learner.model.h.value, alone.model.h.value),
        "split": specs((learner.traces.value, learner.model.h.value)),
        "inside": inside,
        "outside": outside,
    }


def single_calls(mesh):
    """Steps under jit, partitioned by XLA: gradients, and where the traces lie after three of them."""
    alone, learner = MAKERS["d_rtrl"](), MAKERS["d_rtrl"]()
    learner.place_on(mesh)
    differences = []
    steps = []
    for one in (alone, learner):
        fn = brainstate.transform.grad(lambda x, one=one: jnp.sum(one(x) ** 2), one.param_states)
        steps.append(brainstate.transform.jit(fn))
    for x in XS[:3]:
        there = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
        differences.append(compare(steps[1](there), steps[0](jnp.asarray(x))))
    return {"gradient": max(differences), "split": specs((learner.traces.value, learner.model.h.value))}


def refused(mesh):
    learner, messages = MAKERS["d_rtrl"](), []
    for call in (
        lambda: learner.place_on(mesh, data="rows"),
        lambda: ea.compile(Net(), ea.D_RTRL, jnp.ones((9, IN)), batch_size=9).place_on(mesh),
        lambda: learner.place_on(mesh) or learner.etrace_grad(XS, step_fn=lambda x: jnp.sum(learner(x))),
        lambda: learner.etrace_evolve(XS[:, :3]),
    ):
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
    return messages


def case_devices():
    devices = np.array(jax.devices())
    eight, four = Mesh(devices, ("data",)), Mesh(devices[:4], ("data",))
    wide = Mesh(devices.reshape(4, 2), ("data", "model"))
    return {
        "8 folded": on_mesh(eight, "d_rtrl", "resets"),
        "4 windows": on_mesh(four, "pp_prop", "windows"),
        "wide": on_mesh(wide, "mapped", "folded", model="model"),
        "single calls": single_calls(eight),
        "refused": refused(eight),
    }


def case_processes(process, count, coordinator):
    """One of several processes, each with its own devices."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes=int(count), process_id=int(process))
    alone = MAKERS["d_rtrl"]()
    expected = drive(alone, XS, YS, MASK, {})
    learner = MAKERS["d_rtrl"]()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    learner.place_on(mesh)
    put = lambda a: jax.device_put(a, NamedSharding(mesh, PartitionSpec(None, "data")))  # noqa: E731
    run = brainstate.transform.jit(lambda *args: drive(learner, *args, {}))
    found = run(*map(put, (XS, YS, MASK)))
    found = jax.tree.map(lambda g: g.addressable_data(0), found)
    return {"gradient": compare(found, expected), "devices": jax.device_count(), "local": jax.local_device_count()}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    brainstate.environ.set(precision=64)
    print(json.dumps(globals()[f"case_{sys.argv[1]}"](*sys.argv[2:])))
