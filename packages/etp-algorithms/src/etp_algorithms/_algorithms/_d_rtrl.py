"""D-RTRL: a trace per weight and hidden state.

Source: Wang et al., "Scalable and efficient online learning for recurrent spiking networks" (D-RTRL); Murray, eLife
2019, for the diagonal cut.
"""

from typing import Any

import brainstate

from etp_algorithms._algorithms._param_dim_traces import ParamDimTraces
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._engine import LearningSignal, SignalPlace
from etp_algorithms._learner import Kernels, Learner, VjpMethod

__all__ = ["D_RTRL", "ParamDimVjpAlgorithm"]


class D_RTRL(Learner):
    """A learner that keeps one trace per weight and hidden state; exact where the recurrence is position-wise.

    Args:
        model: a module whose ``update`` is one step.
        signal: ``"entry"``: the credit of a weight is the cotangent of the state that enters a window, and what
            happens within the window is exact; ``"exit"``: that of the new state of every step, as published.
        trace_dtype: the dtype in which traces are stored, for example ``jnp.bfloat16``.
        vjp_method: see :class:`Learner`, as every option below.
        strict: raise where a plain operation mixes positions.
        kernels: ``"auto"`` or ``"reference"``.
        memory_limit: bytes for recording a sequence.
        control_flow: limits for marked operators inside branches and loops.
        name: name of the module.

    Example:
        >>> import etp_algorithms, jax.numpy as jnp
        >>> learner = etp_algorithms.D_RTRL(model)  # doctest: +SKIP
        >>> learner.compile_graph(jnp.zeros((16, 3)))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        *,
        signal: SignalPlace = "entry",
        trace_dtype: Any = None,
        vjp_method: VjpMethod | None = None,
        strict: bool = False,
        kernels: Kernels = "auto",
        memory_limit: int | None = None,
        control_flow: ControlFlowPolicy | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            model,
            ParamDimTraces(trace_dtype, kernels == "auto", LearningSignal(signal)),
            vjp_method=vjp_method,
            strict=strict,
            kernels=kernels,
            memory_limit=memory_limit,
            control_flow=control_flow,
            name=name,
        )


ParamDimVjpAlgorithm = D_RTRL
