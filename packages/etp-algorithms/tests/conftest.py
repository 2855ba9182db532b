"""Every test of this package computes in float64, with the parts of XLA switched off that only buy speed."""

import os

import brainstate
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # hundreds of tiny programs: compiling is all they cost
brainstate.environ.set(precision=64)


@pytest.fixture(autouse=True, scope="session")
def _kernels_that_were_asked_for():
    """``nox -s kernels`` runs tests of this suite with kernels installed, and names the package that has them."""
    if provider := os.environ.get("ETP_KERNELS"):
        import etp_core  # not before the tests' imports: these are checked for shapes as they are made
        import etp_ops

        kernel = etp_core.get_fast_path_rules(etp_ops.etp_mm_p)
        assert kernel is not None, f"{provider} is not installed"
        assert kernel.solve.__module__.startswith(provider)
