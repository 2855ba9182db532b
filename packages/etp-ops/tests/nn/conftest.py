"""Layers are tested in float64, with a time step of half a millisecond."""

import brainstate
import brainunit as u
import jax
import pytest

brainstate.environ.set(precision=64)  # importing brainstate 0.5 turns float64 off
jax.config.update("jax_disable_most_optimizations", True)  # hundreds of tiny programs: compiling is all they cost


@pytest.fixture(autouse=True)
def time_step():
    with brainstate.environ.context(dt=0.5 * u.ms):
        yield
