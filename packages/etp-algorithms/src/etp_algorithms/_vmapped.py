"""A model written for one sample, mapped over the lanes of a batch: shared parameters, states of every lane's own."""

from collections.abc import Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._capture import CapturedModel, StateSlot, capture_module
from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._lanes import reset_slots
from etp_algorithms._stepped import SteppedModel, stepped

__all__ = ["spread_lanes", "take_sample", "vmapped"]


def take_sample(
    model: brainstate.nn.Module, known: CapturedModel | None, lanes: int, example: tuple[Any, ...]
) -> CapturedModel:
    """The step of one sample, out of example inputs of a batch; the states of ``model`` are those of the batch then.

    Args:
        model: written for one sample.
        known: its step as it was captured before, if its states have lanes already.
        lanes: the size of the batch.
        example: inputs of one step.
    """
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(example)}
    if sizes != {(lanes,)}:
        raise ValueError(
            f"a learner that maps its step over {lanes} samples takes inputs whose first axis has that size; the "
            f"example inputs have {sorted(sizes)}."
        )
    if known is not None:
        _take_lane(model, known)
    one = jax.eval_shape(lambda args: jax.tree.map(lambda a: a[0], args), example)
    captured = capture_module(model, *one)
    spread_lanes(model, captured, lanes)
    return captured


def vmapped(model: brainstate.nn.Module, captured: CapturedModel, lanes: int) -> SteppedModel:
    """``model`` with a step over ``lanes`` samples at once.

    Hidden and other short-term states have one value per lane, random keys are split between the lanes, everything
    else is shared.

    Args:
        model: a module whose ``update`` is a step of one sample.
        captured: that step.
        lanes: the number of samples.

    Raises:
        CompilationError: the step writes a state that the lanes would have to share.
    """
    own = reset_slots(captured)
    keys = [s.state for s in captured.others if isinstance(s.state, brainstate.random.RandomState)]
    rest = {id(slot.state) for slot in own} | {id(key) for key in keys}
    written = {leaf.path for leaf in captured.step.others if leaf.output is not leaf.input}
    for slot in captured.others:
        if id(slot.state) not in rest and any(path[: len(slot.path)] == slot.path for path in written):
            raise CompilationError(
                f"vmap=True maps the step over samples that share the {type(slot.state).__name__} {slot.name}, and "
                f"the step writes it. Make it a ShortTermState, so that every lane has its own, or write the model "
                f"for a batch."
            )

    def step(*args: Any) -> Any:
        states = _now(model, own)
        split = [jax.random.split(key.value, lanes + 1) for key in keys]

        def one(values: Sequence[Any], drawn: Sequence[Any], args: Any) -> Any:
            for state, value in zip((*states, *keys), (*values, *drawn), strict=True):
                state.value = value
            return model.update(*args), [state.value for state in states]

        out, values = jax.vmap(one)([s.value for s in states], [k[1:] for k in split], args)
        for state, value in zip((*states, *keys), (*values, *(k[0] for k in split)), strict=True):
            state.value = value
        return out

    return stepped(model, step)


def spread_lanes(model: brainstate.nn.Module, captured: CapturedModel, lanes: int) -> None:
    """Give every lane a copy of each state that was just initialised for one sample."""
    for state, shapes in _sizes(model, captured):
        if [jnp.shape(leaf) for leaf in jax.tree.leaves(state.value)] == shapes:
            state.value = jax.tree.map(lambda a: jnp.broadcast_to(a, (lanes, *jnp.shape(a))), state.value)


def _take_lane(model: brainstate.nn.Module, captured: CapturedModel) -> None:
    """Undo :func:`spread_lanes`: keep the first lane of each state."""
    for state, shapes in _sizes(model, captured):
        if [jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(state.value)] == shapes:
            state.value = jax.tree.map(lambda a: a[0], state.value)


def _sizes(model: brainstate.nn.Module, captured: CapturedModel) -> list[tuple[brainstate.State, list[Any]]]:
    """The states that every lane has for itself, with the shapes of one sample."""
    leaves = (*captured.step.hidden, *captured.step.others)
    slots = reset_slots(captured)
    shapes = [[leaf.input.aval.shape for leaf in leaves if leaf.path[: len(s.path)] == s.path] for s in slots]
    return list(zip(_now(model, slots), shapes, strict=True))


def _now(model: brainstate.nn.Module, slots: Sequence[StateSlot]) -> list[brainstate.State]:
    """The states that the model holds now."""
    found = model.states()
    return [found.get(slot.path, slot.state) for slot in slots]
