"""A known sequence of steps or windows, recorded first and folded after.

Gradients over a known sequence do not need the trace at every step. Each step is recorded: what the data ``x`` of
every operator and the Jacobians can be made from, and the cotangent ``ȳ`` of every operator's output; and of each call
the cotangent ``s`` of the states that enter it (with the signal at the exit, of the new states of every step).
:meth:`FoldingAlgorithm.fold` then makes the sum of all gradients, and the final traces, from whole-sequence products.
Within a window ``ȳ`` comes from backpropagation through its steps, and ``s`` is zero but at its first step.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._products import PlainProduct
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._engine import FoldedSteps, FollowingAlgorithm, TraceAlgorithm
from etp_algorithms._residuals import RecordedSteps, bytes_in, residuals_of
from etp_algorithms._step import (
    Arrays,
    Signals,
    StepPoint,
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
from etp_core.jaxpr import value_of

_MOST_PRODUCTS = 16  # that are weighed one by one

__all__ = ["Offsets", "Recording", "Tape", "TapedSteps", "is_driven", "record_call"]


class Offsets(NamedTuple):
    """Zeros added to values of a call; their gradients are what a fold needs.

    Attributes:
        states: added to the states that enter, or with the signal at the exit to the new states, of every step.
        entries: with the signal at the exit, added to the entry states where outputs read them; else empty.
        drives: added to the operators' outputs, at every step.
        products: added to the results of plain products, at every step.
    """

    states: Arrays
    entries: Arrays
    drives: list[jax.Array | None]
    products: Arrays


class Recording(NamedTuple):
    """What is kept of a call.

    Attributes:
        values: what the values that the algorithm reads, and the data of plain products, can be made from.
        followed: those of a :class:`FollowingAlgorithm`.
        modulator: if the algorithm takes one.
    """

    values: Any
    followed: Any
    modulator: Signals | None


class TapedSteps(NamedTuple):
    """The recorded steps.

    Attributes:
        steps: as algorithms take them.
        first: the signals at the very first entry, of what outputs read of it directly; or None.
        products: the plain products, each with its data and the cotangents of its result, time leading.
    """

    steps: FoldedSteps
    first: Signals | None
    products: tuple[tuple[PlainProduct, jax.Array, jax.Array], ...]


@dataclass(frozen=True)
class _Recorder:
    """What is read of a step: for an algorithm, unless its traces follow, and for plain products."""

    algorithm: TraceAlgorithm
    products: tuple[PlainProduct, ...]

    def read(self, point: StepPoint) -> Any:
        values = () if isinstance(self.algorithm, FollowingAlgorithm) else self.algorithm.read(point)
        return values, tuple(value_of(p.x, point.env) for p in self.products)


@functools.lru_cache(maxsize=16)
def _recorder_of(graph: TraceGraph, algorithm: TraceAlgorithm) -> _Recorder:
    """What is read of a step, with the plain products that are left to the fold.

    A product that is left to backpropagation within the step reads and writes its weight's gradient at every step. It
    is better left to the fold where its data are recorded anyway, or where more folds cost little.
    """
    if isinstance(algorithm, FollowingAlgorithm):
        return _Recorder(algorithm, graph.products)
    chosen = _Recorder(algorithm, ())
    for product in graph.products[:_MOST_PRODUCTS]:
        more = _Recorder(algorithm, (*chosen.products, product))
        taken = residuals_of(graph, more).bytes - residuals_of(graph, chosen).bytes
        if taken + bytes_in(product.y) <= bytes_in(product.weight):
            chosen = more
    return chosen


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
            products=[jnp.zeros(p.y.aval.shape, p.y.aval.dtype) for p in _recorder_of(graph, algorithm).products],
        )
        traces = algorithm.init(graph) if isinstance(algorithm, FollowingAlgorithm) else ()
        _, values, kept, _ = jax.eval_shape(lambda i, t: record_call(graph, algorithm, i, t, offsets), inputs, traces)
        record = Recording(values, kept, None if modulator is None else jax.eval_shape(modulator))
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

    def taped(self, gradients: Offsets, record: Recording, parameters: Arrays, calls: int) -> TapedSteps:
        """What was recorded of ``calls`` calls, stacked over them.

        What outputs read of an entry state directly is credited to the new state of the step before.
        """
        length, spacing = calls * (self.window or 1), 1
        if self.window is not None:
            at_entry = {} if self._at_exit else {"states": gradients.states}
            spacing = self.window if at_entry else 1
            steps = (gradients._replace(**dict.fromkeys(at_entry, ())), record)
            gradients, record = jax.tree.map(lambda a: a.reshape(length, *a.shape[2:]), steps)
            gradients = gradients._replace(**at_entry)
        recorder = _recorder_of(self._graph, self._algorithm)
        recorded = residuals_of(self._graph, recorder).steps(parameters, record.values, length)
        data = recorded.map(lambda read: read[1]).stacked
        products = tuple(zip(recorder.products, data, gradients.products, strict=True))
        values = recorded.map(lambda read: read[0])
        if isinstance(self._algorithm, FollowingAlgorithm):
            values = RecordedSteps(record.followed, lambda kept: kept, length)
        rest = (tuple(gradients.drives), self.followed.value, spacing)
        if record.modulator is not None:
            return TapedSteps(FoldedSteps(values, record.modulator, *rest), None, products)
        signals = group_signals(self._graph, self._by_leaf(gradients.states))
        first = None
        if gradients.entries:
            entries = group_signals(self._graph, self._by_leaf(gradients.entries))
            first = jax.tree.map(lambda e: e[0], entries)
            signals = jax.tree.map(lambda s, e: s.at[:-1].add(e[1:]), signals, entries)
        return TapedSteps(FoldedSteps(values, signals, *rest), first, products)

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
) -> tuple[StepResult, Any, Any, Any]:
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
        Outputs, new hidden and other arrays; what is recorded of the steps, as ``values`` and as ``followed``; and the
        traces that followed them.
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
        result, *kept, followed = record((parameters, hidden, others, current), followed, offsets)
        return (result[1], result[2], followed), (result[0], kept)

    changing = [array for array, flag in zip(arguments, stacked, strict=True) if flag]
    carry, (outputs, kept) = jax.lax.scan(one_step, (hidden, others, followed), (changing, offsets))
    return (outputs, carry[0], carry[1]), *kept, carry[2]


def _record_from_entry(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    substitutes: Substitutes | None,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
) -> tuple[StepResult, Any, Any, Any]:
    """One step through which derivatives pass from its end to its states and drives."""
    drives = {o.y: d for o, d in zip(graph.operators, offsets.drives, strict=True) if d is not None}
    products = _recorder_of(graph, algorithm).products
    cuts = {**operand_cuts(graph.operators), **{p.equation: frozenset([p.place]) for p in products}}
    drives.update(zip((p.y for p in products), offsets.products, strict=True))
    env = evaluate_step(graph, *inputs, cuts=cuts, offsets=drives, substitutes=substitutes)
    return results_of(graph, env), *_keep(graph, algorithm, inputs, followed, env)


def _record_at_exit(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    substitutes: Substitutes | None,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
) -> tuple[StepResult, Any, Any, Any]:
    """One step whose new states can be differentiated, and through whose entry nothing passes."""
    parameters, hidden, others, arguments = inputs
    hidden, others = jax.tree.map(jax.lax.stop_gradient, (hidden, others))
    env = evaluate_step(graph, parameters, hidden, others, arguments)
    products = _recorder_of(graph, algorithm).products
    result = evaluate_at_exit(
        graph,
        parameters,
        hidden,
        others,
        arguments,
        offsets.states,
        seen=_moved(graph, hidden, offsets.entries) if offsets.entries else None,
        drives=offsets.drives,
        products={p.equation: (frozenset([p.place]), zero) for p, zero in zip(products, offsets.products, strict=True)},
        substitutes=substitutes,
    )
    return result, *_keep(graph, algorithm, inputs, followed, env)


def _keep(
    graph: TraceGraph, algorithm: TraceAlgorithm, inputs: tuple[Arrays, Arrays, Arrays, Arrays], followed: Any, env: Any
) -> tuple[Any, Any, Any]:
    """What is recorded of a step, as ``values`` and as ``followed``, and the traces that follow it."""
    point = point_at(graph, inputs, env)
    values = residuals_of(graph, _recorder_of(graph, algorithm)).save(point)
    if not isinstance(algorithm, FollowingAlgorithm):
        return values, (), followed
    tracked = evaluate_operands(graph, jax.lax.stop_gradient(inputs[0]))
    followed, kept = algorithm.follow(graph, followed, algorithm.read(point), tracked)
    return values, kept, followed


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
