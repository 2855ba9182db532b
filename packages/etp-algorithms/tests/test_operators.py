"""Every operator, and every way its output can lie on the positions, learns exactly through windows."""

import functools

import jax.numpy as jnp
import pytest

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import conv, einsum, element_wise, embedding, grouped_matmul, lora_matmul, matmul

from .helpers import compiled, initialised, quietly, trusts
from .models import Cell, array, cell

pytestmark = pytest.mark.thorough

T, B, N = 5, 2, 4
RANDOM = array(3, T, B, 3, scale=1.0)
IMAGES = array(4, T, B, 2, 6, scale=1.0)
TOKENS = jnp.array([[0, 2], [1, 1], [2, 0], [0, 1], [2, 2]])


def leak(self, y):
    self.h.value = jnp.tanh(0.7 * self.h.value + y)
    return self.h.value


def row(shape, params, step, xs=RANDOM):
    """A cell, and the inputs it takes; hidden shapes are given without batch."""
    return (lambda: Cell(step, params, {"h": shape} if isinstance(shape, tuple) else shape), xs)


W, V = array(0, 3, N), array(1, N)
KERNEL = array(0, 3, 2, 3)
OPERATORS = {
    "matmul": row((N,), {"W": W, "b": V}, lambda s, x: leak(s, matmul(x, s.W.value, s.b.value))),
    "matmul on three axes": row(
        (2, N), {"W": W, "b": V}, lambda s, x: leak(s, matmul(jnp.stack([x, x**2], 1), s.W.value, s.b.value))
    ),
    "conv": row((3, 6), {"W": KERNEL}, lambda s, x: leak(s, conv(x, s.W.value, padding="SAME")), IMAGES),
    "conv with stride and bias": row(
        (3, 3),
        {"W": KERNEL, "b": array(2, 3)},
        lambda s, x: leak(s, conv(x, s.W.value, s.b.value, strides=(2,), padding="SAME")),
        IMAGES,
    ),
    "conv with hook": row(
        (3, 6), {"W": KERNEL}, lambda s, x: leak(s, conv(x, s.W.value, padding="SAME", kernel_fn=jnp.tanh)), IMAGES
    ),
    "lora": row(
        (N,), {"B": array(0, 3, 2), "A": array(1, 2, N)}, lambda s, x: leak(s, lora_matmul(x, s.B.value, s.A.value))
    ),
    "grouped": row(
        (2, N),
        {"W": array(0, 2, 3, N)},
        lambda s, x: leak(s, grouped_matmul(jnp.stack([x, x**2], 1), s.W.value)),
    ),
    "embedding": row((N,), {"W": array(0, 3, N)}, lambda s, x: leak(s, embedding(x, s.W.value)), TOKENS),
    "einsum": row((2, N), {"W": array(0, 3, 2, N)}, lambda s, x: leak(s, einsum("bi,ijk->bjk", x, s.W.value))),
    "einsum with a shared letter": row(
        (3, 2), {"W": array(0, 3, 3, 2)}, lambda s, x: leak(s, einsum("bi,ikj->bkj", x, s.W.value))
    ),
    "element_wise": row(
        (N,), {"W": array(0, N)}, lambda s, x: leak(s, element_wise(s.W.value) * (s.h.value + x.sum(-1, keepdims=True)))
    ),
}
LAYOUTS = {
    "fused gates": row(
        (N,), {"W": array(0, 3, 2 * N)}, lambda s, x: leak(s, (lambda y: y[:, :N] * y[:, N:])(matmul(x, s.W.value)))
    ),
    "interleaved gates": row(
        (N,), {"W": array(0, 3, 2 * N)}, lambda s, x: leak(s, (lambda y: y[:, ::2] * y[:, 1::2])(matmul(x, s.W.value)))
    ),
    "half of the positions": row(
        (N,), {"W": array(0, 3, 2)}, lambda s, x: leak(s, jnp.pad(matmul(x, s.W.value), ((0, 0), (1, 1))))
    ),
    "part of the output": row((N,), {"W": array(0, 3, 7)}, lambda s, x: leak(s, matmul(x, s.W.value)[:, 2:6])),
    "one gate for all": row((N,), {"W": array(0, 3, 1)}, lambda s, x: leak(s, matmul(x, s.W.value))),
    "one gate for each half": row(
        (N,), {"W": array(0, 3, 2)}, lambda s, x: leak(s, jnp.repeat(matmul(x, s.W.value), 2, -1))
    ),
    "unequal repeats": row(
        (N,), {"W": array(0, 3, 2)}, lambda s, x: leak(s, matmul(x, s.W.value)[:, jnp.array([0, 0, 0, 1])])
    ),
    "one weight for all": row((N,), {"W": array(0, 1)}, lambda s, x: leak(s, element_wise(s.W.value) * x[:, :1])),
    "batch last": row(
        {"h": (N,)},
        {"W": W},
        lambda s, x: set_transposed(s, matmul(x, s.W.value)),
    ),
    "broadcast channel of a conv": row(
        (3, 6), {"W": KERNEL[:1]}, lambda s, x: leak(s, conv(x, s.W.value, padding="SAME")), IMAGES
    ),
    "two channels pooled": row(
        (6,),
        {"W": KERNEL[:2]},
        lambda s, x: leak(s, conv(x, s.W.value, padding="SAME").prod(1)),
        IMAGES,
    ),
}


def set_transposed(self, y):
    """The update computed in another order of axes."""
    h = self.h.value.T
    self.h.value = jnp.tanh(0.7 * h + y.T).T
    return self.h.value


ALL = {**OPERATORS, **LAYOUTS}


@functools.cache
def reference(name):
    factory, xs = ALL[name]
    oracle.assert_model_is_live(factory, xs, batch_size=B)
    return oracle.bptt_param_gradients(factory, xs, batch_size=B)


def online(name, window, algorithm):
    factory, xs = ALL[name]
    return quietly(
        oracle.chunked_online_param_gradients, factory, xs, algo_factory=algorithm, chunk_size=window, batch_size=B
    )


@pytest.mark.parametrize("name", ALL)
def test_the_parameters_are_promised_exact(name):
    factory, xs = ALL[name]
    assert set(trusts(compiled(factory, xs[0], B)).values()) == {"exact"}


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("name", ALL)
def test_single_steps_equal_backpropagation_through_time(name, kernels):
    found = online(name, 1, functools.partial(ea.D_RTRL, kernels=kernels))
    assert oracle.relative_deviation(found, reference(name)) < 1e-13


@pytest.mark.parametrize("name", ALL)
def test_pp_prop_points_the_way_of_backpropagation(name):
    found = online(name, 1, lambda m: ea.pp_prop(m, 0.7))
    assert oracle.cosine_similarity(found, reference(name)) > 0.5


def mean_field(self, x):
    """One state for the whole batch, driven by the sum over it."""
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, self.W.value).sum(0))
    return self.h.value


def test_a_drive_summed_over_the_batch_is_exact():
    def factory():
        return Cell(mean_field, {"W": W}, {"h": (N,)})

    expected = oracle.bptt_param_gradients(factory, RANDOM, batch_size=None)
    found = oracle.chunked_online_param_gradients(
        factory, RANDOM, algo_factory=ea.D_RTRL, chunk_size=1, batch_size=None
    )  # fmt: skip
    assert trusts(compiled(factory, RANDOM[0])) == {"W": "exact"}
    assert oracle.relative_deviation(found, expected) < 1e-13


class Rotating(Cell):
    """A complex state, as in linear recurrent units."""

    def __init__(self):
        super().__init__(None, {"W": W}, {"h": (N,)})

    def init_state(self, batch_size=None, **kwargs):
        super().init_state(batch_size)
        self.h.value = self.h.value.astype(complex)

    def update(self, x):
        self.h.value = (0.6 + 0.5j) * self.h.value + matmul(x, self.W.value)
        return self.h.value.real + 0.3 * self.h.value.imag


def test_a_complex_state_is_refused_with_the_remedy():
    learner = ea.D_RTRL(initialised(Rotating, B))
    with pytest.raises(
        ea.CompilationError, match=r"(?s)hidden state h is complex128, and etp_mm .* real and imaginary"
    ):
        learner.compile_graph(RANDOM[0])


@cell({"re": (N,), "im": (N,)}, lambda: {"W": W})
def rotating_in_two_states(self, x):
    re, im = self.re.value, self.im.value
    self.re.value = 0.6 * re - 0.5 * im + matmul(x, self.W.value)
    self.im.value = 0.5 * re + 0.6 * im
    return self.re.value + 0.3 * self.im.value


def test_the_same_in_two_real_states_is_exact():
    expected = oracle.bptt_param_gradients(rotating_in_two_states, RANDOM, batch_size=B)
    found = oracle.chunked_online_param_gradients(
        rotating_in_two_states, RANDOM, algo_factory=ea.D_RTRL, chunk_size=1, batch_size=B
    )
    assert trusts(compiled(rotating_in_two_states, RANDOM[0], B)) == {"W": "exact"}
    assert oracle.relative_deviation(found, expected) < 1e-13
