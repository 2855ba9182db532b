"""The gradient of a known sequence from recorded steps: record some, fold them, go on with the next.

A driver runs the learner step by step, and while a tape is in place every call is recorded and the traces wait.
"""

from collections.abc import Callable, Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._calls import CompiledStep, read_slots, read_states, window_length, write_slots
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._engine import FoldingAlgorithm, FollowingAlgorithm
from etp_algorithms._modulator import zero_modulator
from etp_algorithms._report import bytes_of
from etp_algorithms._sequence import zeros_like
from etp_algorithms._step import Arrays, evaluate_operands
from etp_algorithms._tape import Recording, Tape, record_step
from etp_algorithms._trees import add_trees

__all__ = ["fold_gradients", "run_on_tape", "steps_per_fold", "tape_of"]

_LEAST_BUDGET = 8 * 2**20


def tape_of(program: CompiledStep) -> Tape:
    """An empty tape for the steps of ``program``."""
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    assert isinstance(algorithm, FoldingAlgorithm)
    inputs = (*read_states(captured), list(captured.argument_avals))
    modulator = (lambda: zero_modulator(graph)) if algorithm.signal.modulated else None
    return Tape(graph, algorithm, inputs, modulator)


def run_on_tape(
    program: CompiledStep,
    tape: Tape,
    arguments: list[jax.Array],
    stacked: tuple[bool, ...] | None,
    modulator: Any,
    modulator_stacked: bool,
) -> Any:
    """One step of a sequence that is folded afterwards: the traces wait, the step is recorded."""
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    tape.calls += 1
    if stacked is not None:
        if window_length(arguments, stacked) != 1:
            raise ValueError("step_fn passed a window of several steps; give etrace_grad the chunk_size.")
        arguments = [a[0] if flag else a for a, flag in zip(arguments, stacked, strict=True)]
        modulator = jax.tree.map(lambda m: m[0], modulator) if modulator_stacked else modulator
    inputs = (*read_states(captured), arguments)
    feedback = algorithm.signal.feedback
    substitutes = feedback.substitutes(graph) if feedback else None
    result, values, tape.followed.value = record_step(
        graph, algorithm, inputs, tape.followed.value, tape.offsets.value, substitutes
    )
    outputs, hidden, others = result
    tape.record.value = Recording(values, modulator)
    write_slots(captured.hidden, hidden)
    write_slots(captured.others, others)
    outputs = outputs if stacked is None else [output[None] for output in outputs]
    return jax.tree.unflatten(captured.output_tree, outputs)


def fold_gradients(
    program: CompiledStep,
    traces: brainstate.State[Any],
    tape: Tape,
    loss_of: Callable[..., Any],
    timed: Any,
    states: list[brainstate.State[Any]],
    *,
    complete: bool,
    limit: int | None,
) -> tuple[list[Any], Any, Any]:
    """The gradients of single steps, summed over a known sequence, from recorded steps.

    Args:
        program: the step.
        traces: the learner's traces; they move.
        tape: where the calls of the learner are recorded.
        loss_of: ``slices -> (loss, (losses, aux))``; it runs the learner exactly once.
        timed: the slices, time leading.
        states: the states to differentiate.
        complete: the traces are zero before the sequence and are not needed after it.
        limit: bytes for recorded steps; None for the default.

    Returns:
        The gradients of ``states``, the losses and the aux, stacked over time.
    """
    captured, graph, algorithm = program.captured, program.graph, program.algorithm
    assert isinstance(algorithm, FoldingAlgorithm)
    length = jax.tree.leaves(timed)[0].shape[0]
    size = steps_per_fold(length, tape.bytes_per_step, bytes_of(traces.value), limit)

    def counted(now: Any) -> Any:
        tape.rewind()
        result = loss_of(now)
        tape.check_one_call()
        return result

    gradient = brainstate.transform.grad(counted, grad_states=[*states, tape.offsets], has_aux=True)

    def one_step(total: list[Any], now: Any) -> Any:
        (*direct, offsets), (losses, aux) = gradient(now)
        return jax.tree.map(jnp.add, total, direct), (losses, aux, offsets, tape.record.value)

    def one_fold(total: list[Any], chunk: Any) -> Any:
        alone = complete and size == length
        if isinstance(algorithm, FollowingAlgorithm):
            tape.followed.value = algorithm.init(graph) if alone else traces.value
        total, (losses, aux, moved, record) = brainstate.transform.scan(one_step, total, chunk)
        parameters = read_slots(captured.parameters, captured.step.parameters)
        operands = evaluate_operands(graph, parameters)
        steps, first = tape.folded(moved, record, parameters, jax.tree.leaves(chunk)[0].shape[0])
        cotangents, rolled = algorithm.fold(graph, None if alone else traces.value, steps, operands)
        if first is not None and not alone:
            entered = algorithm.solve(graph, traces.value, first, operands)
            cotangents = (*map(add_trees, cotangents, entered), *cotangents[len(entered) :])
        traces.value = traces.value if rolled is None else rolled
        pulled = iter(_pull_operands(graph, parameters, cotangents))
        folded = {id(s.state): [next(pulled) for _ in range(s.tree.num_leaves)] for s in captured.parameters}
        return [_add_leaves(t, folded.get(id(s))) for t, s in zip(total, states, strict=True)], (losses, aux)

    return _in_folds(one_fold, zeros_like(states), timed, length, size)


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
    divisor = next(size for size in range(most, 0, -1) if length % size == 0)
    if 2 * divisor >= most:  # all folds are alike, and one program serves them
        return divisor
    folds = -(-length // most)
    return -(-length // folds)


def _pull_operands(graph: TraceGraph, parameters: Arrays, cotangents: Sequence[Any]) -> Arrays:
    """The gradients of the parameter arrays that gradients of the operands entail."""
    operands, pull = jax.vjp(lambda p: evaluate_operands(graph, p), parameters)
    matched = jax.tree.map(lambda c, w: c.astype(w.dtype), tuple(cotangents), operands)
    return pull(matched)[0]


def _in_folds(
    one_fold: Callable[..., Any], total: list[Any], timed: Any, length: int, size: int
) -> tuple[list[Any], Any, Any]:
    """Run ``one_fold`` over chunks of ``size`` steps, the last one shorter if it must be."""
    whole, rest = divmod(length, size)
    head = jax.tree.map(lambda a: a[: whole * size].reshape(whole, size, *a.shape[1:]), timed)
    if whole > 1:
        total, out = brainstate.transform.scan(one_fold, total, head)
        out = jax.tree.map(lambda a: a.reshape(whole * size, *a.shape[2:]), out)
    else:
        total, out = one_fold(total, jax.tree.map(lambda a: a[0], head))
    if rest:
        total, tail = one_fold(total, jax.tree.map(lambda a: a[whole * size :], timed))
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, tail)
    return total, *out


def _add_leaves(total: Any, leaves: list[jax.Array] | None) -> Any:
    """A gradient with the shape of a state's value, with arrays added to its leaves."""
    if leaves is None:
        return total
    old, tree = jax.tree.flatten(total)
    return jax.tree.unflatten(tree, [a + b for a, b in zip(old, leaves, strict=True)])
