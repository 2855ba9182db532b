"""The sparse, grouped, low-rank and embedding layers."""

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from etp_ops import nn


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


DENSE = array(0, 3, 4) * (np.arange(12).reshape(3, 4) % 3 > 0)


@pytest.mark.parametrize("kind", [u.sparse.CSR, u.sparse.CSC, u.sparse.COO])
@pytest.mark.parametrize("bias", [None, array(1, 4)])
def test_a_sparse_layer_computes_the_dense_product(kind, bias):
    layer = nn.SparseLinear(kind.fromdense(DENSE), b_init=bias, in_size=3)
    expected = array(2, 2, 3) @ DENSE + (0 if bias is None else bias)
    assert_allclose(layer(array(2, 2, 3)), expected, rtol=1e-12)
    assert (layer.in_size, layer.out_size) == ((3,), (4,))
    assert layer.weight.value["weight"].shape == (8,)


def test_a_sparse_layer_computes_what_brainstates_does():
    matrix = u.sparse.CSR.fromdense(DENSE)
    options = dict(b_init=array(1, 4), in_size=(3,))
    x = array(2, 2, 3)
    assert_allclose(nn.SparseLinear(matrix, **options)(x), brainstate.nn.SparseLinear(matrix, **options)(x), rtol=1e-12)


def test_a_sparse_layer_refuses_what_is_not_sparse_or_of_another_size():
    with pytest.raises(TypeError, match="CSR, CSC or COO"):
        nn.SparseLinear(DENSE)
    with pytest.raises(ValueError, match="number of rows"):
        nn.SparseLinear(u.sparse.CSR.fromdense(DENSE), in_size=4)


def test_a_grouped_layer_is_one_dense_layer_per_group():
    layer = nn.GroupedLinear(2, 3, 4, w_init=array(0, 2, 3, 4), b_init=array(1, 2, 4))
    x = array(2, 5, 2, 3)
    expected = jnp.stack([x[:, g] @ array(0, 2, 3, 4)[g] + array(1, 2, 4)[g] for g in range(2)], axis=1)
    assert_allclose(layer(x), expected, rtol=1e-12)
    assert (layer.in_size, layer.out_size) == ((2, 3), (2, 4))


def test_every_group_is_initialised_as_a_dense_layer():
    layer = nn.GroupedLinear(8, 30, 20)
    assert_allclose(layer.weight.value["weight"].std(), nn.Linear(30, 160).weight.value["weight"].std(), rtol=0.1)
    assert_array_equal(layer.weight.value["bias"], 0.0)


@pytest.mark.parametrize("base", [None, nn.Linear(3, 4, w_init=array(3, 3, 4))])
def test_a_low_rank_layer_computes_what_brainstates_does(base):
    made = []
    for module in (nn, brainstate.nn):
        draw = np.random.default_rng(0)
        made.append(module.LoRA(3, 2, 4, kernel_init=lambda s, d=draw: jnp.asarray(d.normal(size=s)), base_module=base))
    ours, theirs = made
    jax.tree.map(assert_array_equal, ours.weight.value, theirs.weight.value)
    for x in (array(1, 3), array(1, 2, 3)):
        assert_allclose(ours(x), theirs(x), rtol=1e-12)
    assert (ours.in_size, ours.out_size) == (theirs.in_size, theirs.out_size)


def test_a_low_rank_layer_refuses_a_base_that_cannot_be_called_and_a_size_that_does_not_fit():
    with pytest.raises(TypeError, match="base_module"):
        nn.LoRA(3, 2, 4, base_module=1.0)
    with pytest.raises(ValueError, match="in_size must end"):
        nn.LoRA(3, 2, 4, in_size=(5, 4))
    assert nn.LoRA(3, 2, 4, in_size=(5, 3)).out_size == (5, 4)


@pytest.mark.parametrize("size", [4, (2, 3)])
@pytest.mark.parametrize("indices", [2, [0, 4, 4], [[0, 1], [2, 3]]])
def test_an_embedding_computes_what_brainstates_does(size, indices):
    table = array(0, 5, *np.atleast_1d(size))
    ours, theirs = (m.Embedding(5, size, table, padding_idx=1) for m in (nn, brainstate.nn))
    assert_array_equal(ours(jnp.asarray(indices)), theirs(jnp.asarray(indices)))
    assert_array_equal(ours.weight.value, theirs.weight.value)
    assert (ours.out_size, ours.embedding_size) == (theirs.out_size, theirs.embedding_size)


def _gradient(layer, indices):
    states = layer.states(brainstate.ParamState)
    return brainstate.transform.grad(lambda: jnp.sum((layer(indices) - 1.0) ** 2), states)()[("weight",)]


def test_the_padding_row_has_a_gradient_of_exactly_zero():
    gradient = _gradient(nn.Embedding(5, 4, padding_idx=1), jnp.arange(5))
    assert_array_equal(gradient[1], 0.0)
    assert np.all(np.asarray(gradient)[[0, 2, 3, 4]] != 0.0)


def test_a_frozen_table_is_not_marked_and_has_no_gradient():
    layer = nn.Embedding.from_pretrained(array(0, 5, 4), padding_idx=0)
    assert_array_equal(layer(jnp.arange(5)), array(0, 5, 4))
    assert_array_equal(_gradient(layer, jnp.arange(5)), 0.0)
    assert "etp_emb" not in str(jax.make_jaxpr(layer.update)(jnp.arange(5)))
    assert "etp_emb" in str(
        jax.make_jaxpr(nn.Embedding.from_pretrained(array(0, 5, 4), freeze=False).update)(jnp.arange(5))
    )


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"norm_type": 1.0}, {"scale_grad_by_freq": True}])
def test_an_embedding_refuses_options_that_cannot_be_honoured_and_names_the_remedy(option):
    with pytest.raises(NotImplementedError, match=r"leave (?:them|it) out and"):
        nn.Embedding(5, 4, **option)


def test_an_embedding_refuses_a_padding_row_outside_the_table():
    with pytest.raises(ValueError, match="within 0 to 4"):
        nn.Embedding(5, 4, padding_idx=5)
    with pytest.raises(ValueError, match="must be positive"):
        nn.Embedding(0, 4)
    with pytest.raises(ValueError, match=r"shape \(N, \*D\)"):
        nn.Embedding.from_pretrained(jnp.ones(3))
