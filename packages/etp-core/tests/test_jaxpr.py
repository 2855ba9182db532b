"""Programs: calls inlined, constants as operands, and their slices and values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_core import jaxpr, register_primitive
from etp_core.jaxpr import Constant, contains, dependents, evaluate, flatten, inner_programs, is_differentiable, needed

product_p = register_primitive("jaxpr_product", lambda x, w: x @ w)
X, W = jnp.arange(3.0), jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
CAPTURED = jnp.asarray([1.0, 2.0, 3.0])


def names(program):
    return [equation.primitive.name for equation in program.equations]


def run(program, *args):
    env = evaluate(program.equations, dict(zip(program.inputs, args, strict=True)))
    return [atom.value if isinstance(atom, Constant) else env[atom] for atom in program.outputs]


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (v,), (dv,) = primals, tangents
    return spike(v), dv / (1 + jnp.abs(v)) ** 2


@jax.custom_vjp
def clipped(v):
    return v


clipped.defvjp(lambda v: (v, None), lambda _, g: (jnp.clip(g, -1, 1),))


def step(x, w):
    return jnp.tanh(product_p.bind(x, w)) + CAPTURED


FUNCTIONS = {
    "plain": step,
    "jit": jax.jit(step),
    "jit in jit": jax.jit(lambda x, w: jax.jit(step)(x, w) * 2),
    "checkpoint": jax.checkpoint(step),
    "jit in checkpoint": jax.checkpoint(lambda x, w: jax.jit(step)(x, w)),
    "custom jvp": lambda x, w: spike(step(x, w)),
    "custom vjp": lambda x, w: clipped(step(x, w)),
    "cond": lambda x, w: jax.lax.cond(x[0] > 1, lambda: step(x, w), lambda: x),
    "scan": lambda x, w: jax.lax.scan(lambda h, _: (step(h, w), None), x, length=3)[0],
    "while": lambda x, w: jax.lax.while_loop(lambda h: h[0] < 3, lambda h: step(h, w) + h + 1, x),
    "constant output": lambda x, w: jnp.float64(3.0),
    "input as output": lambda x, w: x,
}
every_function = pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)


@every_function
def test_a_program_computes_what_its_function_computes(fn):
    assert jnp.allclose(run(jaxpr.trace(fn, X, W), X, W)[0], fn(X, W))


@every_function
def test_a_program_can_be_evaluated_under_jit(fn):
    program = jaxpr.trace(fn, X, W)
    assert jnp.allclose(jax.jit(lambda x, w: run(program, x, w)[0])(X, W), fn(X, W))


@pytest.mark.parametrize("name", ["plain", "jit", "jit in jit", "checkpoint", "jit in checkpoint"])
def test_calls_are_inlined_so_that_a_marked_operator_is_seen(name):
    seen = names(jaxpr.trace(FUNCTIONS[name], X, W))
    assert "jaxpr_product" in seen
    assert not {"pjit", "jit", "checkpoint", "remat", "remat2", "closed_call"} & set(seen)


@pytest.mark.parametrize(("name", "kept"), [("custom jvp", "custom_jvp_call"), ("custom vjp", "custom_vjp_call")])
def test_functions_with_derivative_rules_of_their_own_stay_whole(name, kept):
    assert kept in names(jaxpr.trace(FUNCTIONS[name], X, W))


@pytest.mark.parametrize("name", ["custom jvp", "custom vjp"])
def test_custom_derivative_rules_survive_evaluation(name):
    fn = FUNCTIONS[name]
    program = jaxpr.trace(fn, X, W)
    got = jax.grad(lambda w: (3 * run(program, X, w)[0]).sum())(W)
    assert jnp.abs(got).max() > 0
    assert jnp.allclose(got, jax.grad(lambda w: (3 * fn(X, w)).sum())(W))


def test_every_call_site_gets_variables_of_its_own():
    shared = jax.jit(jnp.sin)
    program = jaxpr.trace(lambda x: shared(x) + shared(2 * x), X)
    outputs = [v for equation in program.equations for v in equation.outputs]
    assert len(set(outputs)) == len(outputs)
    assert names(program).count("sin") == 2


def test_captured_arrays_become_constants_not_inputs():
    program = flatten(jax.make_jaxpr(step)(X, W))
    assert len(program.inputs) == 2
    atoms = [atom for equation in program.equations for atom in equation.inputs if isinstance(atom, Constant)]
    assert any(np.array_equal(atom.value, CAPTURED) for atom in atoms)
    assert all(atom.aval.shape == np.shape(atom.value) for atom in atoms)


@pytest.mark.parametrize("name", ["cond", "scan", "while"])
def test_operators_inside_control_flow_are_found(name):
    program = jaxpr.trace(FUNCTIONS[name], X, W)
    inside = [e for e in program.equations if contains(e, lambda inner: inner.primitive is product_p)]
    assert [e.primitive.name for e in inside] == [name]
    assert any("jaxpr_product" in names(inner) for inner in inner_programs(inside[0]))


def three(x):
    a = jnp.sin(x)
    b = jnp.cos(x)
    return a * 2, b + a


def test_needed_keeps_only_what_an_output_depends_on():
    program = jaxpr.trace(three, X)
    assert [e.primitive.name for e in needed(program.equations, program.outputs[:1])] == ["sin", "mul"]
    sine = program.equations[0].outputs[0]
    assert [e.primitive.name for e in needed(program.equations, program.outputs, given=[sine])] == ["cos", "mul", "add"]


def test_dependents_keeps_only_what_reads_a_source():
    program = jaxpr.trace(three, X)
    cosine = next(e for e in program.equations if e.primitive.name == "cos").outputs
    assert [e.primitive.name for e in dependents(program.equations, cosine)] == ["add"]


def test_evaluate_keeps_given_values_and_skips_their_equations():
    program = jaxpr.trace(three, X)
    sine = program.equations[0].outputs[0]
    env = evaluate(program.equations, {program.inputs[0]: X, sine: jnp.zeros(3)})
    assert jnp.array_equal(env[program.outputs[0]], jnp.zeros(3))


def test_a_cut_operand_passes_no_derivative():
    program = jaxpr.trace(lambda x: jnp.sin(x) * jnp.cos(x), X)
    product = program.equations[-1]

    def cut(x, positions):
        env = evaluate(program.equations, {program.inputs[0]: x}, cuts={product: frozenset(positions)})
        return env[program.outputs[0]].sum()

    assert jnp.allclose(jax.grad(cut)(X, ()), jnp.cos(2 * X))
    assert jnp.allclose(jax.grad(cut)(X, (0,)), -(jnp.sin(X) ** 2))
    assert jnp.allclose(jax.grad(cut)(X, (0, 1)), 0)


def test_an_equation_knows_the_line_that_made_it():
    equation = jaxpr.trace(three, X).equations[0]
    assert "test_jaxpr.py" in equation.source
    assert "(three)" in equation.source
    assert "sin at " in repr(equation)


@pytest.mark.parametrize(("dtype", "yes"), [("float32", True), ("complex64", True), ("int32", False), ("bool", False)])
def test_only_floating_values_are_differentiable(dtype, yes):
    assert is_differentiable(Constant(jnp.ones(2, dtype))) is yes
