"""The learner: calls, gradients, life cycle, and what it says when it is used wrongly."""

import functools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData, SingleStepData
from etp_ops import matmul

from .helpers import compiled, gradient_of, initialised, largest_error, reference, tree_sum
from .models import DIAGONAL, EXACT, IN, Cell, N, array, cell, inputs, simple

XS = inputs(batch=2)


def squares(out):
    return jnp.sum(jnp.square(out))


def learner_of(name="leaky", batch=2, **options):
    return compiled(EXACT[name], inputs(batch=batch)[0], batch, **options)


def named(gradients):
    return {".".join(map(str, path)): g for path, g in gradients.items()}


# --- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["leaky", "lstm_without_recurrence", "width_one_gate", "plain_readout"])
def test_gradients_of_several_calls_under_one_grad_are_the_sum_of_separate_ones(name):
    together, _ = gradient_of(a := learner_of(name), lambda: sum(squares(a(x)) for x in XS[:3]))
    b = learner_of(name)
    apart = tree_sum([gradient_of(b, lambda x=x: squares(b(x)))[0] for x in XS[:3]])
    assert largest_error(together, apart) < 1e-13


def test_windows_under_one_grad_are_the_sum_of_separate_ones():
    a, b = learner_of(), learner_of()
    windows = [MultiStepData(XS[:2]), MultiStepData(XS[2:6])]
    together, _ = gradient_of(a, lambda: sum(squares(a(w)) for w in windows))
    apart = tree_sum([gradient_of(b, lambda w=w: squares(b(w)))[0] for w in windows])
    assert largest_error(together, apart) < 1e-13


def test_a_window_equals_backpropagation_by_hand_truncated_at_its_entry_for_what_has_no_trace():
    """The plain input weight P: exact within the window, nothing from before it."""
    factory, _ = DIAGONAL["plain_input_weight"]
    learner = compiled(factory, XS[0], 2)
    for x in XS[:3]:
        learner(x)
    entry = learner.model.h.value
    values = {k: getattr(learner.model, k).value for k in "WP"}

    def truncated(p):
        h, loss = entry, 0.0
        for x in XS[3:5]:
            h = jnp.tanh(0.7 * h + x @ p + x @ values["W"])
            loss += squares(h)
        return loss

    found, _ = gradient_of(learner, lambda: squares(learner(MultiStepData(XS[3:5]))))
    np.testing.assert_allclose(found["P"], jax.grad(truncated)(values["P"]), rtol=1e-13)


def test_a_plain_input_weight_is_not_a_silent_zero_in_windows_of_one():
    factory, _ = DIAGONAL["plain_input_weight"]
    learner = compiled(factory, XS[0], 2)
    found, _ = gradient_of(learner, lambda: squares(learner(XS[0])))
    assert float(jnp.abs(found["P"]).max()) > 0.1


@pytest.mark.parametrize("window", [1, 3])
def test_a_plain_read_out_gets_the_gradient_of_backpropagation(window):
    learner = learner_of("plain_readout")
    windows = [MultiStepData(XS[t : t + window]) for t in range(0, 6, window)]
    found = tree_sum([gradient_of(learner, lambda w=w: squares(learner(w)))[0] for w in windows])
    expected = named(reference(EXACT["plain_readout"], 2))
    assert largest_error({k: found[k] for k in "RP"}, {k: expected[k] for k in "RP"}) < 1e-13


def test_a_weight_behind_a_weight_gets_its_gradient_within_the_window():
    factory, _ = DIAGONAL["gru"]
    learner = compiled(factory, XS[0], 2)
    learner(XS[0])
    h, w = learner.model.h.value, {k: getattr(learner.model, k).value for k in ("Wz", "Wr", "Wh")}

    def one_step(wr):
        xh = jnp.concatenate([XS[1], h], -1)
        z, r = jax.nn.sigmoid(xh @ w["Wz"]), jax.nn.sigmoid(xh @ wr)
        return squares((1 - z) * h + z * jnp.tanh(jnp.concatenate([XS[1], r * h], -1) @ w["Wh"]))

    found, _ = gradient_of(learner, lambda: squares(learner(XS[1])))
    np.testing.assert_allclose(found["Wr"], jax.grad(one_step)(w["Wr"]), rtol=1e-13)


def test_the_gradient_of_a_batch_is_the_sum_over_its_lanes():
    whole = learner_of("indrnn")
    found = tree_sum([gradient_of(whole, lambda x=x: squares(whole(x)))[0] for x in XS])
    lanes = []
    for lane in range(2):
        one = learner_of("indrnn", batch=None)
        lanes += [gradient_of(one, lambda x=x: squares(one(x)))[0] for x in XS[:, lane]]  # noqa: B023
    assert largest_error(found, tree_sum(lanes)) < 1e-13


def test_outputs_and_states_are_those_of_the_model():
    learner, model = learner_of("adaptive_spiking"), initialised(EXACT["adaptive_spiking"], 2)
    for x in XS:
        np.testing.assert_allclose(learner(x), model.update(x), rtol=1e-14)
    np.testing.assert_allclose(learner.model.a.value, model.a.value, rtol=1e-14)


def test_a_gradient_leaves_states_and_traces_as_a_plain_call_does():
    a, b = learner_of(), learner_of()
    a(XS[0])
    gradient_of(b, lambda: squares(b(XS[0])))
    assert largest_error((a.model.h.value, a.traces.value), (b.model.h.value, b.traces.value)) == 0.0


def test_traces_after_a_window_are_those_after_its_steps():
    a, b = learner_of("stacked_states"), learner_of("stacked_states")
    a(MultiStepData(XS))
    for x in XS:
        b(x)
    assert largest_error(a.traces.value, b.traces.value) < 1e-13


def test_no_gradient_flows_into_the_input_of_a_later_call_through_the_traces():
    learner = learner_of()

    def loss(x):
        learner(x)
        return squares(learner(XS[1]))

    assert float(jnp.abs(brainstate.transform.grad(loss, argnums=0)(XS[0])).max()) == 0.0


def test_a_gradient_with_respect_to_the_input_is_that_of_the_step():
    learner, model = learner_of(), initialised(EXACT["leaky"], 2)
    found = brainstate.transform.grad(lambda x: squares(learner(x)), argnums=0)(XS[0])
    expected = brainstate.transform.grad(lambda x: squares(model.update(x)), argnums=0)(XS[0])
    np.testing.assert_allclose(found, expected, rtol=1e-13)


# --- how it can be run -----------------------------------------------------------------------------------


def run_eagerly(learner):
    return tree_sum([gradient_of(learner, lambda x=x: squares(learner(x)))[0] for x in XS])


def run_jitted(learner):
    step = brainstate.transform.jit(lambda x: gradient_of(learner, lambda: squares(learner(x)))[0])
    return tree_sum([step(x) for x in XS])


def run_gradient_of_jitted(learner):
    step = brainstate.transform.jit(lambda x: squares(learner(x)))
    return tree_sum([gradient_of(learner, lambda x=x: step(x))[0] for x in XS])


def run_in_for_loop(learner):
    out = brainstate.transform.for_loop(lambda x: gradient_of(learner, lambda: squares(learner(x)))[0], XS)
    return jax.tree.map(lambda g: g.sum(0), out)


def run_gradient_of_for_loop(learner):
    return gradient_of(learner, lambda: brainstate.transform.for_loop(lambda x: squares(learner(x)), XS).sum())[0]


RUNS = [run_eagerly, run_jitted, run_gradient_of_jitted, run_in_for_loop, run_gradient_of_for_loop]


@pytest.mark.parametrize("run", RUNS)
def test_a_learner_runs_inside_transformations(run):
    found = run(learner_of("two_states_same_step"))
    expected = reference(EXACT["two_states_same_step"], 2)
    assert largest_error(found, named(expected)) < 1e-13


@pytest.mark.parametrize("run", [run_jitted, run_in_for_loop])
def test_no_tracer_leaks(run):
    with jax.check_tracer_leaks():
        run(learner_of())


def test_gradients_can_be_accumulated_over_jitted_calls():
    learner, total = learner_of(), None
    step = brainstate.transform.jit(lambda x: gradient_of(learner, lambda: squares(learner(x)))[0])
    for x in XS:
        found = step(x)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    assert all(not isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(total))


def test_a_step_that_raises_while_it_is_traced_leaves_no_tracer_behind():
    learner = learner_of()

    def failing(x):
        learner(x)
        raise RuntimeError("mid-trace")

    with pytest.raises(RuntimeError, match="mid-trace"):
        brainstate.transform.jit(failing)(XS[0])
    values = (learner.model.h.value, learner.traces.value)
    assert all(not isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def test_five_warm_calls_keep_every_shape():
    learner = learner_of("adaptive_spiking")

    def shapes():
        return jax.tree.map(jnp.shape, [s.value for s in learner.states().values()])

    before = shapes()
    for x in XS[:5]:
        gradient_of(learner, lambda x=x: squares(learner(x)))
    assert shapes() == before


def test_parameters_of_another_value_are_used_at_once():
    learner = learner_of()
    learner(XS[0])
    learner.reset_state()
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner.model.W.value = jnp.zeros((IN, N))
    np.testing.assert_allclose(learner(XS[0]), jnp.broadcast_to(learner.model.b.value, (2, N)))


# --- inputs ----------------------------------------------------------------------------------------------


@simple()
def two_arguments(self, x, gain=1.0):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) * gain
    return self.h.value


def take_two(factory):
    model = factory()
    model.update = functools.partial(model.step, model)
    return model


def two_argument_learner(gain):
    learner = ea.D_RTRL(initialised(lambda: take_two(two_arguments), 2))
    learner.compile_graph(XS[0], gain)
    return learner


def test_single_step_data_is_used_again_at_every_step_of_a_window():
    gain = jnp.asarray(2.0)
    a, b = two_argument_learner(gain), two_argument_learner(gain)
    found = a(MultiStepData(XS), SingleStepData(gain))
    np.testing.assert_allclose(found, jnp.stack([b(x, gain) for x in XS]), rtol=1e-14)


def test_a_plain_array_beside_a_window_is_single_step_data():
    gain = jnp.asarray(2.0)
    a, b = two_argument_learner(gain), two_argument_learner(gain)
    np.testing.assert_array_equal(a(MultiStepData(XS), gain), b(MultiStepData(XS), SingleStepData(gain)))


def test_single_step_data_alone_is_a_single_step():
    a, b = learner_of(), learner_of()
    np.testing.assert_array_equal(a(SingleStepData(XS[0])), b(XS[0]))


def test_a_window_of_one_keeps_its_time_axis():
    a, b = learner_of(), learner_of()
    np.testing.assert_array_equal(a(MultiStepData(XS[:1])), b(XS[0])[None])


def nested_input_model():
    def step(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x["a"], self.W.value) * x["more"][0]
        return {"h": self.h.value, "pair": (x["a"], self.h.value)}

    return Cell(step, {"W": array(0, IN, N)}, {"h": (N,)})


def test_inputs_and_outputs_may_be_nested_trees():
    learner = compiled(nested_input_model, {"a": XS[0], "more": [jnp.ones(())]}, 2)
    out = learner({"a": MultiStepData(XS), "more": [SingleStepData(jnp.ones(()))]})
    assert jax.tree.map(jnp.shape, out) == {"h": (6, 2, N), "pair": ((6, 2, IN), (6, 2, N))}


def test_windows_of_different_lengths_in_one_call_are_refused():
    learner = two_argument_learner(jnp.ones(()))
    with pytest.raises(ValueError, match=r"same number of steps; got \[2, 3\]"):
        learner(MultiStepData(XS[:2]), MultiStepData(jnp.ones(3)))


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="holds no step"):
        learner_of()(MultiStepData(XS[:0]))


def test_a_scalar_is_no_window():
    with pytest.raises(ValueError, match="leading axis is time"):
        two_argument_learner(jnp.ones(()))(XS[0], MultiStepData(jnp.ones(())))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.zeros((3, IN)), r"input 0 has shape \(3, 3\).*compiled for \(2, 3\)"),
        (jnp.zeros(IN), r"input 0 has shape \(3,\)"),
        (jnp.zeros((2, IN), jnp.float32), "dtype float32.*float64"),
        (XS, "Wrap windows in MultiStepData"),
        ({"x": XS[0]}, "compiled for inputs of the structure"),
    ],
    ids=["batch", "rank", "dtype", "bare window", "structure"],
)
def test_an_input_unlike_the_compiled_one_is_refused_with_both(x, message):
    with pytest.raises(ValueError, match=message):
        learner_of()(x)


def test_another_number_of_arguments_is_refused():
    with pytest.raises(ValueError, match="structure"):
        learner_of()(XS[0], XS[0])


def test_compiling_again_takes_another_batch_size():
    learner = learner_of()
    brainstate.nn.init_all_states(learner.model, batch_size=3)
    learner.compile_graph(jnp.zeros((3, IN)))
    assert learner(jnp.ones((3, IN))).shape == (3, N)


def test_states_of_another_batch_size_are_refused_by_name():
    learner = learner_of()
    brainstate.nn.init_all_states(learner.model, batch_size=3)
    with pytest.raises(ValueError, match=r"the state h has shape \(3, 4\).*compiled for \(2, 4\)"):
        learner(XS[0])


def test_a_state_of_another_dtype_is_refused_by_name():
    learner = learner_of()
    learner.model.h.value = learner.model.h.value.astype(jnp.float32)
    with pytest.raises(ValueError, match=r"the state h has .*float32"):
        learner(XS[0])


def test_a_state_of_another_structure_is_refused_by_name():
    learner = learner_of("leaky_pytree")
    learner.model.p.value = {"weight": learner.model.p.value["weight"]}
    with pytest.raises(ValueError, match="state p changed its structure"):
        learner(XS[0])


# --- life cycle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [lambda x: x(XS[0]), lambda x: x.graph, lambda x: x.report, lambda x: x.param_states,
                                 lambda x: x.reset_state()],
                         ids=["call", "graph", "report", "param_states", "reset_state"])  # fmt: skip
def test_a_learner_that_is_not_compiled_says_how_to_compile_it(use):
    with pytest.raises(RuntimeError, match=r"not compiled.*compile_graph"):
        use(ea.D_RTRL(initialised(EXACT["leaky"], 2)))


def test_is_compiled_says_so():
    learner = ea.D_RTRL(initialised(EXACT["leaky"], 2))
    before = learner.is_compiled
    learner.compile_graph(XS[0])
    assert (before, learner.is_compiled) == (False, True)


def test_compiling_for_a_window_compiles_for_its_step():
    learner = ea.D_RTRL(initialised(EXACT["leaky"], 2))
    learner.compile_graph(MultiStepData(XS))
    assert learner(XS[0]).shape == (2, N)


def test_a_single_step_learner_refuses_windows():
    with pytest.raises(ValueError, match="vjp_method='single-step'"):
        learner_of(vjp_method="single-step")(MultiStepData(XS))


@pytest.mark.parametrize("method", ["single-step", "multi-step", None])
def test_vjp_method_does_not_change_the_gradient_of_a_step(method):
    learner = learner_of(vjp_method=method)
    assert largest_error(run_eagerly(learner), named(reference(EXACT["leaky"], 2))) < 1e-13


def test_a_memory_limit_that_holds_nothing_is_refused():
    with pytest.raises(ValueError, match="memory_limit must be a positive number"):
        ea.D_RTRL(EXACT["leaky"](), memory_limit=0)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="decay"):
        ea.D_RTRL(EXACT["leaky"](), decay=0.9)


def test_reset_state_zeroes_the_traces_and_leaves_the_model():
    learner = learner_of()
    learner(XS[0])
    h = learner.model.h.value
    learner.reset_state()
    assert all(float(jnp.abs(t).max()) == 0 for t in jax.tree.leaves(learner.traces.value))
    np.testing.assert_array_equal(learner.model.h.value, h)


def test_a_reset_makes_two_passes_equal():
    learner = learner_of()
    first = run_eagerly(learner)
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner.reset_state()
    assert largest_error(run_eagerly(learner), first) == 0.0


def test_a_learner_follows_the_states_that_a_model_makes_when_it_is_initialised_again():
    learner = learner_of()
    before = learner.model.h
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner(XS[0])
    assert learner.model.h is not before
    assert list(learner.hidden_states.values()) == [learner.model.h]
    assert float(jnp.abs(learner.model.h.value).max()) > 0


def test_the_states_of_a_learner_are_the_models_own_and_its_traces():
    learner = learner_of()
    assert set(learner.param_states.values()) == {learner.model.W, learner.model.b}
    assert list(learner.hidden_states.values()) == [learner.model.h]
    assert learner.traces in list(learner.states().values())


def test_gradients_and_parameters_share_their_keys():
    learner = learner_of("leaky_pytree")
    found = brainstate.transform.grad(lambda: squares(learner(XS[0])), grad_states=learner.param_states)()
    assert found.keys() == learner.model.states(brainstate.ParamState).keys()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_traces_keep_the_dtype_they_are_given(dtype):
    learner = learner_of(trace_dtype=dtype)
    run_eagerly(learner)
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.traces.value)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(("dtype", "most"), [(jnp.float32, 1e-6), (jnp.bfloat16, 3e-2)])
def test_narrow_traces_cost_their_precision_and_no_more(dtype, most):
    found = run_eagerly(learner_of("indrnn", trace_dtype=dtype))
    assert 0 < largest_error(found, named(reference(EXACT["indrnn"], 2))) < most


# --- states of every kind --------------------------------------------------------------------------------


class Noisy(Cell):
    """A counter, a state of random keys, a running mean and a parameter-free hidden state beside a leaky cell."""

    def __init__(self):
        super().__init__(None, {"W": array(0, IN, N)}, {"h": (N,)})
        self.mean = brainstate.ShortTermState(jnp.zeros(N))
        self.made_at_once = brainstate.ShortTermState(jnp.ones(()))

    def init_state(self, batch_size=None, **kwargs):
        super().init_state(batch_size)
        self.count = brainstate.HiddenState(jnp.zeros((), jnp.int32))

    def update(self, x):
        noise = brainstate.random.bernoulli(0.7, size=(N,))
        self.count.value = self.count.value + 1
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) * noise
        self.mean.value = 0.9 * self.mean.value + jax.lax.stop_gradient(self.h.value.mean(0))
        return self.h.value * self.made_at_once.value


def noisy_learner():
    brainstate.random.seed(3)
    learner = ea.D_RTRL(initialised(Noisy, 2))
    learner.compile_graph(XS[0])
    brainstate.random.seed(4)
    return learner


def test_a_counter_among_the_hidden_states_counts():
    learner = noisy_learner()
    learner(MultiStepData(XS))
    assert int(learner.model.count.value) == len(XS)


def test_random_numbers_in_the_step_are_drawn_anew_at_every_step():
    learner = noisy_learner()
    first = learner(XS[0])
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    assert float(jnp.abs(first - learner(XS[0])).max()) > 0


@pytest.mark.parametrize("window", [1, 3])
def test_a_noisy_step_is_learned_exactly_with_the_same_noise(window):
    learner = noisy_learner()
    windows = [MultiStepData(XS[t : t + window]) for t in range(0, 6, window)]
    found = tree_sum([gradient_of(learner, lambda w=w: squares(learner(w)))[0] for w in windows])
    brainstate.random.seed(3)
    model = initialised(Noisy, 2)
    brainstate.random.seed(4)
    loss = lambda: brainstate.transform.for_loop(lambda x: squares(model.update(x)), XS).sum()  # noqa: E731
    expected = brainstate.transform.grad(loss, grad_states={("W",): model.W})()
    assert largest_error(found, named(expected)) < 1e-13


def test_states_made_in_the_constructor_are_carried():
    learner = noisy_learner()
    learner(XS[0])
    assert float(jnp.abs(learner.model.mean.value).max()) > 0


class MadeAtOnce(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, IN, N))
        self.h = brainstate.HiddenState(jnp.zeros(N))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        return self.h.value


def test_a_hidden_state_made_in_the_constructor_serves_without_batch():
    learner = compiled(MadeAtOnce, inputs(batch=None)[0])
    assert learner(inputs(batch=None)[0]).shape == (N,)


def test_a_hidden_state_made_in_the_constructor_cannot_be_batched_and_the_message_says_why():
    with pytest.raises(
        ea.CompilationError, match=r"the step changes the state h .*init_all_states\(model, batch_size=B"
    ):
        compiled(MadeAtOnce, XS[0], 2)


@pytest.mark.parametrize("change", [lambda h: h[:1], lambda h: h.astype(jnp.float32)], ids=["shape", "dtype"])
def test_a_step_that_changes_its_state_is_refused_by_name(change):
    @simple()
    def changing(self, x):
        self.h.value = change(0.7 * self.h.value + matmul(x, self.W.value))
        return x

    with pytest.raises(ea.CompilationError, match="the step changes the state h"):
        compiled(changing, XS[0], 2)


def test_a_step_that_writes_a_parameter_is_refused_by_name():
    @simple()
    def writing(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        self.W.value = self.W.value * 0.99
        return self.h.value

    with pytest.raises(ea.CompilationError, match="writes the parameter W"):
        compiled(writing, XS[0], 2)


def test_a_state_outside_the_model_is_reported():
    outside = brainstate.ParamState(array(0, IN, N))

    @cell({"h": (N,)}, dict)
    def reaching_out(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, outside.value)
        return self.h.value

    learner = ea.D_RTRL(initialised(reaching_out, 2))
    with pytest.warns(ea.CompilationWarning, match="no attribute of the model"):
        learner.compile_graph(XS[0])


@pytest.mark.parametrize("dtype", [bool, jnp.uint8, jnp.int32])
def test_spikes_of_any_integer_type_are_learned_from_like_floats(dtype):
    spikes = (XS > 0).astype(dtype)
    found, expected = compiled(EXACT["leaky"], spikes[0], 2), learner_of()
    a = tree_sum([gradient_of(found, lambda x=x: squares(found(x)))[0] for x in spikes])
    b = tree_sum([gradient_of(expected, lambda x=x: squares(expected(x)))[0] for x in spikes.astype(float)])
    assert largest_error(a, b) < 1e-14


def test_a_learner_learns():
    """Twenty passes of plain gradient descent, online, towards the outputs of a model with other weights."""
    teacher = initialised(EXACT["leaky"], 2)
    teacher.W.value = array(9, IN, N)
    targets = brainstate.transform.for_loop(teacher.update, XS)
    learner = learner_of()

    @brainstate.transform.jit
    def one_pass():
        brainstate.nn.init_all_states(learner.model, batch_size=2)
        learner.reset_state()
        return learner.etrace_grad(
            XS, targets, step_fn=lambda x, y: squares(learner(x) - y), return_value=True, loss_output="scalar"
        )

    losses = []
    for _ in range(20):
        gradients, loss = one_pass()
        losses.append(float(loss))
        for path, state in learner.param_states.items():
            state.value -= 0.03 * gradients[path]
    assert losses[-1] < 0.3 * losses[0]


def test_initialising_the_learner_starts_a_new_sequence_without_traces():
    learner = learner_of()
    for x in XS:
        learner(x)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(learner.traces.value))
    brainstate.nn.init_all_states(learner, batch_size=2)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(learner.traces.value))


def test_traces_are_stored_in_floating_point_only():
    with pytest.raises(TypeError, match="trace_dtype must be a floating-point type or None, got int8"):
        ea.D_RTRL(EXACT["leaky"](), trace_dtype=jnp.int8)
