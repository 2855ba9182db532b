"""The cases that the gradient benchmarks time, written once for any library with the same surface.

A case is an algorithm and words after it: ``exit`` (the signal at the exit), ``window 25``, ``chunked`` (recorded in
4 MB), ``bfloat16`` (narrow traces), ``stream`` (one jitted call per step, the states handed from call to call and
donated), ``vmap`` (the peer's mode of that name).
"""

import time
import warnings
from typing import NamedTuple

import brainstate
import gradient_models
import jax
import jax.numpy as jnp

WINDOW = 25


class Built(NamedTuple):
    """``run()`` gives the seconds of one step; the rest is what compiling found."""

    run: object
    compile_s: float
    temporary_mb: float


def use_kernels():
    """Kernels are found through installed packages; in a bare checkout they are registered here."""
    import etp_core
    import etp_fastpath
    import etp_ops

    if etp_core.get_fast_path_rules(etp_ops.etp_mm_p) is None:
        etp_fastpath.register()


def options_of(library, words):
    options = {"trace_dtype": jnp.bfloat16} if "bfloat16" in words else {}
    if "exit" in words:
        options["signal"] = "exit"
    if "chunked" in words:
        options["memory_limit"] = 4_000_000
    if "vmap" in words:
        options["vmap"] = True
    if words[0] == "pp_prop":
        options["decay_or_rank"] = 0.9
    if "window" in words and library.__name__ != "etp":
        options["vjp_method"] = "multi-step"
    return options


def build_case(library, case, size):
    """Compile one case and run it once."""
    if case == "traffic":
        return traffic(size["family"], size["width"], size["batch"])
    found = build(library, case, **size)
    found.run()
    return found


def build(library, case, *, family, width, batch, steps):
    """Compile one case."""
    warnings.simplefilter("ignore")
    words = case.split()
    xs, ys = gradient_models.data(batch, steps)
    model = gradient_models.make(library, family, width)
    stream, window = "stream" in words, "window" in words
    started = time.perf_counter()
    if words[0] == "bptt":
        brainstate.nn.init_all_states(model, batch_size=batch)
        function = backpropagation(model, batch)
    else:
        learner = library.compile(model, words[0], xs[0], batch_size=batch, **options_of(library, words))
        loss = loss_of(library, learner, window)
        function = one_step(learner, loss) if stream else online(library, model, learner, loss, batch, window)
    args = (xs[0], ys[0]) if stream else (xs, ys)
    stateful = brainstate.transform.StatefulFunction(function, return_only_write=False)
    stateful.make_jaxpr(*args)
    values = tuple(jax.tree.map(jnp.copy, state.value) for state in stateful.get_states(*args))
    jitted = jax.jit(stateful.jaxpr_call, donate_argnums=(0,) if stream else ())
    compiled = jitted.lower(values, *args).compile()
    seconds = time.perf_counter() - started
    runner = streaming(compiled, values, args, steps) if stream else whole(compiled, values, args, steps)
    return Built(runner, seconds, compiled.memory_analysis().temp_size_in_bytes / 1e6)


def backpropagation(model, batch):
    def gradient(xs, ys):
        brainstate.nn.reset_all_states(model, batch_size=batch)
        step = lambda x, y: jnp.mean((model(x) - y) ** 2)  # noqa: E731
        weights = model.states(brainstate.ParamState)
        return brainstate.transform.grad(lambda: brainstate.transform.for_loop(step, xs, ys).mean(), weights)()

    return gradient


def loss_of(library, learner, window):
    def loss(x, y):
        if window:
            return jnp.mean((learner(library.MultiStepData(x)) - y) ** 2, axis=(1, 2))
        return jnp.mean((learner(x) - y) ** 2)

    return loss


def online(library, model, learner, loss, batch, window):
    alone = {"complete_sequence": True} if library.__name__ == "etp" else {}

    def gradient(xs, ys):
        brainstate.nn.reset_all_states(model, batch_size=batch)
        learner.reset_state(batch)
        return learner.etrace_grad(xs, ys, step_fn=loss, chunk_size=WINDOW if window else None, **alone)

    return gradient


def one_step(learner, loss):
    return lambda x, y: brainstate.transform.grad(loss, learner.param_states)(x, y)


def whole(compiled, values, args, steps):
    def run():
        now = time.perf_counter()
        jax.block_until_ready(compiled(values, *args))
        return (time.perf_counter() - now) / steps

    return run


def streaming(compiled, values, args, steps):
    kept = [values]

    def run():
        now = time.perf_counter()
        for _ in range(steps):
            kept[0], out = compiled(kept[0], *args)
        jax.block_until_ready((kept[0], out))
        return (time.perf_counter() - now) / steps

    return run


def traffic(family, width, batch, repeat=50):
    """One read and one write of arrays as large as the traces of D_RTRL, in place."""
    rows = gradient_models.IN + (0 if family == "indrnn" else width)
    count = {"gru": 2, "lif": 2}.get(family, 1)
    arrays = [jnp.ones((batch, rows, width), jnp.float32) for _ in range(count)]
    decay = jnp.full((batch, width), 0.9, jnp.float32)
    step = jax.jit(lambda es: [e * decay[:, None, :] for e in es], donate_argnums=0)
    kept = [step(arrays)]

    def run():
        now = time.perf_counter()
        for _ in range(repeat):
            kept[0] = step(kept[0])
        jax.block_until_ready(kept[0])
        return (time.perf_counter() - now) / repeat

    return Built(run, 0.0, 0.0)
