"""One story of batches: a batched model, a mapped model, a mapped learner; and batches of another size."""

import functools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData, functional
from etp_ops import matmul

from .helpers import compiled, gradient_of, initialised, largest_error, quietly, tree_sum
from .models import DIAGONAL, EXACT, IN, Cell, N, array, inputs

pytestmark = pytest.mark.thorough

ALGORITHMS = {"d_rtrl": ea.D_RTRL, "pp_prop": lambda m, **o: ea.pp_prop(m, 0.9, **o)}


def factory_of(name):
    return EXACT[name] if name in EXACT else DIAGONAL[name][0]


def squares(learner):
    return lambda x: jnp.sum(jnp.square(learner(x)))


def squares_of(learner, window):
    return jnp.sum(jnp.square(learner(MultiStepData(window))))


def gradient(learner, xs):
    return learner.etrace_grad(xs, step_fn=squares(learner), reduction="sum")


def batched(factory, xs, algorithm):
    return gradient(compiled(factory, xs[0], xs.shape[1], algorithm=algorithm), xs)


def mapped(factory, xs, algorithm):
    learner = quietly(ea.compile, factory(), algorithm, xs[0], batch_size=xs.shape[1], vmap=True)
    return gradient(learner, xs)


def in_map(factory, xs, algorithm):
    model = brainstate.nn.Map(factory(), init_map_size=xs.shape[1])
    model.init_all_states()
    learner = algorithm(model)
    quietly(learner.compile_graph, xs[0])
    return {path[1:]: g for path, g in gradient(learner, xs).items()}


@functools.cache
def one_by_one(name, algorithm, lanes):
    xs = inputs(batch=lanes)
    learner = compiled(factory_of(name), xs[0, 0], algorithm=ALGORITHMS[algorithm])
    run = brainstate.transform.jit(lambda xs: gradient(learner, xs))
    total = []
    for lane in range(lanes):
        learner.model.h.value = jnp.zeros(N)
        learner.reset_state()
        total.append(run(xs[:, lane]))
    return tree_sum(total)


@pytest.mark.parametrize(
    ("name", "algorithm", "lanes"), [("indrnn", "d_rtrl", 3), ("dense_tanh", "d_rtrl", N), ("dense_tanh", "pp_prop", 3)]
)
@pytest.mark.parametrize("way", [batched, mapped, in_map])
def test_the_gradient_of_a_batch_is_the_sum_of_its_samples(way, name, algorithm, lanes):
    """Also with as many lanes as units: a batch axis is known by what it is, not by its size."""
    found = way(factory_of(name), inputs(batch=lanes), ALGORITHMS[algorithm])
    assert largest_error(found, one_by_one(name, algorithm, lanes)) < 1e-12


def test_windows_as_long_as_the_batch_is_wide_are_no_other_case():
    xs = inputs(batch=3)
    found = compiled(factory_of("dense_tanh"), xs[0], 3)
    step = lambda x: jnp.sum(found(MultiStepData(x)) ** 2, axis=(1, 2))  # noqa: E731
    total = found.etrace_grad(xs, step_fn=step, chunk_size=3, reduction="sum")
    apart = compiled(factory_of("dense_tanh"), xs[0], 3)
    halves = lambda x: jnp.sum(apart(MultiStepData(x)) ** 2, axis=(1, 2))  # noqa: E731
    wanted = [apart.etrace_grad(xs[t : t + 3], step_fn=halves, chunk_size=3, reduction="sum") for t in (0, 3)]
    lanes = []
    for lane in range(3):
        learner = compiled(factory_of("dense_tanh"), xs[0, 0])
        parts = [gradient_of(learner, lambda t=t, n=lane: squares_of(learner, xs[t : t + 3, n]))[0] for t in (0, 3)]  # noqa: B023
        lanes.append({(key,): g for key, g in tree_sum(parts).items()})
    assert largest_error(total, tree_sum(lanes)) < 1e-12
    assert largest_error(total, tree_sum(wanted)) < 1e-12


def step(params, h, x):
    h = jnp.tanh(0.9 * h + matmul(x, params["w"]))
    return h, jnp.sum(h**2)


def test_jax_maps_a_functional_learner():
    xs, params = inputs(batch=3), {"w": array(0, IN, N)}
    learner = functional.compile_step_function(step, params, jnp.zeros(N), xs[0, 0])

    def lane(params, xs):
        def body(carry, x):
            def loss(p):
                new, out = learner.apply(p, carry, x)
                return out, new

            g, new = jax.grad(loss, has_aux=True)(params)
            return new, g

        return jax.tree.map(lambda g: g.sum(0), jax.lax.scan(body, learner.init(), xs)[1])

    found = jax.jit(jax.vmap(lane, in_axes=(None, 1)))(params, xs)
    expected = jax.grad(lambda p: sum(full(p, xs[:, n]) for n in range(3)))(params)
    assert largest_error(jax.tree.map(lambda g: g.sum(0), found), expected) < 1e-12


def full(params, xs):
    """The loss of one sample by a plain loop: this cell's recurrence is position-wise, so the trace is exact."""
    h, total = jnp.zeros(N), 0.0
    for x in xs:
        h, out = step(params, h, x)
        total += out
    return total


def test_brainstate_maps_a_learner_over_independent_sequences():
    xs = inputs(batch=3)
    learner = compiled(EXACT["leaky"], xs[0, 0])
    learner.model.h.value = jnp.zeros((3, N))
    learner.traces.value = jax.tree.map(lambda t: jnp.zeros((3, *t.shape)), learner.traces.value)
    lanes = {0: lambda path, state: state is learner.traces or state is learner.model.h}
    call = brainstate.transform.vmap2(lambda x: learner(x), state_in_axes=lanes, state_out_axes=lanes)
    found = tree_sum([gradient_of(learner, lambda x=x: jnp.sum(call(x) ** 2))[0] for x in xs])
    expected = batched(EXACT["leaky"], xs, ea.D_RTRL)
    assert largest_error(found, {".".join(path): g for path, g in expected.items()}) < 1e-12


# --- a model of one sample, mapped -----------------------------------------------------------------------


def mapped_learner(factory=EXACT["indrnn"], lanes=3, **options):
    return ea.compile(factory(), ea.D_RTRL, inputs(batch=lanes)[0], batch_size=lanes, vmap=True, **options)


def test_a_mapped_learner_keeps_the_names_of_the_model():
    learner = mapped_learner()
    assert learner.param_states.keys() == learner.model.states(brainstate.ParamState).keys()
    assert {row.name for row in learner.report.parameters} == {"W", "u"}


def test_a_mapped_model_is_as_batched_as_any_other():
    found = mapped_learner().graph.hidden_param_op_relations
    assert {relation.primitive.name for relation in found} == {"etp_mm", "etp_elemwise"}


def test_the_lanes_of_a_mapped_learner_take_resets():
    xs, flags = inputs(batch=3), np.zeros((6, 3), bool)
    flags[2, 1] = True
    a, b = mapped_learner(), compiled(EXACT["indrnn"], xs[0], 3)
    found, expected = (one.etrace_grad(xs, step_fn=squares(one), resets=flags, reduction="sum") for one in (a, b))
    assert largest_error(found, expected) < 1e-12


def test_initialising_the_model_again_starts_every_lane_anew():
    learner = mapped_learner()
    first = gradient(learner, inputs(batch=3))
    brainstate.nn.init_all_states(learner.model)
    learner.reset_state()
    assert learner.model.h.value.shape == (3, N)
    assert largest_error(gradient(learner, inputs(batch=3)), first) == 0.0


def test_a_mapped_learner_takes_another_number_of_lanes():
    learner = mapped_learner()
    learner.reset_state(batch_size=2)
    assert learner(inputs(batch=2)[0]).shape == (2, N)
    expected = batched(EXACT["indrnn"], inputs(batch=2), ea.D_RTRL)
    learner.reset_state()
    learner.model.h.value = jnp.zeros((2, N))
    assert largest_error(gradient(learner, inputs(batch=2)), expected) < 1e-12


class NoisySample(Cell):
    """Noise and a counter in the step of one sample."""

    def __init__(self):
        super().__init__(None, {"W": array(0, IN, N)}, {"h": (N,)})
        self.count = brainstate.ShortTermState(jnp.zeros((), jnp.int32))

    def update(self, x):
        self.count.value = self.count.value + 1
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) * brainstate.random.uniform(size=(N,))
        return self.h.value


def test_every_lane_draws_its_own_noise_and_counts_for_itself():
    brainstate.random.seed(0)
    learner = mapped_learner(NoisySample)
    out = learner(jnp.ones((3, IN)))
    assert len({tuple(np.asarray(row)) for row in out}) == 3
    again = learner(jnp.ones((3, IN))) - 0.7 * out
    assert float(jnp.abs(again - out).min()) > 0
    np.testing.assert_array_equal(learner.model.count.value, [2, 2, 2])


class Statistics(Cell):
    def __init__(self):
        super().__init__(None, {"W": array(0, IN, N)}, {"h": (N,)})
        self.mean = brainstate.LongTermState(jnp.zeros(N))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        self.mean.value = 0.9 * self.mean.value + jax.lax.stop_gradient(self.h.value)
        return self.h.value


def test_a_state_that_lanes_would_have_to_share_is_refused_by_name():
    with pytest.raises(ea.CompilationError, match="share the LongTermState mean, and the step writes it"):
        mapped_learner(Statistics)


def test_a_mapped_learner_needs_the_number_of_lanes():
    with pytest.raises(ValueError, match="vmap=True needs batch_size"):
        ea.compile(EXACT["leaky"](), ea.D_RTRL, jnp.ones((3, IN)), vmap=True)


def test_example_inputs_of_another_size_than_the_batch_are_refused():
    with pytest.raises(ValueError, match=r"over 3 samples takes inputs whose first axis has that size; .*\(2,\)"):
        ea.compile(EXACT["leaky"](), ea.D_RTRL, jnp.ones((2, IN)), batch_size=3, vmap=True)


# --- a batch of another size -----------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 3])
def test_states_of_another_batch_size_are_learned_from_after_a_reset(lanes):
    learner = compiled(EXACT["indrnn"], inputs(batch=2)[0], 2)
    traces = learner.traces
    gradient(learner, inputs(batch=2))
    brainstate.nn.init_all_states(learner.model, batch_size=lanes)
    learner.reset_state()
    found = gradient(learner, inputs(batch=lanes))
    assert largest_error(found, batched(EXACT["indrnn"], inputs(batch=lanes), ea.D_RTRL)) == 0.0
    assert learner.traces is traces


def test_initialising_the_learner_for_another_batch_size_is_enough():
    learner = compiled(EXACT["indrnn"], inputs(batch=2)[0], 2)
    brainstate.nn.init_all_states(learner, batch_size=3)
    assert learner(inputs(batch=3)[0]).shape == (3, N)


def test_a_learner_of_a_model_that_was_initialised_again_holds_the_new_states_alone():
    learner = compiled(EXACT["adaptive_spiking"], inputs(batch=2)[0], 2)
    learner(inputs(batch=2)[0])
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner(inputs(batch=2)[0])
    own = {id(learner.traces), id(learner.start)}
    assert {id(s) for s in learner.states().values()} - own == {id(s) for s in learner.model.states().values()}
    assert {id(s) for s in learner.hidden_states.values()} == {id(learner.model.v), id(learner.model.a)}


class NotBatched(Cell):
    """A model that compiles for vectors alone."""

    def update(self, x):
        if x.ndim != 1:
            raise RuntimeError("one sample at a time")
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        return self.h.value


def test_a_compilation_that_fails_leaves_the_learner_as_it_was():
    learner = compiled(lambda: NotBatched(None, {"W": array(0, IN, N)}, {"h": (N,)}), jnp.ones(IN))
    learner(jnp.ones(IN))
    graph, before = learner.graph, learner.state_dict()
    with pytest.raises((RuntimeError, ea.CompilationError), match="one sample at a time"):
        learner.compile_graph(jnp.ones((2, IN)))
    assert learner.graph is graph
    assert all(value is after for value, after in zip(before.values(), learner.state_dict().values(), strict=True))


def test_an_initialised_model_and_its_learner_agree():
    learner, model = mapped_learner(), initialised(EXACT["indrnn"], 3)
    for x in inputs(batch=3):
        np.testing.assert_allclose(learner(x), model.update(x), rtol=1e-14)
