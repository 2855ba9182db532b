import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from etp_ops import nn


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def draw(shape):
    return array(3, *shape)


CASES = {
    "plain": ("Conv1d", (6, 2), dict(out_channels=3, kernel_size=3)),
    "bias": ("Conv1d", (6, 2), dict(out_channels=3, kernel_size=3, b_init=draw)),
    "pair of numbers": ("Conv1d", (6, 2), dict(out_channels=3, kernel_size=3, padding=(0, 2))),
    "channels first": ("Conv2d", (2, 5, 4), dict(out_channels=4, kernel_size=(3, 2), channel_first=True, b_init=draw)),
    "groups and strides": ("Conv2d", (5, 4, 4), dict(out_channels=6, kernel_size=2, groups=2, stride=(2, 1))),
    "dilations": (
        "Conv2d",
        (5, 4, 2),
        dict(out_channels=3, kernel_size=2, lhs_dilation=2, rhs_dilation=(1, 2), padding=1),
    ),
    "number per axis": ("Conv2d", (5, 4, 2), dict(out_channels=3, kernel_size=2, padding=(1, 0))),
    "one pair for all": ("Conv2d", (5, 4, 2), dict(out_channels=3, kernel_size=2, padding=[(1, 0)])),
    "mask": ("Conv2d", (5, 4, 2), dict(out_channels=3, kernel_size=2, w_mask=array(1, 2, 2, 2, 3) > 0)),
    "mask function": ("Conv2d", (5, 4, 2), dict(out_channels=3, kernel_size=2, w_mask=lambda s: draw(s) > 0)),
    "three dimensions": ("Conv3d", (3, 4, 3, 2), dict(out_channels=3, kernel_size=2, padding="VALID", b_init=draw)),
    "padding number": ("Conv3d", (3, 4, 3, 2), dict(out_channels=2, kernel_size=2, padding=1)),
}


@pytest.mark.parametrize("case", CASES)
def test_convolutions_compute_what_brainstates_do(case):
    name, in_size, options = CASES[case]
    ours, theirs = (getattr(m, name)(in_size, w_init=draw, **options) for m in (nn, brainstate.nn))
    assert jax.tree.map(jnp.shape, ours.weight.value) == jax.tree.map(jnp.shape, theirs.weight.value)
    assert (ours.in_size, ours.out_size) == (theirs.in_size, theirs.out_size)
    for x in (array(5, *in_size), array(6, 2, *in_size)):
        y = jax.jit(ours.update)(x)
        assert_allclose(y, jax.jit(theirs.update)(x), rtol=1e-10, atol=1e-12)
        assert y.shape == (*x.shape[: -len(in_size)], *ours.out_size)


def test_the_default_kernel_is_drawn_as_brainstates():
    kernels = []
    for module in (nn, brainstate.nn):
        with brainstate.random.seed_context(0):
            kernels.append(module.Conv2d((5, 4, 2), 3, 2).weight.value)
    jax.tree.map(assert_array_equal, *kernels)


def test_masked_kernel_entries_have_a_gradient_of_exactly_zero():
    mask = np.asarray(array(1, 2, 2, 2, 3) > 0)
    layer = nn.Conv2d((5, 4, 2), 3, 2, w_init=draw, w_mask=mask)
    states = layer.states(brainstate.ParamState)
    gradient = brainstate.transform.grad(lambda: jnp.sum(layer(array(2, 3, 5, 4, 2)) ** 2), states)()
    kernel = np.asarray(gradient[("weight",)]["weight"])
    assert_array_equal(kernel[~mask], 0.0)
    assert np.all(kernel[mask] != 0.0)


def test_leading_axes_fold_into_the_batch():
    layer = nn.Conv1d((6, 2), 3, 3, w_init=draw)
    x = array(1, 4, 2, 6, 2)
    assert_allclose(layer(x), jax.vmap(layer.update)(x), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_size": (6,)}, "2 entries"),
        ({"groups": 3}, "groups must divide"),
        ({"padding": "FULL"}, "padding must be"),
        ({"padding": ()}, "padding must be"),
        ({"padding": ((1, 1), (1, 1))}, "padding must be"),
        ({"lhs_dilation": 2}, "specify the required padding"),
        ({"stride": (1, 2)}, "stride must be"),
        ({"w_init": jnp.ones((2, 2, 4))}, "w_init"),
        ({"w_mask": jnp.ones((2, 3))}, "w_mask"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_constructor(options, said):
    with pytest.raises(ValueError, match=said):
        nn.Conv1d(**{"in_size": (6, 2), "out_channels": 4, "kernel_size": 3, **options})


def test_an_input_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"in_size \(6, 2\), got \(5, 2\)"):
        nn.Conv1d((6, 2), 4, 3)(jnp.ones((5, 2)))
