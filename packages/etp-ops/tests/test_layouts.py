"""Convolutions, contractions, sparse structures and tables against plain JAX, over drawn layouts."""

import brainevent
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import etp_ops as ops
from etp_core import ETPPrimitive
from etp_core.testing import check_primitive

RNG = np.random.default_rng(9)
few = settings(max_examples=12, deadline=None, derandomize=True)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape))


def marked(fn, *args):
    return [eqn for eqn in jax.make_jaxpr(fn)(*args).eqns if isinstance(eqn.primitive, ETPPrimitive)]


@st.composite
def convolutions(draw):
    """Layouts, strides, padding, dilations and groups in one to three dimensions."""
    space = draw(st.integers(1, 3))
    letters = "HWD"[:space]
    data, out = (("".join(draw(st.permutations("NC" + letters)))) for _ in range(2))
    kernel = "".join(draw(st.permutations("OI" + letters)))
    groups, kind = draw(st.sampled_from([(1, ""), (2, "feature_group_count"), (2, "batch_group_count")]))
    per_axis = st.tuples(*[st.integers(1, 2)] * space)
    sizes = {"N": 4, "C": 2 * (groups if kind == "feature_group_count" else 1), "O": 4, "I": 2}
    extent = {letter: draw(st.integers(3, 4)) for letter in letters}
    window = {letter: draw(st.integers(1, 2)) for letter in letters}
    x = normal(*({**sizes, **extent}[c] for c in data))
    k = normal(*({**sizes, **window}[c] for c in kernel))
    dilation = draw(per_axis)
    pads = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 1))] * space)
    padding = draw(pads if max(dilation) > 1 else st.one_of(pads, st.sampled_from(["SAME", "VALID", "SAME_LOWER"])))
    options = {
        "padding": padding,
        "lhs_dilation": dilation,
        "rhs_dilation": draw(per_axis),
        "dimension_numbers": (data, kernel, out),
        **({kind: groups} if kind else {}),
    }
    return x, k, draw(per_axis), options


@few
@given(convolutions())
def test_every_convolution_equals_the_one_of_jax(drawn):
    x, kernel, strides, options = drawn
    got = ops.conv(x, kernel, strides=strides, **options)
    assert jnp.allclose(got, lax.conv_general_dilated(x, kernel, strides, **options), rtol=1e-12)


@pytest.mark.property
@settings(max_examples=8, deadline=None, derandomize=True)
@given(convolutions())
def test_the_rules_of_every_convolution_hold(drawn):
    x, kernel, strides, options = drawn
    (eqn,) = marked(lambda x, k: ops.conv(x, k, strides=strides, kernel_fn=jnp.tanh, **options), x, kernel)
    data = normal(*eqn.invars[0].aval.shape)
    check_primitive(eqn.primitive, data, kernel, **eqn.params)


@pytest.mark.parametrize(
    "numbers", [None, ("NHC", "HIO", "NHC"), lax.ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1))]
)
def test_layouts_come_as_none_strings_or_numbers(numbers):
    x = normal(3, 2, 6) if numbers is None else normal(3, 6, 2)
    kernel = normal(4, 2, 3) if numbers is None else normal(3, 2, 4)
    got = ops.conv(x, kernel, dimension_numbers=numbers)
    assert jnp.array_equal(got, lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=numbers))


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4), (1, 4)])
def test_a_bias_may_be_a_vector_or_broadcast_along_the_channels(shape):
    bias = normal(4)
    layout = ("NHC", "HIO", "NHC")
    got = ops.conv(normal(3, 6, 2), normal(3, 2, 4), bias.reshape(shape), dimension_numbers=layout)
    assert jnp.allclose(got, ops.conv(normal(3, 6, 2), normal(3, 2, 4), dimension_numbers=layout) + bias)


@pytest.mark.parametrize("layout", [("NCH", "OIH", "NCH"), ("HCN", "OIH", "CHN")])
def test_a_convolution_takes_one_sample_without_batch_axis(layout):
    axis = layout[0].index("N")
    x = normal(*({"N": 1, "C": 2, "H": 6}[c] for c in layout[0]))
    got = ops.conv(x.squeeze(axis), normal(4, 2, 3), dimension_numbers=layout)
    expected = ops.conv(x, normal(4, 2, 3), dimension_numbers=layout).squeeze(layout[2].index("N"))
    assert jnp.array_equal(got, expected)


@st.composite
def equations(draw):
    """Batch letter, letters of x alone, shared by x and y, by x and w, by all, by w and y."""
    size = {"b": 2}
    names = iter("cdefghijklmnop")

    def some(most):
        letters = [next(names) for _ in range(draw(st.integers(0, most)))]
        size.update({letter: draw(st.integers(1, 3)) for letter in letters})
        return letters

    only_x, x_y, x_w, every, w_y = some(1), some(2), some(2), some(1), some(2)
    x = "".join(draw(st.permutations(only_x + x_y + x_w + every)))
    w = "".join(draw(st.permutations(x_w + every + w_y)))
    y = "".join(draw(st.permutations(x_y + every + w_y)))
    return f"b{x},{w}->b{y}", [size[c] for c in "b" + x], [size[c] for c in w]


@few
@given(equations())
def test_every_contraction_equals_the_one_of_jax(drawn):
    equation, x_shape, w_shape = drawn
    x, w = normal(*x_shape), normal(*w_shape)
    assert jnp.allclose(ops.einsum(equation, x, w), jnp.einsum(equation, x, w), rtol=1e-12)


@pytest.mark.property
@settings(max_examples=8, deadline=None, derandomize=True)
@given(equations())
def test_the_rules_of_every_contraction_hold(drawn):
    equation, x_shape, w_shape = drawn
    w = normal(*w_shape)
    (eqn,) = marked(lambda x, w: ops.einsum(equation, x, w, weight_fn=jnp.tanh), normal(*x_shape), w)
    check_primitive(eqn.primitive, normal(*eqn.invars[0].aval.shape), w, **eqn.params)


def test_letters_shared_by_data_and_output_become_batch_axes_of_the_trace():
    (eqn,) = marked(lambda x, w: ops.einsum("btk,kn->bnt", x, w), normal(2, 3, 4), normal(4, 5))
    assert eqn.params["equation"] == "bk,kn->bn"
    assert eqn.invars[0].aval.shape == (6, 4)


def test_the_primitive_refuses_an_equation_that_a_weight_shaped_trace_cannot_hold():
    with pytest.raises(ValueError, match="'t' of 'btk,kn->btn' is shared by data and output only"):
        ops.etp_einsum_p.bind(normal(2, 3, 4), normal(4, 5), equation="btk,kn->btn", weight_fn=None)


# sparse structures

DENSE = RNG.normal(size=(4, 5)) * (RNG.random((4, 5)) < 0.5)
R, C = np.nonzero(DENSE)
BY_COLUMN = np.lexsort((R, C))
ROW_ENDS = np.concatenate([[0], np.cumsum(np.bincount(R, minlength=4))])
COLUMN_ENDS = np.concatenate([[0], np.cumsum(np.bincount(C, minlength=5))])
BY_ROWS = (jnp.asarray(DENSE[R, C]), jnp.asarray(C), jnp.asarray(ROW_ENDS))
BY_COLUMNS = (jnp.asarray(DENSE[R, C][BY_COLUMN]), jnp.asarray(R[BY_COLUMN]), jnp.asarray(COLUMN_ENDS))


def structures():
    return {
        "brainunit CSR": u.sparse.CSR(BY_ROWS, shape=(4, 5)),
        "brainunit CSC": u.sparse.CSC(BY_COLUMNS, shape=(4, 5)),
        "brainunit COO": u.sparse.COO((BY_ROWS[0], jnp.asarray(R), jnp.asarray(C)), shape=(4, 5)),
        "brainevent CSR": brainevent.CSR(*BY_ROWS, shape=(4, 5)),
        "brainevent CSC": brainevent.CSC(*BY_COLUMNS, shape=(4, 5)),
    }


@pytest.mark.parametrize("name", structures())
def test_every_kind_of_structure_multiplies_like_its_dense_form(name):
    matrix, x = structures()[name], normal(3, 4)
    got = ops.sparse_matmul(x, matrix.data, sparse_mat=matrix)
    assert jnp.allclose(got, x @ DENSE, rtol=1e-12)


@pytest.mark.parametrize("name", structures())
def test_the_gradient_is_the_dense_one_at_the_stored_entries(name):
    matrix, x = structures()[name], normal(3, 4)
    got = jax.grad(lambda d: jnp.sin(ops.sparse_matmul(x, d, sparse_mat=matrix)).sum())(matrix.data)
    dense = jax.grad(lambda w: jnp.sin(x @ w).sum())(jnp.asarray(DENSE))[R, C]
    assert jnp.allclose(got, dense[BY_COLUMN] if "CSC" in name else dense)


def test_equal_structures_share_a_compilation_and_different_ones_do_not():
    def structure(matrix):
        (eqn,) = marked(lambda x: ops.sparse_matmul(x, matrix.data, sparse_mat=matrix), normal(4))
        return eqn.params["sparse_mat"]

    first, again = (structure(structures()["brainunit CSR"]) for _ in range(2))
    assert first is not again
    assert first == again == structure(structures()["brainevent CSR"])
    assert first != structure(u.sparse.CSR.fromdense(jnp.eye(4, 5)))
    traces = []
    product = jax.jit(lambda x, structure: traces.append(structure) or x, static_argnums=1)
    product(normal(4), first)
    product(normal(4), again)
    assert len(traces) == 1
    assert "4x5" in repr(first)


def test_duplicate_entries_of_a_coo_add_up():
    matrix = u.sparse.COO((jnp.ones(2), jnp.array([1, 1]), jnp.array([2, 2])), shape=(4, 5))
    assert ops.sparse_matmul(jnp.ones(4), jnp.array([1.0, 2.0]), sparse_mat=matrix)[2] == 3


def test_one_weight_for_all_entries_is_broadcast_after_its_hook():
    matrix, x = structures()["brainunit CSR"], normal(3, 4)
    got = ops.sparse_matmul(x, jnp.array([0.3]), sparse_mat=matrix, weight_fn=jnp.tanh)
    assert jnp.allclose(got, x @ ((DENSE != 0) * np.tanh(0.3)))


def test_nothing_of_the_size_of_the_dense_matrix_is_made():
    wide = u.sparse.COO((jnp.ones(3), jnp.array([0, 500, 999]), jnp.array([1, 2, 900])), shape=(1000, 1000))
    jaxpr = jax.make_jaxpr(jax.jit(jax.grad(lambda d: ops.sparse_matmul(jnp.ones(1000), d, sparse_mat=wide).sum())))
    text = str(jaxpr(wide.data))
    assert "1000,1000" not in text


def test_an_index_out_of_range_is_refused():
    matrix = u.sparse.COO((jnp.ones(1), jnp.array([4]), jnp.array([0])), shape=(4, 5))
    with pytest.raises(ValueError, match="a row index of sparse_mat is outside 0 to 3"):
        ops.sparse_matmul(normal(4), jnp.ones(1), sparse_mat=matrix)


def test_traced_indices_are_refused_with_the_remedy():
    def product(row):
        return ops.sparse_matmul(normal(4), jnp.ones(1), sparse_mat=u.sparse.COO((jnp.ones(1), row, row), shape=(4, 5)))

    with pytest.raises(ValueError, match="are being traced; build the structure outside jit"):
        jax.jit(product)(jnp.array([1]))


# tables


@pytest.mark.parametrize(("index", "row"), [(-1, 5), (-6, 0), (9, 5), (-9, 0), (2, 2)])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_indices_count_from_the_end_or_are_clipped(index, row, dtype):
    table = normal(6, 3)
    assert jnp.array_equal(ops.embedding(jnp.asarray(index, dtype), table), table[row])


@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_unsigned_indices_reach_beyond_their_own_range_of_rows(dtype):
    table = normal(300, 2)
    assert jnp.array_equal(ops.embedding(jnp.asarray(250, dtype), table), table[250])


def test_only_rows_that_were_read_have_a_gradient():
    got = jax.grad(lambda t: ops.embedding(jnp.array([[2, 2], [5, 2]]), t).sum())(normal(6, 3))
    assert np.asarray(got[:, 0]).tolist() == [0, 0, 3, 0, 0, 1]
