"""What is recorded of a step: the least from which the Jacobians can be made, and nothing of what stands still."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_algorithms._calls import read_states
from etp_algorithms._residuals import residuals_of
from etp_algorithms._step import evaluate_step, point_at

from . import models
from .helpers import compiled

BATCH = 2


def recording(factory):
    x = models.inputs(batch=BATCH)[0]
    program = compiled(factory, x, BATCH)._compiled()[0]
    inputs = (*read_states(program.captured), [jnp.asarray(x)])
    point = point_at(program.graph, inputs, evaluate_step(program.graph, *inputs))
    return program, inputs[0], point, residuals_of(program.graph, program.algorithm)


@pytest.mark.parametrize("factory", [models.lstm, models.gru, models.indrnn, models.adaptive_spiking])
def test_a_recorded_step_reads_as_the_step_itself(factory):
    program, parameters, point, residuals = recording(factory)
    saved = jax.tree.map(lambda a: jnp.stack([a, a]), residuals.save(point))
    steps = residuals.steps(parameters, saved, 2)
    wanted = program.algorithm.read(point)
    assert jax.tree.structure(steps.last()) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, steps.last(), wanted)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, jnp.stack([b, b])), steps.stacked, wanted)


def test_the_values_that_a_jacobian_is_a_product_of_are_recorded_in_its_place():
    # tanh' and the state for D = u tanh', Df_y = tanh' and Df_u = h tanh'; u is a parameter, and x meets the weight
    program, _, point, residuals = recording(models.indrnn)
    state, x = (BATCH, models.N), point.arguments[0].shape
    assert sorted(a.shape for a in residuals.save(point)) == sorted([state, state, x])
    assert len(jax.tree.leaves(program.algorithm.read(point))) == 4


def test_an_lstm_records_six_values_per_unit_where_its_jacobians_have_ten():
    program, _, point, residuals = recording(models.lstm)
    saved, read = (
        sum(a.size for a in jax.tree.leaves(tree)) for tree in (residuals.save(point), program.algorithm.read(point))
    )
    x = BATCH * (models.N + point.arguments[0].shape[-1])
    assert ((read - x) / (BATCH * models.N), (saved - x) / (BATCH * models.N)) == (10, 6)


def test_what_the_step_finds_anyway_is_not_made_again():
    residuals = recording(models.indrnn)[-1]  # the tanh of its Jacobian is that of the step
    assert "tanh" not in {equation.primitive.name for equation in residuals.program.equations}
