"""OTTT: a leaky trace of the presynaptic input, and the postsynaptic derivative of the moment.

    ε_x ← λ ε_x + x ,      ∇w = Σ_t xy_to_dw(ε_x,t , s_t Df_t)

Source: Xiao et al., "Online training through time for spiking neural networks", NeurIPS 2022.
"""

from typing import Any

import brainstate

from etp_algorithms._algorithms._pp_prop import FactorisedTraces
from etp_algorithms._algorithms._recursion import check_decay
from etp_algorithms._engine import LearningSignal, SignalPlace
from etp_algorithms._learner import Learner

__all__ = ["OTTT"]


class OTTT(Learner):
    """A learner with one trace per input; exact where every state decays by ``leak`` and is fed with one constant.

    Memory ``O(B·(I + O))``.

    Args:
        model: a module whose ``update`` is one step.
        leak: decay ``λ`` of the presynaptic trace per step in ``[0, 1)``, that of the neurons' membranes.
        signal: ``"exit"``, as published, or ``"entry"``.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        leak: float,
        *,
        signal: SignalPlace = "exit",
        trace_dtype: Any = None,
        **options: Any,
    ) -> None:
        algorithm = FactorisedTraces(check_decay("leak", leak), 0.0, trace_dtype, LearningSignal(signal), "OTTT")
        super().__init__(model, algorithm, **options)
