"""Constructors and compile say what a call lacks, and what braintrace's options are here."""

import brainstate
import jax.numpy as jnp
import pytest

import etp_algorithms as algorithms
from etp_algorithms._advice import LEARNERS
from etp_core.arguments import advice_of, taken_by
from etp_ops import matmul

MODEL = brainstate.nn.Module()
LEARNER_CLASSES = {claim.learner for claim in algorithms.ALGORITHMS.values()} | {algorithms.Learner}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: algorithms.pp_prop(MODEL), ["pp_prop needs decay_or_rank", "[0, 1)", "exp(-dt / tau)", "0.99"]),
        (lambda: algorithms.OTTT(MODEL), ["OTTT needs leak", "[0, 1)", "exp(-dt / tau)", "0.9"]),
        (lambda: algorithms.compile(MODEL, "pp_prop", jnp.ones(3)), ["pp_prop needs decay_or_rank", "0.99"]),
        (lambda: algorithms.compile(MODEL, "ottt", jnp.ones(3)), ["OTTT needs leak"]),
        (lambda: algorithms.compile(MODEL), ["compile needs algorithm", "D_RTRL"]),
        (lambda: algorithms.D_RTRL(), ["D_RTRL needs model", "update()"]),
        (lambda: algorithms.D_RTRL(MODEL, fast_solve=False), ["D_RTRL takes no fast_solve", "kernels='reference'"]),
        (lambda: algorithms.EProp(MODEL, chunked_trace=True), ["EProp takes no chunked_trace", "MultiStepData"]),
        (
            lambda: algorithms.EProp(MODEL, kapa=0.9),
            ["EProp takes no 'kapa'", "It takes model, feedback, kappa_filter"],
        ),
        (lambda: algorithms.SnAp(MODEL, trace_dtyp=None), ["SnAp takes no 'trace_dtyp'", "did you mean trace_dtype?"]),
        (
            lambda: algorithms.OSTLFeedforward(MODEL, 0.9),
            ["takes 1 by position (model), got 2", "pp_prop(model, decay"],
        ),
        (lambda: algorithms.UORO(MODEL, projection_eps=1e-7), ["UORO takes no projection_eps", "not needed"]),
        (
            lambda: algorithms.ThreeFactor(MODEL, modulator=1.0),
            ["ThreeFactor takes no modulator", "learner(x, modulator"],
        ),
        (lambda: algorithms.DNI(MODEL, synthesizer=None), ["DNI takes no synthesizer", "train_synthetic_gradient"]),
        (lambda: algorithms.ControlFlowPolicy(cond="opaque"), ["ControlFlowPolicy takes no cond", "strict=True"]),
        (lambda: algorithms.ETraceConfig(window_size=4), ["ETraceConfig takes no window_size", "MultiStepData"]),
    ],
)
def test_a_call_that_does_not_fit_says_what_to_write(call, words):
    with pytest.raises(TypeError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


class Leaky(brainstate.nn.Module):
    def __init__(self, made=None):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((3, 4))) if made is None else made

    def init_state(self, batch_size=1):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, 4)))

    def update(self, x):
        w = self.w.value if isinstance(self.w, brainstate.State) else self.w
        self.h.value = 0.9 * self.h.value + matmul(x, w)
        return self.h.value


class WithoutBatch(Leaky):
    def init_state(self):
        super().init_state(8)


X = jnp.ones((8, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: algorithms.compile(Leaky(), "d_rtrl", X), ["state h from", "[1, 4]", "[8, 4]", "batch_size=B"]),
        (
            lambda: algorithms.compile(Leaky(), "d_rtrl", X, batchsize=8),
            ["compile takes no 'batchsize'; did you mean batch"],
        ),
        (
            lambda: algorithms.compile(Leaky(), "pp_prop", X, decay=0.9),
            ["pp_prop takes no 'decay'; did you mean decay_or"],
        ),
        (lambda: algorithms.compile(Leaky(), "d_rtrl", batch_size=8), ["compile needs example inputs of one step"]),
        (
            lambda: algorithms.compile(WithoutBatch(), "d_rtrl", X, batch_size=8),
            ["init_state(self, batch_size=None, **kw"],
        ),
        (
            lambda: algorithms.compile(Leaky(jnp.ones((3, 4))), "d_rtrl", X, batch_size=8),
            ["brainstate.ParamState and mark"],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::etp_algorithms.CompilationWarning")
def test_a_first_mistake_in_compile_gets_the_remedy(call, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.fixture(scope="module")
def learner():
    return algorithms.compile(Leaky(), "d_rtrl", X, batch_size=8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda learner: learner(X.astype(int)), ["dtype int", "Convert it", "compile_graph"]),
        (lambda learner: learner(X[:, :2]), ["shape (8, 2)", "(8, 3)", "MultiStepData", "compile_graph"]),
        (lambda learner: learner(X, X), ["takes 1 inputs, as it was compiled for, got 2", "compile_graph"]),
        (lambda learner: learner.etrace_grad(X[None]), ["etrace_grad needs step_fn: a function that", "lambda x, y:"]),
        (
            lambda learner: learner.etrace_grad(X[None], step_fun=1),
            ["no 'step_fun'; did you mean step_fn? It takes step_fn, m"],
        ),
        (lambda learner: learner.executor, ["has no attribute 'executor'; learner.graph, learner.report"]),
        (lambda learner: learner.report.show, ["has no attribute 'show'; print(report)"]),
        (lambda learner: learner.graph.explain, ["has no attribute 'explain'; learner.report['name'].reasons"]),
    ],
)
def test_a_first_mistake_with_a_learner_gets_the_remedy(learner, call, words):
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        call(learner)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("error", [algorithms.CompilationError, algorithms.CompilationWarning])
def test_a_traceback_shows_the_name_to_import(error):
    assert error.__module__ == "etp_algorithms"


@pytest.mark.parametrize("learner", LEARNER_CLASSES, ids=lambda learner: learner.__name__)
def test_a_learner_takes_a_name_and_has_advice_for_everything_else(learner):
    assert "name" in taken_by(learner)
    assert {"fast_solve", "chunked_trace", "snap_max_jacobian_elements"} <= set(advice_of(learner).replaced)


def test_the_name_is_the_modules():
    assert algorithms.EProp(MODEL, name="online").name == "online"
    assert algorithms.pp_prop(MODEL, 0.9, name="online").name == "online"


def test_advice_is_for_learners_that_exist():
    assert set(LEARNERS) <= {learner.__name__ for learner in LEARNER_CLASSES}


def test_a_learner_of_ones_own_gets_the_same_words():
    class Mine(algorithms.D_RTRL):
        def __init__(self, model, speed, **options):
            super().__init__(model, **options)
            self.speed = speed

    assert Mine(MODEL, 2, kernels="reference").speed == 2
    with pytest.raises(TypeError, match=r"Mine needs speed\."):
        Mine(MODEL)
    with pytest.raises(TypeError, match="Mine takes no fast_solve: kernels="):
        Mine(MODEL, 2, fast_solve=True)


@pytest.mark.parametrize(
    ("name", "guess"), [("d_rtlr", "did you mean d_rtrl"), ("PPProp", "did you mean pp_prop?"), ("xyz", "uoro.")]
)
def test_a_misspelt_name_gets_the_nearest_ones_and_the_list(name, guess):
    with pytest.raises(ValueError, match=f"unknown algorithm '{name}'; there are d_rtrl, dni, eprop, .*{guess}"):
        algorithms.compile(MODEL, name, jnp.ones(3))
