"""What the compiler cuts, how it says so, and that it says the same every time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_ops import element_wise, matmul

from .helpers import compiled, initialised, quietly, relation_set, trusts
from .models import DIAGONAL, EXACT, IN, N, array, cell, inputs, simple

XS = inputs(batch=2)


def transition(mixing):
    """A leaky cell whose recurrence passes through ``mixing``."""

    @simple()
    def mixed(self, x):
        self.h.value = jnp.tanh(0.5 * self.h.value + 0.3 * mixing(self.h.value) + matmul(x, self.W.value))
        return self.h.value

    return mixed


def tail(mixing):
    """A leaky cell whose drive passes through ``mixing`` beside its straight way."""

    @simple()
    def mixed(self, x):
        y = matmul(x, self.W.value)
        self.h.value = jnp.tanh(0.5 * self.h.value + y + 0.3 * mixing(y))
        return self.h.value

    return mixed


def only_tail(mixing):
    @simple()
    def mixed(self, x):
        self.h.value = jnp.tanh(0.5 * self.h.value + mixing(matmul(x, self.W.value)))
        return self.h.value

    return mixed


MIXINGS = {
    "mean": lambda v: v.mean(-1, keepdims=True),
    "roll": lambda v: jnp.roll(v, 1, -1),
    "softmax": lambda v: jax.nn.softmax(v, -1),
    "layer norm": lambda v: (v - v.mean(-1, keepdims=True)) / jnp.sqrt(v.var(-1, keepdims=True) + 0.1),
    "cumsum": lambda v: jnp.cumsum(v, -1),
    "sort": lambda v: jnp.sort(v, -1),
    "gather by data": lambda v: jnp.take_along_axis(v, jnp.argsort(v, -1), -1),
    "dot": lambda v: v @ jnp.ones((N, N)),
    "convolution": lambda v: jax.vmap(lambda row: jnp.convolve(row, jnp.ones(3), mode="same"))(v),
    "flip": lambda v: v[..., ::-1],
    "over the batch": lambda v: v - v.mean(0),
}


PARTLY = ["softmax", "layer norm", "over the batch"]
"""Mixings with a position-wise part, which is kept."""


@pytest.mark.parametrize("name", MIXINGS)
def test_a_mixing_recurrence_is_cut_and_lowers_the_trust(name):
    learner = compiled(transition(MIXINGS[name]), XS[0], 2)
    assert trusts(learner) == {"W": "diagonal"}
    assert {d.kind for d in learner.graph.diagnostics} == {ea.DiagnosticKind.MIXED_TRANSITION}


@pytest.mark.parametrize("name", [n for n in MIXINGS if n not in PARTLY])
def test_a_cut_recurrence_is_the_model_with_that_path_held_fixed(name):
    """Never a row or column sum: the trace is that of the step whose mixing takes a detached state."""
    cut = compiled(transition(MIXINGS[name]), XS[0], 2)
    held = compiled(transition(lambda v: MIXINGS[name](jax.lax.stop_gradient(v))), XS[0], 2)
    for x in XS[:4]:
        cut(x), held(x)
    (a,), (b,) = jax.tree.leaves(cut.traces.value), jax.tree.leaves(held.traces.value)
    np.testing.assert_allclose(a, b, atol=1e-14)


@pytest.mark.parametrize("name", MIXINGS)
def test_a_mixing_beside_the_straight_way_of_a_drive_is_cut_and_lowers_the_trust(name):
    learner = compiled(tail(MIXINGS[name]), XS[0], 2)
    assert trusts(learner) == {"W": "diagonal"}
    assert {d.kind for d in learner.graph.diagnostics} == {ea.DiagnosticKind.MIXED_TAIL}


@pytest.mark.parametrize("name", [n for n in MIXINGS if n not in (*PARTLY, "roll", "flip")])
def test_a_drive_that_arrives_only_mixed_has_no_trace_and_says_so(name):
    learner = compiled(only_tail(MIXINGS[name]), XS[0], 2)
    assert trusts(learner) == {"W": "window"}
    assert relation_set(learner) == []


@pytest.mark.parametrize("name", ["mean", "softmax", "sort", "dot"])
@pytest.mark.parametrize("where", [transition, tail, only_tail])
def test_strict_refuses_what_would_be_cut(where, name):
    learner = ea.D_RTRL(initialised(where(MIXINGS[name]), 2), strict=True)
    with pytest.raises(ea.CompilationError, match=r"strict=True.*\n- mixed_"):
        learner.compile_graph(XS[0])


@pytest.mark.parametrize("name", EXACT)
def test_strict_accepts_every_exact_model_without_a_warning(name):
    learner = ea.D_RTRL(initialised(EXACT[name], 2), strict=True)
    learner.compile_graph(XS[0])
    assert [d for d in learner.report.diagnostics if d.level == "warning"] == []


def test_strict_reaches_the_graph_function():
    with pytest.raises(ea.CompilationError, match="strict"):
        ea.compile_etrace_graph(initialised(transition(MIXINGS["mean"]), 2), XS[0], strict=True)


def test_a_cut_names_the_equation_and_the_users_line():
    learner = ea.D_RTRL(initialised(transition(MIXINGS["dot"]), 2))
    with pytest.warns(ea.CompilationWarning, match=r"dot_general carries hidden data to other positions of h"):
        learner.compile_graph(XS[0])
    (found,) = learner.graph.diagnostics
    assert found.place.startswith(__file__)
    line = int(found.place.removeprefix(f"{__file__}:").split()[0])
    assert '"dot": lambda' in Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize("name", ["mean", "sort"])
def test_a_cut_is_reported_once_and_again_at_every_compilation(name):
    model = initialised(transition(MIXINGS[name]), 2)
    first, second = (quietly(ea.compile_etrace_graph, model, XS[0]).diagnostics for _ in range(2))
    assert first == second
    assert len(first) == 1


def test_a_cut_inside_a_library_function_names_the_users_line():
    first = transition(MIXINGS["sort"])
    compiled(first, XS[0], 2)

    @simple()
    def second(self, x):
        self.h.value = 0.5 * self.h.value + jnp.sort(self.h.value, -1) + matmul(x, self.W.value)
        return self.h.value

    (found,) = compiled(second, XS[0], 2).graph.diagnostics
    line = int(found.place.removeprefix(f"{__file__}:").split()[0])
    assert "jnp.sort(self.h.value" in Path(__file__).read_text().splitlines()[line - 1]


def test_two_equal_cuts_in_different_places_are_two_findings():
    @simple()
    def twice(self, x):
        first = self.h.value @ jnp.ones((N, N))
        second = jnp.tanh(self.h.value) @ jnp.ones((N, N))
        self.h.value = 0.5 * self.h.value + 0.1 * first + 0.1 * second + matmul(x, self.W.value)
        return self.h.value

    found = compiled(twice, XS[0], 2).graph.diagnostics
    assert len({d.place for d in found}) == len(found) == 2


def test_a_weight_behind_a_weight_is_information_and_says_where():
    learner = compiled(DIAGONAL["gru"][0], XS[0], 2)
    (found,) = learner.graph.diagnostics
    assert (found.kind, found.level, found.path) == (ea.DiagnosticKind.WEIGHT_BEHIND_WEIGHT, "info", "Wr")


def test_a_recurrence_through_a_marked_operator_is_named_in_the_trust():
    report = compiled(DIAGONAL["dense_tanh"][0], XS[0], 2).report
    assert "recurrence through etp_mm is cut (models.py:" in report["W"].reasons[0]


def test_a_plain_path_is_named_in_the_trust():
    report = compiled(DIAGONAL["plain_recurrence"][0], XS[0], 2).report
    assert "plain operations" in report["R"].reasons[0]


# --- groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("independent_groups", ["h", "k"]),
        ("two_states_same_step", ["i+v"]),
        ("stacked_states", ["s"]),
        ("lstm_without_recurrence", ["c+h"]),
    ],
)
def test_states_that_couple_by_position_are_one_group(name, groups):
    assert [g.name for g in compiled(EXACT[name], XS[0], 2).graph.hidden_groups] == groups


@pytest.mark.parametrize(("name", "count"), [("leaky", 1), ("stacked_states", 2), ("adaptive_spiking", 2)])
def test_a_group_counts_its_states(name, count):
    (group,) = compiled(EXACT[name], XS[0], 2).graph.hidden_groups
    assert (group.num_state, group.varshape) == (count, (2, N))


@cell({"h": (N,), "wide": (2 * N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, 2 * N)})
def states_of_two_widths(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
    self.wide.value = 0.5 * self.wide.value + matmul(x, self.V.value) + jnp.tile(self.h.value, (1, 2))
    return self.wide.value


def test_credit_that_leaves_for_a_state_of_another_shape_lowers_the_trust():
    assert trusts(compiled(states_of_two_widths, XS[0], 2)) == {"W": "diagonal", "V": "exact"}


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "unread": array(1, N), "dead": array(2, N)})
def with_unused_parameters(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) + 0.0 * jax.lax.stop_gradient(self.dead.value)
    return self.h.value


def test_a_parameter_without_influence_is_unused():
    assert trusts(compiled(with_unused_parameters, XS[0], 2))["dead"] == "unused"


@cell({"h": (N,)}, lambda: {"u": array(0, N)})
def weight_that_no_state_remembers(self, x):
    self.h.value = jnp.tanh(0.7 * self.h.value)
    return self.h.value + element_wise(self.u.value)


def test_a_parameter_that_no_later_step_depends_on_is_exact_without_a_trace():
    report = compiled(weight_that_no_state_remembers, XS[0], 2).report
    assert (report["u"].trust, report["u"].trace_bytes) == (ea.Trust.EXACT, 0)


class Carried(brainstate.nn.Module):
    """A state that is no hidden state carries credit past the traces."""

    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, IN, N))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, N)))
        self.m = brainstate.ShortTermState(jnp.zeros((batch_size, N)))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) + 0.1 * self.m.value
        self.m.value = 0.9 * self.m.value + self.h.value
        return self.h.value


def test_credit_through_a_state_that_is_not_hidden_lowers_the_trust():
    report = compiled(Carried, XS[0], 2).report
    assert report["W"].trust == ea.Trust.DIAGONAL
    assert "m" in report["W"].reasons[0]


# --- determinism -----------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, sys, types, warnings
package = types.ModuleType("zoo"); package.__path__ = [sys.argv[1]]; sys.modules["zoo"] = package
import zoo.conftest, jax, jax.numpy as jnp, brainstate, numpy as np
from zoo.models import DIAGONAL, EXACT, inputs
from zoo.helpers import compiled, gradient_of
warnings.simplefilter("ignore")
junk = [object() for _ in range(int(sys.argv[2]))]
out, xs = {}, inputs(batch=2)
for name, factory in {"lstm": EXACT["lstm_without_recurrence"], "gru": DIAGONAL["gru"][0],
                      "groups": EXACT["one_drive_two_groups"], "mean": DIAGONAL["mean_of_state"][0]}.items():
    learner = compiled(factory, xs[0], 2)
    for x in xs[:3]:
        gradients, _ = gradient_of(learner, lambda: jnp.sum(learner(x) ** 2))
    arrays = jax.tree.leaves((gradients, learner.traces.value))
    digest = hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()
    keys = jax.tree_util.tree_flatten_with_path(learner.traces.value)[0]
    graph = learner.graph
    built = [[e.primitive.name for e in graph.step.equations], [v.aval.str_short() for v in graph.probes]]
    out[name] = [digest, [jax.tree_util.keystr(k) for k, _ in keys], learner.report.to_dict(), built]
print(json.dumps(out))
"""


def test_another_process_with_another_hash_seed_gives_the_same_graph_bits_keys_and_report():
    tests = str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, tests, seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "4711")
    ]
    found = []
    for process in started:
        out, errors = process.communicate()
        assert process.returncode == 0, errors[-2000:]
        found.append(json.loads(out.splitlines()[-1]))
    assert found[0] == found[1]


def test_trace_keys_are_made_of_numbers_and_names():
    learner = compiled(EXACT["one_drive_two_groups"], XS[0], 2)
    assert sorted(learner.traces.value) == ["0:etp_mm->0", "0:etp_mm->1"]


def test_empty_slices_of_a_state_are_followed_too():
    @simple()
    def with_an_empty_half(self, x):
        left, right = self.h.value[..., :0], self.h.value[..., 0:]
        self.h.value = 0.5 * jnp.concatenate([right, left], -1) + matmul(x, self.W.value)
        return self.h.value

    report = compiled(with_an_empty_half, XS[0], 2).report
    assert [row.trust.value for row in report.parameters] == ["exact"]
