"""A known sequence of single steps, recorded first and folded after.

Step-by-step gradients over a sequence do not need the trace at every step. Each step is recorded: what the data
``x`` of every operator and the Jacobians can be made from, the cotangent ``s`` of the entry state and the cotangent
``ȳ`` of every operator's output. :meth:`FoldingAlgorithm.fold` then makes the sum of all gradients, and the final
traces, from whole-sequence products. This file is the recording.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._engine import FoldedSteps, FollowingAlgorithm, TraceAlgorithm
from etp_algorithms._residuals import RecordedSteps, residuals_of
from etp_algorithms._step import (
    Arrays,
    Signals,
    StepResult,
    Substitutes,
    evaluate_at_exit,
    evaluate_operands,
    evaluate_step,
    group_signals,
    operand_cuts,
    point_at,
    results_of,
)

__all__ = ["Offsets", "Recording", "Tape", "is_driven", "record_step"]


class Offsets(NamedTuple):
    """Zeros added to values of a step; their gradients are what a fold needs.

    Attributes:
        states: added to the entry states, or with the signal at the exit to the new states.
        entries: with the signal at the exit, added to the entry states where outputs read them; else empty.
        drives: added to the operators' outputs.
    """

    states: Arrays
    entries: Arrays
    drives: list[jax.Array | None]


class Recording(NamedTuple):
    """What is kept of a step: the values that the algorithm reads, and the modulator if it takes one."""

    values: Any
    modulator: Signals | None


class Tape:
    """Where a learner writes the steps of a sequence that is being folded.

    Both values are brainstate states, so that they pass through any transformation the user puts around the call.

    Attributes:
        offsets: zeros whose gradients are the signals and the cotangents within the step; None for a drive that no
            derivative reaches.
        record: the recording of the last step.
        followed: the traces of an algorithm whose traces follow the recording; else ``()``.
        calls: how often the learner ran since the tape was rewound.
    """

    def __init__(
        self,
        graph: TraceGraph,
        algorithm: TraceAlgorithm,
        inputs: tuple[Arrays, Arrays, Arrays, Sequence[Any]],
        modulator: Callable[[], Signals] | None,
    ) -> None:
        self._graph, self._algorithm = graph, algorithm
        hidden = inputs[1]
        at_exit = algorithm.signal.place == "exit"
        states = [jnp.zeros_like(a) for a, leaf in zip(hidden, graph.step.hidden, strict=True) if leaf.differentiable]
        offsets = Offsets(
            states=states,
            entries=states if at_exit and graph.exit_plan.reads_entry and not algorithm.signal.modulated else [],
            drives=[
                jnp.zeros(o.y.aval.shape, o.y.aval.dtype) if is_driven(graph, algorithm, o) else None
                for o in graph.operators
            ],
        )
        traces = algorithm.init(graph) if isinstance(algorithm, FollowingAlgorithm) else ()
        _, values, _ = jax.eval_shape(lambda i, t: record_step(graph, algorithm, i, t, offsets), inputs, traces)
        kept = Recording(values, None if modulator is None else jax.eval_shape(modulator))
        self.offsets = brainstate.ShortTermState(offsets)
        self.record = brainstate.ShortTermState(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), kept))
        self.followed = brainstate.ShortTermState(traces)
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
        kept = (self.offsets.value, self.record.value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    def folded(
        self, gradients: Offsets, record: Recording, parameters: Arrays, length: int
    ) -> tuple[FoldedSteps, Signals | None]:
        """The recorded steps, stacked over time, as algorithms take them; and the signals at the very first entry.

        What outputs read of an entry state directly is credited to the new state of the step before.
        """
        drives, followed = tuple(gradients.drives), self.followed.value
        values = RecordedSteps(record.values, lambda kept: kept, length)
        if not isinstance(self._algorithm, FollowingAlgorithm):
            values = residuals_of(self._graph, self._algorithm).steps(parameters, record.values, length)
        if record.modulator is not None:
            return FoldedSteps(values, record.modulator, drives, followed), None
        signals = group_signals(self._graph, self._by_leaf(gradients.states))
        first = None
        if gradients.entries:
            entries = group_signals(self._graph, self._by_leaf(gradients.entries))
            first = jax.tree.map(lambda e: e[0], entries)
            signals = jax.tree.map(lambda s, e: s.at[:-1].add(e[1:]), signals, entries)
        return FoldedSteps(values, signals, drives, followed), first

    def _by_leaf(self, arrays: Arrays) -> list[Any]:
        rest = iter(arrays)
        return [next(rest) if leaf.differentiable else None for leaf in self._graph.step.hidden]


def record_step(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
    substitutes: Substitutes | None = None,
) -> tuple[StepResult, Any, Any]:
    """One step whose states and operator outputs can be differentiated apart from its weights.

    Args:
        graph: the compiled step.
        algorithm: whose traces are waiting.
        inputs: parameters, hidden arrays, other arrays, arguments.
        followed: the traces of an algorithm whose traces follow; else ``()``.
        offsets: zeros to be added.
        substitutes: equations to be evaluated by another function.

    Returns:
        Outputs, new hidden and other arrays; what is recorded of the step; and the traces that followed it.
    """
    parameters, *rest = inputs
    hidden, others, arguments = jax.tree.map(jax.lax.stop_gradient, rest)
    if algorithm.signal.place == "entry":
        moved = _moved(graph, hidden, offsets.states)
        cuts = operand_cuts(graph.operators)
        drives = {o.y: d for o, d in zip(graph.operators, offsets.drives, strict=True) if d is not None}
        env = evaluate_step(
            graph, parameters, moved, others, arguments, cuts=cuts, offsets=drives, substitutes=substitutes
        )
        result = results_of(graph, env)
    else:
        env = evaluate_step(graph, parameters, hidden, others, arguments)
        result = evaluate_at_exit(
            graph,
            parameters,
            hidden,
            others,
            arguments,
            offsets.states,
            seen=_moved(graph, hidden, offsets.entries) if offsets.entries else None,
            drives=offsets.drives,
            substitutes=substitutes,
        )
    point = point_at(graph, inputs, env)
    if isinstance(algorithm, FollowingAlgorithm):
        tracked = evaluate_operands(graph, jax.lax.stop_gradient(parameters))
        followed, kept = algorithm.follow(graph, followed, algorithm.read(point), tracked)
        return result, kept, followed
    return result, residuals_of(graph, algorithm).save(point), followed


def is_driven(graph: TraceGraph, algorithm: TraceAlgorithm, operator: HiddenParamOpRelation) -> bool:
    """Whether the output of an operator has a cotangent within the step that the traces do not account for."""
    if algorithm.signal.place == "entry":
        return True
    if algorithm.signal.modulated and operator.links:
        return False
    into = {link.group for link in operator.links}
    schedule = graph.exit_plan.schedule
    return any(not into.issuperset(users) for equation, users in schedule if equation is operator.equation)


def _moved(graph: TraceGraph, hidden: Arrays, offsets: Arrays) -> Arrays:
    rest = iter(offsets)
    return [a + next(rest) if leaf.differentiable else a for a, leaf in zip(hidden, graph.step.hidden, strict=True)]
