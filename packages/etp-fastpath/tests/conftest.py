"""Double precision throughout: kernels and rules must agree to round-off."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _double_precision():
    import brainstate
    import jax

    jax.config.update("jax_enable_x64", True)
    with brainstate.environ.context(precision=64):
        yield
