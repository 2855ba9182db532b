"""The drivers over a known sequence: every option, and what is refused."""

import sys

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData

from .helpers import compiled, gradient_of, largest_error, tree_sum
from .models import DIAGONAL, EXACT, IN, inputs

pytestmark = pytest.mark.thorough

XS = inputs(batch=2)
YS = jnp.linspace(-1.0, 1.0, 6)
kernels = pytest.mark.parametrize("kernels", ["auto", "reference"])
MODELS = ["width_one_gate", "stacked_states", "plain_readout"]


def learner_of(name="leaky", **options):
    factory = EXACT[name] if name in EXACT else DIAGONAL[name][0]
    return compiled(factory, XS[0], 2, **options)


def loss(learner, chunked=False):
    """One loss per step."""
    if chunked:
        return lambda x, y: jnp.sum((learner(MultiStepData(x)) - y[:, None, None]) ** 2, axis=(1, 2))
    return lambda x, y: jnp.sum((learner(x) - y) ** 2)


def drive(learner, chunk_size=None, **options):
    chunked = chunk_size not in (None, 1)
    return learner.etrace_grad(XS, YS, step_fn=loss(learner, chunked), chunk_size=chunk_size, **options)


def by_hand(learner, gates=None):
    """The sum of single gradients, one call each."""
    gates = jnp.ones(6) if gates is None else gates
    step = loss(learner)
    found = [gradient_of(learner, lambda t=t: gates[t] * step(XS[t], YS[t]))[0] for t in range(6)]
    return {(key,): value for key, value in tree_sum(found).items()}


# --- etrace_grad -----------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("name", [*MODELS, "gru", "plain_recurrence"])
def test_the_driver_sums_the_gradients_of_single_calls(name, kernels):
    found = drive(learner_of(name, kernels=kernels), reduction="sum")
    assert largest_error(found, by_hand(learner_of(name))) < 1e-12


@kernels
@pytest.mark.parametrize("name", MODELS)
def test_the_driver_leaves_states_and_traces_as_single_calls_do(name, kernels):
    a, b = learner_of(name, kernels=kernels), learner_of(name)
    drive(a)
    for x in XS:
        b(x)
    found = (a.model.h.value if hasattr(a.model, "h") else a.model.s.value, a.traces.value)
    expected = (b.model.h.value if hasattr(b.model, "h") else b.model.s.value, b.traces.value)
    assert largest_error(found, expected) < 1e-12


@pytest.mark.parametrize("memory_limit", [1, 2000, 10_000_000])
def test_the_memory_limit_does_not_change_the_gradient(memory_limit):
    found = drive(learner_of("indrnn", memory_limit=memory_limit), reduction="sum")
    assert largest_error(found, by_hand(learner_of("indrnn"))) < 1e-12


@kernels
def test_the_mean_divides_by_the_number_of_steps(kernels):
    summed, mean = (drive(learner_of(kernels=kernels), reduction=r) for r in ("sum", "mean"))
    assert largest_error(jax.tree.map(lambda g: 6 * g, mean), summed) < 1e-14


def test_the_mean_is_the_default():
    assert largest_error(drive(learner_of()), drive(learner_of(), reduction="mean")) == 0.0


@kernels
@pytest.mark.parametrize("chunk_size", [2, 3, 6])
def test_chunks_are_windows_and_an_exact_model_does_not_mind(chunk_size, kernels):
    found = drive(learner_of("indrnn", kernels=kernels), chunk_size=chunk_size)
    assert largest_error(found, drive(learner_of("indrnn"))) < 1e-12


@kernels
@pytest.mark.parametrize("chunk_size", [2, 4])
@pytest.mark.parametrize("name", ["dense_tanh", "indrnn", "gru"])
def test_a_window_is_what_one_call_by_hand_is(name, chunk_size, kernels):
    def run(learner, x):
        return jnp.sum(learner(MultiStepData(x)) ** 2, axis=(1, 2))

    driven, hand = learner_of(name, kernels=kernels), learner_of(name)
    found = driven.etrace_grad(XS, step_fn=lambda x: run(driven, x), chunk_size=chunk_size, reduction="sum")
    gradient = brainstate.transform.grad(lambda x: jnp.sum(run(hand, x)), hand.param_states)
    expected = tree_sum([gradient(XS[t : t + chunk_size]) for t in range(0, 6, chunk_size)])
    assert largest_error(found, expected) < 1e-12
    assert largest_error(driven.traces.value, hand.traces.value) < 1e-12


def test_chunks_change_the_gradient_of_an_approximated_model():
    ea.oracle.assert_gradients_differ(drive(learner_of("dense_tanh"), chunk_size=3), drive(learner_of("dense_tanh")))


def test_a_chunk_of_one_is_step_by_step():
    assert largest_error(drive(learner_of(), chunk_size=1), drive(learner_of())) == 0.0


@kernels
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_mask_gates_losses(chunk_size, kernels):
    mask = jnp.array([0.0, 1.0, 0.0, 0.5, 0.0, 2.0])
    found = drive(learner_of("indrnn", kernels=kernels), chunk_size=chunk_size, mask=mask, reduction="sum")
    assert largest_error(found, by_hand(learner_of("indrnn"), mask)) < 1e-12


@kernels
def test_a_mask_never_touches_the_traces(kernels):
    a, b = learner_of(kernels=kernels), learner_of(kernels=kernels)
    drive(a, mask=jnp.array([1, 0, 0, 0, 0, 0]))
    drive(b)
    assert largest_error(a.traces.value, b.traces.value) == 0.0


@pytest.mark.parametrize("mask", [[True, False, True, False, False, False], [1, 0, 1, 0, 0, 0]])
def test_a_mask_may_be_boolean_or_integer(mask):
    found = drive(learner_of(), mask=jnp.asarray(mask))
    expected = drive(learner_of(), mask=jnp.array([1.0, 0, 1, 0, 0, 0]))
    assert largest_error(found, expected) == 0.0


def test_the_mean_of_a_masked_sequence_divides_by_the_sum_of_the_mask():
    mask = jnp.array([0.0, 1, 0, 1, 0, 1])
    summed, mean = (drive(learner_of(), mask=mask, reduction=r) for r in ("sum", "mean"))
    assert largest_error(jax.tree.map(lambda g: 3 * g, mean), summed) < 1e-14


def test_the_mean_never_divides_by_less_than_one_step():
    summed, mean = (drive(learner_of(), mask=jnp.full(6, 0.1), reduction=r) for r in ("sum", "mean"))
    assert largest_error(mean, summed) < 1e-14


def test_an_empty_mask_gives_zero():
    found = drive(learner_of(), mask=jnp.zeros(6))
    assert all(float(jnp.abs(g).max()) == 0 for g in found.values())


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_losses_are_returned_one_per_step(chunk_size):
    model = EXACT["leaky"]
    _, losses = drive(compiled(model, XS[0], 2), chunk_size=chunk_size, return_value=True)
    plain = compiled(model, XS[0], 2)
    np.testing.assert_allclose(losses, [float(loss(plain)(x, y)) for x, y in zip(XS, YS, strict=True)], rtol=1e-13)


def test_masked_losses_are_the_losses_times_the_mask():
    mask = jnp.array([0.0, 1, 0, 0.5, 0, 1])
    _, losses = drive(learner_of(), return_value=True)
    _, masked = drive(learner_of(), return_value=True, mask=mask, loss_output="masked")
    np.testing.assert_allclose(masked, losses * mask, rtol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_scalar_loss_is_reduced_like_the_gradient(reduction):
    mask = jnp.array([0.0, 1, 0, 0.5, 0, 1])
    _, losses = drive(learner_of(), return_value=True, mask=mask, loss_output="masked")
    _, scalar = drive(learner_of(), return_value=True, mask=mask, loss_output="scalar", reduction=reduction)
    np.testing.assert_allclose(scalar, losses.sum() / (2.5 if reduction == "mean" else 1.0), rtol=1e-14)


@kernels
@pytest.mark.parametrize("return_value", [False, True])
def test_aux_is_stacked_and_comes_last(return_value, kernels):
    learner = learner_of(kernels=kernels)

    def step(x, y):
        out = learner(x)
        return jnp.sum((out - y) ** 2), {"out": out}

    result = learner.etrace_grad(XS, YS, step_fn=step, has_aux=True, return_value=return_value)
    assert len(result) == 2 + return_value
    assert result[-1]["out"].shape == (6, 2, 4)


def test_weights_choose_what_is_differentiated():
    learner = learner_of()
    found = drive(learner, weights={("b",): learner.model.b})
    assert list(found) == [("b",)]
    assert largest_error(found["b",], drive(learner_of())["b",]) < 1e-13


def test_sequences_may_be_trees():
    learner = learner_of()
    found = learner.etrace_grad({"x": XS, "y": [YS]}, step_fn=lambda s: jnp.sum((learner(s["x"]) - s["y"][0]) ** 2))
    assert largest_error(found, drive(learner_of())) < 1e-14


@kernels
def test_a_second_call_continues_the_sequence(kernels):
    whole, halves = learner_of("indrnn", kernels=kernels), learner_of("indrnn", kernels=kernels)
    expected = drive(whole, reduction="sum")
    parts = [
        halves.etrace_grad(XS[a:b], YS[a:b], step_fn=loss(halves), reduction="sum") for a, b in ((0, 2), (2, 3), (3, 6))
    ]
    assert largest_error(tree_sum(parts), expected) < 1e-12


@kernels
def test_the_driver_runs_inside_jit(kernels):
    learner = learner_of(kernels=kernels)
    assert largest_error(brainstate.transform.jit(lambda: drive(learner))(), drive(learner_of())) < 1e-12


@pytest.mark.parametrize("algorithm", [ea.D_RTRL, lambda m, **o: ea.pp_prop(m, 0.9, **o)], ids=["d_rtrl", "pp_prop"])
@pytest.mark.parametrize("name", ["leaky", "width_one_gate", "stacked_states", "gru"])
def test_folding_a_sequence_gives_what_the_rules_give_step_by_step(name, algorithm):
    folded, stepped = (learner_of(name, algorithm=algorithm, kernels=k) for k in ("auto", "reference"))
    assert largest_error(drive(folded), drive(stepped)) < 1e-12
    assert largest_error(folded.traces.value, stepped.traces.value) < 1e-12


def call(**options):
    learner = learner_of()
    options.setdefault("step_fn", loss(learner))
    return learner.etrace_grad(*options.pop("sequences", (XS, YS)), **options)


REFUSED = {
    "chunk below one": ({"chunk_size": 0}, ValueError, "at least 1"),
    "boolean chunk": ({"chunk_size": True}, TypeError, "chunk_size must be an int or None, got bool"),
    "mask of another length": ({"mask": jnp.ones(5)}, ValueError, r"step and lane, \(6, B\); got \(5,\)"),
    "no sequence": ({"sequences": ()}, ValueError, "at least one sequence"),
    "scalar sequence": ({"sequences": (jnp.ones(()), YS)}, ValueError, "leading axis is time"),
    "empty sequence": ({"sequences": (XS[:0], YS[:0])}, ValueError, "hold no step"),
    "ragged sequences": ({"sequences": (XS, YS[:5])}, ValueError, r"same number of steps; got \[5, 6\]"),
    "loss of another shape": ({"step_fn": lambda x, y: x}, ValueError, r"a loss of shape \(\).*got \(2, 3\)"),
    "chunked loss that is scalar": (
        {"step_fn": lambda x, y: x.sum(), "chunk_size": 2},
        ValueError,
        r"shape \(2,\) \(one per step of the chunk\), got \(\)",
    ),
    "step without the learner": ({"step_fn": lambda x, y: x.sum()}, ValueError, "exactly once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_driver_refuses(name):
    options, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(**options)


def test_a_step_that_runs_the_learner_twice_is_refused():
    learner = learner_of()
    with pytest.raises(ValueError, match="exactly once per step; it ran 2 times"):
        learner.etrace_grad(XS, step_fn=lambda x: jnp.sum(learner(x) + learner(x)))


def test_after_a_refused_step_the_learner_still_works():
    learner = learner_of()
    with pytest.raises(ValueError, match="loss of shape"):
        learner.etrace_grad(XS, step_fn=lambda x: learner(x))
    np.testing.assert_allclose(learner(XS[0]), learner_of()(XS[0]), rtol=1e-14)


# --- etrace_evolve ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 6])
def test_evolving_leaves_states_and_traces_as_single_calls_do(chunk_size):
    a, b = learner_of("indrnn"), learner_of("indrnn")
    a.etrace_evolve(XS, chunk_size=chunk_size)
    for x in XS:
        b(x)
    assert largest_error((a.model.h.value, a.traces.value), (b.model.h.value, b.traces.value)) < 1e-13


def test_evolving_returns_nothing_unless_asked():
    assert learner_of().etrace_evolve(XS) is None


@pytest.mark.parametrize(("chunk_size", "shape"), [(None, (6, 2, 4)), (3, (2, 3, 2, 4))])
def test_outputs_are_stacked_over_calls(chunk_size, shape):
    assert learner_of().etrace_evolve(XS, chunk_size=chunk_size, return_outputs=True).shape == shape


def test_evolving_calls_the_step_function_it_is_given():
    learner = learner_of()
    out = learner.etrace_evolve(XS, YS, step_fn=lambda x, y: learner(x).sum() + y, return_outputs=True)
    expected = learner_of()
    np.testing.assert_allclose(out, [expected(x).sum() + y for x, y in zip(XS, YS, strict=True)], rtol=1e-13)


def test_a_gradient_continues_after_a_warm_up():
    warm, whole = learner_of("indrnn"), learner_of("indrnn")
    warm.etrace_evolve(XS[:3])
    found = warm.etrace_grad(XS[3:], YS[3:], step_fn=loss(warm), reduction="sum")
    expected = drive(whole, mask=jnp.array([0, 0, 0, 1, 1, 1]), reduction="sum")
    assert largest_error(found, expected) < 1e-12


@pytest.mark.parametrize(
    ("sequences", "options", "error"),
    [((), {}, ValueError), ((XS, YS[:5]), {}, ValueError), ((XS,), {"resets": jnp.ones(5, bool)}, ValueError)],
)
def test_evolving_refuses_what_the_gradient_refuses(sequences, options, error):
    with pytest.raises(error, match=r"sequence|steps|resets"):
        learner_of().etrace_evolve(*sequences, **options)


@pytest.mark.parametrize("method", ["etrace_grad", "etrace_evolve"])
def test_the_drivers_of_a_learner_that_is_not_compiled_say_so(method):
    learner = ea.D_RTRL(EXACT["leaky"]())
    options = {"step_fn": lambda x: learner(x).sum()} if method == "etrace_grad" else {}
    with pytest.raises(RuntimeError, match="not compiled"):
        getattr(learner, method)(XS, **options)


# --- ragged windows, warm-up, several losses, lanes ------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [4, 5, 8])
def test_the_last_window_may_be_shorter(chunk_size):
    learner, calls = learner_of("dense_tanh"), learner_of("dense_tanh")
    found, losses = drive(learner, chunk_size=chunk_size, reduction="sum", return_value=True)
    step = loss(calls, chunked=True)
    parts = [gradient_of(calls, lambda t=t: step(XS[t : t + chunk_size], YS[t : t + chunk_size]).sum())
             for t in range(0, 6, chunk_size)]  # fmt: skip
    expected = tree_sum([gradient for gradient, _ in parts])
    assert largest_error(found, {(key,): value for key, value in expected.items()}) < 1e-12
    assert losses.shape == (6,)
    assert largest_error(learner.traces.value, calls.traces.value) < 1e-12


def test_a_shorter_last_window_evolves_too():
    a, b = learner_of(), learner_of()
    a.etrace_evolve(XS, chunk_size=4)
    b.etrace_evolve(XS)
    assert largest_error((a.model.h.value, a.traces.value), (b.model.h.value, b.traces.value)) < 1e-13


def test_outputs_of_a_shorter_last_window_are_not_stacked():
    with pytest.raises(ValueError, match="windows of different lengths cannot be stacked"):
        learner_of().etrace_evolve(XS, chunk_size=4, return_outputs=True)


@kernels
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_steps_of_a_warm_up_move_the_traces_and_count_for_nothing(chunk_size, kernels):
    mask = (jnp.arange(6) >= 3).astype(float)
    a, b = learner_of("indrnn", kernels=kernels), learner_of("indrnn", kernels=kernels)
    found, losses = drive(a, warm_up=3, chunk_size=chunk_size, return_value=True)
    wanted, expected = drive(b, mask=mask, return_value=True)
    assert largest_error(found, wanted) < 1e-12
    np.testing.assert_allclose(losses, expected, rtol=1e-13)
    assert largest_error(a.traces.value, b.traces.value) < 1e-12


@pytest.mark.parametrize(("warm_up", "error"), [(6, ValueError), (-1, ValueError), (True, TypeError)])
def test_a_warm_up_that_leaves_no_step_is_refused(warm_up, error):
    with pytest.raises(error, match="warm_up must"):
        drive(learner_of(), warm_up=warm_up)


@kernels
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_mask_may_weigh_lanes(chunk_size, kernels):
    mask = jnp.asarray(np.random.default_rng(0).random((6, 2)))
    axis = -1
    learner, expected = learner_of("indrnn", kernels=kernels), learner_of("indrnn")

    def by_lane(x):
        out = learner(x if chunk_size is None else MultiStepData(x))
        return jnp.sum(out**2, axis=axis)

    found, masked = learner.etrace_grad(
        XS, step_fn=by_lane, mask=mask, chunk_size=chunk_size, return_value=True, loss_output="masked"
    )
    weighted = lambda x, w: jnp.sum(w[:, None] * expected(x) ** 2)  # noqa: E731
    wanted = expected.etrace_grad(XS, mask, step_fn=weighted, reduction="sum")
    assert largest_error(jax.tree.map(lambda g: g * mask.sum(), found), wanted) < 1e-12
    assert masked.shape == (6, 2)


@kernels
def test_several_losses_add_up_each_with_its_mask(kernels):
    mask = {"task": jnp.array([0.0, 1, 0, 1, 0, 1]), "rate": jnp.ones(6)}
    learner, one, other = (learner_of("indrnn", kernels=kernels) for _ in range(3))

    def both(x, y):
        out = learner(x)
        return {"task": jnp.sum((out - y) ** 2), "rate": jnp.sum(out**2)}

    found, losses = learner.etrace_grad(XS, YS, step_fn=both, mask=mask, return_value=True, loss_output="scalar")
    task = one.etrace_grad(XS, YS, step_fn=loss(one), mask=mask["task"])
    rate = other.etrace_grad(XS, step_fn=lambda x: jnp.sum(other(x) ** 2))
    assert largest_error(found, jax.tree.map(jnp.add, task, rate)) < 1e-12
    assert losses.keys() == mask.keys()


def test_one_mask_serves_several_losses():
    learner, expected = learner_of(), learner_of()
    mask = jnp.array([0.0, 1, 0, 1, 0, 1])
    both = lambda x: (jnp.sum(learner(x)), jnp.sum(x))  # noqa: E731
    found = learner.etrace_grad(XS, step_fn=both, mask=mask)
    assert largest_error(found, expected.etrace_grad(XS, step_fn=lambda x: jnp.sum(expected(x)), mask=mask)) < 1e-13


def test_a_mask_of_another_structure_than_the_losses_is_refused():
    with pytest.raises(ValueError, match="a pytree of arrays like the losses"):
        drive(learner_of(), mask={"task": jnp.ones(6)})


# --- progress, evaluation, failures ----------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_progress_is_reported_up_to_the_last_step(chunk_size, kernels):
    seen = []
    drive(learner_of(kernels=kernels), chunk_size=chunk_size, progress=lambda done, total: seen.append((done, total)))
    jax.effects_barrier()
    assert sorted(seen) == [(n, 6) for n in ((4, 6) if chunk_size else range(1, 7))]


def test_progress_is_reported_about_a_hundred_times():
    seen, learner = [], learner_of()
    learner.etrace_evolve(jnp.zeros((1000, 2, IN)), progress=lambda done, total: seen.append(done))
    jax.effects_barrier()
    assert len(seen) == 100
    assert max(seen) == 1000


def test_a_bar_is_one_argument(capsys):
    pytest.importorskip("tqdm")
    learner = learner_of()
    for _ in range(2):
        learner.etrace_evolve(XS, progress="training")
    jax.effects_barrier()
    shown = capsys.readouterr().err
    assert "training" in shown
    assert "6/6" in shown


def test_a_bar_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"etp-algorithms\[progress\]"):
        learner_of().etrace_evolve(XS, progress=True)


def values(learner):
    return {path: state.value for path, state in learner.states().items()}


def test_an_evaluation_leaves_everything_as_it_was():
    learner, expected = learner_of("indrnn"), learner_of("indrnn")
    for one in (learner, expected):
        one(XS[0])
    before = values(learner)
    out = learner.evaluate(XS[1:])
    np.testing.assert_allclose(out, expected.etrace_evolve(XS[1:], return_outputs=True), rtol=1e-13)
    assert largest_error(values(learner), before) == 0.0


def test_an_evaluation_may_start_where_the_model_was_compiled():
    learner, fresh = learner_of("indrnn"), learner_of("indrnn")
    learner(XS[0])
    out = learner.evaluate(XS, resets=jnp.arange(6) == 0)
    np.testing.assert_allclose(out, fresh.etrace_evolve(XS, return_outputs=True), rtol=1e-13)


def test_an_evaluation_inside_jit_rolls_no_trace():
    learner = learner_of("indrnn")
    jaxpr = str(brainstate.transform.make_jaxpr(learner.evaluate)(XS)[0])
    traced = str(brainstate.transform.make_jaxpr(lambda xs: learner.etrace_evolve(xs, return_outputs=True))(XS)[0])
    assert jaxpr.count("2,3,4]") < traced.count("2,3,4]")


@kernels
@pytest.mark.parametrize("options", [{}, {"complete_sequence": True}, {"warm_up": 2}, {"chunk_size": 4}])
def test_a_driver_that_fails_leaves_the_learner_as_it_was(options, kernels):
    learner = learner_of(kernels=kernels)
    learner(XS[0])
    before, calls = values(learner), []

    def failing(x):
        calls.append(learner(x if "chunk_size" not in options else MultiStepData(x)))
        raise RuntimeError("in the step")

    with pytest.raises(RuntimeError, match="in the step"):
        learner.etrace_grad(XS, step_fn=failing, **options)
    assert largest_error(values(learner), before) == 0.0
    assert all(not isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values(learner)))


# --- recipes ---------------------------------------------------------------------------------------------

TARGETS = jnp.tanh(jnp.cumsum(XS.sum(-1, keepdims=True), 0))


def every_step(learner, optimizer):
    def one(x, y):
        fn = brainstate.transform.grad(lambda: jnp.mean((learner(x) - y) ** 2), learner.param_states)
        optimizer(fn())

    brainstate.transform.for_loop(one, XS, TARGETS)


def every_window(learner, optimizer):
    step = lambda x, y: jnp.mean((learner(MultiStepData(x)) - y) ** 2, axis=(1, 2))  # noqa: E731
    window = lambda x, y: optimizer(learner.etrace_grad(x, y, step_fn=step, chunk_size=3))  # noqa: E731
    brainstate.transform.for_loop(window, XS.reshape(2, 3, 2, IN), TARGETS.reshape(2, 3, 2, 1))


def every_sequence(learner, optimizer):
    optimizer(learner.etrace_grad(XS, TARGETS, step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2)))


def with_optax(learner):
    optax = pytest.importorskip("optax")
    rule = optax.adam(0.05)
    weights = learner.param_states
    state = brainstate.ShortTermState(rule.init({path: s.value for path, s in weights.items()}))

    def update(gradients):
        steps, state.value = rule.update(gradients, state.value)
        for path, step in steps.items():
            weights[path].value += step

    return update


def with_braintools(learner):
    braintools = pytest.importorskip("braintools")
    optimizer = braintools.optim.Adam(lr=0.05)
    optimizer.register_trainable_weights(learner.param_states)
    return optimizer.update


@pytest.mark.parametrize("optimizer", [with_optax, with_braintools])
@pytest.mark.parametrize("recipe", [every_step, every_window, every_sequence])
def test_a_recipe_learns_and_moves_every_weight(recipe, optimizer):
    learner = learner_of("indrnn")
    update, before = optimizer(learner), {path: s.value for path, s in learner.param_states.items()}
    deviation = lambda: float(jnp.mean((learner.evaluate(XS, resets=jnp.arange(6) == 0) - TARGETS) ** 2))  # noqa: E731
    start = deviation()

    @brainstate.transform.jit
    def one_pass():
        learner.model.h.value = jnp.zeros((2, 4))
        learner.reset_state()
        recipe(learner, update)

    for _ in range(30):
        one_pass()
    assert deviation() < 0.7 * start
    for path, state in learner.param_states.items():
        assert float(jnp.abs(state.value - before[path]).min()) > 0
