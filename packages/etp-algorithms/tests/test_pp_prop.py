"""Factorised traces against the recurrence of the paper, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData, oracle
from etp_algorithms._algorithms._pp_prop import decays_of

from .helpers import compiled, gradient_of, largest_error, online, reference, tree_sum, trusts
from .models import DIAGONAL, EXACT, inputs

pytestmark = pytest.mark.thorough

XS = inputs(batch=2)
WINDOWS = [1, 2, 3, 6]
DECAYS = (0.6, 0.8)
SOME = ["leaky", "adaptive_spiking", "stacked_states", "width_one_gate", "tied_weight", "one_drive_two_groups"]


def learner_of(name="leaky", x=None, decay=DECAYS, **options):
    factory = EXACT[name] if name in EXACT else DIAGONAL[name][0]
    return compiled(
        factory, XS[0] if x is None else x, 2, algorithm=lambda m, **o: ea.pp_prop(m, decay, **o), **options
    )


def run(learner, xs, window):
    windows = [MultiStepData(xs[t : t + window]) for t in range(0, len(xs), window)]
    return tree_sum([gradient_of(learner, lambda w=w: jnp.sum(learner(w) ** 2))[0] for w in windows])


def by_hand(xs, decay_x, decay_f):
    """LEAK with decay 0.7 and gradient 2h per step: filters, mass and the sum of single-step gradients."""
    learner = learner_of()
    w, b = (np.asarray(getattr(learner.model, k).value) for k in "Wb")
    h, mass = np.zeros((2, 4)), 0.0
    ex, ef, dw, db = np.zeros((2, 3)), np.zeros((2, 4)), np.zeros_like(w), np.zeros_like(b)
    for x in np.asarray(xs):
        new = 0.7 * h + x @ w + b
        entry = 0.7 * 2 * new  # ∂L/∂h₀
        g = entry * ef / (mass or 1.0)
        dw += ex.T @ g + x.T @ (2 * new)
        db += g.sum(0) + (2 * new).sum(0)
        ex, ef, mass = decay_x * ex + x, decay_f * 0.7 * ef + (1 - decay_f), decay_f * mass + (1 - decay_f)
        h = new
    return {"W": dw, "b": db}, ex, ef, mass


def filters(learner):
    traces = learner.traces.value
    (ex,), ((ef,),) = traces["input"].values(), traces["output"].values()
    return ex, ef, next(iter(traces["mass"].values()))[0, 0]


@pytest.mark.parametrize("decays", [(0.6, 0.8), (0.0, 0.0), (0.9, 0.9), (0.99, 0.5)])
def test_single_steps_follow_the_recurrence_written_out_by_hand(decays):
    learner = learner_of(decay=decays)
    found = run(learner, XS, 1)
    expected, *state = by_hand(XS, *decays)
    assert largest_error(found, expected) < 1e-13
    assert largest_error(filters(learner), state) < 1e-13


@pytest.mark.parametrize("window", WINDOWS[1:])
@pytest.mark.parametrize("name", ["leaky", "width_one_gate", "stacked_states"])
def test_filters_and_their_correction_count_steps_not_windows(name, window):
    windowed, stepped = learner_of(name), learner_of(name)
    run(windowed, XS, window)
    run(stepped, XS, 1)
    assert largest_error(windowed.traces.value, stepped.traces.value) < 1e-13


def test_the_correction_is_one_minus_the_decay_to_the_number_of_steps():
    learner = learner_of()
    run(learner, XS, 3)
    for mass in learner.traces.value["mass"].values():
        np.testing.assert_allclose(mass, 1 - 0.8**6, rtol=1e-14)


def test_a_window_of_two_steps_differs_from_two_windows_of_one():
    ea.oracle.assert_gradients_differ(run(learner_of(), XS, 2), run(learner_of(), XS, 1))


@pytest.mark.parametrize("name", SOME)
def test_one_window_over_the_whole_sequence_is_backpropagation(name):
    found = online(EXACT[name], 2, 6, algorithm=pp_prop_at_09)
    assert oracle.relative_deviation(found, reference(EXACT[name], 2)) < 1e-13


@pytest.mark.parametrize("name", SOME)
def test_step_by_step_it_points_the_way_of_backpropagation(name):
    found = online(EXACT[name], 2, 1, algorithm=pp_prop_at_09)
    assert oracle.cosine_similarity(found, reference(EXACT[name], 2)) > 0.5


def pp_prop_at_09(model):
    return ea.pp_prop(model, 0.9)


def test_a_traced_parameter_is_reported_factorised():
    assert trusts(learner_of("plain_readout")) == {"W": "factorised", "R": "exact", "P": "exact"}


def test_what_has_no_trace_is_exact_within_the_window():
    found = run(learner_of("plain_readout"), XS, 1)
    expected = {".".join(p): g for p, g in reference(EXACT["plain_readout"], 2).items()}
    assert largest_error({k: found[k] for k in "RP"}, {k: expected[k] for k in "RP"}) < 1e-13


def test_the_decay_has_an_effect():
    ea.oracle.assert_gradients_differ(run(learner_of(decay=0.5), XS, 1), run(learner_of(decay=0.9), XS, 1))


@pytest.mark.parametrize("dtype", [bool, jnp.uint8, jnp.int32])
def test_spikes_of_any_integer_type_are_filtered_like_floats(dtype):
    spikes = (XS > 0).astype(dtype)
    found = run(learner_of(x=spikes[0]), spikes, 1)
    expected = run(learner_of(), spikes.astype(float), 1)
    assert largest_error(found, expected) < 1e-14


def test_relations_that_read_one_value_share_its_filter():
    assert len(learner_of("width_one_gate").traces.value["input"]) == 1


def test_an_operator_without_data_has_no_input_filter():
    assert len(learner_of("indrnn").traces.value["input"]) == 1


@pytest.mark.parametrize("decay", [0.0, 0.999])
def test_long_runs_stay_finite(decay):
    learner = learner_of("adaptive_spiking", decay=decay)
    learner.etrace_evolve(jnp.tile(XS, (100, 1, 1)))
    found, _ = gradient_of(learner, lambda: jnp.sum(learner(XS[0]) ** 2))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((found, learner.traces.value)))


def test_reset_state_zeroes_filters_and_correction():
    learner = learner_of()
    run(learner, XS, 1)
    learner.reset_state()
    assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(learner.traces.value))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_filters_keep_the_dtype_they_are_given(dtype):
    learner = learner_of(trace_dtype=dtype)
    run(learner, XS, 1)
    ex, ef, _ = filters(learner)
    assert {ex.dtype, ef.dtype} == {jnp.dtype(dtype)}


def test_a_decay_that_rounds_to_one_is_refused():
    with pytest.raises(ValueError, match=r"input decay 0\.999 cannot be held in bfloat16, where it rounds to 1"):
        learner_of(decay=0.999, trace_dtype=jnp.bfloat16)


@pytest.mark.parametrize(
    ("given", "decays"),
    [(0.9, (0.9, 0.9)), (1, (0.0, 0.0)), (19, (0.9, 0.9)), ((0.5, 3), (0.5, 0.5)), ([1, 0.2], (0.0, 0.2))],
)  # fmt: skip
def test_a_decay_is_a_number_or_the_rank_of_one_or_a_pair(given, decays):
    assert decays_of(given) == pytest.approx(decays)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (1.0, ValueError, r"must lie in \[0, 1\), got 1.0"),
        (-0.1, ValueError, r"must lie in \[0, 1\)"),
        (float("nan"), ValueError, r"must lie in \[0, 1\)"),
        (0, ValueError, "rank must be at least 1, got 0"),
        (True, TypeError, "got True"),
        ((0.5,), ValueError, "pair"),
        ((0.5, 0.5, 0.5), ValueError, "got 3 values"),
        ((0.5, 1.5), ValueError, "got 1.5"),
    ],
)
def test_a_decay_out_of_range_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        decays_of(given)


def test_a_decay_must_be_given():
    with pytest.raises(TypeError, match="decay_or_rank"):
        ea.pp_prop(EXACT["leaky"]())


def test_the_names_of_the_rule_are_one():
    assert ea.ES_D_RTRL is ea.pp_prop is ea.IODimVjpAlgorithm
    assert ea.ParamDimVjpAlgorithm is ea.D_RTRL
