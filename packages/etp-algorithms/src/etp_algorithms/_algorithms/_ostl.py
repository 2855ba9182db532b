"""OSTL: the spatial and the temporal part of the gradient, told apart; temporal credit in traces per weight.

    ε ← D ε + Df ⊗ ∂y/∂w ,      ∇w = Σ_t ⟨L_t , ε_t⟩

Without recurrent weights ``D`` is diagonal and the gradient of each layer is exact; with them ``D`` holds each
position's own coupling, the diagonal of the recurrent weight included. Source: Bohnstingl et al., "Online
spatio-temporal learning in deep neural networks", IEEE TNNLS 2022, with and without the matrix ``H``.
"""

from typing import Any

import brainstate

from etp_algorithms._algorithms._param_dim_traces import ParamDimTraces
from etp_algorithms._algorithms._recursion import JACOBIAN, TemporalRecursion
from etp_algorithms._engine import LearningSignal, SignalPlace
from etp_algorithms._learner import Learner

__all__ = ["OSTLFeedforward", "OSTLRecurrent"]


class OSTLFeedforward(Learner):
    """OSTL without ``H``: traces leave recurrent weights out; exact for layers of position-wise neurons.

    Args:
        model: a module whose ``update`` is one step.
        signal: ``"entry"`` or ``"exit"``; see :class:`D_RTRL`, whose traces these are.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.
    """

    def __init__(
        self, model: brainstate.nn.Module, *, signal: SignalPlace = "entry", trace_dtype: Any = None, **options: Any
    ) -> None:
        kernels = options.get("kernels", "auto") == "auto"
        algorithm = ParamDimTraces(trace_dtype, kernels, LearningSignal(signal), JACOBIAN, "OSTLFeedforward")
        super().__init__(model, algorithm, **options)


class OSTLRecurrent(Learner):
    """OSTL with ``H``: traces keep each position's own coupling through recurrent weights (SnAp-1).

    Args:
        model: a module whose ``update`` is one step.
        signal: ``"entry"`` or ``"exit"``; see :class:`D_RTRL`.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.
    """

    def __init__(
        self, model: brainstate.nn.Module, *, signal: SignalPlace = "entry", trace_dtype: Any = None, **options: Any
    ) -> None:
        kernels = options.get("kernels", "auto") == "auto"
        recursion = TemporalRecursion(coupled=True)
        algorithm = ParamDimTraces(trace_dtype, kernels, LearningSignal(signal), recursion, "OSTLRecurrent")
        super().__init__(model, algorithm, **options)
