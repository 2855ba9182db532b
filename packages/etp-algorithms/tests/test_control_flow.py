"""Marked operators inside branches and loops are found, and their gradients are those of the real control flow."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import element_wise, matmul

from .helpers import compiled, initialised, online, reference, trusts
from .models import IN, N, array, cell, inputs, simple

pytestmark = pytest.mark.thorough

WINDOWS = [1, 3]


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def branch_of_two_weights(self, x):
    """Each branch has its own operator."""
    h = self.h.value
    self.h.value = lax.cond(
        x.sum() > 0,
        lambda h, x: 0.7 * h + matmul(x, self.W.value),
        lambda h, x: jnp.tanh(0.5 * h - matmul(x, self.V.value)),
        h,
        x,
    )
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def switch_of_three(self, x):
    """Three branches, one without an operator, one with a transformed weight."""
    branches = [
        lambda h: 0.9 * h,
        lambda h: 0.7 * h + matmul(x, jnp.tanh(self.W.value)),
        lambda h: h * element_wise(self.u.value) + matmul(2 * x, self.W.value),
    ]
    index = jnp.floor(6 * x.sum()).astype(int) % 3
    self.h.value = lax.switch(index, branches, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def nested_branches(self, x):
    def outer(h):
        y = matmul(x, self.W.value)
        return lax.cond(x[..., 1].sum() > 0, lambda h: 0.8 * h + y, lambda h: 0.6 * h - matmul(x, self.V.value), h)

    self.h.value = lax.cond(x[..., 0].sum() > -1.5, outer, lambda h: 0.5 * h, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def euler_short(self, x):
    """Four sub-steps that share input and leak: each operator is one relation."""

    def substep(_, h):
        return h + 0.1 * (matmul(x, self.W.value) - h * jax.nn.sigmoid(element_wise(self.u.value)))

    self.h.value = lax.fori_loop(0, 4, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def euler_long(self, x):
    """The same with 200 sub-steps."""

    def substep(_, h):
        return h + 0.01 * (matmul(x, self.W.value) - h * jax.nn.sigmoid(element_wise(self.u.value)))

    self.h.value = lax.fori_loop(0, 200, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N)})
def sliced_parameter(self, x):
    """A scan over the layers of one stacked parameter, with stacked outputs."""

    def layer(h, w):
        h = jnp.tanh(0.6 * h + matmul(x, w))
        return h, h.sum()

    self.h.value, sums = lax.scan(layer, self.h.value, self.W.value)
    return self.h.value, sums


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N)})
def sliced_parameter_backwards(self, x):
    def layer(h, w):
        h = jnp.tanh(0.6 * h + matmul(x, 2.0 * w))
        return h, h

    self.h.value, all_h = lax.scan(layer, self.h.value, self.W.value, reverse=True)
    return self.h.value, all_h[0]


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def branch_inside_loop(self, x):
    def substep(i, h):
        return lax.cond(
            i % 2 == 0,
            lambda h: 0.9 * h + matmul(x * (1 + i), self.W.value),
            lambda h: jnp.tanh(h) * matmul(x, self.V.value),
            h,
        )

    self.h.value = lax.fori_loop(0, 3, substep, self.h.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, 3, IN, N), "V": array(1, IN, N)})
def loop_inside_branch(self, x):
    def settle(h):
        return lax.scan(lambda h, w: (jnp.tanh(0.8 * h + matmul(x, w)), None), h, self.W.value)[0]

    self.h.value = lax.cond(x.sum() > 0, settle, lambda h: 0.7 * h + matmul(x, self.V.value), self.h.value)
    return self.h.value


@simple()
def mapped_inside_branch(self, x):
    def drive(x):
        return jax.vmap(lambda row: matmul(row, self.W.value))(x) if x.ndim == 2 else matmul(x, self.W.value)

    self.h.value = 0.7 * self.h.value + lax.cond(x.sum() > 0, drive, lambda x: -drive(x), x)
    return self.h.value


INSIDE = {
    "branch_of_two_weights": (branch_of_two_weights, 2),
    "switch_of_three": (switch_of_three, 3),
    "nested_branches": (nested_branches, 2),
    "euler_short": (euler_short, 2),
    "euler_long": (euler_long, 2),
    "sliced_parameter": (sliced_parameter, 3),
    "sliced_parameter_backwards": (sliced_parameter_backwards, 3),
    "branch_inside_loop": (branch_inside_loop, 6),
    "loop_inside_branch": (loop_inside_branch, 4),
    "mapped_inside_branch": (mapped_inside_branch, 2),
}
"""Models with operators inside control flow, with their number of relations."""


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("name", INSIDE)
def test_operators_inside_control_flow_learn_exactly(name, batch, window):
    factory = INSIDE[name][0]
    deviation = oracle.relative_deviation(online(factory, batch, window), reference(factory, batch))
    assert deviation < 1e-12


@pytest.mark.parametrize("name", INSIDE)
def test_operators_inside_control_flow_are_all_found_and_exact(name):
    factory, count = INSIDE[name]
    learner = compiled(factory, inputs()[0], 2)
    assert len(learner.graph.hidden_param_op_relations) == count
    assert set(trusts(learner).values()) == {"exact"}
    assert learner.report.diagnostics == ()


# --- dead branches -----------------------------------------------------------------------------------------------


def guarded_root(self, x, root):
    """A branch that divides by zero, or takes the root of less than nothing, where it is dead."""
    h = self.h.value

    def alive(h):
        z = jnp.sqrt(x - 1.0)  # not a number, or of infinite slope, at x ≤ 1
        return 0.5 * h + matmul(z, self.W.value) / (h - 0.25) + root(h)

    self.h.value = lax.cond(
        x.min() > 1.0, alive, lambda h: 0.7 * h + matmul(x, self.W.value) * jnp.tanh(matmul(x, self.V.value)), h
    )
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def guarded_branch(self, x):
    return guarded_root(self, x, lambda h: jnp.log(jnp.abs(h)))


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def guarded_drive(self, x):
    """The operator's output itself stands at the bad point: its slope there is infinite."""
    y = lambda x: matmul(x, self.W.value)  # noqa: E731
    dead = lambda h: h + jnp.sqrt(y(0.0 * x)) + 1.0 / y(0.0 * x)  # noqa: E731
    self.h.value = lax.cond(x.min() > 100.0, dead, lambda h: 0.7 * h + y(x) + matmul(x**2, self.V.value), self.h.value)
    return self.h.value


GUARDED = {"guarded_branch": guarded_branch, "guarded_drive": guarded_drive}


def at_the_bad_point(steps=4):
    """Inputs that meet the branch's bad point exactly (1), and states that start at theirs (0)."""
    return jnp.concatenate([jnp.ones((1, 2, IN)), 1.0 - jnp.abs(inputs(steps=steps - 1))])


@pytest.mark.parametrize(
    "algorithm", [ea.D_RTRL, lambda m: ea.pp_prop(m, decay_or_rank=0.9)], ids=["d_rtrl", "pp_prop"]
)
@pytest.mark.parametrize("name", GUARDED)
def test_a_dead_branch_poisons_neither_values_nor_traces_nor_gradients(name, algorithm):
    xs = at_the_bad_point()
    learner = compiled(GUARDED[name], xs[0], 2, algorithm)

    def loss(x):
        return jnp.sum(learner(x) ** 2)

    grad = brainstate.transform.grad(loss, grad_states=learner.param_states, return_value=True)
    for x in xs:
        assert np.all(np.isfinite(jax.tree.leaves(grad(x))[0]))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grad(x)))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learner.traces.value))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("name", GUARDED)
def test_the_gradient_past_a_dead_branch_is_that_of_the_real_conditional(name, window):
    xs = at_the_bad_point()
    found = oracle.chunked_online_param_gradients(
        GUARDED[name], xs, algo_factory=ea.D_RTRL, chunk_size=window, batch_size=2
    )
    assert oracle.relative_deviation(found, oracle.bptt_param_gradients(GUARDED[name], xs, batch_size=2)) < 1e-12


@simple()
def endless_branch(self, x):
    """A dead branch whose loop would never end."""

    def endless(h):
        h = jax.lax.stop_gradient(h)
        steps = lax.while_loop(lambda n: n < 2.0, lambda n: n * jnp.exp(jnp.min(h) - 1e9), 1.0)
        return 0.5 * h * steps + matmul(x, self.W.value)

    self.h.value = lax.cond(x.min() > 1e9, endless, lambda h: 0.7 * h + matmul(x, self.W.value), self.h.value)
    return self.h.value


def test_a_loop_in_a_dead_branch_does_not_run():
    learner = compiled(endless_branch, inputs()[0], 2)
    assert np.all(np.isfinite(learner(inputs()[0])))


# --- what is refused ---------------------------------------------------------------------------------------------


def in_while(self, x):
    body = lambda s: (s[0] + 1, 0.5 * s[1] + matmul(x, self.W.value))  # noqa: E731
    self.h.value = lax.while_loop(lambda s: s[0] < 3, body, (0, self.h.value))[1]


def in_while_inside_branch(self, x):
    def loop(h):
        return lax.while_loop(lambda h: h.sum() < 3, lambda h: h + matmul(x, self.W.value) ** 2 + 1, h)

    self.h.value = lax.cond(x.sum() > 0, loop, lambda h: h, self.h.value)


def in_custom_jvp(self, x):
    f = jax.custom_jvp(lambda x, w: matmul(x, w))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] @ primals[1]))
    self.h.value = 0.5 * self.h.value + f(x, self.W.value)


def in_custom_vjp(self, x):
    f = jax.custom_vjp(lambda x, w: matmul(x, w))
    f.defvjp(lambda x, w: (f(x, w), (x, w)), lambda res, g: (g @ res[1].T, res[0].T @ g))
    self.h.value = lax.fori_loop(0, 2, lambda i, h: 0.5 * h + f(x, self.W.value), self.h.value)


def in_solve(self, x):
    self.h.value = 0.5 * self.h.value + lax.custom_linear_solve(
        lambda v: v + 0 * matmul(x, self.W.value), x[:, :1] * jnp.ones(N), lambda _, b: b, symmetric=True
    )


REFUSED = {
    "while_loop": (in_while, ["inside while", "in_while", "fixed length"]),
    "while_loop_in_cond": (in_while_inside_branch, ["inside while", "loop", "fixed length"]),
    "custom_jvp": (in_custom_jvp, ["inside custom_jvp_call", "move the operator out"]),
    "custom_vjp_in_loop": (in_custom_vjp, ["inside custom_vjp_call", "move the operator out"]),
    "linear_solve": (in_solve, ["inside custom_linear_solve"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_where_no_trace_can_follow_is_refused_with_place_and_remedy(name):
    step, words = REFUSED[name]
    model = initialised(cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, N)})(step), 2)
    with pytest.raises(ea.CompilationError) as error:
        ea.compile_etrace_graph(model, inputs()[0])
    for word in [*words, "test_control_flow.py"]:
        assert word in str(error.value)


def nested(depth, inner):
    """``depth`` conditionals in one another."""
    for _ in range(depth):
        inner = lambda h, inner=inner: lax.cond(h.sum() > 0, inner, lambda h: 0.5 * h, h)  # noqa: E731
    return inner


def deep(depth, marked=True):
    @simple()
    def model(self, x):
        drive = matmul(x, self.W.value)
        inner = (lambda h: 0.7 * h + matmul(x, self.W.value)) if marked else (lambda h: 0.7 * h)
        self.h.value = nested(depth, inner)(self.h.value) + 0.1 * drive
        return self.h.value

    return model


def test_ten_nested_branches_learn_exactly():
    factory = deep(10)
    assert oracle.relative_deviation(online(factory, 2, 1), reference(factory, 2)) < 1e-12


@pytest.mark.parametrize("marked", [True, False])
def test_seventy_nested_branches_are_refused_naming_the_limit(marked):
    with pytest.raises(ea.CompilationError, match=r"nests more than 32 .*nesting_limit"):
        ea.compile_etrace_graph(initialised(deep(70, marked), 2), inputs()[0])


def test_thirty_nested_branches_without_an_operator_are_followed():
    graph = ea.compile_etrace_graph(initialised(deep(30, marked=False), 2), inputs()[0])
    assert [t.trust.value for t in graph.trust] == ["exact"]


def test_branches_that_multiply_are_refused_naming_the_limit():
    @simple()
    def tree(self, x):
        def fork(depth):
            leaf = lambda h: 0.7 * h + matmul(x, self.W.value)  # noqa: E731
            return leaf if not depth else lambda h: lax.cond(h.sum() > depth, fork(depth - 1), fork(depth - 1), h)

        self.h.value = fork(6)(self.h.value)

    policy = ea.ControlFlowPolicy(equation_limit=500)
    with pytest.raises(ea.CompilationError, match=r"more than 500 equations .*equation_limit"):
        ea.compile_etrace_graph(initialised(tree, 2), inputs()[0], control_flow=policy)


def test_a_higher_limit_unrolls_a_longer_loop():
    @cell({"h": (N,)}, lambda: {"R": array(1, N, N)})
    def model(self, x):
        self.h.value = lax.fori_loop(0, 17, lambda i, h: jnp.tanh(0.5 * h + matmul(h, self.R.value)), self.h.value)

    policy = ea.ControlFlowPolicy(scan_unroll_limit=17)
    graph = ea.compile_etrace_graph(initialised(model, 2), inputs()[0], control_flow=policy)
    assert len(graph.hidden_param_op_relations) == 17
    assert graph.trust[0].trust == ea.Trust.DIAGONAL


@pytest.mark.parametrize(
    ("field", "value", "error"), [("scan_unroll_limit", -1, ValueError), ("nesting_limit", 2.5, TypeError)]
)
def test_a_limit_that_is_no_count_is_refused(field, value, error):
    with pytest.raises(error, match=field):
        ea.ControlFlowPolicy(**{field: value})


# --- control flow without operators ------------------------------------------------------------------------------


@cell({"v": (N,), "a": (N,)}, lambda: {"W": array(0, IN, N), "d": array(1, N)})
def substeps(self, x):
    """200 element-wise sub-steps over two states, driven from outside, with stacked outputs and sliced inputs."""
    drive, decay = matmul(x, self.W.value), jax.nn.sigmoid(element_wise(self.d.value))

    def substep(state, gain):
        v, a = state
        v = v + 0.01 * (drive * gain - v - a)
        a = a + 0.02 * (jnp.tanh(v) - decay * a)
        return (v, a), v

    (self.v.value, self.a.value), path = lax.scan(substep, (self.v.value, self.a.value), jnp.linspace(1.0, 2.0, 200))
    return path.sum(0)


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
def filtered_drive(self, x):
    """The operator's output enters a loop as slices, the state as a constant."""
    y = matmul(x, self.W.value)
    ys = jnp.stack([y, 2 * y, jnp.sin(y)])
    total, _ = lax.scan(lambda c, y: (c + y * jnp.tanh(self.h.value), None), jnp.zeros_like(y), ys)
    self.h.value = 0.7 * self.h.value + total + y
    return self.h.value


@simple()
def selected_decay(self, x):
    """A conditional over several operands and outputs."""
    y, h = matmul(x, self.W.value), self.h.value
    kept, fed = lax.cond(x.sum() > 0, lambda a, b: (0.5 * a, b), lambda a, b: (jnp.tanh(a), -b * a), h, y)
    self.h.value = kept + fed
    return self.h.value


WITHOUT = {"substeps": substeps, "filtered_drive": filtered_drive, "selected_decay": selected_decay}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", WITHOUT)
def test_positions_are_followed_through_control_flow(name, window):
    assert oracle.relative_deviation(online(WITHOUT[name], 2, window), reference(WITHOUT[name], 2)) < 1e-12


@pytest.mark.parametrize("name", WITHOUT)
def test_control_flow_over_positions_is_exact_and_stays_what_it_is(name):
    learner = compiled(WITHOUT[name], inputs()[0], 2)
    assert set(trusts(learner).values()) == {"exact"}
    names = [e.primitive.name for e in learner.graph.step.equations]
    assert names.count("scan") + names.count("cond") == 1


def test_a_loop_that_mixes_positions_is_cut_with_its_place():
    @simple()
    def model(self, x):
        mixed = lax.fori_loop(0, 3, lambda i, h: 0.5 * jnp.roll(h, 1, -1), self.h.value)
        self.h.value = 0.5 * self.h.value + mixed + matmul(x, self.W.value)

    learner = compiled(model, inputs()[0], 2)
    (found,) = learner.report.diagnostics
    assert found.kind == ea.DiagnosticKind.MIXED_TRANSITION
    assert "test_control_flow.py" in found.place
    assert trusts(learner) == {"W": "diagonal"}


@cell({"k": (N,), "h": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def settling(self, x):
    """Layer ``k`` feeds layer ``h``, which settles in a loop of unknown length."""
    self.k.value = 0.7 * self.k.value + matmul(x, self.W.value)
    h = lax.while_loop(lambda h: jnp.max(h) > 0.1, lambda h: 0.5 * h, self.h.value + jnp.tanh(self.k.value))
    self.h.value = h + matmul(x, self.V.value)
    return self.h.value


@cell({"h": ()}, lambda: {"W": array(0, IN, 1)})
def settling_alone(self, x):
    """One position: nothing could be mixed, and still nothing can be pulled back."""
    h = lax.while_loop(lambda h: jnp.max(h) > 0.1, lambda h: 0.5 * h, self.h.value)
    self.h.value = h + matmul(x, self.W.value)[..., 0]
    return self.h.value


@pytest.mark.parametrize(("factory", "batch"), [(settling, 2), (settling_alone, None)])
def test_a_loop_without_fixed_length_on_the_hidden_path_is_reported(factory, batch):
    x = inputs(batch=batch)[0]
    learner = ea.D_RTRL(initialised(factory, batch))
    with pytest.warns(ea.CompilationWarning, match=r"no_reverse_derivative: h: while .*fixed length"):
        learner.compile_graph(x)
    row = learner.report["W"]
    assert row.trust == ea.Trust.DIAGONAL or "cut" in " ".join(row.reasons)
    assert np.all(np.isfinite(learner(x)))


@pytest.mark.parametrize("window", [1, 2])
def test_a_gradient_through_a_loop_without_fixed_length_raises_in_our_words(window):
    xs = inputs(steps=2)
    learner = compiled(settling, xs[0], 2)

    def loss():
        return jnp.sum((learner(xs[0]) if window == 1 else learner(ea.MultiStepData(xs))) ** 2)

    with pytest.raises(ea.CompilationError, match=r"while at .*test_control_flow.py.* parameters W .* states k, h"):
        brainstate.transform.grad(loss, grad_states=learner.param_states)()


def test_a_loop_without_fixed_length_beside_the_hidden_path_is_left_alone():
    @simple()
    def model(self, x):
        n = lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0.5)
        scale = lax.while_loop(lambda s: s > 1.0, lambda s: s / 2, jnp.abs(x).sum())
        self.h.value = 0.7 * self.h.value + n * scale * matmul(x, self.W.value)
        return self.h.value

    assert trusts(compiled(model, inputs()[0], 2)) == {"W": "exact"}
    assert oracle.relative_deviation(online(model, 2, 1), reference(model, 2)) < 1e-12
