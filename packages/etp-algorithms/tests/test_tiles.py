"""A drive that is read in parts has its Jacobian made of theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etp_algorithms._compiler._tiles import Tiling
from etp_core.jaxpr import Variable
from etp_ops import matmul

from .helpers import compiled
from .models import IN, N, array, cell, inputs
from .test_transitions import check_drive_jacobian


def two_states(parts):
    """An LSTM-like cell whose gates ``i, g, o`` are ``parts`` of one drive."""

    @cell({"c": (N,), "h": (N,)}, lambda: {"W": array(0, IN, 3 * N)})
    def model(self, x):
        i, g, o = parts(matmul(x, self.W.value))
        self.c.value = 0.6 * self.c.value + jax.nn.sigmoid(i) * jnp.tanh(g)
        self.h.value = 0.3 * self.h.value + jax.nn.sigmoid(o) * jnp.tanh(self.c.value)
        return self.h.value

    return model


def sliced(*starts, step=1):
    """Slices of ``N`` elements."""
    return lambda y: [jax.lax.slice_in_dim(y, a, a + N * step, step, axis=-1) for a in starts]


def also_whole(y):
    """The last part reads the whole drive too."""
    i, g, o = jnp.split(y, 3, axis=-1)
    return i, g, o + 0.1 * jnp.tanh(y)[..., :N]


MODELS = {
    "split": (two_states(lambda y: jnp.split(y, 3, axis=-1)), 3),
    "in_slices": (two_states(sliced(0, N, 2 * N)), 3),
    "in_another_order": (two_states(sliced(2 * N, 0, N)), 3),
    "one_part_twice": (two_states(sliced(0, N, N)), 1),
    "a_part_unread": (two_states(lambda y: [*sliced(0, N)(y), *sliced(0)(y)]), 1),
    "every_other_element": (two_states(lambda y: [*sliced(0, 1, step=2)(y), *sliced(2 * N)(y)]), 1),
    "also_whole": (two_states(also_whole), 1),
}
readings = pytest.mark.parametrize("name", MODELS)


@readings
def test_parts_are_found_where_they_cover_the_drive_once(name):
    model, parts = MODELS[name]
    (transition,) = compiled(model, inputs()[0], 2).graph.transitions
    assert [len(tiling.parts) for tiling in transition.drives.values()] == [parts]


def test_parts_through_which_the_compiler_cuts_are_no_parts():
    """One element at two positions is cut; differentiating the part by itself would pass by the cut."""
    (transition,) = compiled(two_states(sliced(0, N - 1, 2 * N)), inputs()[0], 2).graph.transitions
    assert transition.cuts
    assert [len(tiling.parts) for tiling in transition.drives.values()] == [1]


@readings
def test_the_jacobian_is_the_dense_one_however_the_drive_is_read(name):
    check_drive_jacobian(MODELS[name][0])


def test_a_part_may_be_a_new_state_that_another_reads():
    @cell({"c": (N,), "h": (N,)}, lambda: {"W": array(0, IN, 2 * N)})
    def model(self, x):
        self.c.value, drive = jnp.split(matmul(x, self.W.value), 2, axis=-1)
        self.h.value = 0.3 * self.h.value + jnp.tanh(self.c.value) * drive
        return self.h.value

    check_drive_jacobian(model)


def test_a_step_has_slices_where_the_model_splits():
    equations = compiled(MODELS["split"][0], inputs()[0], 2).graph.step.equations
    names = [equation.primitive.name for equation in equations]
    assert "split" not in names
    assert names.count("slice") == 3


@pytest.mark.parametrize("lead", [(2,), ()])
def test_cotangents_are_joined_state_by_state(lead):
    tiling = Tiling(tuple(Variable(jax.typeof(jnp.zeros((*lead, N)))) for _ in range(3)), len(lead))
    columns = [[array(3 * a + n, *lead, N) for n in range(3)] for a in range(2)]
    for joined, parts in zip(tiling.join(columns), columns, strict=True):
        np.testing.assert_array_equal(joined, jnp.concatenate(parts, -1))
