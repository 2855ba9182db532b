"""Three-factor learning: eligibility traces per weight, credited by a modulator that is given with every call.

    ε ← D ε + Df ⊗ ∂y/∂w ,      ∇w = Σ_t ⟨m_t , ε_t⟩

The modulator (reward, surprise, a neuromodulator) takes the place of the derivative of the loss for traced weights;
every other parameter keeps the gradient of the loss. Source: Frémaux and Gerstner, "Neuromodulated spike-timing-
dependent plasticity, and theory of three-factor learning rules", Frontiers in Neural Circuits 2016.
"""

from typing import Any

import brainstate

from etp_algorithms._algorithms._param_dim_traces import ParamDimTraces
from etp_algorithms._algorithms._recursion import JACOBIAN
from etp_algorithms._engine import LearningSignal
from etp_algorithms._learner import Learner

__all__ = ["ThreeFactor"]


class ThreeFactor(Learner):
    """A learner whose traced weights follow a modulator: ``learner(x, modulator=reward)``.

    Args:
        model: a module whose ``update`` is one step.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.

    The gradient is that of something to be minimised: to follow a reward, give its negative.
    """

    def __init__(self, model: brainstate.nn.Module, *, trace_dtype: Any = None, **options: Any) -> None:
        kernels = options.get("kernels", "auto") == "auto"
        algorithm = ParamDimTraces(
            trace_dtype, kernels, LearningSignal("exit", modulated=True), JACOBIAN, "ThreeFactor"
        )
        super().__init__(model, algorithm, **options)
