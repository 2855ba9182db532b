"""One contract over the table of primitives: their rules, their traces through time, their place under ``vmap``."""

import dataclasses
import warnings

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_ops as ops
from etp_core import ETPPrimitive, RelationLostWarning
from etp_core.testing import check_primitive

pytestmark = pytest.mark.thorough

BATCH, IN, OUT, GROUPS, RANK, VOCABULARY, T = 3, 4, 5, 2, 2, 6, 6
RNG = np.random.default_rng(11)
STRUCTURE = u.sparse.CSR.fromdense(jnp.asarray(RNG.normal(size=(IN, OUT)) * (RNG.random((IN, OUT)) < 0.5)))


def mixing(weight):
    """A hook that is not element-wise: its derivative has no diagonal form."""
    return jnp.tanh(weight) + 0.5 * weight.mean()


def squashed(weight):
    return jnp.tanh(weight)


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    primitive: ETPPrimitive
    data: tuple[int, ...] | None
    weights: tuple[tuple[int, ...], ...]
    static: dict = dataclasses.field(default_factory=dict)

    def operands(self, dtype="float64", seed=0):
        rng = np.random.default_rng(seed)
        weights = [jnp.asarray(rng.normal(size=shape)).astype(dtype) for shape in self.weights]
        return [*self.draw_data(rng, dtype), *weights]

    def draw_data(self, rng, dtype="float64"):
        if self.data is None:
            return []
        if "emb" in self.primitive.name:
            return [jnp.asarray(rng.integers(-VOCABULARY, VOCABULARY, self.data))]
        return [jnp.asarray(rng.normal(size=self.data)).astype(dtype)]


def structure():
    """The structure as the operator binds it."""
    eqns = jax.make_jaxpr(lambda x: ops.sparse_matmul(x, STRUCTURE.data, sparse_mat=STRUCTURE))(jnp.ones(IN)).eqns
    return eqns[-1].params["sparse_mat"]


HOOKS = {"has_bias": True, "weight_fn": mixing, "bias_fn": squashed}
SPARSE = {"sparse_mat": structure()}
NNZ = STRUCTURE.data.size
LORA = {"alpha": 0.7, "has_bias": True, "b_fn": mixing, "a_fn": squashed, "bias_fn": squashed}
PLAIN_CONV = {"strides": (1,), "padding": "SAME"}
CONV_1D = {"strides": (2,), "padding": "SAME", "rhs_dilation": (2,), "has_bias": True, "kernel_fn": mixing}
CONV_2D = {
    "strides": (2, 1),
    "padding": ((1, 0), (2, -1)),
    "lhs_dilation": (1, 2),
    "rhs_dilation": (2, 1),
    "feature_group_count": GROUPS,
    "has_bias": True,
    "kernel_fn": mixing,
    "bias_fn": squashed,
}
HWIO = {
    "strides": (1, 1),
    "padding": "VALID",
    "dimension_numbers": lax.ConvDimensionNumbers((0, 1, 2, 3), (3, 2, 0, 1), (0, 1, 2, 3)),
}
ROWS = [
    Row("mm", ops.etp_mm_p, (BATCH, IN), ((IN, OUT),)),
    Row("mm-hooks", ops.etp_mm_p, (BATCH, IN), ((IN, OUT), (OUT,)), HOOKS),
    Row("mv", ops.etp_mv_p, (IN,), ((IN, OUT),)),
    Row("mv-hooks", ops.etp_mv_p, (IN,), ((IN, OUT), (OUT,)), HOOKS),
    Row("gmm", ops.etp_gmm_p, (BATCH, GROUPS, IN), ((GROUPS, IN, OUT),)),
    Row("gmm-hooks", ops.etp_gmm_p, (BATCH, GROUPS, IN), ((GROUPS, IN, OUT), (GROUPS, OUT)), HOOKS),
    Row("gmv-hooks", ops.etp_gmv_p, (GROUPS, IN), ((GROUPS, IN, OUT), (GROUPS, OUT)), HOOKS),
    Row("elemwise", ops.etp_elemwise_p, None, ((GROUPS, OUT),)),
    Row("elemwise-hook", ops.etp_elemwise_p, None, ((GROUPS, OUT),), {"weight_fn": mixing}),
    Row("conv-1d", ops.etp_conv_p, (BATCH, 2, 5), ((3, 2, 3),), PLAIN_CONV),
    Row("conv-1d-hooks", ops.etp_conv_p, (BATCH, 2, 5), ((3, 2, 3), (3,)), CONV_1D),
    Row("conv-2d-hooks", ops.etp_conv_p, (BATCH, 4, 5, 3), ((6, 2, 3, 2), (6,)), CONV_2D),
    Row("conv-2d-hwio", ops.etp_conv_p, (BATCH, 2, 4, 3), ((3, 2, 2, 3),), HWIO),
    Row("conv-3d", ops.etp_conv_p, (2, 1, 3, 2, 3), ((2, 1, 2, 2, 2),), {"strides": (1, 1, 2), "padding": "SAME"}),
    Row("sp_mm", ops.etp_sp_mm_p, (BATCH, IN), ((NNZ,),), SPARSE),
    Row("sp_mm-hooks", ops.etp_sp_mm_p, (BATCH, IN), ((NNZ,), (OUT,)), {**SPARSE, **HOOKS}),
    Row("sp_mv-hooks", ops.etp_sp_mv_p, (IN,), ((NNZ,), (OUT,)), {**SPARSE, **HOOKS}),
    Row("lora_mm", ops.etp_lora_mm_p, (BATCH, IN), ((IN, RANK), (RANK, OUT))),
    Row("lora_mm-hooks", ops.etp_lora_mm_p, (BATCH, IN), ((IN, RANK), (RANK, OUT), (OUT,)), LORA),
    Row("lora_mv-hooks", ops.etp_lora_mv_p, (IN,), ((IN, RANK), (RANK, OUT), (OUT,)), LORA),
    Row("emb", ops.etp_emb_p, (BATCH,), ((VOCABULARY, OUT),)),
    Row("emb-hook", ops.etp_emb_p, (BATCH,), ((VOCABULARY, OUT),), {"weight_fn": mixing}),
    Row("emb_v-hook", ops.etp_emb_v_p, (), ((VOCABULARY, OUT),), {"weight_fn": mixing}),
    Row("einsum", ops.etp_einsum_p, (BATCH, IN), ((IN, OUT),), {"equation": "bi,io->bo"}),
    Row(
        "einsum-groups",
        ops.etp_einsum_p,
        (BATCH, GROUPS, IN),
        ((OUT, GROUPS, IN),),
        {"equation": "bgi,ogi->bog", "weight_fn": mixing},
    ),
    Row(
        "einsum-sum",
        ops.etp_einsum_p,
        (BATCH, IN, GROUPS),
        ((IN, OUT),),
        {"equation": "big,io->bo", "weight_fn": mixing},
    ),
    Row(
        "einsum-outer",
        ops.etp_einsum_p,
        (BATCH, IN),
        ((OUT, IN, RANK),),
        {"equation": "bi,oir->bro", "weight_fn": squashed},
    ),
]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
with_data = pytest.mark.parametrize("row", [r for r in ROWS if r.data is not None], ids=lambda row: row.name)
hooked_and_plain = {row.primitive: row for row in reversed(ROWS)}  # the first row of each primitive
one_row_each = pytest.mark.parametrize("row", hooked_and_plain.values(), ids=lambda row: row.name)


def test_every_built_in_primitive_has_a_row():
    built_in = {value for name, value in vars(ops).items() if name.startswith("etp_") and name.endswith("_p")}
    assert {row.primitive for row in ROWS} == built_in
    assert len(built_in) == 13


@every_row
def test_every_rule_agrees_with_the_implementation(row):
    check_primitive(row.primitive, *row.operands(), **row.static)


ALWAYS = {("mm", "float32"), ("conv-1d", "float32"), ("sp_mm", "float32"), ("lora_mm", "bfloat16")}
LOW_PRECISION = [
    pytest.param(
        row, dtype, id=f"{row.name}-{dtype}", marks=[] if (row.name, dtype) in ALWAYS else pytest.mark.property
    )
    for row in hooked_and_plain.values()
    for dtype in ("float32", "bfloat16")
]


@pytest.mark.parametrize(("row", "dtype"), LOW_PRECISION)
def test_every_rule_agrees_with_the_implementation_in_lower_precision(row, dtype):
    check_primitive(row.primitive, *row.operands(dtype), **row.static)


@pytest.mark.parametrize("row", [ROWS[1], ROWS[11]], ids=lambda row: row.name)
def test_rules_hold_for_integer_data(row):
    _, *weights = row.operands()
    check_primitive(row.primitive, jnp.asarray(RNG.integers(0, 2, row.data)), *weights, **row.static)


# traces through time: two coupled states per position, T steps, nothing but the registered rules


def two_states(seed, shape):
    """Coefficients of ``s' = D s + f y`` for two states per position, new at every step."""
    rng = np.random.default_rng(seed)
    factors = [[[jnp.asarray(rng.uniform(-0.9, 0.9, shape)) for _ in "hk"] for _ in "hk"] for _ in range(T)]
    drives = [[jnp.asarray(rng.normal(size=shape)) for _ in "hk"] for _ in range(T)]
    return factors, drives


def through_the_loop(row, data, weights, factors, drives, readout):
    """The loss of the last step by plain JAX, for backpropagation through time."""
    states = [jnp.zeros_like(readout), jnp.zeros_like(readout)]
    for t in range(T):
        y = row.primitive.bind(*data[t], *weights, **row.static)
        states = [sum(d * s for d, s in zip(factors[t][a], states, strict=True)) + drives[t][a] * y for a in range(2)]
    return jnp.sum(jnp.sin(states[0]) * readout + states[1] ** 2), states


def by_traces(row, data, weights, factors, drives, signals, *, first=0):
    """The same gradient, forward in time."""
    primitive, static = row.primitive, row.static
    named = dict(zip(primitive.trainable_invars(static), weights, strict=True))
    y = jax.eval_shape(lambda: primitive.bind(*data[0], *weights, **static))

    def variable(value):
        return type("Variable", (), {"aval": jax.typeof(value)})

    x_var = variable(data[0][0]) if data[0] else None
    y_var = type("Variable", (), {"aval": jax.core.ShapedArray(y.shape, y.dtype)})
    start = primitive.rule("init_drtrl")(x_var, y_var, {k: variable(w) for k, w in named.items()}, 2)
    traces = [jax.tree.map(lambda leaf, a=a: leaf[..., a], start) for a in range(2)]
    for t in range(first, T):
        x = data[t][0] if data[t] else None
        terms = [primitive.rule("instant")(x, drives[t][a], named, **static) for a in range(2)]
        rolled = [
            [primitive.rule("dt_to_t")(factors[t][a][b], traces[b], **static) for b in range(2)] for a in range(2)
        ]
        traces = [jax.tree.map(lambda p, q, r: p + q + r, *rolled[a], terms[a]) for a in range(2)]
    solved = [primitive.rule("solve")(s, trace, named, **static) for s, trace in zip(signals, traces, strict=True)]
    return jax.tree.map(jnp.add, *solved)


def gradients(row):
    """By traces, by the newest term of the trace alone, and by backpropagation."""
    operands = row.operands(seed=3)
    weights = operands[0 if row.data is None else 1 :]
    rng = np.random.default_rng(4)
    data = [row.draw_data(rng) for _ in range(T)]
    y = row.primitive.bind(*data[0], *weights, **row.static)
    factors, drives = two_states(5, y.shape)
    readout = jnp.asarray(rng.normal(size=y.shape))

    def loss(weights):
        return through_the_loop(row, data, weights, factors, drives, readout)

    (_, states), expected = jax.value_and_grad(loss, has_aux=True)(weights)
    signals = [jnp.cos(states[0]) * readout, 2 * states[1]]
    got, newest = (by_traces(row, data, weights, factors, drives, signals, first=t) for t in (0, T - 1))
    return got, newest, dict(zip(row.primitive.trainable_invars(row.static), expected, strict=True))


def relative_error(got, expected):
    return float(jnp.abs(got - expected).max() / jnp.abs(expected).max())


@every_row
def test_the_trace_gives_the_gradient_of_backpropagation_through_time(row):
    got, newest, expected = gradients(row)
    assert set(got) == set(expected)
    for name in expected:
        assert jnp.abs(expected[name]).max() > 1e-2, "the gradient is not alive"
        assert relative_error(newest[name], expected[name]) > 1e-2, "earlier steps do not matter"
        assert relative_error(got[name], expected[name]) < 1e-10


# vmap


def marked(fn, *args):
    """Names of the marked operators in the program of ``fn``."""
    return [eqn.primitive.name for eqn in jax.make_jaxpr(fn)(*args).eqns if isinstance(eqn.primitive, ETPPrimitive)]


def over_data(row, depth):
    fn = row.primitive.bind
    operands = row.operands()
    axes = (0, *[None] * (len(operands) - 1))
    for _ in range(depth):
        fn = jax.vmap(lambda *a, inner=fn: inner(*a, **row.static) if inner == row.primitive.bind else inner(*a), axes)
    data = jnp.stack([jnp.roll(operands[0], k) for k in range(2**depth)])
    return fn, (data.reshape(*[2] * depth, *operands[0].shape), *operands[1:])


@one_row_each
@pytest.mark.parametrize("depth", [1, 2])
def test_vmap_over_data_keeps_the_operator(row, depth):
    if row.data is None:
        pytest.skip("no data operand")
    fn, operands = over_data(row, depth)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = marked(fn, *operands)
        got = fn(*operands)
    twin = row.primitive.batched_twin or row.primitive
    assert names == [twin.name]
    flat = operands[0].reshape(-1, *operands[0].shape[depth:])
    expected = jnp.stack([row.primitive.bind(x, *operands[1:], **row.static) for x in flat])
    assert jnp.allclose(got.reshape(expected.shape), expected, rtol=1e-12)


@one_row_each
def test_vmap_over_weights_says_that_the_relation_is_lost(row):
    operands = [jnp.stack([operand, operand]) for operand in row.operands()]
    with pytest.warns(RelationLostWarning, match=row.primitive.name):
        jax.vmap(lambda *a: row.primitive.bind(*a, **row.static))(*operands)


@one_row_each
def test_second_derivatives_exist_and_agree_with_the_implementation(row):
    operands = row.operands()

    def curvature(fn):
        def loss(weight):
            return jnp.sum(jnp.sin(fn(*operands[:-1], weight, **row.static)))

        return jax.grad(lambda weight: jnp.sum(jax.grad(loss)(weight) ** 2))(operands[-1])

    assert jnp.allclose(curvature(row.primitive.bind), curvature(row.primitive.impl_fn), rtol=1e-10)
