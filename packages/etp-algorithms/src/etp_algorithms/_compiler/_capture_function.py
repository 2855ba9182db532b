"""Capture: stage a pure function ``step(params, hidden, x) -> (hidden, out)`` to a step program; no framework."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._explain import describe, explain_step
from etp_algorithms._compiler._program import StepProgram
from etp_core.jaxpr import trace

__all__ = ["CapturedFunction", "Slot", "StepFunction", "capture_function"]

StepFunction = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """One argument of the step: a pytree of arrays with fixed structure, shapes and dtypes.

    Attributes:
        name: what the argument is called.
        tree: its structure.
        avals: its arrays.
        paths: the path of every array.
    """

    name: str
    tree: Any
    avals: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, name: str, value: Any) -> "Slot":
        """The slot that ``value`` is an example for."""
        keyed, tree = jax.tree_util.tree_flatten_with_path(value)
        paths = tuple(tuple(map(_key, path)) or (name,) for path, _ in keyed)
        return cls(name, tree, tuple(_aval(leaf) for _, leaf in keyed), paths)

    def flatten(self, value: Any, *, length: int | None = None) -> list[jax.Array]:
        """The arrays of ``value``; with ``length``, each has a leading axis of that length.

        Raises:
            ValueError: another structure, shape or dtype than the example's.
        """
        leaves, tree = jax.tree.flatten(value)
        if tree != self.tree:
            raise ValueError(f"{self.name} has the structure {tree}, but the step was compiled for {self.tree}.")
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        lead = () if length is None else (length,)
        for array, aval, path in zip(arrays, self.avals, self.paths, strict=True):
            if (array.shape, array.dtype) != ((*lead, *aval.shape), aval.dtype):
                raise ValueError(
                    f"{self.name} has {array.dtype.name}{list(array.shape)} at {'.'.join(map(str, path))}, but the "
                    f"step was compiled for {aval.dtype.name}{[*lead, *aval.shape]}. Pass what it was compiled for, or "
                    f"compile again."
                )
        return arrays


@dataclass(frozen=True, eq=False, slots=True)
class CapturedFunction:
    """A step program and the arguments it stands for.

    Attributes:
        step: the step; its arguments are the arrays of ``params`` without derivative, then those of ``x``.
        params: the first argument.
        hidden: the second argument.
        x: the third argument.
        trainable: for every array of ``params``, whether a derivative with respect to it exists.
        output_tree: the structure of the output.
    """

    step: StepProgram
    params: Slot
    hidden: Slot
    x: Slot
    trainable: tuple[bool, ...]
    output_tree: Any

    def split(self, params: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        """The arrays of ``params`` that are learned, and the others."""
        arrays = self.params.flatten(params)
        learned = [a for a, flag in zip(arrays, self.trainable, strict=True) if flag]
        return learned, [a for a, flag in zip(arrays, self.trainable, strict=True) if not flag]


def capture_function(step: StepFunction, params: Any, hidden: Any, x: Any) -> CapturedFunction:
    """Stage ``step(params, hidden, x)``.

    Args:
        step: a pure function that returns the new hidden state and the output.
        params: parameters, a pytree of arrays; integers and keys among them are passed on and not learned.
        hidden: the hidden state, a pytree of arrays.
        x: the input of one step, a pytree of arrays.

    Raises:
        TypeError: an argument holds something else than arrays, or ``step`` returns no pair.
        CompilationError: the step changes the structure, a shape or a dtype of the hidden state, or cannot be
            traced with these arguments.
    """
    slots = tuple(Slot.of(name, value) for name, value in (("params", params), ("hidden", hidden), ("x", x)))
    trainable = tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in slots[0].avals)
    constants = trainable.count(False)
    output_trees = []

    def flat_step(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        given = [next(rest) for _ in range(constants)]
        inputs = [next(rest) for _ in slots[2].avals]
        learned = [next(rest) for flag in trainable if flag]
        state = list(rest)
        ours, theirs = iter(learned), iter(given)
        leaves = [next(ours) if flag else next(theirs) for flag in trainable]
        values = [slot.tree.unflatten(x) for slot, x in zip(slots, (leaves, state, inputs), strict=True)]
        with explain_step("step", inputs=x, states=[("hidden", hidden)]):
            result = step(*values)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"step must return a pair (new hidden state, output), got {type(result).__name__}.")
        output, tree = jax.tree.flatten(result[1])
        output_trees.append(tree)
        return [*output, *learned, *_new_state(slots[1], hidden, result[0])]

    constant_avals = [a for a, flag in zip(slots[0].avals, trainable, strict=True) if not flag]
    learned_avals = [a for a, flag in zip(slots[0].avals, trainable, strict=True) if flag]
    program = trace(flat_step, *constant_avals, *slots[2].avals, *learned_avals, *slots[1].avals)
    learned_paths = [p for p, flag in zip(slots[0].paths, trainable, strict=True) if flag]
    leaves = [("parameter", path, False) for path in learned_paths]
    leaves += [("hidden", path, False) for path in slots[1].paths]
    roles = StepProgram.assign_roles(
        program,
        arguments=constants + len(slots[2].avals),
        outputs=output_trees[0].num_leaves,
        leaves=leaves,
    )
    return CapturedFunction(roles, slots[0], slots[1], slots[2], trainable, output_trees[0])


def _new_state(slot: Slot, before: Any, after: Any) -> list[Any]:
    leaves, tree = jax.tree.flatten(after)
    same = tree == slot.tree and all(
        (jnp.shape(leaf), jnp.result_type(leaf)) == (aval.shape, aval.dtype)
        for leaf, aval in zip(leaves, slot.avals, strict=True)
    )
    if not same:
        raise CompilationError(
            f"the step changes the hidden state from {describe(before)} to {describe(after)}. It must keep structure, "
            f"shapes and dtypes; start it, batch axis included, as the step leaves it."
        )
    return leaves


def _key(entry: Any) -> Any:
    return getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry)))


def _aval(leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
    except TypeError as error:
        raise TypeError(
            f"params, hidden and x must be pytrees of arrays; got a leaf of type {type(leaf).__name__}. Split off what "
            f"is no array (flax.nnx.split, equinox.partition) and close over it."
        ) from error
