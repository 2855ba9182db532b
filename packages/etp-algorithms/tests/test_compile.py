"""From a model to a learner in one call, and what is said when that is impossible."""

import json
import subprocess
import sys
from pathlib import Path

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_ops import matmul

from .helpers import initialised
from .models import DIAGONAL, EXACT, IN, N, array, cell, inputs

XS = inputs(batch=2)


class RandomStart(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, IN, N))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(brainstate.random.normal(size=(batch_size, N)))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
        return self.h.value


@pytest.mark.parametrize(
    "algorithm",
    ["d_rtrl", "D_RTRL", "D-RTRL", pytest.param(ea.D_RTRL, id="class"), pytest.param(lambda m: ea.D_RTRL(m), id="fn")],
)
def test_an_algorithm_is_a_name_in_any_case_a_class_or_a_function(algorithm):
    learner = ea.compile(EXACT["leaky"](), algorithm, XS[0], batch_size=2)
    assert learner.report.algorithm == "D_RTRL"


@pytest.mark.parametrize("algorithm", ["pp_prop", "es_d_rtrl", "PP-Prop", pytest.param(ea.ES_D_RTRL, id="class")])
def test_options_reach_the_learner(algorithm):
    learner = ea.compile(EXACT["leaky"](), algorithm, XS[0], batch_size=2, decay_or_rank=0.9)
    assert learner.report.algorithm == "pp_prop"


def test_states_are_initialised_with_the_batch_size():
    assert ea.compile(EXACT["leaky"](), "d_rtrl", XS[0], batch_size=2)(XS[0]).shape == (2, N)


def test_without_a_batch_size_there_is_no_batch_axis():
    assert ea.compile(EXACT["leaky"](), "d_rtrl", XS[0, 0])(XS[0, 0]).shape == (N,)


def test_a_seed_makes_the_initial_states_repeatable():
    first, second = (ea.compile(RandomStart(), "d_rtrl", XS[0], batch_size=2, seed=3).model.h.value for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_seed_leaves_the_global_stream_alone():
    brainstate.random.seed(1)
    expected = brainstate.random.normal()
    brainstate.random.seed(1)
    ea.compile(RandomStart(), "d_rtrl", XS[0], batch_size=2, seed=3)
    assert brainstate.random.normal() == expected


@pytest.mark.parametrize(("verbose", "printed"), [(0, False), (1, True), (2, True)])
def test_verbose_prints_the_report(verbose, printed, capsys):
    learner = ea.compile(EXACT["leaky"](), "d_rtrl", XS[0], batch_size=2, verbose=verbose)
    assert (str(learner.report) in capsys.readouterr().out) is printed


def test_the_higher_verbosity_also_prints_where_each_operator_stands(capsys):
    ea.compile(EXACT["leaky"](), "d_rtrl", XS[0], batch_size=2, verbose=2)
    *_, head, _, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["operator", "parameters", "into", "place"]
    assert row.split()[:4] == ["etp_mm", "W,", "b", "h"]
    assert "models.py:" in row


def test_the_graph_can_be_had_without_a_learner():
    graph = ea.compile_etrace_graph(initialised(EXACT["lstm_without_recurrence"], 2), XS[0])
    assert [r.primitive.name for r in graph.hidden_param_op_relations] == ["etp_mm"]
    assert list(graph.hidden_param_op_relations[0].trainable_vars) == ["weight", "bias"]
    assert graph.hidden_groups[0].hidden_paths == (("c",), ("h",))


def test_a_warning_reaches_the_caller():
    with pytest.warns(ea.CompilationWarning, match="mixed_transition"):
        ea.compile(DIAGONAL["mean_of_state"][0](), "d_rtrl", XS[0], batch_size=2)


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
def nothing_marked(self, x):
    self.h.value = 0.7 * self.h.value + x @ self.W.value
    return self.h.value


def test_a_model_without_a_marked_weight_is_refused_with_the_remedy():
    with pytest.raises(ea.CompilationError, match=r"(?s)no weight.*W: window.*etp_ops\.matmul\(x, W\)"):
        ea.compile(nothing_marked(), "d_rtrl", XS[0], batch_size=2)


@cell({"h": (N,)}, dict)
def no_parameters(self, x):
    self.h.value = 0.7 * self.h.value + x.sum()
    return self.h.value


def test_a_model_without_parameters_is_refused_with_that_reason():
    with pytest.raises(ea.CompilationError, match="no ParamState at all"):
        ea.compile(no_parameters(), "d_rtrl", XS[0], batch_size=2)


REFUSED = {
    "no inputs": (lambda: ea.compile(EXACT["leaky"](), "d_rtrl"), ValueError, "needs example inputs"),
    "unknown name": (
        lambda: ea.compile(EXACT["leaky"](), "bptt", XS[0]),
        ValueError,
        "unknown algorithm 'bptt'; there",
    ),
    "verbose": (lambda: ea.compile(EXACT["leaky"](), "d_rtrl", XS[0], verbose=3), ValueError, "verbose must be 0, 1"),
    "unknown option": (lambda: ea.compile(EXACT["leaky"](), "d_rtrl", XS[0], decay=1), TypeError, "decay"),
    "no learner": (lambda: ea.compile(EXACT["leaky"](), lambda m: m, XS[0]), TypeError, "must make a Learner"),
    "missing option": (lambda: ea.compile(EXACT["leaky"](), "pp_prop", XS[0]), TypeError, "decay_or_rank"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_compile_refuses(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_an_example_of_another_batch_than_the_states_is_refused():
    with pytest.raises((ea.CompilationError, TypeError, ValueError), match=r"shape|h"):
        ea.compile(EXACT["leaky"](), "d_rtrl", jnp.zeros((3, IN)), batch_size=2)


# What the test run's own type checks would catch first is tried in a process without them.
UNTYPED = """
import json, sys, types
package = types.ModuleType("zoo"); package.__path__ = [sys.argv[1]]; sys.modules["zoo"] = package
import zoo.conftest
import etp_algorithms as ea
from etp_algorithms._algorithms._pp_prop import decays_of
from zoo.models import EXACT, inputs
x, leaky = inputs(batch=2)[0], EXACT["leaky"]
cases = {
    "model": lambda: ea.compile(lambda x: x, "d_rtrl", x),
    "learner": lambda: ea.D_RTRL(lambda x: x).compile_graph(x),
    "algorithm": lambda: ea.compile(leaky(), 3, x),
    "vjp_method": lambda: ea.D_RTRL(leaky(), vjp_method="both"),
    "kernels": lambda: ea.D_RTRL(leaky(), kernels="fast"),
    "decay": lambda: decays_of("0.9"),
    "chunk": lambda: ea.compile(leaky(), "d_rtrl", x, batch_size=2).etrace_evolve(inputs(), chunk_size=2.0),
    "reduction": lambda: ea.D_RTRL(leaky()).etrace_grad(inputs(), step_fn=len, reduction="max"),
    "loss_output": lambda: ea.D_RTRL(leaky()).etrace_grad(inputs(), step_fn=len, loss_output="all"),
}
found = {}
for name, case in cases.items():
    try:
        case()
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""
MESSAGES = {
    "model": ("TypeError", "model must be a brainstate.nn.Module, got function"),
    "learner": ("TypeError", "online learning compiles a brainstate.nn.Module"),
    "algorithm": ("TypeError", "algorithm must be a learner class, the name of one, or an ETraceConfig; got int"),
    "vjp_method": ("ValueError", "vjp_method must be 'single-step', 'multi-step' or None, got 'both'"),
    "kernels": ("ValueError", "kernels must be 'auto' or 'reference', got 'fast'"),
    "decay": ("TypeError", "got '0.9'"),
    "chunk": ("TypeError", "chunk_size must be an int or None, got float"),
    "reduction": ("ValueError", "reduction must be one of 'mean', 'sum'; got 'max'"),
    "loss_output": ("ValueError", "loss_output must be one of 'per_step', 'masked', 'scalar'; got 'all'"),
}


@pytest.fixture(scope="module")
def untyped_errors():
    tests = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", UNTYPED, tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_wrong_type_or_choice_is_named_with_what_is_allowed(name, untyped_errors):
    error, message = MESSAGES[name]
    assert untyped_errors[name][0] == error
    assert message in untyped_errors[name][1]
