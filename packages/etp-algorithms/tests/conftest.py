"""Every test of this package computes in float64, with the parts of XLA switched off that only buy speed."""

import brainstate
import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # hundreds of tiny programs: compiling is all they cost
brainstate.environ.set(precision=64)
