"""The axes behind the algorithms: points with a name, points without, and combinations that mean nothing."""

import jax
import pytest

import etp_algorithms as ea
from etp_algorithms import ETraceConfig, oracle

from .helpers import compiled, online, reference, trusts
from .models import DIAGONAL, EXACT, inputs

MODEL = DIAGONAL["dense_tanh"][0]
NAMED = {
    "d_rtrl": (ETraceConfig(), ea.D_RTRL),
    "d_rtrl at the exit": (ETraceConfig(signal="exit"), lambda m: ea.D_RTRL(m, signal="exit")),
    "pp_prop": (
        ETraceConfig(trace_factorization="io_factorized", decay=(0.9, 0.8)),
        lambda m: ea.pp_prop(m, (0.9, 0.8)),
    ),
    "ottt": (
        ETraceConfig(trace_factorization="io_factorized", temporal_recursion="none", decay=0.7, signal="exit"),
        lambda m: ea.OTTT(m, 0.7),
    ),
    "eprop": (
        ETraceConfig(trace_filter="kappa", kappa=0.5),
        lambda m: ea.EProp(m, kappa_filter_decay=0.5),
    ),
    "ostl_recurrent": (ETraceConfig(recurrence_scope="coupled"), ea.OSTLRecurrent),
    "snap": (ETraceConfig(recurrence_scope="sparse_n", sparse_n=2), lambda m: ea.SnAp(m, 2)),
    "rtrl": (ETraceConfig(trace_factorization="full"), ea.RTRL),
    "uoro": (ETraceConfig(trace_factorization="random_projection", key=3), lambda m: ea.UORO(m, projection_key=3)),
}


def by_config(config):
    return lambda model, **options: ea._compile.find_algorithm(config)(model, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMED)
def test_an_algorithm_with_a_name_is_a_point_in_the_space(name):
    config, named = NAMED[name]
    found, expected = (online(MODEL, 2, 1, algorithm=a) for a in (by_config(config), named))
    assert oracle.relative_deviation(found, expected) < 1e-14


def test_compile_takes_a_configuration():
    config = ETraceConfig(temporal_recursion="scalar_leak", decay=0.7)
    learner = ea.compile(EXACT["leaky"](), config, inputs(batch=2)[0], batch_size=2, kernels="reference")
    assert learner.algorithm.name == "ETraceConfig(scalar_leak, 0.7)"
    assert learner.algorithm.use_kernels is False


@pytest.mark.parametrize("kind", ["scalar_leak", "none"])
def test_a_recursion_that_is_not_the_jacobian_is_no_longer_called_exact(kind):
    config = ETraceConfig(temporal_recursion=kind, decay=0.7 if kind == "scalar_leak" else None)
    learner = compiled(EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=by_config(config))
    assert trusts(learner) == {"W": "diagonal", "b": "diagonal"}
    assert any("stands for the Jacobian" in reason for reason in learner.report["W"].reasons)


def test_a_leak_equal_to_the_jacobian_has_its_gradient_and_no_recursion_has_another():
    leak = ETraceConfig(temporal_recursion="scalar_leak", decay=0.7)
    expected = reference(EXACT["leaky"], 2)
    assert oracle.relative_deviation(online(EXACT["leaky"], 2, 1, algorithm=by_config(leak)), expected) < 1e-14
    nothing = ETraceConfig(temporal_recursion="none")
    oracle.assert_gradients_differ(online(EXACT["leaky"], 2, 1, algorithm=by_config(nothing)), expected, min_rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recurrence_scope": "full"}, "does not go with trace_factorization='per_param'"),
        ({"trace_factorization": "full", "recurrence_scope": "diagonal"}, "take the whole Jacobian"),
        ({"trace_factorization": "io_factorized", "recurrence_scope": "coupled", "decay": 0.5}, "'diagonal' only"),
        ({"temporal_recursion": "none", "recurrence_scope": "coupled"}, "would have no effect"),
        ({"trace_factorization": "io_factorized", "temporal_recursion": "scalar_leak", "decay": 0.5}, "both sides"),
        ({"trace_filter": "kappa", "kappa": 0.5, "signal": "entry"}, "use signal='exit'"),
        ({"trace_filter": "kappa", "kappa": 0.5, "trace_factorization": "io_factorized", "decay": 0.5}, "per_param"),
        ({"learning_signal": "modulatory", "signal": "entry"}, "use signal='exit'"),
        ({"learning_signal": "modulatory", "trace_factorization": "full"}, "traces of marked weights"),
        ({"learning_signal": "random_feedback"}, "needs key"),
        ({"learning_signal": "bootstrapped", "recurrence_scope": "coupled"}, "keeps no trace"),
        ({"learning_signal": "bootstrapped", "signal": "exit"}, "takes signal='entry'"),
        ({"temporal_recursion": "scalar_leak"}, r"needs decay"),
        ({"decay": 0.5}, "decay=0.5 has no effect here"),
        ({"kappa": 0.5}, "kappa=0.5 has no effect here"),
        ({"sparse_n": 2}, "sparse_n=2 has no effect here"),
        ({"recurrence_scope": "sparse_n"}, "needs sparse_n"),
        ({"key": 1}, "key has no effect here"),
        ({"feedback_scale": 1.0}, "feedback_scale has no effect"),
        ({"temporal_recursion": "scalar_leak", "decay": 1.0}, r"decay must lie in \[0, 1\)"),
        (
            {"trace_factorization": "io_factorized", "temporal_recursion": "none", "decay": (0.5, 0.5)},
            "no memory on the output side; its decay 0.5 is lost",
        ),
    ],
)
def test_choices_that_mean_nothing_together_are_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        ETraceConfig(**options)


def test_replace_derives_anew_what_was_derived():
    plain = ETraceConfig()
    assert plain.replace(learning_signal="modulatory").signal == "exit"
    assert plain.replace(trace_factorization="full").recurrence_scope == "full"


def test_a_random_key_of_jax_is_as_good_as_its_seed():
    by_seed, by_key = (
        ETraceConfig(learning_signal="random_feedback", key=key).algorithm().signal for key in (3, jax.random.key(3))
    )
    assert by_seed == by_key


SNAP = {"recurrence_scope": "sparse_n", "sparse_n": 2}


def test_a_signal_that_is_not_the_loss_lowers_the_trust_of_neighbour_traces_too():
    x = inputs(batch=2)[0]
    for credit, key, grade in (("random_feedback", 1, "feedback"), ("modulatory", None, "modulated")):
        config = ETraceConfig(learning_signal=credit, key=key, **SNAP)
        learner = compiled(EXACT["marked_readout"], x, 2, algorithm=by_config(config))
        assert grade in trusts(learner).values()


def test_random_feedback_without_a_readout_is_refused_for_neighbour_traces_too():
    config = ETraceConfig(learning_signal="random_feedback", key=1, **SNAP)
    with pytest.raises(ea.CompilationError, match="needs a read-out"):
        compiled(EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=by_config(config))
