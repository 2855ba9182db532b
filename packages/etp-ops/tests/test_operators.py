"""The operators as users call them: values, hooks, units, kinds of data, folded axes, errors."""

import dataclasses
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etp_ops as ops
from etp_core import ETPPrimitive

RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(4, 5)) * (RNG.random((4, 5)) < 0.5)
CSR = u.sparse.CSR.fromdense(jnp.asarray(DENSE))
ROWS, COLS = np.nonzero(DENSE)
NNZ = CSR.data.size


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def scatter(data):
    return jnp.zeros(DENSE.shape, data.dtype).at[ROWS, COLS].set(data)


def lax_conv(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1,), "SAME")


def sparse(x, weight, bias=None, **hooks):
    return ops.sparse_matmul(x, weight, sparse_mat=CSR, bias=bias, **hooks)


@dataclasses.dataclass(frozen=True)
class Row:
    """An operator, its operands, the hook of each weight, and the plain JAX it stands for."""

    name: str
    call: Callable[..., Any]
    plain: Callable[..., Any]
    data: Any
    weights: tuple[Any, ...]
    hooks: tuple[str, ...]
    bias: Any = None

    def with_bias(self):
        return {} if self.bias is None else {"bias": self.bias}


TABLE = [
    Row("matmul", ops.matmul, jnp.matmul, normal(3, 4), (normal(4, 5),), ("weight_fn",), normal(5)),
    Row(
        "grouped_matmul",
        ops.grouped_matmul,
        lambda x, w: jnp.einsum("...gk,gkn->...gn", x, w),
        normal(3, 2, 4),
        (normal(2, 4, 5),),
        ("weight_fn",),
        normal(2, 5),
    ),
    Row("conv", ops.conv, lax_conv, normal(3, 2, 6), (normal(4, 2, 3),), ("kernel_fn",), normal(4)),
    Row("sparse_matmul", sparse, lambda x, w: x @ scatter(w), normal(3, 4), (normal(NNZ),), ("weight_fn",), normal(5)),
    Row(
        "lora_matmul",
        ops.lora_matmul,
        lambda x, b, a: x @ b @ a,
        normal(3, 4),
        (normal(4, 2), normal(2, 5)),
        ("b_fn", "a_fn"),
        normal(5),
    ),
    Row(
        "einsum",
        lambda x, w, **k: ops.einsum("bgk,gkn->bng", x, w, **k),
        lambda x, w: jnp.einsum("bgk,gkn->bng", x, w),
        normal(3, 2, 4),
        (normal(2, 4, 5),),
        ("weight_fn",),
    ),
    Row("embedding", ops.embedding, lambda i, w: w[i], jnp.array([1, 0, 5]), (normal(6, 4),), ("weight_fn",)),
]
every_operator = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
PRODUCTS = [row for row in TABLE if row.name != "embedding"]
every_product = pytest.mark.parametrize("row", PRODUCTS, ids=lambda row: row.name)
biased = pytest.mark.parametrize("row", [row for row in TABLE if row.bias is not None], ids=lambda row: row.name)


def expand(row, bias):
    """The bias as it broadcasts to the result."""
    return bias[:, None] if row.name == "conv" else bias


@every_operator
def test_without_options_an_operator_is_plain_jax_bit_for_bit(row):
    got = row.call(row.data, *row.weights)
    if row.name == "sparse_matmul":  # sums in another order than the dense product
        assert jnp.allclose(got, row.plain(row.data, *row.weights), rtol=1e-14)
    else:
        assert jnp.array_equal(got, row.plain(row.data, *row.weights))


@biased
def test_a_bias_is_added(row):
    got = row.call(row.data, *row.weights, **row.with_bias())
    assert jnp.allclose(got, row.plain(row.data, *row.weights) + expand(row, row.bias))


@biased
def test_every_hook_transforms_its_own_weight(row):
    hooks = dict.fromkeys(row.hooks, jnp.tanh)
    got = row.call(row.data, *row.weights, **row.with_bias(), bias_fn=jnp.abs, **hooks)
    expected = row.plain(row.data, *map(jnp.tanh, row.weights)) + expand(row, jnp.abs(row.bias))
    assert jnp.allclose(got, expected)


@every_operator
def test_hooks_reach_the_gradient_of_the_raw_weight(row):
    hooks = dict.fromkeys(row.hooks, jnp.tanh)
    got = jax.grad(lambda w: jnp.sin(row.call(row.data, *w, **hooks)).sum())(row.weights)
    expected = jax.grad(lambda w: jnp.sin(row.plain(row.data, *map(jnp.tanh, w))).sum())(row.weights)
    for a, b in zip(got, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-12)


@every_operator
def test_a_masked_weight_has_no_gradient_where_it_is_masked(row):
    mask = np.asarray(RNG.random(row.weights[-1].shape) < 0.5)
    hook = {row.hooks[-1]: lambda w: w * mask}
    got = jax.grad(lambda w: (row.call(row.data, *row.weights[:-1], w, **hook) ** 2).sum())(row.weights[-1])
    assert not jnp.any(jnp.where(mask, 0, got))


@every_product
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_spikes_of_any_type_give_the_result_and_gradient_of_floats(row, dtype):
    spikes = RNG.integers(0, 2, row.data.shape)

    def loss(weights, data):
        return jnp.sum(row.call(data, *weights, **row.with_bias()) ** 2)

    got = jax.value_and_grad(loss)(row.weights, jnp.asarray(spikes, dtype))
    expected = jax.value_and_grad(loss)(row.weights, jnp.asarray(spikes, float))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, got, expected))


@every_operator
@pytest.mark.parametrize("lead", [(2, 3), (2, 1, 2), (0,)], ids=str)
def test_leading_axes_are_folded_into_the_batch_and_unfolded_after(row, lead):
    sample = row.data.shape[1:]
    data = jnp.asarray(RNG.integers(0, 6, lead)) if row.name == "embedding" else normal(*lead, *sample)
    got = row.call(data, *row.weights, **row.with_bias())
    flat = data.reshape(int(np.prod(lead)), *sample)
    expected = row.call(flat, *row.weights, **row.with_bias())
    assert got.shape == (*lead, *expected.shape[1:])
    assert jnp.array_equal(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("row", [row for row in TABLE if row.name != "einsum"], ids=lambda row: row.name)
def test_one_sample_is_a_row_of_the_batch(row):
    batch = row.call(row.data, *row.weights, **row.with_bias())
    assert jnp.allclose(row.call(row.data[1], *row.weights, **row.with_bias()), batch[1], rtol=1e-14)


@every_operator
def test_vmap_over_samples_keeps_the_marked_operator(row):
    data = row.data[:, None] if row.name == "einsum" else row.data
    fn = jax.vmap(lambda x: row.call(x, *row.weights, **row.with_bias()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eqns = jax.make_jaxpr(fn)(data).eqns
    assert sum(isinstance(eqn.primitive, ETPPrimitive) and eqn.primitive.batched for eqn in eqns) == 1
    assert jnp.allclose(fn(data).reshape(-1), row.call(row.data, *row.weights, **row.with_bias()).reshape(-1))


# units


def in_units(row):
    """Data in mV, every weight in mS: the product is in 1e-3 to the number of operands."""
    unit = u.mV
    for _ in row.weights:
        unit = unit * u.mS
    return row.data * u.mV, [w * u.mS for w in row.weights], unit


@every_product
def test_quantities_in_give_quantities_out(row):
    data, weights, unit = in_units(row)
    got = row.call(data, *weights)
    assert u.get_unit(got) == unit
    assert jnp.allclose(got.mantissa, row.call(row.data, *row.weights))


@biased
def test_a_bias_in_another_scale_is_converted(row):
    data, weights, unit = in_units(row)
    scaled = u.Quantity(row.bias / 1000.0, unit=u.Unit(unit.dim, scale=unit.scale + 3))
    got = row.call(data, *weights, bias=scaled)
    assert jnp.allclose(got.to_decimal(unit), row.call(row.data, *row.weights, bias=row.bias))


@biased
def test_a_bias_of_another_dimension_is_one_clear_error(row):
    data, weights, _ = in_units(row)
    with pytest.raises(TypeError, match="bias has the unit s but the result has the unit"):
        row.call(data, *weights, bias=row.bias * u.second)
    with pytest.raises(TypeError, match=r"bias has the unit 1 \(no unit\)"):
        row.call(data, *weights, bias=row.bias)


@every_operator
def test_hooks_see_the_mantissa(row):
    weights = [w * u.mS for w in row.weights]
    hooks = dict.fromkeys(row.hooks, lambda w: w**2)
    got = row.call(row.data, *weights, **hooks)
    assert jnp.allclose(u.get_mantissa(got), row.call(row.data, *row.weights, **hooks))
    assert u.get_unit(got) == u.get_unit(row.call(row.data, *weights))


def test_units_that_cancel_leave_a_plain_array():
    assert not isinstance(ops.matmul(normal(4) * u.volt, normal(4, 5) / u.volt), u.Quantity)


def test_element_wise_keeps_the_unit_and_the_shape_of_its_weight():
    got = ops.element_wise(normal(2, 3) * u.mV, weight_fn=jnp.exp)
    assert (got.shape, u.get_unit(got)) == ((2, 3), u.mV)


def test_element_wise_applies_its_hook():
    weight = normal(2, 3)
    assert jnp.array_equal(ops.element_wise(weight, weight_fn=jnp.tanh), jnp.tanh(weight))
    assert jnp.array_equal(ops.element_wise(weight), weight)


# what is refused


@every_operator
def test_a_hook_that_changes_the_shape_is_refused_by_name(row):
    name = row.hooks[-1]
    with pytest.raises(ValueError, match=rf"{row.name}: {name} must keep the shape of its weight.*Reshape"):
        row.call(row.data, *row.weights, **{name: lambda w: w[..., :1]})


@every_operator
@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (lambda w: w > 0, "must return real floating-point numbers, but returns bool"),
        (dataclasses.make_dataclass("Unhashable", [], namespace={"__call__": lambda self, w: w})(), "must be hashable"),
    ],
    ids=["boolean", "unhashable"],
)
def test_a_hook_that_cannot_work_is_refused_by_name(row, hook, words):
    with pytest.raises(TypeError, match=f"{row.name}: {row.hooks[0]} {words}"):
        row.call(row.data, *row.weights, **{row.hooks[0]: hook})


@every_operator
def test_a_hook_over_a_traced_array_is_refused_with_the_remedy(row):
    def loss(scale):
        return row.call(row.data, *row.weights, **{row.hooks[0]: lambda w: scale * w}).sum()

    with pytest.raises(ValueError, match=rf"{row.name}: {row.hooks[0]} uses an array that is being traced.*before"):
        jax.jit(loss)(2.0)


@every_operator
def test_an_integer_weight_is_refused(row):
    weights = [w.astype(int) for w in row.weights]
    with pytest.raises(TypeError, match=rf"{row.name}: \w+ must be floating point to be learned, got int64; convert"):
        row.call(row.data, *weights)


@every_operator
@pytest.mark.parametrize("operand", ["data", "weight"])
def test_complex_numbers_are_refused_with_the_remedy(row, operand):
    data, weights = row.data, list(row.weights)
    if operand == "data":
        data = data + 1j
    else:
        weights[0] = weights[0] + 1j
    with pytest.raises(TypeError, match=rf"{row.name}: \w+ is complex128.*real and imaginary parts"):
        row.call(data, *weights)


@biased
def test_a_bias_of_another_shape_is_refused(row):
    with pytest.raises(ValueError, match=rf"{row.name} takes a bias of shape .*; got \(3, 3\)"):
        row.call(row.data, *row.weights, bias=normal(3, 3))


@biased
def test_a_bias_hook_without_a_bias_is_refused(row):
    with pytest.raises(ValueError, match=f"{row.name}: bias_fn is given but bias is None"):
        row.call(row.data, *row.weights, bias_fn=jnp.abs)


INTS = jnp.array([0, 1])
BAD_CALLS = {
    "matmul scalar": (lambda: ops.matmul(1.0, normal(4, 5)), r"x \(\) and weight \(4, 5\)"),
    "matmul inner": (lambda: ops.matmul(normal(3), normal(4, 5)), r"x \(3,\) and weight \(4, 5\)"),
    "matmul rank": (lambda: ops.matmul(normal(3), normal(3)), "use einsum or grouped_matmul"),
    "grouped rank": (lambda: ops.grouped_matmul(normal(4), normal(2, 4, 5)), r"x \(4,\) and weight \(2, 4, 5\)"),
    "grouped weight": (lambda: ops.grouped_matmul(normal(2, 4), normal(4, 5)), r"weight \(4, 5\)"),
    "lora order": (lambda: ops.lora_matmul(normal(4), normal(2, 4), normal(5, 2)), "input-facing factor comes first"),
    "lora rank": (lambda: ops.lora_matmul(normal(4), normal(4), normal(2, 5)), r"B \(4,\) and A \(2, 5\)"),
    "sparse inner": (lambda: sparse(normal(3), normal(NNZ)), r"structure \(I, O\) = \(4, 5\); got \(3,\)"),
    "sparse data": (lambda: sparse(normal(4), normal(3)), r"one weight per stored entry.*got \(3,\)"),
    "table rank": (lambda: ops.embedding(INTS, normal(4)), r"table of shape \(N, D\).*got \(4,\)"),
    "table empty": (lambda: ops.embedding(INTS, normal(0, 4)), r"N > 0, got \(0, 4\)"),
    "conv rank": (lambda: ops.conv(normal(1, 2), normal(1, 2)), r"x \(1, 2\) and kernel \(1, 2\).*use matmul"),
    "conv data": (lambda: ops.conv(normal(6), normal(4, 2, 3)), r"got x \(6,\) and kernel \(4, 2, 3\)"),
    "conv channels": (lambda: ops.conv(normal(1, 3, 6), normal(4, 2, 3)), "3 channels does not fit a kernel"),
    "conv strides": (lambda: ops.conv(normal(1, 2, 6), normal(4, 2, 3), strides=(1, 1)), r"strides .*got \(1, 1\)"),
    "conv zero stride": (lambda: ops.conv(normal(1, 2, 6), normal(4, 2, 3), strides=0), "strides .*got 0"),
    "conv groups": (
        lambda: ops.conv(normal(2, 4, 6), normal(4, 2, 3), feature_group_count=2, batch_group_count=2),
        "one of them 1; got feature_group_count=2 and batch_group_count=2",
    ),
    "conv batch groups": (
        lambda: ops.conv(normal(3, 2, 6), normal(4, 2, 3), batch_group_count=2),
        "batch_group_count=2 must divide the batch, 3",
    ),
    "conv lead": (
        lambda: ops.conv(normal(2, 6, 2, 3), normal(4, 2, 3), dimension_numbers=("HCN", "OIH", "HCN")),
        "Move the batch axis to the front",
    ),
    "einsum form": (lambda: ops.einsum("bi,io", normal(3, 4), normal(4, 5)), "explicit output.*got 'bi,io'"),
    "einsum ellipsis": (lambda: ops.einsum("...i,io->...o", normal(3, 4), normal(4, 5)), "no ellipsis"),
    "einsum twice": (lambda: ops.einsum("bii,io->bo", normal(3, 4, 4), normal(4, 5)), "stands twice in 'bii'"),
    "einsum batch": (lambda: ops.einsum("bi,io->ob", normal(3, 4), normal(4, 5)), "batch letter must come first"),
    "einsum batched weight": (
        lambda: ops.einsum("bi,bio->bo", normal(3, 4), normal(3, 4, 5)),
        "not occur in the weight",
    ),
    "einsum unknown output": (lambda: ops.einsum("bi,io->boz", normal(3, 4), normal(4, 5)), "z of .* only one term"),
    "einsum unknown weight": (
        lambda: ops.einsum("bi,ioz->bo", normal(3, 4), normal(4, 5, 2)),
        "z of .* Sum the weight",
    ),
    "einsum rank": (lambda: ops.einsum("bgi,io->bgo", normal(3, 4), normal(4, 5)), r"got x \(3, 4\) and weight"),
    "einsum size": (lambda: ops.einsum("bi,io->bo", normal(3, 3), normal(4, 5)), "i is 3 in x .* and 4 in the weight"),
}


@pytest.mark.parametrize(("call", "words"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_shapes_are_refused_with_what_came_and_what_is_allowed(call, words):
    with pytest.raises(ValueError, match=words):
        call()


WRONG_TYPES = {
    "float indices": (
        lambda: ops.embedding(jnp.ones(2), normal(4, 2)),
        "integers without unit as indices, got float64",
    ),
    "bool indices": (lambda: ops.embedding(jnp.ones(2, bool), normal(4, 2)), "got bool"),
    "unit of indices": (lambda: ops.embedding(jnp.ones(2, int) * u.mV, normal(4, 2)), "with the unit mV"),
    "dense structure": (
        lambda: ops.sparse_matmul(normal(4), normal(20), sparse_mat=DENSE),
        "CSR, CSC or COO .*got ndarray; convert",
    ),
}


@pytest.mark.parametrize(("call", "words"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_operands_of_the_wrong_type_are_refused(call, words):
    with pytest.raises(TypeError, match=words):
        call()


UNCHECKED = """
import jax.numpy as jnp
from etp_ops import lora_matmul, matmul
x, w = jnp.ones(4), jnp.ones((4, 4))
for call in (
    lambda: matmul(x, w, weight_fn=3.0),
    lambda: lora_matmul(x, w, w, alpha=x),
    lambda: lora_matmul(x, w, w, alpha=True),
):
    try:
        call()
    except TypeError as error:
        print(error)
"""


def test_what_type_checkers_find_is_also_refused_without_one():
    lines = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=True).stdout
    hook, traced, boolean = lines.splitlines()
    assert hook == "matmul: weight_fn must be a function of one array or None, got float."
    assert traced.startswith("lora_matmul: alpha must be a Python number, got ArrayImpl")
    assert boolean.startswith("lora_matmul: alpha must be a Python number, got bool")
