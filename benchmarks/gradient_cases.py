"""The cases that the gradient benchmarks time, written once for any library with the same surface.

A case is an algorithm and words after it: ``exit`` (the signal at the exit), ``window 25``, ``chunked`` (recorded in
half the memory of the traces; in 4 MB for 256 units and 16 samples, in proportion for more, if that is more),
``bfloat16`` (narrow traces), ``stream`` (one jitted call per step, the states handed from call to call and donated),
and two modes of the peer, ``vmap`` and ``rules`` (its ``fast_solve=False``).
"""

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import brainstate
import gradient_models
import jax
import jax.numpy as jnp

WINDOW = 25
TRIAL = 25  # steps from which a slow case is scaled


class Built(NamedTuple):
    """A compiled case: ``run(count)`` makes ``count`` calls of ``steps`` steps each and waits for them."""

    run: Callable[[int], None]
    steps: int
    compile_s: float
    temporary_mb: float
    peak_mb: float


def use_kernels():
    """Kernels are found through installed packages; in a bare checkout they are registered here."""
    import etp_core
    import etp_fastpath
    import etp_ops

    if etp_core.get_fast_path_rules(etp_ops.etp_mm_p) is None:
        etp_fastpath.register()


def seconds_per_step(built, count):
    """The time of one step, over ``count`` calls."""
    now = time.perf_counter()
    built.run(count)
    return (time.perf_counter() - now) / (count * built.steps)


def prepare(library, case, size, limit_s):
    """Compile a case and run it once: what to time, how many calls of it, and what was found.

    Where one call of all steps would take longer than ``limit_s``, a call of ``TRIAL`` steps stands for it: the work is
    the same at every step.
    """
    built = traffic(**size) if case == "traffic" else build(library, case, **size)
    found = {"compile_s": built.compile_s, "temporary_mb": built.temporary_mb, "peak_mb": built.peak_mb}
    if built.steps > TRIAL and library.__name__ != "etp":
        short = build(library, case, **{**size, "steps": TRIAL})
        expected = seconds_per_step(short, 1) * built.steps
        if expected > limit_s:
            found["scaled"] = f"one sequence would take {expected:.1f} s, so {TRIAL} steps were timed"
            return short, 1, {**found, "steps_timed": TRIAL}
    seconds_per_step(built, 1)
    once = seconds_per_step(built, 1) * built.steps
    most, least = (200, 3) if built.steps == 1 else (50, 1)
    return built, max(least, min(most, int(0.05 / max(once, 1e-9)))), {**found, "steps_timed": built.steps}


def options_of(library, words):
    options = {"trace_dtype": jnp.bfloat16} if "bfloat16" in words else {}
    if "exit" in words:
        options["signal"] = "exit"
    if "vmap" in words:
        options["vmap"] = True
    if "rules" in words:
        options["fast_solve"] = False
    if words[0] == "pp_prop":
        options["decay_or_rank"] = 0.9
    if "window" in words and library.__name__ != "etp":
        options["vjp_method"] = "multi-step"
    return options


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
        if "chunked" in words:
            traces = sum(leaf.nbytes for leaf in jax.tree.leaves(learner.traces.value))
            learner.memory_limit = max(traces // 2, int(4e6 * max(1, width / 256 * batch / 16)))
        loss = loss_of(library, learner, window)
        start = resetting(library, model, learner, batch, mapped="vmap" in words)
        function = one_step(library, model, learner, loss) if stream else online(library, learner, loss, start, window)
    args = (xs[0], ys[0]) if stream else (xs, ys)
    # a stream hands all states on; else those that are read come back no more than from brainstate's own jit
    stateful = brainstate.transform.StatefulFunction(function, return_only_write=not stream)
    stateful.make_jaxpr(*args)
    values = tuple(jax.tree.map(jnp.copy, state.value) for state in stateful.get_states(*args))
    jitted = jax.jit(stateful.jaxpr_call, donate_argnums=(0,) if stream else ())
    compiled = jitted.lower(values, *args).compile()
    seconds = time.perf_counter() - started
    run = streaming(compiled, values, args) if stream else whole(compiled, values, args)
    return Built(run, 1 if stream else steps, seconds, *memory(compiled))


def memory(compiled):
    """Megabytes that a call needs for itself, and with its arguments and results."""
    found = compiled.memory_analysis()
    kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return found.temp_size_in_bytes / 1e6, (found.temp_size_in_bytes + kept) / 1e6


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


def resetting(library, model, learner, batch, *, mapped):
    """A function that begins a sequence; the peer's mapped learner has no such function, and zeros are its start."""

    def reset():
        brainstate.nn.reset_all_states(model, batch_size=batch)
        if library.__name__ != "etp":  # a complete sequence starts from zero traces anyway
            learner.reset_state(batch)

    def zero():
        for state in learner.states().values():
            if not isinstance(state, brainstate.ParamState):
                state.value = jax.tree.map(jnp.zeros_like, state.value)

    return zero if mapped else reset


def online(library, learner, loss, start, window):
    alone = {"complete_sequence": True} if library.__name__ == "etp" else {}

    def gradient(xs, ys):
        start()
        return learner.etrace_grad(xs, ys, step_fn=loss, chunk_size=WINDOW if window else None, **alone)

    return gradient


def one_step(library, model, learner, loss):
    """The gradient of one step as each library advises to ask for it."""
    if library.__name__ == "etp":
        return lambda x, y: learner.etrace_grad(x[None], y[None], step_fn=loss)
    weights = model.states(brainstate.ParamState)
    return lambda x, y: brainstate.transform.grad(loss, weights)(x, y)


def whole(compiled, values, args):
    def run(count):
        for _ in range(count):
            jax.block_until_ready(compiled(values, *args))

    return run


def streaming(compiled, values, args):
    kept = [values]

    def run(count):
        out = None
        for _ in range(count):
            kept[0], out = compiled(kept[0], *args)
        jax.block_until_ready((kept[0], out))

    return run


def traffic(*, family, width, batch, steps):
    """One read and one write of arrays as large as the traces of D_RTRL, in place."""
    rows = gradient_models.IN + (0 if family == "indrnn" else width)
    count = {"gru": 2, "lif": 2}.get(family, 1)
    arrays = [jnp.ones((batch, rows, width), jnp.float32) for _ in range(count)]
    decay = jnp.full((batch, width), 0.9, jnp.float32)
    step = jax.jit(lambda es: [e * decay[:, None, :] for e in es], donate_argnums=0)
    kept = [step(arrays)]

    def run(count):
        for _ in range(count):
            kept[0] = step(kept[0])
        jax.block_until_ready(kept[0])

    return Built(run, 1, 0.0, 0.0, sum(e.nbytes for e in kept[0]) / 1e6)
