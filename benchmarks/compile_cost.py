"""What compiling costs: the passes over the graph, then XLA for one gradient step, beside backpropagation.

A deep LSTM is compiled for D_RTRL and pp_prop; the row ``BPTT`` is ordinary reverse mode through the same steps,
``by rules`` is D_RTRL without closed-form kernels, ``sequence`` D_RTRL with a gradient per step (``etrace_grad``).

    python benchmarks/compile_cost.py --layers 1 2 4 8 --repeat 3

``passes`` is the time of the trace compiler; ``trace`` that of JAX's tracing and lowering, ``XLA`` that of XLA's
compilation, each of one jitted gradient over a window of ``--steps`` steps; the fastest of ``--repeat`` counts. All are
seconds of CPU, which other work on the machine changes little.
"""

import argparse
import time
import warnings

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import etp_algorithms as ea
from etp_algorithms._compiler._capture import capture_module
from etp_algorithms._compiler._graph import compile_step
from etp_ops import matmul


class DeepLSTM(brainstate.nn.Module):
    """LSTM layers, each with one fused marked weight."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.layers, self.width = layers, width
        for n in range(layers):
            weight = jnp.asarray(random.normal(size=(2 * width, 4 * width)) * 0.1, jnp.float32)
            setattr(self, f"W{n}", brainstate.ParamState(weight))

    def init_state(self, batch_size: int | None = None, **kwargs: object) -> None:
        lead = () if batch_size is None else (batch_size,)
        for n in range(self.layers):
            for name in ("c", "h"):
                setattr(self, f"{name}{n}", brainstate.HiddenState(jnp.zeros((*lead, self.width), jnp.float32)))

    def update(self, x: jax.Array) -> jax.Array:
        for n in range(self.layers):
            c, h = getattr(self, f"c{n}"), getattr(self, f"h{n}")
            i, f, g, o = jnp.split(matmul(jnp.concatenate([x, h.value], -1), getattr(self, f"W{n}").value), 4, -1)
            c.value = jax.nn.sigmoid(f) * c.value + jax.nn.sigmoid(i) * jnp.tanh(g)
            h.value = jax.nn.sigmoid(o) * jnp.tanh(c.value)
            x = h.value
        return x


def built(layers: int, width: int, batch: int) -> DeepLSTM:
    model = DeepLSTM(layers, width)
    brainstate.nn.init_all_states(model, batch_size=batch)
    return model


def time_passes(layers: int, width: int, batch: int) -> tuple[int, float]:
    """The number of equations and the seconds of the passes over them."""
    step = capture_module(built(layers, width, batch), jnp.zeros((batch, width), jnp.float32)).step
    start = time.process_time()
    compile_step(step)
    return len(step.equations), time.process_time() - start


def gradient_of(call, states, single):
    """A function of one window that returns gradients; it changes states as the call does."""

    def loss(xs):
        if single:
            return jnp.sum(call(xs[0]) ** 2)
        return jnp.sum(call(xs) ** 2)

    return brainstate.transform.grad(loss, grad_states=states)


def bptt(layers, width, batch, steps):
    model = built(layers, width, batch)
    single = steps == 1
    call = model.update if single else lambda xs: brainstate.transform.for_loop(model.update, xs)
    return gradient_of(call, model.states(brainstate.ParamState), single)


def online(algorithm):
    def make(layers, width, batch, steps):
        learner = algorithm(built(layers, width, batch))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ea.CompilationWarning)
            learner.compile_graph(jnp.zeros((batch, width), jnp.float32))
        single = steps == 1
        call = learner if single else lambda xs: learner(ea.MultiStepData(xs))
        return gradient_of(call, learner.param_states, single)

    return make


def sequence(layers, width, batch, steps):
    """One gradient per step, over a known sequence."""
    learner = ea.D_RTRL(built(layers, width, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ea.CompilationWarning)
        learner.compile_graph(jnp.zeros((batch, width), jnp.float32))
    return lambda xs: learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")


METHODS = {
    "BPTT": bptt,
    "D_RTRL": online(ea.D_RTRL),
    "by rules": online(lambda model: ea.D_RTRL(model, kernels="reference")),
    "sequence": sequence,
    "pp_prop": online(lambda model: ea.pp_prop(model, decay_or_rank=0.9)),
}


def time_compilation(method, layers, width, batch, steps):
    """Seconds of tracing with lowering, and of XLA."""
    gradient = METHODS[method](layers, width, batch, steps)
    xs = jax.ShapeDtypeStruct((steps, batch, width), jnp.float32)
    stateful = brainstate.transform.StatefulFunction(gradient, return_only_write=False)
    start = time.process_time()
    stateful.make_jaxpr(xs)
    closed = stateful.get_jaxpr(xs)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    lowered = jax.jit(jax.extend.core.jaxpr_as_fun(closed)).lower(*avals)
    traced = time.process_time()
    jax.clear_caches()
    start_of_xla = time.process_time()
    lowered.compile()
    return traced - start, time.process_time() - start_of_xla


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 8], help="lengths of the window")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.default_backend()}, width {given.width}, batch {given.batch}, float32")
    print("layers steps method   equations passes s  trace s   XLA s XLA / BPTT")
    for layers in given.layers:
        passes = [time_passes(layers, given.width, given.batch) for _ in range(given.repeat)]
        equations, seconds = passes[0][0], min(p[1] for p in passes)
        for steps in given.steps:
            reference = None
            for method in METHODS:
                runs = [time_compilation(method, layers, given.width, given.batch, steps) for _ in range(given.repeat)]
                traced, compiled = min(r[0] for r in runs), min(r[1] for r in runs)
                reference = compiled if reference is None else reference
                own = f"{seconds:8.3f}" if method != "BPTT" else f"{'-':>8}"
                print(
                    f"{layers:>6} {steps:>5} {method:<8} {equations:>9} {own} {traced:8.2f} {compiled:7.2f} "
                    f"{compiled / reference:10.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
