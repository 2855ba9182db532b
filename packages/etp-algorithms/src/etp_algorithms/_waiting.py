"""Traces that wait for the gradient of a window before they take its steps.

The gradient reads the trace at entry, the recurrence overwrites it. Both stand in one program, and unless the second
is known to come after the first, XLA keeps a copy of the whole trace.
"""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._calls import CompiledStep
from etp_algorithms._engine import FoldingAlgorithm
from etp_algorithms._residuals import residuals_of
from etp_algorithms._step import Arrays, evaluate_operands

__all__ = ["WaitingTraces", "can_wait"]


def can_wait(program: CompiledStep) -> bool:
    """Whether the steps of a window are recorded, and rolled at once."""
    algorithm = program.algorithm
    return isinstance(algorithm, FoldingAlgorithm) and algorithm.signal.place == "entry"


class WaitingTraces:
    """One window of a learner whose traces wait.

    Attributes:
        saved: the recorded steps; a state, so that it passes through any transformation around the call.
        filled: whether the window has been run.
    """

    def __init__(self, program: CompiledStep, length: int) -> None:
        self._program, self._length = program, length
        self._residuals = residuals_of(program.graph, program.algorithm)
        kept = [jnp.zeros((length, *v.aval.shape), v.aval.dtype) for v in self._residuals.kept]
        self.saved = brainstate.ShortTermState(kept)
        self.filled = False

    def takes(self, program: CompiledStep, length: int | None) -> bool:
        """Whether a call of the learner is the window that this was made for."""
        return not self.filled and program.graph is self._program.graph and length == self._length

    def fill(self, saved: Any) -> None:
        """Keep the recorded steps of the window."""
        self.saved.value, self.filled = saved, True

    def roll(self, traces: Any, parameters: Arrays, gradients: Any) -> tuple[Any, Any]:
        """The traces after the window, and ``gradients``, which are complete before the traces move."""
        graph, algorithm = self._program.graph, self._program.algorithm
        assert isinstance(algorithm, FoldingAlgorithm)
        traces, gradients = jax.lax.optimization_barrier((traces, gradients))
        steps = self._residuals.steps(parameters, self.saved.value, self._length)
        self.filled = False
        return algorithm.roll_window(graph, traces, steps, evaluate_operands(graph, parameters)), gradients
