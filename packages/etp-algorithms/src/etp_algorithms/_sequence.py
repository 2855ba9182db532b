"""Sequence drivers: gradients and rollouts over a known sequence, in one scan."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._inputs import MultiStepData

__all__ = ["SequenceDrivers", "zeros_like"]


class SequenceDrivers:
    """``etrace_grad`` and ``etrace_evolve`` of a learner."""

    folds: Any
    param_states: Any
    update: Callable[..., Any]
    reset_state: Callable[..., None]
    fold_gradients: Callable[..., tuple[list[Any], Any, Any]]

    def etrace_grad(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any],
        mask: Any = None,
        chunk_size: int | None = None,
        weights: Mapping[Any, brainstate.State[Any]] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        loss_output: Literal["per_step", "masked", "scalar"] = "per_step",
        has_aux: bool = False,
        return_value: bool = False,
        complete_sequence: bool = False,
    ) -> Any:
        """The gradient over a sequence, learned forward in time.

        One gradient is taken per step (or per chunk of ``chunk_size`` steps) and added up; parameters are fixed
        meanwhile. States and traces persist after the call, so a second call continues the sequence.

        Args:
            *sequences: pytrees of arrays whose leading axis is time, ``T`` steps.
            step_fn: called with the slices of one step, runs the learner exactly once and returns a scalar loss
                (with ``has_aux``: a pair). With ``chunk_size`` above 1 it gets ``(chunk_size, ...)`` slices, wraps them
                in :class:`MultiStepData`, and returns one loss per step, shape ``(chunk_size,)``.
            mask: weight of each step's loss, shape ``(T,)``; it never touches the traces.
            chunk_size: steps per gradient; None or 1 is step by step.
            weights: the states to differentiate; default: all parameters of the learner.
            reduction: ``"mean"`` divides by the sum of the mask (by ``T`` without one; never by less than 1),
                ``"sum"`` does not.
            loss_output: the losses per step, the losses times the mask, or their reduction as one scalar.
            has_aux: ``step_fn`` returns ``(loss, aux)``.
            return_value: return the losses too.
            complete_sequence: the sequence stands alone: the traces are zero before it and after it. A sequence that
                fits into ``memory_limit`` then needs no trace at all. Reset the model's states yourself.

        Returns:
            ``gradients``, then the losses if ``return_value``, then the stacked aux if ``has_aux``.

        Raises:
            ValueError: no sequence, ragged sequences, a ``T`` that ``chunk_size`` does not divide, a mask of another
                shape, a loss of another shape, or an unknown option.
            TypeError: ``chunk_size`` is not an integer.
        """
        _check_option("reduction", reduction, ("mean", "sum"))
        _check_option("loss_output", loss_output, ("per_step", "masked", "scalar"))
        length = _length_of(sequences)
        chunk = _check_chunk(chunk_size, length)
        gates = jnp.ones(length) if mask is None else jnp.asarray(mask)
        if gates.shape != (length,):
            raise ValueError(f"mask must have one weight per step, shape ({length},); got {gates.shape}.")
        gates = gates.astype(jnp.result_type(float))
        if weights is not None and not isinstance(weights, Mapping):
            raise TypeError(f"weights must be a dictionary of states, got {type(weights).__name__}.")
        states = dict(self.param_states if weights is None else weights)

        def loss_of(gate: Any, slices: tuple[Any, ...]) -> tuple[Any, Any]:
            out = step_fn(*slices)
            losses, aux = out if has_aux else (out, None)
            losses = jnp.asarray(losses)
            if losses.shape != gate.shape:
                raise ValueError(
                    f"step_fn must return a loss of shape {gate.shape}"
                    f"{' (one per step of the chunk)' if chunk else ' (a scalar)'}, got {losses.shape}."
                )
            return jnp.sum(losses * gate), (losses, aux)

        timed, slots = (gates, sequences), list(states.values())
        if complete_sequence:
            self.reset_state()
        if chunk is None and self.folds:
            total, losses, aux = self.fold_gradients(loss_of, timed, slots, complete_sequence)
        else:
            total, losses, aux = _add_gradients(loss_of, _chunked(timed, chunk), slots)
        if complete_sequence:
            self.reset_state()
        total = dict(zip(states, total, strict=True))
        losses = losses.reshape(length)
        scale = 1.0 / jnp.maximum(gates.sum(), 1.0) if reduction == "mean" else 1.0
        total = jax.tree.map(lambda g: (g * scale).astype(g.dtype), total)
        shown = {"per_step": losses, "masked": losses * gates, "scalar": jnp.sum(losses * gates) * scale}[loss_output]
        result = (total, *((shown,) if return_value else ()), *((aux,) if has_aux else ()))
        return result[0] if len(result) == 1 else result

    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> Any:
        """Run a sequence without gradients; states and traces move on.

        Args:
            *sequences: pytrees of arrays whose leading axis is time.
            step_fn: called with the slices of one step (of one chunk); default: the learner itself.
            chunk_size: steps per call; None or 1 is step by step.
            return_outputs: return what ``step_fn`` returned, stacked over calls.

        Raises:
            ValueError: no sequence, ragged sequences, or a length that ``chunk_size`` does not divide.
            TypeError: ``chunk_size`` is not an integer.
        """
        length = _length_of(sequences)
        chunk = _check_chunk(chunk_size, length)
        call = step_fn if step_fn is not None else self._call_chunk if chunk else self.update

        def body(slices: tuple[Any, ...]) -> Any:
            out = call(*slices)
            return out if return_outputs else None

        return brainstate.transform.for_loop(body, _chunked(sequences, chunk))

    def _call_chunk(self, *slices: Any) -> Any:
        return self.update(*map(MultiStepData, slices))


def _add_gradients(
    loss_of: Callable[..., Any], timed: Any, states: list[brainstate.State[Any]]
) -> tuple[list[Any], Any, Any]:
    """One gradient per entry of ``timed``, summed; with the losses and the aux of every call."""
    gradient = brainstate.transform.grad(loss_of, grad_states=states, has_aux=True)

    def body(total: list[Any], now: Any) -> Any:
        gradients, (losses, aux) = gradient(*now)
        return jax.tree.map(jnp.add, total, list(gradients)), (losses, aux)

    total, (losses, aux) = brainstate.transform.scan(body, zeros_like(states), timed)
    return total, losses, aux


def zeros_like(states: list[brainstate.State[Any]]) -> list[Any]:
    return [jax.tree.map(jnp.zeros_like, state.value) for state in states]


def _length_of(sequences: tuple[Any, ...]) -> int:
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(sequences)}
    if not lengths or () in lengths:
        raise ValueError("give at least one sequence, an array whose leading axis is time.")
    if len(lengths) > 1:
        raise ValueError(f"all sequences must have the same number of steps; got {sorted(n for (n,) in lengths)}.")
    ((length,),) = lengths
    if length == 0:
        raise ValueError("the sequences hold no step.")
    return length


def _check_chunk(chunk_size: int | None, length: int) -> int | None:
    if chunk_size is None:
        return None
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int or None, got {type(chunk_size).__name__}.")
    if chunk_size < 1 or length % chunk_size:
        raise ValueError(
            f"chunk_size must be at least 1 and divide the number of steps; got {chunk_size} for {length} steps. Cut "
            f"the sequence, or drive the last chunk with a second call."
        )
    return None if chunk_size == 1 else chunk_size


def _check_option(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def _chunked(tree: Any, chunk: int | None) -> Any:
    """The arrays cut into chunks along time: ``(T, ...)`` to ``(T / chunk, chunk, ...)``."""
    if chunk is None:
        return tree
    return jax.tree.map(lambda a: a.reshape(a.shape[0] // chunk, chunk, *a.shape[1:]), tree)
