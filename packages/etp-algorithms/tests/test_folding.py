"""A known sequence is folded into whole-sequence products: the gradient is that of streaming, to round-off."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_algorithms import D_RTRL, MultiStepData, ThreeFactor, oracle, pp_prop
from etp_algorithms._ahead import reaches_in_place
from etp_algorithms._folding import calls_per_fold, tape_of
from etp_ops import matmul

from . import models
from .helpers import quietly

pytestmark = pytest.mark.thorough

MODELS = {
    "indrnn": models.indrnn,
    "width_one_gate": models.width_one_gate,
    "lstm": models.lstm,
    "gru": models.gru,
    "adaptive_spiking": models.adaptive_spiking,
}
ALGORITHMS = {"d_rtrl": D_RTRL, "pp_prop": lambda model, **options: pp_prop(model, (0.8, 0.6), **options)}


def learner_of(factory, algorithm, batch_size=2, **options):
    model = factory()
    brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    learner = ALGORITHMS[algorithm](model, **options)
    quietly(learner.compile_graph, models.inputs(batch=batch_size)[0])
    return learner


def gradient(learner, xs, **options):
    return learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum", **options)


def assert_folds_as_streaming(factory, algorithm):
    xs = models.inputs(steps=7)
    folded = learner_of(factory, algorithm, memory_limit=3000)  # several folds, the last one shorter
    streamed = learner_of(factory, algorithm, kernels="reference")
    assert oracle.relative_deviation(gradient(folded, xs), gradient(streamed, xs)) < 1e-13
    pairs = zip(jax.tree.leaves(folded.traces.value), jax.tree.leaves(streamed.traces.value), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_the_folded_gradient_and_the_final_traces_are_those_of_streaming(name):
    assert_folds_as_streaming(MODELS[name], "pp_prop")


@pytest.mark.parametrize(
    "factory",
    [
        *MODELS.values(),
        models.conditional,
        models.detached_reset,
        models.mean_of_state,
        models.one_drive_two_groups,
        models.plain_recurrence,
        models.stacked_states,
        models.state_read_twice,
        models.transposed_weight,
        models.two_layers,
        models.two_states_same_step,
    ],
)
def test_entry_signals_that_are_sent_back_are_those_of_streaming(factory):
    assert_folds_as_streaming(factory, "d_rtrl")


@models.cell(
    {"a": (models.N,), "b": (models.N,)},
    lambda: {"W": models.array(0, models.IN, models.N), "V": models.array(1, models.N, models.N)},
)
def its_new_state_drives_its_own_group(self, x):
    new = jnp.tanh(matmul(x, self.W.value) + 0.5 * self.a.value)
    self.b.value = 0.7 * self.b.value + 0.3 * self.a.value + matmul(new, self.V.value)
    self.a.value = new
    return self.b.value


def test_what_reaches_its_own_group_through_another_weight_is_recorded_apart():
    # W drives the state a, whose new value drives b of the same group through V
    learner = learner_of(its_new_state_drives_its_own_group, "d_rtrl")
    assert [reaches_in_place(learner.graph, operator) for operator in learner.graph.operators] == [False, True]
    assert_folds_as_streaming(its_new_state_drives_its_own_group, "d_rtrl")


@pytest.mark.parametrize(("factory", "arrays"), [(models.indrnn, 1), (models.lstm, 2)])
def test_a_step_records_one_signal_per_state_that_is_read(factory, arrays):
    learner = learner_of(factory, "d_rtrl")
    tape = tape_of(learner.compiled_step, None, models.inputs())
    kept = [*tape.offsets.value.drives, *tape.offsets.value.states]
    assert sum(array is not None for array in kept) == arrays


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_second_call_continues_the_sequence(batch_size):
    xs = models.inputs(steps=8, batch=batch_size)
    once = gradient(learner_of(models.indrnn, "d_rtrl", batch_size), xs)
    learner = learner_of(models.indrnn, "d_rtrl", batch_size)
    twice = jax.tree.map(jnp.add, gradient(learner, xs[:3]), gradient(learner, xs[3:]))
    assert oracle.relative_deviation(twice, once) < 1e-13


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("memory_limit", [None, 3000])
def test_a_complete_sequence_starts_and_ends_without_traces(algorithm, memory_limit):
    xs = models.inputs(steps=7)
    expected = gradient(learner_of(models.lstm, algorithm), xs)
    learner = learner_of(models.lstm, algorithm, memory_limit=memory_limit)
    gradient(learner, models.inputs(steps=3, seed=1))  # leaves traces behind
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner.compile_graph(xs[0])
    assert oracle.relative_deviation(gradient(learner, xs, complete_sequence=True), expected) < 1e-13
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(learner.traces.value))


def test_a_step_function_under_its_own_jit_is_folded_too():
    xs = models.inputs()
    learner = learner_of(models.gru, "d_rtrl")
    step = brainstate.transform.jit(lambda x: jnp.sum(learner(x) ** 2))
    inside = learner.etrace_grad(xs, step_fn=step, reduction="sum")
    assert oracle.relative_deviation(inside, gradient(learner_of(models.gru, "d_rtrl"), xs)) < 1e-13


def test_a_weight_that_the_loss_also_reads_directly_keeps_that_gradient():
    xs = models.inputs(steps=4)

    def with_decay(kernels):
        learner = learner_of(models.leaky, "d_rtrl", kernels=kernels)
        W = learner.model.W
        return learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x)) + 0.1 * jnp.sum(W.value**2))

    folded, streamed = with_decay("auto"), with_decay("reference")
    assert oracle.relative_deviation(folded, streamed) < 1e-13
    oracle.assert_gradients_differ(folded, learner_gradient_without_decay(xs))


def learner_gradient_without_decay(xs):
    learner = learner_of(models.leaky, "d_rtrl")
    return learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x)))


@pytest.mark.parametrize("calls", [0, 2])
def test_a_step_function_that_does_not_run_the_learner_once_is_refused(calls):
    learner = learner_of(models.leaky, "d_rtrl")

    def step(x):
        return sum((jnp.sum(learner(x)) for _ in range(calls)), jnp.sum(x))

    with pytest.raises(ValueError, match=f"exactly once per step; it ran {calls} times"):
        learner.etrace_grad(models.inputs(), step_fn=step)
    assert learner.update(models.inputs()[0]).shape == (2, models.N)  # the learner works on


@pytest.mark.parametrize(
    ("length", "limit", "expected"),
    [
        (100, None, 100),
        (1000, 100 * 64, 100),
        (1000, 77 * 64, 50),
        (1001, 100 * 64, 91),
        (997, 100 * 64, 100),
        (7, 1, 1),
    ],
)
def test_calls_per_fold_are_even_and_within_the_budget(length, limit, expected):
    assert calls_per_fold(length, 64, 0, limit) == expected


@pytest.mark.parametrize("memory_limit", [0, -1])
def test_a_memory_limit_must_be_positive(memory_limit):
    with pytest.raises(ValueError, match="memory_limit must be a positive number of bytes"):
        D_RTRL(models.leaky(), memory_limit=memory_limit)


def test_the_recording_does_not_grow_with_the_sequence_beyond_its_budget():
    def temporary_bytes(steps):
        learner = learner_of(models.gru, "d_rtrl", memory_limit=20_000)
        stateful = brainstate.transform.StatefulFunction(lambda xs: gradient(learner, xs), return_only_write=False)
        xs = models.inputs(steps=steps)
        stateful.make_jaxpr(xs)
        values = [state.value for state in stateful.get_states(xs)]
        return jax.jit(stateful.jaxpr_call).lower(values, xs).compile().memory_analysis().temp_size_in_bytes

    losses_and_inputs = 1000 * (2 * models.IN + 4) * 8 * 2
    assert temporary_bytes(1000) < 1.5 * temporary_bytes(50) + losses_and_inputs


# --- windows ---------------------------------------------------------------------------------------------


def windows(learner, xs, chunk_size=3, **options):
    def step(x):
        return jnp.sum(learner(MultiStepData(x)) ** 2, axis=(1, 2))

    return learner.etrace_grad(xs, step_fn=step, chunk_size=chunk_size, reduction="sum", **options)


@pytest.mark.parametrize("factory", [models.gru, models.adaptive_spiking, models.plain_recurrence])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("signal", ["entry", "exit"])
def test_folded_windows_are_those_of_streaming(factory, algorithm, signal):
    xs = models.inputs(steps=8)  # the last window is shorter
    folded = learner_of(factory, algorithm, memory_limit=9000, signal=signal)
    streamed = learner_of(factory, algorithm, kernels="reference", signal=signal)
    assert oracle.relative_deviation(windows(folded, xs), windows(streamed, xs)) < 1e-13
    for a, b in zip(jax.tree.leaves(folded.traces.value), jax.tree.leaves(streamed.traces.value), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("by_lane", [False, True])
def test_episodes_may_begin_within_a_folded_window(by_lane):
    xs = models.inputs(steps=7)
    flags = jnp.arange(7) == 4
    flags = flags[:, None] & jnp.array([True, False]) if by_lane else flags
    folded, streamed = learner_of(models.lstm, "d_rtrl"), learner_of(models.lstm, "d_rtrl", kernels="reference")
    found, expected = windows(folded, xs, resets=flags), windows(streamed, xs, resets=flags)
    assert oracle.relative_deviation(found, expected) < 1e-13


@pytest.mark.parametrize("stacked", [False, True])
def test_a_modulator_goes_with_folded_windows(stacked):
    xs = models.inputs(steps=6)

    def gradient_of(kernels):
        model = models.lstm()
        brainstate.nn.init_all_states(model, batch_size=2)
        learner = ThreeFactor(model, kernels=kernels)
        learner.compile_graph(xs[0])

        def step(x):
            modulator = MultiStepData(x.sum((1, 2))) if stacked else x[0].sum()
            return jnp.sum(learner(MultiStepData(x), modulator=modulator) ** 2, axis=(1, 2))

        return learner.etrace_grad(xs, step_fn=step, chunk_size=3)

    assert oracle.relative_deviation(gradient_of("auto"), gradient_of("reference")) < 1e-13


@pytest.mark.parametrize("passed", ["a part of the window", "a step"])
def test_a_window_must_be_passed_whole(passed):
    learner = learner_of(models.leaky, "d_rtrl")

    def step(x):
        return jnp.sum(learner(x[0] if passed == "a step" else MultiStepData(x[1:])) ** 2) * jnp.ones(len(x))

    with pytest.raises(ValueError, match=r"got a window of 3 steps and passed .* Wrap what has a time axis"):
        learner.etrace_grad(models.inputs(), step_fn=step, chunk_size=3)


# --- a complete sequence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_complete_sequence_does_not_touch_the_traces(chunk_size):
    xs = models.inputs(steps=6)
    learner = learner_of(models.gru, "d_rtrl")
    driver = gradient if chunk_size is None else windows
    stateful = brainstate.transform.StatefulFunction(lambda: driver(learner, xs, complete_sequence=True))
    stateful.make_jaxpr()
    assert learner.traces not in stateful.get_write_states()


# --- what the step reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["entry", "exit"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_an_encoder_before_the_learner_learns_as_one_within_the_model(signal, chunk_size):
    xs = models.inputs(steps=6)
    encoder = jnp.eye(models.IN) * 0.5

    class Whole(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.cell = brainstate.ParamState(encoder), models.gru()

        def update(self, x):
            return self.cell(x @ self.encoder.value)

    def losses(out):
        return jnp.sum(out**2) if chunk_size is None else jnp.sum(out**2, axis=(1, 2))

    wrap = (lambda x: x) if chunk_size is None else MultiStepData
    inside = learner_of(Whole, "d_rtrl", signal=signal)
    expected = inside.etrace_grad(xs, step_fn=lambda x: losses(inside(wrap(x))), chunk_size=chunk_size)
    for kernels in ("auto", "reference"):
        learner = learner_of(models.gru, "d_rtrl", signal=signal, kernels=kernels)
        before = brainstate.ParamState(encoder)
        found = learner.etrace_grad(
            xs,
            step_fn=lambda x, learner=learner, before=before: losses(learner(wrap(x @ before.value))),
            weights={"encoder": before},
            chunk_size=chunk_size,
        )
        np.testing.assert_allclose(found["encoder"], expected[("encoder",)], rtol=1e-12)


# --- products with plain weights -------------------------------------------------------------------------


@models.cell(
    {"h": (models.N,)},
    lambda: {
        "W": models.array(0, models.IN + models.N, models.N),
        "out": models.array(1, models.N, 2),
        "wide": models.array(2, 2, 7),
    },
)
def readouts(self, x):
    self.h.value = jnp.tanh(matmul(jnp.concatenate([x, self.h.value], -1), self.W.value))
    left = jnp.tanh(self.out.value.T @ self.h.value.T).T  # the weight comes first, and is transposed
    again = self.h.value @ jnp.tanh(self.out.value)  # it is used twice, the second time as a function of it
    return jnp.concatenate([left @ self.wide.value, again], -1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("signal", ["entry", "exit"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_plain_weights_learn_as_by_streaming(algorithm, signal, chunk_size):
    xs = models.inputs(steps=7)
    driver = gradient if chunk_size is None else windows
    folded = learner_of(readouts, algorithm, signal=signal, memory_limit=4000)
    streamed = learner_of(readouts, algorithm, signal=signal, kernels="reference")
    assert oracle.relative_deviation(driver(folded, xs), driver(streamed, xs)) < 1e-13


def test_the_gradient_of_a_read_out_is_one_product_over_all_steps():
    learner = learner_of(readouts, "d_rtrl")
    equations = brainstate.transform.make_jaxpr(lambda xs: gradient(learner, xs))(models.inputs(steps=50))[0].jaxpr.eqns
    outside = [e for e in equations if e.primitive.name == "dot_general"]
    assert (
        sum(100 in e.invars[0].aval.shape for e in outside) >= 2
    )  # both uses of the weight whose data are recorded anyway
