"""JAX rules derived from one implementation, and what ``vmap`` does to a marked operator."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from etp_core import ETPPrimitive, RelationLostWarning, register_primitive

RNG = np.random.default_rng(3)
X, W, B = (jnp.asarray(RNG.normal(size=shape)) for shape in ((4, 3), (3, 5), (5,)))


def impl(x, w, b, *, scale):
    return scale * (x @ jnp.tanh(w)) + b


batched_p = register_primitive("derive_batched", impl, batched=True)
single_p = register_primitive("derive_single", impl)
alone_p = register_primitive("derive_alone", impl)
single_p.register_batched_twin(batched_p)
bind = functools.partial(batched_p.bind, scale=2.0)
single = functools.partial(single_p.bind, scale=2.0)
reference = functools.partial(impl, scale=2.0)


def marked(fn, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelationLostWarning)
        return [e.primitive.name for e in jax.make_jaxpr(fn)(*args).eqns if isinstance(e.primitive, ETPPrimitive)]


def test_the_operator_stays_one_equation_until_it_is_differentiated():
    assert marked(bind, X, W, B) == ["derive_batched"]
    assert marked(jax.grad(lambda w: bind(X, w, B).sum()), W) == []


def test_derivatives_of_first_and_second_order_match_finite_differences():
    check_grads(bind, (X, W, B), order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev, jax.hessian])
def test_jacobians_equal_those_of_the_implementation(transform):
    got, expected = (transform(lambda w, fn=fn: jnp.sin(fn(X, w, B)))(W) for fn in (bind, reference))
    assert jnp.allclose(got, expected)


@pytest.mark.parametrize("operand", [0, 2])
def test_linear_transpose_works_in_every_linear_operand(operand):
    def linear(value, fn):
        operands = [X, W, jnp.zeros(5)]
        if operand == 2:
            operands[0] = jnp.zeros_like(X)
        operands[operand] = value
        return fn(*operands)

    cotangent, at = jnp.ones((4, 5)), (X, W, B)[operand]
    if operand == 0:  # an affine function has no transpose; without bias the product is linear in x
        plain_p = register_primitive("derive_plain", lambda x, w: x @ w, replace=True)
        got = jax.linear_transpose(lambda x: plain_p.bind(x, W), X)(cotangent)[0]
        assert jnp.allclose(got, cotangent @ W.T)
        assert jnp.allclose(jax.linear_transpose(lambda w: plain_p.bind(X, w), W)(cotangent)[0], X.T @ cotangent)
    else:
        got = jax.vjp(lambda v: linear(v, bind), at)[1](cotangent)[0]
        assert jnp.allclose(got, cotangent.sum(0))


def test_a_zero_cotangent_transposes_to_zero():
    plain_p = register_primitive("derive_zero", lambda x, w: x @ w, replace=True)
    _, pull = jax.vjp(lambda x: (plain_p.bind(x, W), x), X)
    zero = pull((jnp.zeros((4, 5)), jnp.ones_like(X)))[0]
    assert jnp.array_equal(zero, jnp.ones_like(X))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16"])
def test_spikes_of_any_type_give_the_gradient_of_floats(dtype):
    spikes = RNG.integers(0, 2, X.shape)
    got = jax.grad(lambda w: bind(jnp.asarray(spikes, dtype), w, B).sum())(W)
    assert jnp.array_equal(got, jax.grad(lambda w: bind(jnp.asarray(spikes, float), w, B).sum())(W))


def test_integer_data_has_a_float0_cotangent():
    spikes = jnp.ones((4, 3), int)
    assert jax.vjp(bind, spikes, W, B)[1](jnp.ones((4, 5)))[0].dtype == jax.dtypes.float0


PATTERNS = [axes for axes in itertools.product((None, 0), repeat=3) if any(a == 0 for a in axes)]


@pytest.mark.parametrize("primitive", [batched_p, single_p, alone_p], ids=lambda p: p.name)
@pytest.mark.parametrize("axes", [*PATTERNS, (1, 1, 1), (-1, None, None)])
def test_vmap_equals_vmap_of_the_implementation_for_every_pattern(primitive, axes):
    x = X if primitive.batched else X[0]
    operands = [v if a is None else jnp.stack([v, 2 * v, -v], a) for v, a in zip((x, W, B), axes, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelationLostWarning)
        got = jax.vmap(functools.partial(primitive.bind, scale=2.0), axes)(*operands)
    assert jnp.allclose(got, jax.vmap(reference, axes)(*operands))


@pytest.mark.parametrize(("depth", "axis"), [(1, 0), (1, 1), (2, 0), (3, 0)])
def test_vmap_over_data_of_an_unbatched_operator_binds_its_twin(depth, axis):
    fn = single
    for _ in range(depth):
        fn = jax.vmap(fn, (axis, None, None), axis)
    data = RNG.normal(size=(*[2] * depth, 3)) if axis == 0 else RNG.normal(size=(3, 2))
    assert marked(fn, data, W, B) == ["derive_batched"]
    assert jnp.allclose(jnp.moveaxis(fn(data, W, B), axis, 0), reference(jnp.moveaxis(data, axis, 0), W, B))


@pytest.mark.parametrize("depth", [1, 2])
def test_vmap_over_data_of_a_batched_operator_folds_into_its_batch(depth):
    fn = bind
    for _ in range(depth):
        fn = jax.vmap(fn, (0, None, None))
    data = RNG.normal(size=(*[2] * depth, 4, 3))
    assert marked(fn, data, W, B) == ["derive_batched"]
    assert jnp.allclose(fn(data, W, B), reference(data, W, B))


@pytest.mark.parametrize(
    ("primitive", "axes"),
    [(single_p, (None, 0, None)), (single_p, (0, None, 0)), (batched_p, (0, 0, None)), (alone_p, (0, None, None))],
    ids=["weight", "bias", "data and weight", "no twin"],
)
def test_vmap_that_loses_the_operator_says_so(primitive, axes):
    x = X if primitive.batched else X[0]
    operands = [v if a is None else jnp.stack([v, v]) for v, a in zip((x, W, B), axes, strict=True)]
    with pytest.warns(RelationLostWarning, match=rf"{primitive.name}.*invisible to the trace compiler.*in_axes=None"):
        jax.vmap(functools.partial(primitive.bind, scale=2.0), axes)(*operands)


def test_the_gradient_of_a_shared_weight_under_vmap_and_scan_has_the_shape_of_the_weight():
    def lane(x, w):
        return jax.lax.scan(lambda h, _: (0.5 * h + single(x, w, B), None), jnp.zeros(5), length=3)[0].sum()

    got = jax.grad(lambda w: jax.vmap(lane, (0, None))(X, w).sum())(W)
    assert got.shape == W.shape
    assert jnp.allclose(got, sum(jax.grad(lane, 1)(x, W) for x in X))


def test_results_are_strongly_typed_whatever_the_operands():
    out = jax.eval_shape(lambda x: single_p.bind(x, W, B, scale=2.0), jnp.ones(3, jnp.float32))
    assert (out.shape, out.dtype) == ((5,), jnp.float64)
