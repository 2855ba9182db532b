"""The gradient of a known sequence from recorded calls: record some, fold them, go on with the next.

A driver runs the learner call by call, step by step or window by window; while a tape is in place every call is
recorded and the traces wait.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._calls import CompiledStep, read_slots, read_states, window_length, write_slots
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._products import PlainProduct
from etp_algorithms._engine import FoldingAlgorithm, FollowingAlgorithm
from etp_algorithms._modulator import zero_modulator
from etp_algorithms._recording import Recording, record_call
from etp_algorithms._report import bytes_of
from etp_algorithms._step import Arrays, evaluate_operands
from etp_algorithms._tape import Tape
from etp_algorithms._trees import add_trees

__all__ = ["Folded", "calls_per_fold", "fold_gradients", "run_on_tape", "tape_of"]

_LEAST_BUDGET = 8 * 2**20
_ALONE_BUDGET = 24 * 2**20


def tape_of(program: CompiledStep, window: int | None, timed: Any) -> Tape:
    """An empty tape for calls of ``window`` steps, or None for single steps, on the slices ``timed``."""
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    assert isinstance(algorithm, FoldingAlgorithm)
    inputs = (*read_states(captured), list(captured.argument_avals))
    modulator = (lambda: zero_modulator(graph)) if algorithm.signal.modulated else None
    return Tape(graph, algorithm, inputs, modulator, window, _length(timed))


def run_on_tape(
    program: CompiledStep,
    tape: Tape,
    arguments: list[jax.Array],
    stacked: tuple[bool, ...] | None,
    modulator: Any,
    modulator_stacked: bool,
) -> Any:
    """One call in a sequence that is folded afterwards: the traces wait, the steps are recorded."""
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    tape.calls += 1
    length = window_length(arguments, stacked)
    if tape.window is None and length == 1:
        assert stacked is not None
        arguments = [a[0] if flag else a for a, flag in zip(arguments, stacked, strict=True)]
        modulator = jax.tree.map(lambda m: m[0], modulator) if modulator_stacked else modulator
    elif length != tape.window:
        raise ValueError(_wrong_length(tape.window, length))
    if tape.window is not None and modulator is not None and not modulator_stacked:
        modulator = jax.tree.map(lambda m: jnp.broadcast_to(m, (tape.window, *m.shape)), modulator)
    feedback = algorithm.signal.feedback
    result, values, kept, tape.followed.value = record_call(
        graph,
        algorithm,
        (*read_states(captured), arguments),
        tape.followed.value,
        tape.offsets.value,
        stacked=None if tape.window is None else stacked,
        substitutes=feedback.substitutes(graph) if feedback else None,
    )
    outputs, hidden, others = result
    tape.record.value = Recording(values, kept, modulator)
    write_slots(captured.hidden, hidden)
    write_slots(captured.others, others)
    if tape.window is None and stacked is not None:
        outputs = [output[None] for output in outputs]
    return jax.tree.unflatten(captured.output_tree, outputs)


class Folded(NamedTuple):
    """What folding a sequence gives.

    Attributes:
        gradients: the total of the gradients of the states asked for.
        traces: those after the sequence, or None if they were not asked for.
        losses: of every call, stacked.
        aux: of every call, stacked.
    """

    gradients: list[Any]
    traces: Any
    losses: Any
    aux: Any


def fold_gradients(
    program: CompiledStep,
    tape: Tape,
    total: list[Any],
    traces: Any,
    loss_of: Callable[..., Any],
    timed: Any,
    states: list[brainstate.State[Any]],
    *,
    last: bool,
    limit: int | None,
) -> Folded:
    """The gradients of single calls, summed over a known sequence, from recorded steps.

    Args:
        program: the step.
        tape: where the calls of the learner are recorded.
        total: what the gradients are added to.
        traces: the traces before the sequence; None for zero.
        loss_of: ``slices -> (loss, (losses, aux))``; it runs the learner exactly once.
        timed: the slices of every call, stacked.
        states: the states to differentiate.
        last: the traces after the sequence are not asked for.
        limit: bytes for recorded calls; None for the default.
    """
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    assert isinstance(algorithm, FoldingAlgorithm)

    def counted(now: Any) -> Any:
        tape.rewind()
        result = loss_of(now)
        tape.check_one_call()
        return result

    gradient = brainstate.transform.grad(counted, grad_states=[*states, tape.offsets], has_aux=True)

    def one_call(carry: Any, now: Any) -> Any:
        total, credit = carry
        (*direct, offsets), (losses, aux) = gradient(now)
        parameters = read_slots(captured.parameters, captured.step.parameters)
        offsets, credit = tape.credited(offsets, parameters, credit)
        return (jax.tree.map(jnp.add, total, direct), credit), (losses, aux, offsets, tape.record.value)

    def one_fold(total: list[Any], traces: Any, chunk: Any, *, last: bool) -> Folded:
        if isinstance(algorithm, FollowingAlgorithm):
            tape.followed.value = algorithm.init(graph) if traces is None else traces
        start = (total, tape.no_credit())
        (total, ahead), (losses, aux, moved, record) = brainstate.transform.scan(one_call, start, chunk)
        parameters = read_slots(captured.parameters, captured.step.parameters)
        operands = evaluate_operands(graph, parameters)
        taped = tape.taped(moved, record, parameters, _length(chunk), ahead)
        entered: tuple[Any, ...] = ()
        if taped.first is not None and traces is not None:  # read before the traces move
            entered = tuple(algorithm.solve(graph, traces, taped.first, operands))
            traces, entered = jax.lax.optimization_barrier((traces, entered))
        cotangents, rolled = algorithm.fold(graph, traces, taped.steps, operands, last=last)
        cotangents = (*map(add_trees, cotangents, entered), *cotangents[len(entered) :])
        pulled = iter(_pull(graph, parameters, cotangents, taped.products))
        folded = {id(s.state): [next(pulled) for _ in range(s.tree.num_leaves)] for s in captured.parameters}
        total = [_add_leaves(t, folded.get(id(s))) for t, s in zip(total, states, strict=True)]
        return Folded(total, rolled, losses, aux)

    alone = traces is None and last and not isinstance(algorithm, FollowingAlgorithm)
    trace_bytes = bytes_of(jax.eval_shape(lambda: algorithm.init(graph)))
    size = calls_per_fold(_length(timed), tape.bytes_per_call, trace_bytes, limit, alone=alone)
    return _in_folds(one_fold, lambda: algorithm.init(graph), total, traces, timed, size, last=last)


def calls_per_fold(
    length: int, bytes_per_call: int, trace_bytes: int, memory_limit: int | None, *, alone: bool = False
) -> int:
    """How many calls are recorded before they are folded.

    Args:
        length: the calls of the sequence.
        bytes_per_call: the memory of one recorded call.
        trace_bytes: the memory of the traces.
        memory_limit: bytes for the recording; None allows twice what the traces take, and 8 MiB at least; a sequence
            that stands alone may take 24 MiB, if it then needs no trace.
        alone: the sequence starts from zero traces, and none are asked for at its end.
    """
    budget = max(2 * trace_bytes, _LEAST_BUDGET) if memory_limit is None else memory_limit
    if alone and memory_limit is None and length * bytes_per_call <= _ALONE_BUDGET:
        return length
    most = max(1, min(length, budget // max(bytes_per_call, 1)))
    divisor = next(size for size in range(most, 0, -1) if length % size == 0)
    if 2 * divisor >= most:  # all folds are alike, and one program serves them
        return divisor
    folds = -(-length // most)
    return -(-length // folds)


def _in_folds(
    one_fold: Callable[..., Folded],
    zero_traces: Callable[[], Any],
    total: list[Any],
    traces: Any,
    timed: Any,
    size: int,
    *,
    last: bool,
) -> Folded:
    """Run ``one_fold`` over chunks of ``size`` calls, the last one shorter if it must be."""
    length, outs = _length(timed), []
    whole = length // size if length > size else 0
    if whole:
        traces = zero_traces() if traces is None else traces

        def body(carry: Any, chunk: Any) -> Any:
            found = one_fold(*carry, chunk, last=False)
            return (found.gradients, found.traces), (found.losses, found.aux)

        chunks = jax.tree.map(lambda a: a[: whole * size].reshape(whole, size, *a.shape[1:]), timed)
        (total, traces), out = brainstate.transform.scan(body, (total, traces), chunks)
        outs.append(jax.tree.map(lambda a: a.reshape(whole * size, *a.shape[2:]), out))
    if whole * size < length:
        found = one_fold(total, traces, jax.tree.map(lambda a: a[whole * size :], timed), last=last)
        total, traces = found.gradients, found.traces
        outs.append((found.losses, found.aux))
    losses, aux = outs[0] if len(outs) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *outs)
    return Folded(total, None if last else traces, losses, aux)


def _length(timed: Any) -> int:
    return jax.tree.leaves(timed)[0].shape[0]


def _pull(
    graph: TraceGraph,
    parameters: Arrays,
    cotangents: Sequence[Any],
    products: Sequence[tuple[PlainProduct, jax.Array, jax.Array]],
) -> Arrays:
    """The gradients of the parameter arrays that gradients of operands and recorded plain products entail."""

    def weights_of(parameters: Arrays) -> Any:
        given = dict(zip((leaf.input for leaf in graph.step.parameters), parameters, strict=True))
        return evaluate_operands(graph, parameters), tuple(product.weight_of(given) for product, _, _ in products)

    (operands, _), pull = jax.vjp(weights_of, parameters)
    matched = jax.tree.map(lambda c, w: c.astype(w.dtype), tuple(cotangents), operands)
    return pull((matched, tuple(product.pull(xs, ys) for product, xs, ys in products)))[0]


def _add_leaves(total: Any, leaves: list[jax.Array] | None) -> Any:
    """A gradient with the shape of a state's value, with arrays added to its leaves."""
    if leaves is None:
        return total
    old, tree = jax.tree.flatten(total)
    return jax.tree.unflatten(tree, [a + b for a, b in zip(old, leaves, strict=True)])


def _wrong_length(window: int | None, length: int | None) -> str:
    def steps(count: int | None) -> str:
        return "a single step" if count is None else f"a window of {count} steps"

    remedy = "Give etrace_grad the chunk_size" if window is None else "Wrap what has a time axis in MultiStepData"
    return f"step_fn got {steps(window)} and passed {steps(length)} to the learner. {remedy}."
