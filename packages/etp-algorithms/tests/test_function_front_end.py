"""A pure step function of any framework learns like a module: same compiler, same gradients, plain JAX around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_algorithms as ea
from etp_algorithms import functional, oracle
from etp_ops import element_wise, matmul

from .models import EXACT, IN, N, array, inputs

STEPS = 6


def gated(params, hidden, x):
    """Two states, a pytree of parameters, a read-out without operator."""
    drive = matmul(x, params["in"]["w"], params["in"]["b"])
    current = 0.8 * hidden["i"] + drive
    v = jax.nn.sigmoid(element_wise(params["leak"])) * hidden["v"] + jnp.tanh(current)
    return {"i": current, "v": v}, v @ params["out"]


def gated_case(batch):
    lead = () if batch is None else (batch,)
    params = {
        "in": {"w": array(0, IN, N), "b": array(1, N)},
        "leak": array(2, N),
        "out": array(3, N, 2),
        "steps": jnp.arange(3),
    }
    return gated, params, {"i": jnp.zeros((*lead, N)), "v": jnp.full((*lead, N), 0.3)}


def nnx_case(batch):
    nnx = pytest.importorskip("flax.nnx")

    class Cell(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(array(0, IN, N))
            self.bias = nnx.Param(array(1, N))
            self.readout = nnx.Linear(N, 2, rngs=nnx.Rngs(0), param_dtype=jnp.float64)

        def __call__(self, h, x):
            h = jnp.tanh(0.7 * h + matmul(x, self.kernel[...], self.bias[...]))
            return h, self.readout(h)

    graphdef, params = nnx.split(Cell(), nnx.Param)
    return lambda p, h, x: nnx.merge(graphdef, p)(h, x), params, jnp.zeros((*(() if batch is None else (batch,)), N))


def equinox_case(batch):
    eqx = pytest.importorskip("equinox")

    class Cell(eqx.Module):
        weight: jax.Array
        leak: jax.Array
        readout: eqx.nn.Linear
        activation: object = eqx.field(static=True)

        def __call__(self, h, x):
            h = element_wise(self.leak) * h + self.activation(matmul(x, self.weight))
            return h, (jax.vmap(self.readout) if h.ndim > 1 else self.readout)(h)

    cell = Cell(array(0, IN, N), array(1, N), eqx.nn.Linear(N, 2, key=jax.random.key(0), dtype=jnp.float64), jnp.tanh)
    params, static = eqx.partition(cell, eqx.is_array)
    return lambda p, h, x: eqx.combine(p, static)(h, x), params, jnp.zeros((*(() if batch is None else (batch,)), N))


CASES = {"pytree": gated_case, "flax_nnx": nnx_case, "equinox": equinox_case}


def by_backpropagation(step, params, hidden, xs):
    def loss(params):
        return jnp.sum(lax.scan(lambda h, x: step(params, h, x), hidden, xs)[1] ** 2)

    return jax.grad(loss, allow_int=True)(params)


def in_windows(learner, params, xs, window):
    """The sum of the gradients of all windows, in one jitted scan."""
    windows = xs.reshape(-1, window, *xs.shape[1:])

    def one(carry, w):
        def loss(params):
            run, data = (learner.apply, w[0]) if window == 1 else (learner.apply_window, w)
            after, out = run(params, carry, data)
            return jnp.sum(out**2), after

        gradient, after = jax.grad(loss, has_aux=True, allow_int=True)(params)
        return after, gradient

    gradients = jax.jit(lambda: lax.scan(one, learner.init(), windows)[1])()
    return jax.tree.map(lambda g: g.sum(0) if g.dtype != jax.dtypes.float0 else g, gradients)


def leaves(tree):
    return [np.asarray(a) for a in jax.tree.leaves(tree) if a.dtype != jax.dtypes.float0]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("name", CASES)
def test_windows_of_a_step_function_equal_backpropagation_through_time(name, batch, window):
    step, params, hidden = CASES[name](batch)
    xs = inputs(steps=STEPS, batch=batch)
    learner = functional.compile_step_function(step, params, hidden, xs[0])
    found = leaves(in_windows(learner, params, xs, window))
    expected = leaves(by_backpropagation(step, params, hidden, xs))
    assert all(np.linalg.norm(e) > 1e-8 for e in expected)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=0, atol=1e-12 * np.abs(e).max())


@pytest.mark.parametrize("name", CASES)
def test_the_report_names_the_parameters_by_their_path(name):
    step, params, hidden = CASES[name](2)
    report = functional.compile_step_function(step, params, hidden, inputs()[0]).report
    names = {
        "pytree": {"in.b", "in.w", "leak", "out"},
        "flax_nnx": {"kernel", "bias", "readout.kernel", "readout.bias"},
        "equinox": {"weight", "leak", "readout.weight", "readout.bias"},
    }[name]
    assert {row.name.removesuffix(".value") for row in report.parameters} == names
    assert {row.trust for row in report.parameters} == {ea.Trust.EXACT}
    assert report.trace_bytes > 0


def test_a_step_function_learns_what_the_module_of_the_same_equations_learns():
    def step(params, h, x):
        h = 0.7 * h + matmul(x, params["W"], params["b"])
        return h, h

    xs = inputs(steps=STEPS)
    params = {"W": array(0, IN, N), "b": array(1, N)}
    expected = oracle.chunked_online_param_gradients(
        EXACT["leaky"], xs, algo_factory=lambda m: ea.pp_prop(m, decay_or_rank=0.9), chunk_size=2, batch_size=2
    )
    learner = functional.compile_step_function(
        step, params, jnp.zeros((2, N)), xs[0], algorithm="pp_prop", decay_or_rank=0.9
    )
    found = in_windows(learner, params, xs, 2)
    oracle.assert_param_gradients_close({(k,): v for k, v in found.items()}, expected, atol=1e-12)


def test_no_gradient_passes_from_call_to_call():
    step, params, hidden = gated_case(2)
    x = inputs()[0]
    learner = functional.compile_step_function(step, params, hidden, x)

    def loss(h):
        carry = functional.Carry(h, learner.init().traces)
        return jnp.sum(learner.apply(params, carry, x)[1])

    assert all(np.all(g == 0) for g in jax.tree.leaves(jax.grad(loss)(hidden)))


def test_the_carry_can_be_mapped():
    step, params, hidden = gated_case(None)
    xs = inputs(batch=5)[0]
    learner = functional.compile_step_function(step, params, hidden, xs[0])
    carries = jax.vmap(lambda _: learner.init())(jnp.arange(5))
    _, outs = jax.vmap(learner.apply, in_axes=(None, 0, 0))(params, carries, xs)
    np.testing.assert_allclose(outs, jnp.stack([learner.apply(params, learner.init(), x)[1] for x in xs]))


def test_the_carry_keeps_its_structure_shapes_and_dtypes():
    step, params, hidden = gated_case(2)
    learner = functional.compile_step_function(step, params, hidden, inputs()[0])
    start = learner.init()
    after, _ = learner.apply(params, start, inputs()[0])
    kind = lambda a: (a.shape, a.dtype)  # noqa: E731
    assert jax.tree.map(kind, start) == jax.tree.map(kind, after)


# --- errors ------------------------------------------------------------------------------------------------------


def compiled_case():
    step, params, hidden = gated_case(2)
    return functional.compile_step_function(step, params, hidden, inputs()[0]), params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, c, x: (p, c, x[0]), r"x has float64\[3\] .* compiled for float64\[2, 3\]"),
        (lambda p, c, x: (p, c, x.astype(jnp.float32)), r"x has float32\[2, 3\]"),
        (lambda p, c, x: ({**p, "leak": p["leak"][:2]}, c, x), r"params has float64\[2\] at leak"),
        (lambda p, c, x: ({}, c, x), r"params has the structure"),
        (lambda p, c, x: (p, c._replace(hidden={"i": 0, "v": 0}), x), r"hidden has int64\[\] at i"),
    ],
)
def test_a_call_that_differs_from_what_was_compiled_is_refused(change, message):
    learner, params = compiled_case()
    with pytest.raises(ValueError, match=message):
        learner.apply(*change(params, learner.init(), inputs()[0]))


def test_a_window_without_time_is_refused():
    learner, params = compiled_case()
    with pytest.raises(ValueError, match="leading axis is time"):
        learner.apply_window(params, learner.init(), jnp.asarray(1.0))


def test_a_step_that_changes_its_state_is_refused_with_both_shapes():
    step = lambda p, h, x: (h + matmul(x, p), x)  # noqa: E731
    with pytest.raises(ea.CompilationError, match=r"from float64\[4\] to float64\[2, 4\].*batch axis"):
        functional.compile_step_function(step, array(0, IN, N), jnp.zeros(N), inputs()[0])


def test_shapes_that_do_not_meet_are_named():
    step = lambda p, h, x: (h + matmul(x, p), x)  # noqa: E731
    with pytest.raises(ea.CompilationError, match=r"inputs float64\[2, 3\] and the states hidden float64\[3, 4\]"):
        functional.compile_step_function(step, array(0, IN, N), jnp.zeros((3, N)), inputs()[0])


def test_a_step_that_returns_no_pair_is_refused():
    with pytest.raises(TypeError, match=r"must return a pair .* got ArrayImpl|must return a pair .*Tracer"):
        functional.compile_step_function(lambda p, h, x: h, array(0, IN, N), jnp.zeros((2, N)), inputs()[0])


def test_what_is_no_array_is_refused():
    with pytest.raises(TypeError, match="leaf of type str"):
        functional.compile_step_function(gated, {"a": "tanh"}, jnp.zeros(N), inputs()[0])


def test_a_step_without_operator_is_refused():
    step = lambda p, h, x: (0.5 * h + x @ p, h)  # noqa: E731
    with pytest.raises(ea.CompilationError, match="no weight of this model can be learned forward in time"):
        functional.compile_step_function(step, array(0, IN, N), jnp.zeros((2, N)), inputs()[0])


def test_an_option_without_effect_is_refused():
    step, params, hidden = gated_case(2)
    with pytest.raises(TypeError, match="vjp_method has no effect"):
        functional.compile_step_function(step, params, hidden, inputs()[0], vjp_method="single-step")


def test_control_flow_limits_reach_the_compiler():
    def step(p, h, x):
        h = lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h + matmul(h, p)), h + x[..., :1])
        return h, h

    policy = ea.ControlFlowPolicy(equation_limit=3)
    with pytest.raises(ea.CompilationError, match="equation_limit"):
        functional.compile_step_function(step, array(0, N, N), jnp.zeros((2, N)), inputs()[0], control_flow=policy)


def test_lanes_that_take_different_branches_learn_as_they_would_alone():
    def step(p, h, x):
        alive = lambda h: 0.5 * h + matmul(jnp.sqrt(x - 1.0), p["W"])  # noqa: E731  (no number where it is dead)
        h = lax.cond(x.min() > 1.0, alive, lambda h: 0.7 * h + jnp.tanh(matmul(x, p["V"])), h)
        return h, h

    params = {"W": array(0, IN, N), "V": array(1, IN, N)}
    xs = jnp.stack([jnp.ones(IN), jnp.full(IN, 2.5), jnp.zeros(IN)])
    learner = functional.compile_step_function(step, params, jnp.zeros(N), xs[0])
    carry = learner.init(jnp.full(N, 0.2))

    def gradient(x):
        def loss(params):
            after, _ = learner.apply(params, carry, x)
            return jnp.sum(learner.apply(params, after, x)[1] ** 2)

        return jax.grad(loss)(params)

    found = jax.vmap(gradient)(xs)
    alone = [gradient(x) for x in xs]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))
    for n, expected in enumerate(alone):
        for key, value in expected.items():
            np.testing.assert_allclose(found[key][n], value, atol=1e-13)
