"""A known sequence of single steps, recorded first and folded after.

Step-by-step gradients over a sequence do not need the trace at every step. Each step is recorded: the data
``x`` of every operator, the Jacobians, the cotangent ``s`` of the entry state and the cotangent ``ȳ`` of every
operator's output. :meth:`TraceAlgorithm.fold` then makes the sum of all gradients, and the final traces, from
whole-sequence products. This file is the recording.
"""

from collections.abc import Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._engine import (
    FoldedSteps,
    StepValues,
    evaluate_operands,
    evaluate_step,
    group_signals,
    step_values,
)
from etp_core.jaxpr import value_of

__all__ = ["Tape", "pull_operands", "record_step", "steps_per_fold"]

Arrays = list[jax.Array]
_LEAST_BUDGET = 8 * 2**20


class Tape:
    """Where a learner writes the steps of a sequence that is being folded.

    The three values are brainstate states, so that they pass through any transformation the user puts around
    the call.

    Attributes:
        shifts: zeros added to the entry states; their gradients are the signals.
        drives: zeros added to the operators' outputs; their gradients are the cotangents within the step.
        record: the values of the last step.
        calls: how often the learner ran since the tape was rewound.
    """

    def __init__(
        self, graph: TraceGraph, parameters: Arrays, hidden: Arrays, others: Arrays, arguments: Sequence[Any]
    ) -> None:
        self._graph = graph
        zero_shifts = [
            jnp.zeros_like(array) for array, leaf in zip(hidden, graph.step.hidden, strict=True) if leaf.differentiable
        ]
        zero_drives = [jnp.zeros(o.y.aval.shape, o.y.aval.dtype) for o in graph.operators]
        values = jax.eval_shape(
            lambda *a: record_step(graph, *a)[3], parameters, hidden, others, arguments, zero_shifts, zero_drives
        )
        self.shifts = brainstate.ShortTermState(zero_shifts)
        self.drives = brainstate.ShortTermState(zero_drives)
        self.record = brainstate.ShortTermState(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), values))
        self.calls = 0

    def rewind(self) -> None:
        """Expect the next step."""
        self.calls = 0

    def check_one_call(self) -> None:
        """Raise unless the learner ran once since the tape was rewound."""
        if self.calls != 1:
            raise ValueError(f"step_fn must run the learner exactly once per step; it ran {self.calls} times.")

    @property
    def bytes_per_step(self) -> int:
        """The memory that one recorded step takes."""
        kept = (self.shifts.value, self.drives.value, self.record.value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    def folded(self, shift_gradients: Arrays, drive_gradients: Arrays, values: StepValues) -> FoldedSteps:
        """The recorded steps, stacked over time, as algorithms take them."""
        rest = iter(shift_gradients)
        cotangents: list[Any] = [next(rest) if leaf.differentiable else None for leaf in self._graph.step.hidden]
        return FoldedSteps(values, group_signals(self._graph, cotangents), tuple(drive_gradients))


def record_step(
    graph: TraceGraph,
    parameters: Arrays,
    hidden: Arrays,
    others: Arrays,
    arguments: Arrays,
    shifts: Arrays,
    drives: Arrays,
) -> tuple[Arrays, Arrays, Arrays, StepValues]:
    """One step whose entry states and operator outputs can be differentiated apart from its weights.

    Returns:
        Outputs, new hidden and other arrays, and what algorithms read of the step.
    """
    moved = iter(shifts)
    hidden = [
        jax.lax.stop_gradient(array) + next(moved) if leaf.differentiable else array
        for array, leaf in zip(hidden, graph.step.hidden, strict=True)
    ]
    cuts = {
        o.equation: frozenset(
            o.primitive.trainable_invars(o.static)[key] for key, operand in o.operands.items() if operand.parameters
        )
        for o in graph.operators
    }
    offsets = {o.y: drive for o, drive in zip(graph.operators, drives, strict=True)}
    others = [jax.lax.stop_gradient(array) for array in others]
    env = evaluate_step(graph, parameters, hidden, others, arguments, cuts=cuts, offsets=offsets)
    outputs = [value_of(atom, env) for atom in graph.step.outputs]
    new_hidden = [value_of(leaf.output, env) for leaf in graph.step.hidden]
    new_others = [value_of(leaf.output, env) for leaf in graph.step.others]
    return outputs, new_hidden, new_others, step_values(graph, env)


def steps_per_fold(length: int, bytes_per_step: int, trace_bytes: int, memory_limit: int | None) -> int:
    """How many steps are recorded before they are folded.

    Args:
        length: the steps of the sequence.
        bytes_per_step: the memory of one recorded step.
        trace_bytes: the memory of the traces.
        memory_limit: bytes for the recording; None allows twice what the traces take, and 8 MiB at least.
    """
    budget = max(2 * trace_bytes, _LEAST_BUDGET) if memory_limit is None else memory_limit
    most = max(1, min(length, budget // max(bytes_per_step, 1)))
    folds = -(-length // most)
    return -(-length // folds)


def pull_operands(graph: TraceGraph, parameters: Arrays, cotangents: Sequence[dict[str, jax.Array]]) -> Arrays:
    """The gradients of the parameter arrays that gradients of the operands entail."""
    operands, pull = jax.vjp(lambda p: evaluate_operands(graph, p), parameters)
    matched = jax.tree.map(lambda c, w: c.astype(w.dtype), tuple(cotangents), operands)
    return pull(matched)[0]
