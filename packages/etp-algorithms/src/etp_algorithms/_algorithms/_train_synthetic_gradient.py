"""Learning the synthetic gradients of DNI by bootstrapping: each window's own gradient is the target of its entry."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._advice import TRAINING
from etp_algorithms._algorithms._dni import SyntheticGradients
from etp_algorithms._calls import check_arguments, read_states
from etp_algorithms._learner import Learner
from etp_algorithms._step import Arrays, Signals, evaluate_step, group_signals, results_of, states_to_arrays
from etp_algorithms.oracle import sum_of_squares
from etp_core.arguments import advised

__all__ = ["train_synthetic_gradient"]

Memory = tuple[Arrays, Arrays]


@advised(TRAINING)
def train_synthetic_gradient(
    learner: Learner,
    inputs: Any,
    *,
    chunk_size: int = 1,
    loss_fn: Callable[[Any], jax.Array] = sum_of_squares,
    lr: float = 1e-2,
    epochs: int = 1,
) -> list[float]:
    """Fit the synthetic gradients of a :class:`DNI` learner on one sequence, parameters fixed.

    At the entry of every window the target is the gradient of the window's loss plus what the maps predict at its
    end; after the last window it is zero. The model's states are left as they were.

    Args:
        learner: a compiled :class:`DNI`.
        inputs: the step's input, a pytree of arrays whose leading axis is time, ``T`` steps.
        chunk_size: steps per window; it divides ``T``.
        loss_fn: the loss of one step's output; default: the sum of squares.
        lr: learning rate of plain gradient descent on half the squared error, a mean over the samples.
        epochs: passes over the sequence.

    Returns:
        The mean squared error of every epoch.

    Raises:
        TypeError: the learner is not a :class:`DNI`.
        ValueError: ``chunk_size`` does not divide the sequence.
    """
    algorithm, graph = learner.algorithm, learner.graph
    if not isinstance(algorithm, SyntheticGradients):
        raise TypeError(f"train_synthetic_gradient takes a DNI learner, got {type(learner).__name__}.")
    length = len(jax.tree.leaves(inputs)[0])
    if chunk_size < 1 or length % chunk_size:
        raise ValueError(f"chunk_size must be at least 1 and divide the {length} steps; got {chunk_size}.")
    captured = learner.compiled_step.captured
    parameters, hidden, others = read_states(captured)

    def window(maps: Any, memory: Memory, xs: Arrays) -> tuple[Memory, Signals]:
        """The memory after a window, and the gradient at its entry."""

        def total(states: Signals) -> tuple[jax.Array, Memory]:
            start = (states_to_arrays(graph, states, memory[0]), memory[1])

            def one(memory: Memory, x: Arrays) -> tuple[Memory, jax.Array]:
                outputs, hidden, others = results_of(graph, evaluate_step(graph, parameters, *memory, x))
                return (hidden, others), loss_fn(jax.tree.unflatten(captured.output_tree, outputs))

            end, losses = jax.lax.scan(one, start, xs)
            after = group_signals(graph, end[0])
            predicted = algorithm.predict(graph, maps, jax.lax.stop_gradient(after))
            later = (jnp.vdot(p, h) for p, h in zip(jax.tree.leaves(predicted), jax.tree.leaves(after), strict=True))
            return losses.sum() + sum(later, jnp.zeros(())), end

        gradient, end = jax.grad(total, has_aux=True)(group_signals(graph, memory[0]))
        return jax.lax.stop_gradient(end), gradient

    def error(maps: Any, states: Signals, targets: Signals) -> jax.Array:
        predicted = algorithm.predict(graph, maps, states)
        pairs = list(zip(jax.tree.leaves(predicted), jax.tree.leaves(targets), strict=True))
        return sum((jnp.mean(jnp.square(p - t)) for p, t in pairs), jnp.zeros(()))

    def fit(maps: Any, states: Signals, targets: Signals) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(error)(maps, states, targets)
        return jax.tree.map(lambda m, g: m - lr * g, maps, gradient), value

    @jax.jit
    def epoch(maps: Any) -> tuple[Any, jax.Array]:
        def one(carry: Any, xs: Arrays) -> Any:
            maps, memory = carry
            states = group_signals(graph, memory[0])
            after, targets = window(maps, memory, xs)
            maps, value = fit(maps, states, targets)
            return (maps, after), value

        (maps, memory), values = jax.lax.scan(one, (maps, (hidden, others)), windows)
        states = group_signals(graph, memory[0])
        maps, last = fit(maps, states, jax.tree.map(jnp.zeros_like, states))
        return maps, (values.sum() + last) / (values.size + 1)

    arguments = check_arguments(captured, (inputs,), (True,) * len(captured.argument_avals))
    windows = [a.reshape(length // chunk_size, chunk_size, *a.shape[1:]) for a in arguments]
    maps, errors = learner.traces.value, []  # pyright: ignore[reportOptionalMemberAccess]
    for _ in range(epochs):
        maps, value = epoch(maps)
        errors.append(float(value))
    learner.traces.value = maps  # pyright: ignore[reportOptionalMemberAccess]
    return errors
