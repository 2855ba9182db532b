"""Episodes that end in the middle of a batch: a reset lane is an episode run apart."""

import functools
import itertools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData
from etp_ops import matmul

from .helpers import compiled, gradient_of, largest_error, tree_sum
from .models import DIAGONAL, EXACT, IN, Cell, N, array, inputs

pytestmark = pytest.mark.thorough

XS = inputs(batch=3)
# lane 0 never starts anew, lane 1 before step 2, lane 2 before steps 3 and 5
FLAGS = np.zeros((6, 3), bool)
FLAGS[2, 1] = FLAGS[3, 2] = FLAGS[5, 2] = True
EPISODES = {0: [(0, 6)], 1: [(0, 2), (2, 6)], 2: [(0, 3), (3, 5), (5, 6)]}
ALGORITHMS = {
    "d_rtrl": ea.D_RTRL,
    "pp_prop": lambda m, **o: ea.pp_prop(m, 0.9, **o),
    "exit": lambda m, **o: ea.D_RTRL(m, signal="exit", **o),
}
FOLDED = {**ALGORITHMS, "eprop": lambda m, **o: ea.EProp(m, kappa_filter_decay=0.8, **o)}
WHOLE = {"rtrl": lambda m, **o: ea.RTRL(m), "snap": lambda m, **o: ea.SnAp(m, 2)}
ALGORITHMS = FOLDED | WHOLE


def factory_of(name):
    return EXACT[name] if name in EXACT else DIAGONAL[name][0]


def squares(learner):
    return lambda x: jnp.sum(jnp.square(learner(x)))


def windows(learner):
    return lambda x: jnp.sum(jnp.square(learner(MultiStepData(x))), axis=(1, 2))


@functools.cache
def apart(name, algorithm, chunk_size=None):
    """The summed gradient of the episodes, one after the other; and states and traces at the end of each lane."""
    learner = compiled(factory_of(name), XS[0, :1], 1, algorithm=ALGORITHMS[algorithm])
    step = windows if chunk_size else squares
    run = brainstate.transform.jit(
        lambda xs: learner.etrace_grad(xs, step_fn=step(learner), chunk_size=chunk_size, reduction="sum")
    )
    total, ends = [], []
    for lane, episodes in EPISODES.items():
        for start, stop in episodes:
            learner.model.h.value = jnp.zeros((1, N))
            learner.reset_state()
            total += [run(XS[a:b, lane : lane + 1]) for a, b in pieces(start, stop, chunk_size)]
        ends.append((learner.model.h.value, learner.traces.value))
    return tree_sum(total), jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *ends)


def pieces(start, stop, chunk_size):
    """An episode in the windows that the whole sequence is cut into."""
    if chunk_size is None:
        return [(start, stop)]
    cuts = [start, *(t for t in range(0, 6, chunk_size) if start < t < stop), stop]
    return list(itertools.pairwise(cuts))


def together(name, algorithm, chunk_size=None, kernels="auto"):
    learner = compiled(factory_of(name), XS[0], 3, algorithm=ALGORITHMS[algorithm], kernels=kernels)
    step = windows if chunk_size else squares
    found = learner.etrace_grad(XS, step_fn=step(learner), chunk_size=chunk_size, reduction="sum", resets=FLAGS)
    return found, learner


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("algorithm", FOLDED)
@pytest.mark.parametrize("name", ["indrnn", "gru"])
def test_lanes_that_start_anew_give_the_gradient_of_their_episodes_apart(name, algorithm, kernels):
    found, learner = together(name, algorithm, kernels=kernels)
    expected, (h, traces) = apart(name, algorithm)
    assert largest_error(found, expected) < 1e-12
    np.testing.assert_allclose(learner.model.h.value, h, atol=1e-13)
    if name == "gru":  # whose traces all have the batch first
        assert largest_error(learner.traces.value, traces) < 1e-12


@pytest.mark.parametrize("algorithm", WHOLE)
def test_traces_that_move_by_the_whole_step_are_cut_with_it(algorithm):
    assert largest_error(together("gru", algorithm)[0], apart("gru", algorithm)[0]) < 1e-12


@pytest.mark.parametrize("algorithm", ["d_rtrl", "pp_prop"])
def test_windows_that_an_episode_ends_in_are_cut_there(algorithm):
    found, _ = together("gru", algorithm, chunk_size=4)
    expected, _ = apart("gru", algorithm, chunk_size=4)
    assert largest_error(found, expected) < 1e-12


def test_a_reset_changes_the_gradient():
    found, _ = together("gru", "d_rtrl")
    learner = compiled(factory_of("gru"), XS[0], 3)
    plain = learner.etrace_grad(XS, step_fn=squares(learner), reduction="sum")
    ea.oracle.assert_gradients_differ(found, plain)


def test_one_flag_for_all_lanes_starts_a_new_sequence():
    flags = jnp.arange(6) == 4
    learner, expected = compiled(EXACT["leaky"], XS[0], 3), compiled(EXACT["leaky"], XS[0], 3)
    found = learner.etrace_grad(XS, step_fn=squares(learner), resets=flags, reduction="sum")
    wanted = expected.etrace_grad(XS[:4], step_fn=squares(expected), reduction="sum")
    expected = compiled(EXACT["leaky"], XS[0], 3)
    rest = expected.etrace_grad(XS[4:], step_fn=squares(expected), reduction="sum")
    assert largest_error(found, jax.tree.map(jnp.add, wanted, rest)) < 1e-12
    assert largest_error(learner.traces.value, expected.traces.value) < 1e-12


def test_a_single_call_takes_flags():
    learner, expected = compiled(EXACT["leaky"], XS[0], 3), compiled(EXACT["leaky"], XS[0], 3)
    learner(XS[0])
    found, _ = gradient_of(learner, lambda: jnp.sum(learner(XS[1], resets=jnp.ones(3, bool)) ** 2))
    wanted, _ = gradient_of(expected, lambda: jnp.sum(expected(XS[1]) ** 2))
    assert largest_error(found, wanted) < 1e-14


def test_evolving_takes_flags():
    learner = compiled(EXACT["leaky"], XS[0], 3)
    found = learner.etrace_evolve(XS, resets=FLAGS, return_outputs=True)
    np.testing.assert_allclose(found[-1], apart("leaky", "d_rtrl")[1][0], rtol=1e-13)


class FromRest(Cell):
    """A unit that starts away from zero, beside a slow filter and statistics of the whole run."""

    def __init__(self):
        super().__init__(None, {"W": array(0, IN, N)}, {})
        self.mean = brainstate.LongTermState(jnp.zeros(N))

    def init_state(self, batch_size=None, **kwargs):
        self.v = brainstate.HiddenState(jnp.full((batch_size, N), -0.6))
        self.slow = brainstate.ShortTermState(jnp.full((batch_size, N), 0.25))

    def update(self, x):
        self.v.value = 0.7 * self.v.value + matmul(x, self.W.value)
        self.slow.value = 0.9 * self.slow.value + jax.lax.stop_gradient(self.v.value)
        self.mean.value = self.mean.value + jax.lax.stop_gradient(self.v.value.mean(0))
        return self.v.value


def test_a_lane_goes_back_to_the_values_that_it_was_compiled_with():
    learner, fresh = compiled(FromRest, XS[0], 3), compiled(FromRest, XS[0], 3)
    learner.etrace_evolve(XS[:4])
    learner(XS[4], resets=jnp.array([False, True, False]))
    fresh(XS[4])
    for name in ("v", "slow"):
        np.testing.assert_array_equal(getattr(learner.model, name).value[1], getattr(fresh.model, name).value[1])
        assert float(jnp.abs(getattr(learner.model, name).value - getattr(fresh.model, name).value)[0].max()) > 0
    assert float(jnp.abs(learner.model.mean.value).max()) > float(jnp.abs(fresh.model.mean.value).max())


def test_resets_run_inside_jit():
    learner = compiled(EXACT["leaky"], XS[0], 3)
    run = brainstate.transform.jit(
        lambda flags: learner.etrace_grad(XS, step_fn=squares(learner), resets=flags, reduction="sum")
    )
    assert largest_error(run(jnp.asarray(FLAGS)), together("leaky", "d_rtrl")[0]) < 1e-13
    learner(XS[0], resets=jnp.ones(3, bool))


class SharedState(Cell):
    def __init__(self):
        super().__init__(None, {"W": array(0, IN, N)}, {"h": (N,)})
        self.total = brainstate.ShortTermState(jnp.zeros(N))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        self.total.value = self.total.value + jax.lax.stop_gradient(self.h.value.sum(0))
        return self.h.value


def test_a_state_without_lanes_cannot_be_reset_by_lane_and_the_message_names_it():
    learner = compiled(SharedState, XS[0], 3)
    with pytest.raises(ValueError, match=r"name 3 lanes, but the state total has shape \(4,\).*one flag per step"):
        learner(XS[0], resets=jnp.zeros(3, bool))


def test_a_model_of_one_sample_has_no_lanes():
    learner = compiled(EXACT["leaky"], inputs(batch=None)[0])
    with pytest.raises(ValueError, match="the model runs one sample"):
        learner(inputs(batch=None)[0], resets=jnp.zeros(N, bool))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (jnp.zeros(3), "must be booleans, got float64"),
        (jnp.zeros((3, 2), bool), r"one per step and lane; got \(3, 2\)"),
        (jnp.zeros(2, bool), "name 2 lanes, but the state h has shape"),
    ],
)
def test_flags_of_another_kind_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        compiled(EXACT["leaky"], XS[0], 3)(XS[0], resets=flags)


def test_flags_of_another_length_are_refused():
    learner = compiled(EXACT["leaky"], XS[0], 3)
    with pytest.raises(ValueError, match=r"shape \(6,\), or \(6, B\) by lane; got bool of shape \(5, 3\)"):
        learner.etrace_evolve(XS, resets=FLAGS[:5])


def test_flags_are_given_once():
    learner = compiled(EXACT["leaky"], XS[0], 3)
    step = lambda x: jnp.sum(learner(x, resets=jnp.zeros(3, bool)))  # noqa: E731
    with pytest.raises(TypeError, match="give them once"):
        learner.etrace_grad(XS, step_fn=step, resets=FLAGS)
