"""Between a learner's states and the pure functions of a compiled step: what one call reads, checks and writes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._capture import CapturedModel, StateSlot
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._engine import TraceAlgorithm
from etp_algorithms._inputs import split_arguments

__all__ = [
    "CompiledStep",
    "by_path",
    "check_arguments",
    "first_step",
    "read_slots",
    "read_states",
    "resized_inputs",
    "states_of_calls",
    "window_length",
    "write_slots",
]


@dataclass(frozen=True, eq=False, slots=True)
class CompiledStep:
    """A step that is ready to run.

    Attributes:
        model: whose step it is, as the compiler saw it.
        captured: the step program and its states.
        graph: what the compiler found.
        algorithm: how traces are kept.
        run: :func:`run_window` on the graph, compiled.
    """

    model: brainstate.nn.Module
    captured: CapturedModel
    graph: TraceGraph
    algorithm: TraceAlgorithm
    run: Callable[..., Any]

    def follow(self) -> "CompiledStep":
        """The same for the states that the model holds now."""
        captured = self.captured.follow(self.model)
        return self if captured is self.captured else replace(self, captured=captured)


def first_step(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of the first step."""
    plain, stacked = split_arguments(args)
    leaves, tree = jax.tree.flatten(plain)
    first = [leaf[0] if s else leaf for leaf, s in zip(leaves, stacked or (False,) * len(leaves), strict=True)]
    return jax.tree.unflatten(tree, first)


def window_length(arguments: list[jax.Array], stacked: tuple[bool, ...] | None) -> int | None:
    """The number of steps of a window; None for a single step."""
    if stacked is None:
        return None
    return next(a.shape[0] for a, flag in zip(arguments, stacked, strict=True) if flag)


def check_arguments(captured: CapturedModel, plain: Any, stacked: tuple[bool, ...] | None) -> list[jax.Array]:
    """The arrays of a call, as the step was compiled for."""
    leaves, tree = jax.tree.flatten(plain)
    if tree != captured.argument_tree:
        given, wanted = len(tree.children()), len(captured.argument_tree.children())
        what = f"takes {wanted} inputs, as it was compiled for, got {given}"
        if given == wanted:
            what = f"was compiled for inputs of the structure {captured.argument_tree}, got {tree}"
        raise ValueError(
            f"the learner {what}. Pass the same structure and units, or call compile_graph with the new inputs."
        )
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for n, (array, aval) in enumerate(zip(arrays, captured.argument_avals, strict=True)):
        shape = array.shape[1:] if stacked is not None and stacked[n] else array.shape
        if (shape, array.dtype) != (aval.shape, aval.dtype):
            convert = f"Convert it, for example with jnp.asarray(x, {aval.dtype.name!r})"
            remedy = convert if shape == aval.shape else "Wrap windows in MultiStepData"
            raise ValueError(
                f"input {n} has shape {shape} and dtype {array.dtype.name} per step, but the learner was compiled for "
                f"{aval.shape} and {aval.dtype.name}. {remedy}, or call compile_graph with the new inputs."
            )
    return arrays


def read_states(captured: CapturedModel) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    """The arrays of parameters, hidden and other states."""
    step = captured.step
    return (
        read_slots(captured.parameters, step.parameters),
        read_slots(captured.hidden, step.hidden),
        read_slots(captured.others, step.others),
    )


def read_slots(slots: tuple[StateSlot, ...], leaves: Any) -> list[jax.Array]:
    """The arrays of some states, as the step was compiled for."""
    arrays = [jnp.asarray(array) for slot in slots for array in slot.read()]
    for array, leaf in zip(arrays, leaves, strict=True):
        if (array.shape, array.dtype) != (leaf.input.aval.shape, leaf.input.aval.dtype):
            raise ValueError(
                f"the state {leaf.name} has shape {array.shape} and dtype {array.dtype.name}, but the learner was "
                f"compiled for {leaf.input.aval.shape} and {leaf.input.aval.dtype.name}. Initialise the states as they "
                f"were, call reset_state after initialising them for another batch, or call compile_graph again."
            )
    return arrays


def write_slots(slots: tuple[StateSlot, ...], arrays: list[jax.Array]) -> None:
    """Give the states new arrays."""
    rest = iter(arrays)
    for slot in slots:
        slot.write([next(rest) for _ in range(slot.tree.num_leaves)])


def by_path(slots: tuple[StateSlot, ...]) -> dict[tuple[Any, ...], brainstate.State[Any]]:
    """The states by their paths."""
    return {slot.path: slot.state for slot in slots}


def resized_inputs(captured: CapturedModel) -> tuple[Any, ...] | None:
    """Example inputs for the batch size that the hidden states have now; None if it is the one compiled for.

    An input belongs to the batch if its first axis has the size of the old one.
    """
    then = [leaf.input.aval.shape for leaf in captured.step.hidden]
    now = [jnp.shape(leaf) for slot in captured.hidden for leaf in slot.read()]
    changed = {(old[:1], new[:1]) for old, new in zip(then, now, strict=True) if old != new}
    if len(changed) != 1 or any(old[1:] != new[1:] for old, new in zip(then, now, strict=True)):
        return None
    (((old,), (new,)),) = changed
    avals = [
        jax.ShapeDtypeStruct((new, *a.shape[1:]), a.dtype) if a.shape[:1] == (old,) else a
        for a in captured.argument_avals
    ]
    return jax.tree.unflatten(captured.argument_tree, avals)


def states_of_calls(
    model: Any, program: CompiledStep | None, traces: brainstate.State[Any] | None
) -> list[brainstate.State[Any]]:
    """The states that a call of a learner may change, each once."""
    is_module = isinstance(model, brainstate.nn.Module)  # compile_graph refuses anything else
    changing = list(model.states().values()) if is_module else []
    if program is not None:
        changing += [slot.state for slot in program.captured.others]
    if traces is not None:
        changing.append(traces)
    return list({id(state): state for state in changing}.values())
