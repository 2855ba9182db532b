"""Layers are tested in float64, with a time step of half a millisecond."""

import brainstate
import brainunit as u
import pytest


@pytest.fixture(autouse=True)
def environment():
    with brainstate.environ.context(precision=64, dt=0.5 * u.ms):
        yield
