"""D and Df are the diagonals of the dense Jacobians of a step whose operators' outputs are held fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_algorithms._compiler._transitions import evaluate_transition
from etp_core.jaxpr import evaluate, value_of

from .helpers import compiled
from .models import EXACT, array, inputs

MODELS = [
    "leaky",
    "indrnn",
    "two_states_same_step",
    "adaptive_spiking",
    "lstm_without_recurrence",
    "stacked_states",
    "reshaped",
    "transposed",
    "rolled_tail",
    "fancy_index_tail",
    "width_one_gate",
    "conditional",
    "one_drive_two_groups",
    "detached_reset",
]
models = pytest.mark.parametrize("name", MODELS)


def at_a_point(factory):
    """The graph, the values of one step at random states, and the step as a function of states and drives."""
    graph = compiled(factory, inputs(batch=2)[0], 2).graph
    step = graph.step
    env = {leaf.input: array(n, *leaf.input.aval.shape, scale=1.0) for n, leaf in enumerate(step.hidden)}
    env |= {leaf.input: array(10 + n, *leaf.input.aval.shape) for n, leaf in enumerate(step.parameters)}
    env |= {v: array(20 + n, *v.aval.shape, scale=1.0) for n, v in enumerate(step.arguments)}
    start = dict(env)
    evaluate(step.equations, env)
    drives = [r.y for r in graph.hidden_param_op_relations]

    def new_states(hidden, driven):
        given = start | dict(zip([leaf.input for leaf in step.hidden], hidden, strict=True))
        evaluate(step.equations, given | (fixed := dict(zip(drives, driven, strict=True))))
        done = evaluate(step.equations, {**given, **fixed})
        return [value_of(leaf.output, done) for leaf in step.hidden]

    point = [env[leaf.input] for leaf in step.hidden], [env[y] for y in drives]
    return graph, env, new_states, point


def column_of(group, state, values):
    """One state of a group per position, from the arrays of all hidden states."""
    leaf, column = group.states[state]
    return values[leaf] if column is None else values[leaf][..., column]


@models
def test_the_transition_is_the_diagonal_of_the_dense_jacobian(name):
    graph, env, new_states, point = at_a_point(EXACT[name])
    dense = jax.jacrev(new_states, argnums=0)(*point)
    for transition in graph.transitions:
        group, found = transition.group, evaluate_transition(transition, env).transition
        numbers = [graph.step.hidden.index(leaf) for leaf in group.leaves]
        for a, (i, row) in enumerate(group.states):
            for b, (j, column) in enumerate(group.states):
                block = np.asarray(dense[numbers[i]][numbers[j]])
                block = select(block, row, column, group.leaves[i], group.leaves[j])
                expected = np.diag(block).reshape(group.varshape)
                np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-14)
                actual = np.zeros(group.varshape) if found[a][b] is None else np.asarray(found[a][b])
                np.testing.assert_allclose(actual, expected, atol=1e-13)


@models
def test_the_drive_jacobian_is_the_dense_one_at_the_layout(name):
    check_drive_jacobian(EXACT[name])


def check_drive_jacobian(factory):
    """Compare every ``Df`` of a model with the dense Jacobian of its step."""
    graph, env, new_states, point = at_a_point(factory)
    dense = jax.jacrev(new_states, argnums=1)(*point)
    for transition in graph.transitions:
        group, found = transition.group, evaluate_transition(transition, env).inputs
        for r, link in transition.links.items():
            positions = link.layout.positions.reshape(link.layout.lanes, -1)
            for a, (i, row) in enumerate(group.states):
                block = np.asarray(dense[graph.step.hidden.index(group.leaves[i])][r])
                block = select(block, row, None, group.leaves[i], None)
                rebuilt = np.zeros_like(block)
                if found[r][a] is not None:
                    values = np.asarray(found[r][a]).reshape(link.layout.lanes, -1)
                    for lane, element in np.argwhere(positions >= 0):
                        rebuilt[positions[lane, element], element] += values[lane, element]
                np.testing.assert_allclose(rebuilt, block, atol=1e-13)


def select(block, row, column, new, old):
    """A dense block as (positions, elements), with one state column of each side."""
    shape = new.input.aval.shape
    block = block.reshape(*shape, -1)
    if row is not None:
        block = block[..., row, :]
    block = block.reshape(int(np.prod(new.varshape)), -1)
    if column is not None:
        block = block.reshape(len(block), *old.input.aval.shape)[..., column]
    return block.reshape(len(block), -1)


@models
def test_states_that_do_not_couple_have_no_jacobian(name):
    graph, env, _, _ = at_a_point(EXACT[name])
    for transition in graph.transitions:
        found = evaluate_transition(transition, env).transition
        for a, row in enumerate(transition.group.coupling):
            assert [factor is not None for factor in found[a]] == list(row)


def test_a_same_step_dependence_is_counted_once_and_fully():
    """v reads the new i: dv'/di = 0.8 (1 − σ(d)), through i' alone."""
    graph, env, _, _ = at_a_point(EXACT["two_states_same_step"])
    (transition,) = graph.transitions
    names = [leaf.name for leaf in transition.group.leaves]
    factor = evaluate_transition(transition, env).transition[names.index("v")][names.index("i")]
    d = next(env[leaf.input] for leaf in graph.step.parameters if leaf.name == "d")
    np.testing.assert_allclose(factor, jnp.broadcast_to(0.8 * (1 - jax.nn.sigmoid(d)), factor.shape), atol=1e-14)
