"""One call of a learner, recorded: as little of its steps as a fold needs, and zeros whose gradients are the rest.

Each step is recorded: what the data ``x`` of every operator and the Jacobians can be made from, and the cotangent ``ȳ``
of every operator's output; and of each call the cotangent ``s`` of the states that enter it (with the signal at the
exit, of the new states of every step). Within a window ``ȳ`` comes from backpropagation through its steps, and ``s`` is
zero but at its first step.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._products import PlainProduct
from etp_algorithms._engine import FollowingAlgorithm, TraceAlgorithm
from etp_algorithms._residuals import bytes_in, residuals_of
from etp_algorithms._step import (
    Arrays,
    Signals,
    StepPoint,
    StepResult,
    Substitutes,
    evaluate_at_exit,
    evaluate_operands,
    evaluate_step,
    operand_cuts,
    point_at,
    results_of,
)
from etp_core.jaxpr import Equation, value_of

_MOST_PRODUCTS = 16  # that are weighed one by one

__all__ = ["Offsets", "Recorder", "Recording", "record_call", "recorder_of"]


class Offsets(NamedTuple):
    """Zeros added to values of a call; their gradients are what a fold needs.

    Attributes:
        states: added to the states that enter, or with the signal at the exit to the new states, of every step. Of a
            recorded call their gradients, by group and state if they are sent back.
        entries: with the signal at the exit, added to the entry states where outputs read them; else empty.
        drives: added to the operators' outputs, at every step.
        products: added to the results of plain products, at every step.
        exits: where entry signals are sent back, added to the new states for all readers but their own group.
    """

    states: Any
    entries: Arrays
    drives: list[jax.Array | None]
    products: Arrays
    exits: Arrays


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


@dataclass(frozen=True)
class Recorder:
    """What is read of a step: for an algorithm, unless its traces follow, and for plain products."""

    algorithm: TraceAlgorithm
    products: tuple[PlainProduct, ...]

    def read(self, point: StepPoint) -> Any:
        values = () if isinstance(self.algorithm, FollowingAlgorithm) else self.algorithm.read(point)
        return values, tuple(value_of(p.x, point.env) for p in self.products)


@functools.lru_cache(maxsize=16)
def recorder_of(graph: TraceGraph, algorithm: TraceAlgorithm) -> Recorder:
    """What is read of a step, with the plain products that are left to the fold.

    A product that is left to backpropagation within the step reads and writes its weight's gradient at every step. It
    is better left to the fold where its data are recorded anyway, or where more folds cost little.
    """
    if isinstance(algorithm, FollowingAlgorithm):
        return Recorder(algorithm, graph.products)
    chosen = Recorder(algorithm, ())
    for product in graph.products[:_MOST_PRODUCTS]:
        more = Recorder(algorithm, (*chosen.products, product))
        taken = residuals_of(graph, more).bytes - residuals_of(graph, chosen).bytes
        if taken + bytes_in(product.y) <= bytes_in(product.weight):
            chosen = more
    return chosen


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
    how = _record_new_states
    if algorithm.signal.place == "entry":
        how = _record_new_states if offsets.exits else _record_from_entry
        hidden, offsets = _moved(graph, hidden, offsets.states), offsets._replace(states=[])
    record = functools.partial(how, graph, algorithm, substitutes)
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
    left = _left_to_the_fold(graph, algorithm, offsets)
    cuts = {**operand_cuts(graph.operators), **{equation: places for equation, (places, _) in left.items()}}
    drives = {o.y: d for o, d in zip(graph.operators, offsets.drives, strict=True) if d is not None}
    drives.update({equation.outputs[0]: zero for equation, (_, zero) in left.items()})
    env = evaluate_step(graph, *inputs, cuts=cuts, offsets=drives, substitutes=substitutes)
    return results_of(graph, env), *_keep(graph, algorithm, inputs, followed, env)


def _record_new_states(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    substitutes: Substitutes | None,
    inputs: tuple[Arrays, Arrays, Arrays, Arrays],
    followed: Any,
    offsets: Offsets,
) -> tuple[StepResult, Any, Any, Any]:
    """One step whose new states can be differentiated apart.

    With the signal at the exit nothing passes through its entry; else derivatives also pass to its states and drives.
    """
    parameters, hidden, others, arguments = inputs
    env = evaluate_step(graph, *jax.tree.map(jax.lax.stop_gradient, inputs))
    left, operators = _left_to_the_fold(graph, algorithm, offsets), graph.operators
    shifts, drives, seen = offsets.exits, [None] * len(operators), None
    if algorithm.signal.place == "exit":
        hidden, others = jax.tree.map(jax.lax.stop_gradient, (hidden, others))
        shifts, drives = offsets.states, offsets.drives
        seen = _moved(graph, hidden, offsets.entries) if offsets.entries else None
    else:
        cuts, zeros = operand_cuts(operators), zip(operators, offsets.drives, strict=True)
        left.update({o.equation: (cuts[o.equation], zero) for o, zero in zeros if zero is not None})
    result = evaluate_at_exit(
        graph,
        parameters,
        hidden,
        others,
        arguments,
        shifts,
        seen=seen,
        drives=drives,
        products=left,
        substitutes=substitutes,
    )
    return result, *_keep(graph, algorithm, inputs, followed, env)


def _left_to_the_fold(
    graph: TraceGraph, algorithm: TraceAlgorithm, offsets: Offsets
) -> dict[Equation, tuple[frozenset[int], jax.Array]]:
    """The plain products whose weights get no derivative in the step: where they stand, and what is added instead."""
    products = recorder_of(graph, algorithm).products
    return {p.equation: (frozenset([p.place]), zero) for p, zero in zip(products, offsets.products, strict=True)}


def _keep(
    graph: TraceGraph, algorithm: TraceAlgorithm, inputs: tuple[Arrays, Arrays, Arrays, Arrays], followed: Any, env: Any
) -> tuple[Any, Any, Any]:
    """What is recorded of a step, as ``values`` and as ``followed``, and the traces that follow it."""
    point = point_at(graph, inputs, env)
    values = residuals_of(graph, recorder_of(graph, algorithm)).save(point)
    if not isinstance(algorithm, FollowingAlgorithm):
        return values, (), followed
    tracked = evaluate_operands(graph, jax.lax.stop_gradient(inputs[0]))
    followed, kept = algorithm.follow(graph, followed, algorithm.read(point), tracked)
    return values, kept, followed


def _moved(graph: TraceGraph, hidden: Arrays, offsets: Arrays) -> Arrays:
    rest = iter(offsets)
    return [a + next(rest) if leaf.differentiable else a for a, leaf in zip(hidden, graph.step.hidden, strict=True)]
