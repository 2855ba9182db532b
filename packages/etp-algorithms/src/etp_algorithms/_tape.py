"""A known sequence of steps or windows, recorded first and folded after.

Gradients over a known sequence do not need the trace at every step. Each step is recorded: what the data ``x`` of
every operator and the Jacobians can be made from, and the cotangent ``ȳ`` of every operator's output; and of each call
the cotangent ``s`` of the states that enter it (with the signal at the exit, of the new states of every step).
:meth:`FoldingAlgorithm.fold` then makes the sum of all gradients, and the final traces, from whole-sequence products.
Within a window ``ȳ`` comes from backpropagation through its steps, and ``s`` is zero but at its first step.
"""

import functools
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

__all__ = ["Offsets", "Recording", "Tape", "is_driven", "record_call"]


class Offsets(NamedTuple):
    """Zeros added to values of a call; their gradients are what a fold needs.

    Attributes:
        states: added to the states that enter, or with the signal at the exit to the new states, of every step.
        entries: with the signal at the exit, added to the entry states where outputs read them; else empty.
        drives: added to the operators' outputs, at every step.
    """

    states: Arrays
    entries: Arrays
    drives: list[jax.Array | None]


class Recording(NamedTuple):
    """What is kept of a call: the values that the algorithm reads, and the modulator if it takes one."""

    values: Any
    modulator: Signals | None


class Tape:
    """Where a learner writes the calls of a sequence that is being folded.

    The values are brainstate states, so that they pass through any transformation the user puts around the call.

    Attributes:
        window: the steps of a call, which then has a time axis; None for a single step.
        offsets: zeros whose gradients are the signals and the cotangents within the call; None for a drive that no
            derivative reaches.
        record: the recording of the last call.
        followed: the traces of an algorithm whose traces follow the recording; else ``()``.
        calls: how often the learner ran since the tape was rewound.
    """

    def __init__(
        self,
        graph: TraceGraph,
        algorithm: TraceAlgorithm,
        inputs: tuple[Arrays, Arrays, Arrays, Sequence[Any]],
        modulator: Callable[[], Signals] | None,
        window: int | None,
    ) -> None:
        self._graph, self._algorithm, self.window = graph, algorithm, window
        self._at_exit = algorithm.signal.place == "exit"
        hidden = inputs[1]
        states = [jnp.zeros_like(a) for a, leaf in zip(hidden, graph.step.hidden, strict=True) if leaf.differentiable]
        offsets = Offsets(
            states=states,
            entries=states if self._at_exit and graph.exit_plan.reads_entry and not algorithm.signal.modulated else [],
            drives=[
                jnp.zeros(o.y.aval.shape, o.y.aval.dtype) if is_driven(graph, algorithm, o) else None
                for o in graph.operators
            ],
        )
        traces = algorithm.init(graph) if isinstance(algorithm, FollowingAlgorithm) else ()
        _, values, _ = jax.eval_shape(lambda i, t: record_call(graph, algorithm, i, t, offsets), inputs, traces)
        record = Recording(values, None if modulator is None else jax.eval_shape(modulator))
        lead = () if window is None else (window,)
        each = jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), (offsets, record))
        self.offsets = brainstate.ShortTermState(each[0] if self._at_exit else each[0]._replace(states=states))
        self.record = brainstate.ShortTermState(each[1])
        self.followed = brainstate.ShortTermState(traces)
        self.calls = 0

    def rewind(self) -> None:
        """Expect the next call."""
        self.calls = 0

    def check_one_call(self) -> None:
        """Raise unless the learner ran once since the tape was rewound."""
        if self.calls != 1:
            unit = "step" if self.window is None else "window"
            raise ValueError(f"step_fn must run the learner exactly once per {unit}; it ran {self.calls} times.")

    @property
    def bytes_per_call(self) -> int:
        """The memory that one recorded call takes."""
        kept = (self.offsets.value, self.record.value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    def folded(
        self, gradients: Offsets, record: Recording, parameters: Arrays, calls: int
    ) -> tuple[FoldedSteps, Signals | None]:
        """The recorded steps, stacked over time, as algorithms take them; and the signals at the very first entry.

        What outputs read of an entry state directly is credited to the new state of the step before.
        """
        length = calls * (self.window or 1)
        if self.window is not None:
            states = gradients.states if self._at_exit else jax.tree.map(self._at_first_step, gradients.states)
            gradients, record = jax.tree.map(
                lambda a: a.reshape(length, *a.shape[2:]), (gradients._replace(states=states), record)
            )
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

    def _at_first_step(self, signals: jax.Array) -> jax.Array:
        """Signals of windows as those of their first steps; a second axis for the steps."""
        assert self.window is not None
        others = jnp.zeros((signals.shape[0], self.window - 1, *signals.shape[1:]), signals.dtype)
        return jnp.concatenate([signals[:, None], others], 1)

    def _by_leaf(self, arrays: Arrays) -> list[Any]:
        rest = iter(arrays)
        return [next(rest) if leaf.differentiable else None for leaf in self._graph.step.hidden]


def record_call(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
    *,
    stacked: Sequence[bool] | None = None,
    substitutes: Substitutes | None = None,
) -> tuple[StepResult, Any, Any]:
    """One call whose states and operator outputs can be differentiated apart from its weights.

    Args:
        graph: the compiled step.
        algorithm: whose traces are waiting.
        inputs: parameters, hidden arrays, other arrays, arguments.
        followed: the traces of an algorithm whose traces follow; else ``()``.
        offsets: zeros to be added.
        stacked: for a window, which arguments have a leading time axis; None for a single step.
        substitutes: equations to be evaluated by another function.

    Returns:
        Outputs, new hidden and other arrays; what is recorded of the steps; and the traces that followed them.
    """
    parameters, hidden, others, arguments = inputs
    hidden, others = jax.tree.map(jax.lax.stop_gradient, (hidden, others))
    record = functools.partial(_record_at_exit, graph, algorithm, substitutes)
    if algorithm.signal.place == "entry":
        record = functools.partial(_record_from_entry, graph, algorithm, substitutes)
        hidden, offsets = _moved(graph, hidden, offsets.states), offsets._replace(states=[])
    if stacked is None:
        return record((parameters, hidden, others, arguments), followed, offsets)

    def one_step(carry: Any, now: Any) -> Any:
        (hidden, others, followed), (changing, offsets) = carry, now
        rest = iter(changing)
        current = [next(rest) if flag else array for array, flag in zip(arguments, stacked, strict=True)]
        result, values, followed = record((parameters, hidden, others, current), followed, offsets)
        return (result[1], result[2], followed), (result[0], values)

    changing = [array for array, flag in zip(arguments, stacked, strict=True) if flag]
    carry, (outputs, values) = jax.lax.scan(one_step, (hidden, others, followed), (changing, offsets))
    return (outputs, carry[0], carry[1]), values, carry[2]


def _record_from_entry(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    substitutes: Substitutes | None,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
) -> tuple[StepResult, Any, Any]:
    """One step through which derivatives pass from its end to its states and drives."""
    drives = {o.y: d for o, d in zip(graph.operators, offsets.drives, strict=True) if d is not None}
    cuts = operand_cuts(graph.operators)
    env = evaluate_step(graph, *inputs, cuts=cuts, offsets=drives, substitutes=substitutes)
    return results_of(graph, env), *_keep(graph, algorithm, inputs, followed, env)


def _record_at_exit(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    substitutes: Substitutes | None,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
) -> tuple[StepResult, Any, Any]:
    """One step whose new states can be differentiated, and through whose entry nothing passes."""
    parameters, hidden, others, arguments = inputs
    hidden, others = jax.tree.map(jax.lax.stop_gradient, (hidden, others))
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
    return result, *_keep(graph, algorithm, inputs, followed, env)


def _keep(
    graph: TraceGraph, algorithm: TraceAlgorithm, inputs: tuple[Arrays, Arrays, Arrays, Arrays], followed: Any, env: Any
) -> tuple[Any, Any]:
    """What is recorded of a step, and the traces that follow it."""
    point = point_at(graph, inputs, env)
    if not isinstance(algorithm, FollowingAlgorithm):
        return residuals_of(graph, algorithm).save(point), followed
    tracked = evaluate_operands(graph, jax.lax.stop_gradient(inputs[0]))
    followed, kept = algorithm.follow(graph, followed, algorithm.read(point), tracked)
    return kept, followed


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
