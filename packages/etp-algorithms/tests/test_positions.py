"""Labels follow elements through every operation that moves them, and say MIXED where several meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from etp_algorithms._compiler._positions import MIXED, NONE, PositionAnalysis, join_labels
from etp_core.jaxpr import trace
from etp_ops import element_wise, matmul

from .models import spike
from .random_models import damped, shifting

M, O = MIXED, NONE  # noqa: E741
X = jnp.zeros((2, 3))


@jax.custom_jvp
def own_slope(v):
    return jnp.exp(v)


own_slope.defjvp(lambda primals, tangents: (own_slope(*primals), own_slope(*primals) * tangents[0]))


@jax.custom_jvp
def branching_slope(v):
    return jnp.exp(v)


@branching_slope.defjvp
def _(primals, tangents):
    slope = lambda t, v: t * branching_slope(v)  # noqa: E731
    return branching_slope(*primals), lax.cond(True, slope, slope, *tangents, *primals)


ONE_DEVICE = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("batch",)), PartitionSpec("batch"))
INDEX = jnp.array([2, 0, 0])

MOVES = {
    "nothing": (lambda v: v, [0, 1, 2, 3, 4, 5]),
    "reshape": (lambda v: v.reshape(3, 2), [0, 1, 2, 3, 4, 5]),
    "transpose": (lambda v: v.T, [0, 3, 1, 4, 2, 5]),
    "squeeze": (lambda v: jnp.squeeze(v[:1], 0), [0, 1, 2]),
    "slice": (lambda v: v[:, 1:], [1, 2, 4, 5]),
    "strided slice": (lambda v: v[:, ::2], [0, 2, 3, 5]),
    "split": (lambda v: jnp.split(v, 3, axis=1)[1], [1, 4]),
    "reverse": (lambda v: v[::-1], [3, 4, 5, 0, 1, 2]),
    "roll": (lambda v: jnp.roll(v, 1, axis=1), [2, 0, 1, 5, 3, 4]),
    "concatenate": (lambda v: jnp.concatenate([v[:, 2:], jnp.ones((2, 1)), v[:, :1]], 1), [2, O, 0, 5, O, 3]),
    "stack": (lambda v: jnp.stack([v[0], v[1]], -1), [0, 3, 1, 4, 2, 5]),
    "pad": (lambda v: jnp.pad(v[:1], ((0, 0), (1, 1))), [O, 0, 1, 2, O]),
    "gather": (lambda v: v[:, INDEX], [2, 0, 0, 5, 3, 3]),
    "take along axis": (lambda v: jnp.take_along_axis(v, jnp.array([[1], [2]]), axis=1), [1, 5]),
    "dynamic slice": (lambda v: lax.dynamic_slice(v, (0, 1), (2, 2)), [1, 2, 4, 5]),
    "broadcast": (lambda v: jnp.broadcast_to(v[:, :1], (2, 3)), [0, 0, 0, 3, 3, 3]),
    "repeat": (lambda v: jnp.repeat(v[0], 2), [0, 0, 1, 1, 2, 2]),
    "tile": (lambda v: jnp.tile(v[0], 2), [0, 1, 2, 0, 1, 2]),
    "set": (lambda v: v.at[:, 0].set(1.0), [O, 1, 2, O, 4, 5]),
    "set from elsewhere": (lambda v: v.at[0, 0].set(v[1, 2]), [5, 1, 2, 3, 4, 5]),
    "add a number": (lambda v: v.at[0, 0].add(1.0), [0, 1, 2, 3, 4, 5]),
    "add an element": (lambda v: jnp.zeros(2).at[1].add(v[1, 0]), [O, 3]),
    "add to another": (lambda v: v.at[0, 0].add(v[0, 1]), [M, 1, 2, 3, 4, 5]),
    "add twice to one": (lambda v: jnp.zeros(2).at[jnp.array([1, 1])].add(v[0, :2]), [O, M]),
    "update slice": (lambda v: lax.dynamic_update_slice(v, jnp.ones((1, 2)), (0, 1)), [0, O, O, 3, 4, 5]),
    "sharding": (lambda v: lax.with_sharding_constraint(v, ONE_DEVICE), [0, 1, 2, 3, 4, 5]),
    "placement": (lambda v: jax.device_put(v, jax.devices()[0]), [0, 1, 2, 3, 4, 5]),
    "barrier": (lambda v: lax.optimization_barrier((v.T, v))[1], [0, 1, 2, 3, 4, 5]),
    "name": (lambda v: checkpoint_name(v, "v"), [0, 1, 2, 3, 4, 5]),
    "vmap": (jax.vmap(lambda row: jnp.roll(row, 1)), [2, 0, 1, 5, 3, 4]),
    "jit": (jax.jit(lambda v: v.T), [0, 3, 1, 4, 2, 5]),
    "checkpoint": (jax.checkpoint(lambda v: jnp.sin(v.T)), [0, 3, 1, 4, 2, 5]),
}
MAPS = {
    "function": (jnp.tanh, [0, 1, 2, 3, 4, 5]),
    "two operands": (lambda v: v * jnp.exp(v), [0, 1, 2, 3, 4, 5]),
    "where": (lambda v: jnp.where(v > 0, v, 2.0), [0, 1, 2, 3, 4, 5]),
    "neighbours": (lambda v: v[:, 1:] * v[:, :-1], [M, M, M, M]),
    "broadcast against": (lambda v: v + v[:, :1], [0, M, M, 3, M, M]),
    "there and back": (lambda v: jnp.roll(jnp.tanh(jnp.roll(v, 1)), -1), [0, 1, 2, 3, 4, 5]),
    "detach": (lax.stop_gradient, [O] * 6),
    "sign": (jnp.sign, [O] * 6),
    "comparison": (lambda v: (v > 0).astype(float), [O] * 6),
    "argmax": (lambda v: v * 0 + jnp.argmax(v), [0, 1, 2, 3, 4, 5]),
    "custom_jvp": (damped, [0, 1, 2, 3, 4, 5]),
    "custom_vjp": (spike, [0, 1, 2, 3, 4, 5]),
    "custom_vjp that moves": (lambda v: shifting(v[0]), [1, 2, 0]),
    "custom_jvp that is its own derivative": (own_slope, [0, 1, 2, 3, 4, 5]),
    "custom_jvp whose derivative branches on it": (branching_slope, [0, 1, 2, 3, 4, 5]),
    "a sum of cotangents": (lambda v: jax.grad(lambda v: jnp.sum(jnp.tanh(v) * v))(v), [0, 1, 2, 3, 4, 5]),
    "relu": (jax.nn.relu, [0, 1, 2, 3, 4, 5]),
    "cond": (lambda v: lax.cond(v.sum() > 0, jnp.tanh, lambda v: 2 * v, v), [0, 1, 2, 3, 4, 5]),
    "cond with a moving branch": (lambda v: lax.cond(v.sum() > 0, lambda v: v.T, lambda v: v.reshape(3, 2), v),
                                  [0, M, M, M, M, 5]),
    "switch with a constant branch": (lambda v: lax.switch(0, [jnp.tanh, jnp.zeros_like], v), [0, 1, 2, 3, 4, 5]),
}  # fmt: skip
REDUCTIONS = {
    "sum over rows": (lambda v: v.sum(1), [M, M]),
    "sum of everything": (lambda v: v.sum(), [M]),
    "sum over one element": (lambda v: v[:, :1].sum(1), [0, 3]),
    "maximum": (lambda v: v.max(0), [M, M, M]),
    "mean kept": (lambda v: v.mean(1, keepdims=True), [M, M]),
    "dot": (lambda v: v @ jnp.ones((3, 2)), [M] * 4),
    "norm": (lambda v: v / jnp.linalg.norm(v), [M] * 6),
    "softmax": (lambda v: jax.nn.softmax(v, -1), [M] * 6),
    "sort": (lambda v: jnp.sort(v, -1), [M] * 6),
    "cumsum": (lambda v: jnp.cumsum(v, -1), [M] * 6),
    "cumprod": (lambda v: jnp.cumprod(v, -1), [M] * 6),
    "convolution": (lambda v: jnp.convolve(v[0], jnp.ones(2)), [M] * 4),
    "gather by data": (lambda v: v[0][jnp.argsort(v[0])], [M] * 3),
    "a marked product": (lambda v: matmul(v, jnp.ones((3, 2))), [M] * 4),
}


def labels_after(fn, *, backward=False):
    """The labels of the output of ``fn`` in terms of its input's elements, or the other way round."""
    program = trace(fn, X)
    analysis = PositionAnalysis(program.equations)
    (start,), (end,) = program.inputs, program.outputs
    if backward:
        size = int(np.prod(end.aval.shape))
        found = analysis.backward({end: np.arange(size)}).get(start)
        return [O] * X.size if found is None else found.tolist()
    found = analysis.forward({start: np.arange(X.size)}).get(end)
    return [O] * int(np.prod(end.aval.shape)) if found is None else found.tolist()


@pytest.mark.parametrize("name", MOVES)
def test_an_operation_that_moves_elements_is_followed(name):
    fn, expected = MOVES[name]
    assert labels_after(fn) == expected


@pytest.mark.parametrize("name", MAPS)
def test_an_operation_on_single_elements_keeps_them_apart(name):
    fn, expected = MAPS[name]
    assert labels_after(fn) == expected


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_operation_that_combines_elements_mixes_them(name):
    fn, expected = REDUCTIONS[name]
    assert labels_after(fn) == expected


@pytest.mark.parametrize("name", [*MOVES, *MAPS, *REDUCTIONS])
def test_labels_forward_never_claim_less_than_the_true_jacobian(name):
    fn, _ = (MOVES | MAPS | REDUCTIONS)[name]
    found = np.array(labels_after(fn))
    reads = dense_pattern(fn)
    for i, label in enumerate(found):
        allowed = range(X.size) if label == M else [] if label == O else [label]
        assert set(np.flatnonzero(reads[i])) <= set(allowed)


@pytest.mark.parametrize("name", [*MOVES, *MAPS, *REDUCTIONS])
def test_labels_backward_never_claim_less_than_the_true_jacobian(name):
    fn, _ = (MOVES | MAPS | REDUCTIONS)[name]
    found = np.array(labels_after(fn, backward=True))
    reads = dense_pattern(fn)
    for j, label in enumerate(found):
        allowed = range(len(reads)) if label == M else [] if label == O else [label]
        assert set(np.flatnonzero(reads[:, j])) <= set(allowed)


def dense_pattern(fn):
    """Which outputs depend on which inputs, from Jacobians at several points."""
    points = np.random.default_rng(0).normal(size=(4, *X.shape)) * np.array([1.0, 1.0, 0.3, 3.0])[:, None, None]
    jacobians = [np.asarray(jax.jacrev(fn)(jnp.asarray(p))).reshape(-1, X.size) for p in points]
    return np.any(np.stack(jacobians) != 0, axis=0)


def test_labels_backward_through_a_permutation_are_its_inverse():
    assert labels_after(lambda v: v.T, backward=True) == [0, 2, 4, 1, 3, 5]


def test_an_element_that_is_used_in_two_places_reaches_a_mixture():
    assert labels_after(lambda v: jnp.concatenate([v[:, :1], v], 1), backward=True) == [M, 2, 3, M, 6, 7]


def test_an_element_that_is_dropped_reaches_nothing():
    assert labels_after(lambda v: v[:, 1:], backward=True) == [O, 0, 1, O, 2, 3]


def test_elements_of_a_sum_all_reach_it():
    assert labels_after(lambda v: v.sum(1), backward=True) == [0, 0, 0, 1, 1, 1]


def test_an_index_computed_from_constants_is_known():
    assert labels_after(lambda v: v[0][(jnp.arange(3) + 1) % 3]) == [1, 2, 0]


def test_a_primitive_known_by_its_derivative_alone_is_followed_through_it():
    from jax.extend.core import Primitive
    from jax.interpreters import ad

    surrogate = Primitive("surrogate_spike")
    surrogate.def_impl(lambda v: (v > 0).astype(v.dtype))
    surrogate.def_abstract_eval(lambda v: v)
    ad.defjvp(surrogate, lambda t, v: t * jnp.maximum(0.0, 1 - jnp.abs(v)))
    assert labels_after(lambda v: surrogate.bind(v).T) == [0, 3, 1, 4, 2, 5]


def test_a_linear_primitive_whose_derivative_is_itself_is_mixed():
    from jax.extend.core import Primitive
    from jax.interpreters import ad

    reversal = Primitive("linear_reversal")
    reversal.def_impl(lambda v: v[::-1])
    reversal.def_abstract_eval(lambda v: v)
    ad.deflinear2(reversal, lambda ct, _: [reversal.bind(ct)])
    assert labels_after(lambda v: reversal.bind(v)) == [M] * 6


def test_element_wise_is_no_boundary_and_no_mixture():
    program = trace(lambda w: element_wise(w), jnp.zeros(3))
    (start,), (end,) = program.inputs, program.outputs
    analysis = PositionAnalysis(program.equations)
    assert end in analysis.reach([start])


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [([O, O], [1, O], [1, O]), ([1, 2], [1, 2], [1, 2]), ([1, 2], [2, 2], [M, 2]), ([M, O], [1, M], [M, M])],
)
def test_labels_join_to_what_both_agree_on(a, b, joined):
    assert join_labels(np.array(a), np.array(b)).tolist() == joined


def test_a_boundary_is_not_crossed():
    program = trace(lambda v: jnp.tanh(matmul(v, jnp.ones((3, 3)))), X)
    analysis = PositionAnalysis(program.equations)
    reach = analysis.reach(program.inputs, boundary=lambda e: e.primitive.name == "etp_mm")
    assert program.outputs[0] not in reach


def test_a_cut_operand_passes_no_label():
    program = trace(lambda v: v + jnp.tanh(v.sum()), X)
    analysis = PositionAnalysis(program.equations)
    cut = {e: frozenset({0}) for e in program.equations if e.primitive.name == "reduce_sum"}
    labels = analysis.forward({program.inputs[0]: np.arange(6)}, cuts=cut)
    assert labels[program.outputs[0]].tolist() == [0, 1, 2, 3, 4, 5]
