"""Sequence drivers: gradients and rollouts over a known sequence, in one scan."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._advice import DRIVING
from etp_algorithms._inputs import MultiStepData
from etp_algorithms._losses import check_losses, read_mask, reduce_losses, scales_of, weighted_sum
from etp_algorithms._progress import Progress, read_progress, report_step
from etp_core.arguments import advised

__all__ = ["SequenceDrivers"]


class SequenceDrivers:
    """``etrace_grad``, ``etrace_evolve`` and ``evaluate`` of a learner."""

    param_states: Any
    hidden_states: Any
    other_states: Any
    traces: Any
    update: Callable[..., Any]
    reset_state: Callable[..., None]
    _prepared_step: Callable[..., Any]
    _folds: Callable[..., bool]
    _fold_gradients: Callable[..., Any]
    _run_placed: Callable[..., tuple[list[Any], Any]]
    _giving: Callable[..., Any]
    _holding_traces: Callable[[], Any]
    _unchanged_on_failure: Callable[[], Any]

    @advised(DRIVING)
    def etrace_grad(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any],
        mask: Any = None,
        resets: Any = None,
        warm_up: int = 0,
        chunk_size: int | None = None,
        weights: Mapping[Any, brainstate.State[Any]] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        loss_output: Literal["per_step", "masked", "scalar"] = "per_step",
        has_aux: bool = False,
        return_value: bool = False,
        complete_sequence: bool = False,
        progress: bool | str | Progress | None = None,
    ) -> Any:
        """The gradient over a sequence, learned forward in time.

        One gradient is taken per step (or per window of ``chunk_size`` steps) and added up; parameters are fixed
        meanwhile. States and traces persist after the call, so a second call continues the sequence.

        Args:
            *sequences: pytrees of arrays whose leading axis is time, ``T`` steps.
            step_fn: called with the slices of one step, runs the learner exactly once and returns the loss (with
                ``has_aux``: a pair): an array, or a pytree of several losses, which add up. With ``chunk_size`` above
                1 it gets ``(chunk_size, ...)`` slices (a shorter last window its own length), wraps them in
                :class:`MultiStepData`, and returns the losses of every step, time leading.
            mask: weights of the losses, time leading; they never touch the traces. A weight has the shape of the loss
                it belongs to: ``(T,)`` for a scalar loss per step, ``(T, B)`` for one per lane. For several losses a
                pytree of masks like theirs, or one for all. Without a mask every loss is a scalar.
            resets: booleans of shape ``(T,)``, or ``(T, B)`` by lane: an episode begins with this step (see
                :meth:`Learner.update`). The result is that of the episodes run apart.
            warm_up: the first steps, which run without gradient; their losses do not count.
            chunk_size: steps per gradient; None or 1 is step by step. The last window is shorter if it must be.
            weights: the states to differentiate; default: all parameters of the learner.
            reduction: ``"mean"`` divides each loss by the sum of its mask (by ``T`` without one; never by less than
                1), ``"sum"`` does not.
            loss_output: the losses per step, the losses times the mask, or their reduction to a scalar each.
            has_aux: ``step_fn`` returns ``(loss, aux)``.
            return_value: return the losses too.
            complete_sequence: the sequence stands alone: it starts from zero traces, and they are not kept. A sequence
                that fits into ``memory_limit`` then needs no trace at all. Reset the model's states yourself, and
                the learner's before you stream on.
            progress: True shows a bar of tqdm, a string gives it a title; or a function that is called with the steps
                done and the steps there are, about a hundred times.

        Returns:
            ``gradients``, then the losses if ``return_value``, then the stacked aux if ``has_aux``.

        Raises:
            ValueError: no sequence, ragged sequences, a mask, a loss or flags of another shape, aux of a shorter last
                window that cannot be stacked, or an unknown option.
            TypeError: ``chunk_size`` or ``warm_up`` is not an integer, or another argument has the wrong type.
            ImportError: a bar is asked for and tqdm is not installed.
        """
        _check_option("reduction", reduction, ("mean", "sum"))
        _check_option("loss_output", loss_output, ("per_step", "masked", "scalar"))
        length = _length_of(sequences)
        chunk = _check_chunk(chunk_size, length)
        warm_up = _check_warm_up(warm_up, length)
        gates = read_mask(mask, length, warm_up)
        scales = scales_of(gates, reduction)
        if weights is not None and not isinstance(weights, Mapping):
            raise TypeError(f"weights must be a dictionary of states, got {type(weights).__name__}.")
        flags = _check_resets(resets, length)
        report = read_progress(progress)
        self._prepared_step(flags)
        states = dict(self.param_states if weights is None else weights)

        def core(timed: _Now, scales: Any) -> tuple[list[Any], list[Any]]:
            program = self._prepared_step(timed.flags)

            def loss_of(now: _Now) -> tuple[Any, Any]:
                with self._giving(now.flags, windowed=chunk is not None):
                    out = step_fn(*now.slices)
                losses, aux = out if has_aux else (out, None)
                losses = check_losses(losses, now.gates, chunk is not None)
                report_step(report, now.done, length)
                return weighted_sum(losses, now.gates, scales), (losses, aux)

            folds = self._folds(program)
            alone = complete_sequence and folds and not warm_up  # then the learner's traces are not touched
            if complete_sequence and not alone:
                self.reset_state()
            head, tail = _cut(timed, 0, warm_up), _cut(timed, warm_up, length)
            parts = _run_windows(lambda now: loss_of(now)[1], head, chunk) if warm_up else []
            slots = list(states.values())
            if folds:
                total, found = self._fold_windows(program, loss_of, tail, slots, chunk, alone)
            else:
                total, found = self._add_gradients(loss_of, tail, slots, chunk)
            if complete_sequence and not alone:
                self.reset_state()
            return total, parts + found

        timed = _Now(gates, flags, jnp.arange(1, length + 1) if report else None, sequences)
        lead = 1 if chunk is None else 2
        with self._unchanged_on_failure():
            total, parts = self._run_placed(core, timed, scales, lead=lead, extra=list(states.values()))
        gradients = dict(zip(states, total, strict=True))
        aux = _stack([aux for _, aux in parts])
        losses = _stack([jax.tree.map(lambda a: a.reshape(-1, *a.shape[lead:]), losses) for losses, _ in parts])
        shown = reduce_losses(losses, gates, scales, loss_output)
        result = (gradients, *((shown,) if return_value else ()), *((aux,) if has_aux else ()))
        return result[0] if len(result) == 1 else result

    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        resets: Any = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
        progress: bool | str | Progress | None = None,
    ) -> Any:
        """Run a sequence without gradients; states and traces move on.

        Args:
            *sequences: pytrees of arrays whose leading axis is time.
            step_fn: called with the slices of one step (of one window); default: the learner itself.
            resets: booleans of shape ``(T,)``, or ``(T, B)`` by lane: an episode begins with this step.
            chunk_size: steps per call; None or 1 is step by step. The last window is shorter if it must be.
            return_outputs: return what ``step_fn`` returned, stacked over calls.
            progress: as for :meth:`etrace_grad`.

        Raises:
            ValueError: no sequence, ragged sequences, flags of another shape, or outputs of a shorter last window that
                cannot be stacked.
            TypeError: ``chunk_size`` is not an integer.
            ImportError: a bar is asked for and tqdm is not installed.
        """
        length = _length_of(sequences)
        chunk = _check_chunk(chunk_size, length)
        flags = _check_resets(resets, length)
        report = read_progress(progress)
        self._prepared_step(flags)
        call = step_fn if step_fn is not None else self._call_chunk if chunk else self.update

        def body(now: _Now) -> Any:
            with self._giving(now.flags, windowed=chunk is not None):
                out = call(*now.slices)
            report_step(report, now.done, length)
            return out if return_outputs else None

        timed = _Now(None, flags, jnp.arange(1, length + 1) if report else None, sequences)
        with self._unchanged_on_failure():
            _, parts = self._run_placed(
                lambda timed, _: ([], _run_windows(body, timed, chunk)), timed, None, lead=1 if chunk is None else 2
            )
        return _stack(parts)

    def evaluate(
        self,
        *sequences: Any,
        step_fn: Callable[..., Any] | None = None,
        resets: Any = None,
        chunk_size: int | None = None,
        progress: bool | str | Progress | None = None,
    ) -> Any:
        """Run a sequence to look at the model: no trace moves, and afterwards every state is as it was before.

        Args:
            *sequences: pytrees of arrays whose leading axis is time.
            step_fn: as for :meth:`etrace_evolve`, as are the options.
            resets: booleans: an episode begins with this step. Flag the first step to start from where the model was
                compiled.
            chunk_size: steps per call.
            progress: a bar, its title, or a function.

        Returns:
            What ``step_fn`` returned, stacked over calls.
        """
        self._prepared_step(None)
        states = [*self.hidden_states.values(), *self.other_states.values()]
        before = [state.value for state in states]
        with self._holding_traces():
            out = self.etrace_evolve(
                *sequences,
                step_fn=step_fn,
                resets=resets,
                chunk_size=chunk_size,
                return_outputs=True,
                progress=progress,
            )
        for state, value in zip(states, before, strict=True):
            state.value = value
        return out

    def _fold_windows(
        self,
        program: Any,
        loss_of: Callable[..., Any],
        timed: "_Now",
        states: list[brainstate.State[Any]],
        chunk: int | None,
        alone: bool,
    ) -> tuple[list[Any], list[Any]]:
        """One gradient per window, summed, by folding; the losses and the aux in parts, as windows have lengths."""
        total, found, traces = _zeros_like(states), [], None if alone else self.traces.value
        pieces = _in_windows(timed, chunk)
        for n, (window, windows) in enumerate(pieces):
            last = alone and n == len(pieces) - 1
            folded = self._fold_gradients(program, total, traces, loss_of, windows, states, window=window, last=last)
            total, traces = folded.gradients, folded.traces
            found.append((folded.losses, folded.aux))
        if not alone:
            self.traces.value = traces
        return total, found

    def _add_gradients(
        self, loss_of: Callable[..., Any], timed: "_Now", states: list[brainstate.State[Any]], chunk: int | None
    ) -> tuple[list[Any], list[Any]]:
        """One gradient per window, summed; with the losses and the aux of every call, in parts."""

        def body(total: list[Any], now: _Now) -> Any:
            gradients, out = brainstate.transform.grad(loss_of, grad_states=states, has_aux=True)(now)
            return jax.tree.map(jnp.add, total, list(gradients)), out

        return _scan_windows(body, _zeros_like(states), timed, chunk)

    def _call_chunk(self, *slices: Any) -> Any:
        return self.update(*map(MultiStepData, slices))


class _Now(NamedTuple):
    """What one call of a driver's step gets: of one step, of a window, or of a whole sequence, time leading."""

    gates: Any
    flags: jax.Array | None
    done: jax.Array | None
    slices: tuple[Any, ...]


def _run_windows(body: Callable[[_Now], Any], timed: _Now, chunk: int | None) -> list[Any]:
    """``body`` on one window after the other; its results, in parts."""
    return _scan_windows(lambda carry, now: (carry, body(now)), jnp.zeros(()), timed, chunk)[1]


def _scan_windows(body: Callable[..., Any], carry: Any, timed: _Now, chunk: int | None) -> tuple[Any, list[Any]]:
    """A scan over windows; what they return is in parts, a shorter last window being one of its own."""
    parts = []
    for _, windows in _in_windows(timed, chunk):
        carry, out = brainstate.transform.scan(body, carry, windows)
        parts.append(out)
    return carry, parts


def _in_windows(timed: _Now, chunk: int | None) -> list[tuple[int | None, _Now]]:
    """Windows of one length after the other, stacked, each with its number of steps; None for single steps."""
    if chunk is None:
        return [(None, timed)]
    length = jax.tree.leaves(timed)[0].shape[0]
    whole = length // chunk * chunk
    pieces = [(chunk, _cut(timed, 0, whole)), (length - whole, _cut(timed, whole, length))]
    return [
        (size, jax.tree.map(lambda a, size=size: a.reshape(-1, size, *a.shape[1:]), piece))
        for size, piece in pieces
        if size and jax.tree.leaves(piece)[0].shape[0]
    ]


def _cut(timed: _Now, start: int, stop: int) -> _Now:
    return jax.tree.map(lambda a: jnp.asarray(a)[start:stop], timed)


def _stack(parts: list[Any]) -> Any:
    """The results of all windows in one."""

    def join(*leaves: Any) -> Any:
        if len({leaf.shape[1:] for leaf in leaves}) > 1:
            raise ValueError(
                f"results of windows of different lengths cannot be stacked: {[leaf.shape[1:] for leaf in leaves]}. "
                f"Choose a chunk_size that divides the steps, or return nothing with a time axis."
            )
        return jnp.concatenate(leaves)

    return parts[0] if len(parts) == 1 else jax.tree.map(join, *parts)


def _zeros_like(states: list[brainstate.State[Any]]) -> list[Any]:
    """Zero gradients."""
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
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
    return None if chunk_size == 1 else min(chunk_size, length)


def _check_warm_up(warm_up: int, length: int) -> int:
    if isinstance(warm_up, bool) or not isinstance(warm_up, int):
        raise TypeError(f"warm_up must be a number of steps, got {type(warm_up).__name__}.")
    if not 0 <= warm_up < length:
        raise ValueError(f"warm_up must leave at least one of the {length} steps; got {warm_up}.")
    return warm_up


def _check_resets(resets: Any, length: int) -> jax.Array | None:
    if resets is None:
        return None
    flags = jnp.asarray(resets)
    if flags.dtype != bool or flags.ndim not in (1, 2) or flags.shape[0] != length:
        raise ValueError(
            f"resets must be booleans of shape ({length},), or ({length}, B) by lane; got {flags.dtype.name} of shape "
            f"{flags.shape}."
        )
    return flags


def _check_option(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
