"""Operators inside loops too long to unroll: all iterations at once, whatever their number."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import element_wise, embedding, lora_matmul, matmul

from .helpers import compiled, initialised, largest_error, online, reference, trusts
from .models import IN, N, array, cell, inputs

pytestmark = pytest.mark.thorough

SUBSTEPS, STEPS = 20, 4
GAINS = jnp.linspace(0.5, 2.0, SUBSTEPS)


def leak(h):
    return -0.05 * jnp.tanh(h)


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
def other_input_each_substep(self, x):
    """The input of the operator is made from slices; the loop has stacked outputs too."""
    step = lambda h, gain: (h + leak(h) + 0.05 * matmul(gain * x, self.W.value), gain * h)  # noqa: E731
    self.h.value, path = lax.scan(step, self.h.value, GAINS)
    return self.h.value, path


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "b": array(1, N)})
def input_by_the_counter(self, x):
    def substep(i, h):
        return h + leak(h) + 0.05 * matmul(jnp.sin(x * (1 + i)), jnp.tanh(self.W.value), self.b.value)

    self.h.value = lax.fori_loop(0, SUBSTEPS, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, SUBSTEPS, IN, N)})
def other_weight_each_substep(self, x):
    step = lambda h, w: (h + leak(h) + 0.1 * matmul(x, jnp.tanh(w)), None)  # noqa: E731
    self.h.value, _ = lax.scan(step, self.h.value, self.W.value, reverse=True)
    return self.h.value


@cell({"h": (2 * N,)}, lambda: {"W": array(0, IN, 4 * N), "A": array(1, IN, 2), "B": array(2, 2, 2 * N)})
def fused_gates(self, x):
    def substep(h, gain):
        new, kept = jnp.split(matmul(gain * x, self.W.value), 2, -1)
        drive = jnp.tanh(new) + lora_matmul(gain * x, self.A.value, self.B.value)
        return h + 0.1 * (drive - h * jax.nn.sigmoid(kept)), None

    self.h.value, _ = lax.scan(substep, self.h.value, GAINS)
    return self.h.value


@cell({"h": (N,)}, lambda: {"E": array(0, 5, N)})
def rows_of_a_table(self, x):
    row = jnp.argmax(x, -1)
    step = lambda h, n: (h + leak(h) + 0.05 * embedding((row + n) % 5, self.E.value), None)  # noqa: E731
    self.h.value, _ = lax.scan(step, self.h.value, jnp.arange(SUBSTEPS))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def branch_in_the_loop(self, x):
    def substep(i, h):
        even = lambda h: 0.95 * h + 0.1 * matmul(x * (1 + 0.1 * i), self.W.value)  # noqa: E731
        odd = lambda h: h - 0.1 * jnp.tanh(h) * matmul(x, self.V.value)  # noqa: E731
        return lax.cond(i % 2 == 0, even, odd, h)

    self.h.value = lax.fori_loop(0, SUBSTEPS, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def loop_in_a_loop(self, x):
    def outer(h, f):
        inner = lambda h, g: (h + 0.2 * leak(h) + 0.01 * matmul(g * x, self.W.value), None)  # noqa: E731
        h, _ = lax.scan(inner, h, f * GAINS)
        return 0.97 * h + 0.02 * matmul(f * x, self.V.value), None

    self.h.value, _ = lax.scan(outer, self.h.value, jnp.linspace(1.0, 2.0, 18))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def loop_in_a_dead_branch(self, x):
    """The loop divides by zero and takes roots of less than nothing, where it is dead."""

    def dead(h):
        def substep(h, gain):
            return h / (0.0 * gain) + matmul(jnp.log(-jnp.abs(gain * x)), jnp.sqrt(self.W.value - 100.0)), None

        return lax.scan(substep, h, GAINS)[0]

    alive = lambda h: 0.7 * h + matmul(x, self.V.value) + matmul(x**2, self.W.value)  # noqa: E731
    self.h.value = lax.cond(x.min() > 100.0, dead, alive, self.h.value)
    return self.h.value


EXACT = {
    "other_input_each_substep": (other_input_each_substep, ["etp_mm[20]"]),
    "input_by_the_counter": (input_by_the_counter, ["etp_mm[20]"]),
    "other_weight_each_substep": (other_weight_each_substep, ["etp_mm[20]"]),
    "fused_gates": (fused_gates, ["etp_mm[20]", "etp_lora_mm[20]"]),
    "rows_of_a_table": (rows_of_a_table, ["etp_emb[20]"]),
    "branch_in_the_loop": (branch_in_the_loop, ["etp_mm[20]", "etp_mm[20]"]),
    "loop_in_a_loop": (loop_in_a_loop, ["etp_mm[20][18]", "etp_mm[18]"]),
    "loop_in_a_dead_branch": (loop_in_a_dead_branch, ["etp_mm", "etp_mm", "etp_mm[20]"]),
}
"""Models whose every parameter is exact, with their relations."""


@pytest.mark.parametrize(("name", "window"), [*((name, 1) for name in EXACT), ("fused_gates", 2)])
def test_operators_in_long_loops_learn_exactly(name, window):
    factory = EXACT[name][0]
    expected = reference(factory, 2, steps=STEPS)
    assert oracle.relative_deviation(online(factory, 2, window, steps=STEPS), expected) < 1e-13


@pytest.mark.parametrize("name", EXACT)
def test_operators_in_long_loops_are_one_relation_each(name):
    factory, operators = EXACT[name]
    learner = compiled(factory, inputs()[0], 2)
    assert [r.primitive.name for r in learner.graph.hidden_param_op_relations] == operators
    assert set(trusts(learner).values()) == {"exact"}
    assert learner.report.diagnostics == ()


@pytest.mark.parametrize("name", ["input_by_the_counter", "other_weight_each_substep"])
def test_without_batch_and_folded_over_a_sequence_the_gradient_is_the_same(name):
    factory = EXACT[name][0]
    xs = inputs(steps=STEPS, batch=None)
    learner = compiled(factory, xs[0])
    found = learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")
    assert largest_error(found, reference(factory, None, steps=STEPS)) < 1e-12


def test_iterations_that_share_a_weight_share_its_trace():
    report = compiled(other_input_each_substep, inputs()[0], 2).report
    assert report["W"].trace_bytes == 8 * 2 * IN * N


def test_the_size_of_the_program_does_not_depend_on_the_length_of_the_loop():
    def model(length):
        @cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
        def euler(self, x):
            step = lambda h, gain: (h + leak(h) + 0.05 * matmul(gain * x, self.W.value), None)  # noqa: E731
            self.h.value, _ = lax.scan(step, self.h.value, jnp.linspace(0.5, 2.0, length))
            return self.h.value

        return model_size(compiled(euler, inputs()[0], 2))

    def model_size(learner):
        gradient = brainstate.transform.grad(lambda x: jnp.sum(learner(x)), grad_states=learner.param_states)
        return str(brainstate.transform.make_jaxpr(gradient)(inputs()[0])[0]).count(" = ")

    assert model(20) == model(200) == model(2000)


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, N)})
def recurrent_substeps(self, x):
    """Each sub-step feeds the state back through a weight."""
    step = lambda _, h: h + 0.05 * (matmul(x, self.W.value) + matmul(jnp.tanh(h), self.R.value) - h)  # noqa: E731
    self.h.value = lax.fori_loop(0, 24, step, self.h.value)
    return self.h.value


def test_recurrence_through_a_weight_inside_a_long_loop_is_cut_and_reported():
    learner = compiled(recurrent_substeps, inputs()[0], 2)
    assert trusts(learner) == {"W": "diagonal", "R": "diagonal"}
    assert any("recurrence through etp_mm[24] is cut" in reason for reason in learner.report["W"].reasons)


def test_recurrence_through_a_weight_inside_a_long_loop_is_exact_within_a_step_and_a_window():
    single, whole = (online(recurrent_substeps, 2, w, steps=2) for w in (1, 2))
    expected = reference(recurrent_substeps, 2, steps=2)
    assert oracle.relative_deviation(whole, expected) < 1e-13
    assert 1e-3 < oracle.relative_deviation(single, expected) < 0.5
    assert (
        oracle.relative_deviation(online(recurrent_substeps, 2, 1, steps=1), reference(recurrent_substeps, 2, 1))
        < 1e-13
    )


def test_factorised_traces_of_long_loops_are_exact_within_one_window_and_finite_across():
    algorithm = lambda m: ea.pp_prop(m, decay_or_rank=0.9)  # noqa: E731
    whole = online(fused_gates, 2, STEPS, steps=STEPS, algorithm=algorithm)
    assert oracle.relative_deviation(whole, reference(fused_gates, 2, steps=STEPS)) < 1e-13
    by_step = online(fused_gates, 2, 1, steps=STEPS, algorithm=algorithm)
    assert oracle.cosine_similarity(by_step, reference(fused_gates, 2, steps=STEPS)) > 0.8


@cell({"h": (N,)}, lambda: {"W": array(0, IN, 1), "u": array(1, SUBSTEPS, N)})
def broadcast_each_substep(self, x):
    step = lambda h, u: (h + 0.1 * h * jnp.tanh(matmul(x * u[0], self.W.value)) - 0.1 * h * element_wise(u) + 0.1, None)  # noqa: E731
    self.h.value, _ = lax.scan(step, self.h.value, self.u.value)
    return self.h.value


def test_what_every_iteration_broadcasts_to_several_positions_is_learned_within_windows_and_says_so():
    learner = compiled(broadcast_each_substep, inputs()[0], 2)
    assert trusts(learner) == {"W": "window", "u": "window"}
    assert {d.kind for d in learner.report.diagnostics} == {ea.DiagnosticKind.MIXED_TAIL}
    assert all("test_substeps.py" in d.place for d in learner.report.diagnostics)


def test_a_weight_that_is_transformed_in_a_branch_of_a_long_loop_is_refused_with_place_and_remedy():
    @cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
    def model(self, x):
        root = lambda h, i: h + matmul(i * x, jnp.sqrt(self.W.value))  # noqa: E731
        self.h.value = lax.fori_loop(
            0, 20, lambda i, h: lax.cond(x.sum() > i, root, lambda h, i: h, h, 1.0 * i), self.h.value
        )

    with pytest.raises(ea.CompilationError, match=r"test_substeps.py.*in front of the branch, or raise .*unroll_limit"):
        ea.compile_etrace_graph(initialised(model, 2), inputs()[0])


def test_mapping_over_a_learner_keeps_long_loops_quiet_and_exact():
    xs = inputs(steps=2, batch=3)
    learner = compiled(input_by_the_counter, xs[0, 0])
    graph = learner.graph
    (operator,) = graph.hidden_param_op_relations
    w, b = (array(n, *s) for n, s in ((0, (IN, N)), (1, (N,))))
    rows = jnp.stack([x[None] * GAINS[:, None] for x in xs[0]])
    found = jax.vmap(lambda x: operator.primitive.bind(x, w, b, **operator.static))(rows)
    assert np.allclose(found, rows @ w + b, rtol=1e-13)
