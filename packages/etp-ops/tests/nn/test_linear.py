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


MASK = np.arange(12).reshape(3, 4) % 3 > 0
SIGN = np.where(np.arange(12).reshape(3, 4) % 2, 1.0, -1.0)
PAIRS = {
    "Linear": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), b_init=array(1, 4)),
    "Linear without bias": dict(in_size=(3,), out_size=(4,), w_init=array(0, 3, 4), b_init=None),
    "Linear with mask": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), w_mask=MASK),
    "Linear with mask function": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), w_mask=jnp.ones),
    "SignedWLinear": dict(in_size=3, out_size=4, w_init=array(0, 3, 4)),
    "SignedWLinear with signs": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), w_sign=SIGN),
    "ScaledWSLinear": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), b_init=array(1, 4)),
    "ScaledWSLinear without gain": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), ws_gain=False, eps=3.0),
    "ScaledWSLinear with mask": dict(in_size=3, out_size=4, w_init=array(0, 3, 4), w_mask=MASK[:, :1]),
}


@pytest.mark.parametrize("case", PAIRS)
def test_dense_layers_compute_what_brainstates_do_with_the_same_parameters(case):
    name, options = case.split()[0], PAIRS[case]
    ours, theirs = getattr(nn, name)(**options), getattr(brainstate.nn, name)(**options)
    assert jax.tree.map(jnp.shape, ours.weight.value) == jax.tree.map(jnp.shape, theirs.weight.value)
    assert (ours.in_size, ours.out_size) == (theirs.in_size, theirs.out_size)
    for x in (array(2, 3), array(3, 2, 3), array(4, 5, 2, 3)):
        assert_allclose(ours(x), theirs(x), rtol=1e-12)


@pytest.mark.parametrize("name", ["Linear", "SignedWLinear", "ScaledWSLinear"])
def test_the_default_initialisers_draw_what_brainstates_draw(name):
    drawn = []
    for module in (nn, brainstate.nn):
        with brainstate.random.seed_context(0):
            drawn.append(getattr(module, name)(3, 4).weight.value)
    jax.tree.map(assert_array_equal, *drawn)


@pytest.mark.parametrize("layer", [nn.Linear, nn.ScaledWSLinear])
def test_masked_entries_have_a_gradient_of_exactly_zero(layer):
    made = layer(3, 4, w_init=array(0, 3, 4), w_mask=MASK)
    gradient = brainstate.transform.grad(
        lambda: jnp.sum(made(array(1, 2, 3)) ** 2), made.states(brainstate.ParamState)
    )()
    weight = np.asarray(gradient[("weight",)]["weight"])
    if layer is nn.Linear:  # standardisation spreads the gradient over the inputs of an output
        assert_array_equal(weight[~MASK], 0.0)
    assert np.all(weight[MASK] != 0.0)


@pytest.mark.parametrize("case", PAIRS)
def test_a_reparametrised_layer_is_traced_once(case):
    made, count = getattr(nn, case.split()[0])(**PAIRS[case]), []

    @brainstate.transform.jit
    def run(x):
        count.append(x)
        return made(x)

    for seed in range(3):
        run(array(seed, 2, 3))
    assert len(count) == 1
    first, second = (jax.make_jaxpr(made.update)(jnp.ones(3)) for _ in range(2))
    assert str(first) == str(second)


def test_units_go_through_a_dense_layer():
    layer = nn.Linear(3, 4, w_init=array(0, 3, 4) * u.siemens, b_init=array(1, 4) * u.mA, w_mask=MASK)
    y = layer(array(2, 3) * u.mV)
    expected = (array(2, 3) @ (array(0, 3, 4) * MASK)) * u.mA + array(1, 4) * u.mA
    assert_allclose((y / u.mA), (expected / u.mA), rtol=1e-12)


def test_signed_weights_keep_their_unit():
    layer = nn.SignedWLinear(3, 4, w_init=-array(0, 3, 4) * u.mS)
    assert_allclose(layer(jnp.ones(3)) / u.mS, jnp.abs(array(0, 3, 4)).sum(0), rtol=1e-12)


def test_standardised_weights_with_a_unit_are_refused():
    layer = nn.ScaledWSLinear(3, 4, w_init=array(0, 3, 4) * u.mS, ws_gain=False)
    with pytest.raises(ValueError, match="without unit"):
        layer(jnp.ones(3))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear((2, 3), (3, 4)), "agree in all but the last"),
        (lambda: nn.Linear(3, 4, w_init=jnp.ones((4, 3))), r"w_init .* does not broadcast to \(3, 4\)"),
        (lambda: nn.Linear(3, 4, b_init=jnp.ones(3)), "b_init"),
        (lambda: nn.Linear(3, 4, w_mask=jnp.ones((2, 3, 4))), "w_mask"),
        (lambda: nn.SignedWLinear(3, 4, w_sign=jnp.ones(3)), "w_sign"),
        (lambda: nn.ScaledWSLinear(3, 4, w_mask=jnp.ones((4, 4))), "w_mask has the shape"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_constructor(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_weight_cannot_be_left_out():
    with pytest.raises((TypeError, ValueError), match="w_init"):
        nn.Linear(3, 4, w_init=None)


def test_a_number_initialises_every_entry():
    assert_array_equal(nn.Linear(3, 4, w_init=0.5).weight.value["weight"], jnp.full((3, 4), 0.5))
