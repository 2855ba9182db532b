"""One window of learning, as a pure function.

For a window with entry state ``h₀``, entry trace ``ε₀`` and loss ``L``,

    ∇θ = ∂L/∂θ at fixed h₀  +  Σ_r,g ⟨∂L/∂h₀,g , ε₀,r,g⟩ ,        ε_K = the trace rolled over the K steps.

The first term is ordinary reverse mode through the window. The second enters at one point only: the entry
state passes through :func:`attach_traces`, an identity whose pull-back contracts the cotangent of the state
with the trace into cotangents of what is traced. The trace itself is rolled on values that carry no derivative.

With the signal at the exit every step stands for itself, ``∇θ = Σ_t,r,g ⟨∂L/∂h^t,g , ε^t,r,g⟩`` for traced weights,
and the same identity sits on the new states instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._feedback import RandomFeedback
from etp_algorithms._residuals import RecordedSteps, residuals_of
from etp_algorithms._step import (
    Arrays,
    Operands,
    Signals,
    StepPoint,
    StepResult,
    Substitutes,
    evaluate_at_exit,
    evaluate_step,
    group_signals,
    point_at,
    results_of,
)

__all__ = [
    "AT_ENTRY",
    "BootstrappingAlgorithm",
    "FoldedSteps",
    "FoldingAlgorithm",
    "FollowingAlgorithm",
    "LearningSignal",
    "SignalPlace",
    "TraceAlgorithm",
    "WindowResult",
    "attach_traces",
    "run_window",
    "spread_in_time",
]

SignalPlace = Literal["entry", "exit"]


@dataclass(frozen=True, slots=True)
class LearningSignal:
    """Where the credit of a traced weight comes from.

    Attributes:
        place: the cotangent of the state that enters a window, or of the new state of every step.
        feedback: random matrices in place of the transposed read-outs; None for the true ones.
        modulated: the cotangent is replaced by a modulator that is given with every call.

    >>> LearningSignal("exit")
    LearningSignal(place='exit', feedback=None, modulated=False)
    """

    place: SignalPlace = "entry"
    feedback: RandomFeedback | None = None
    modulated: bool = False

    def __post_init__(self) -> None:
        if self.place not in ("entry", "exit"):
            raise ValueError(f"signal must be 'entry' or 'exit', got {self.place!r}.")

    def check(self, graph: TraceGraph) -> None:
        """Raise if there is no read-out that random feedback could stand in."""
        if self.feedback:
            self.feedback.check(graph)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """The verdict on a parameter, lowered where its signal is not the derivative of the loss."""
        if self.modulated and verdict.relations:
            return _lower(verdict, Trust.MODULATED, "a modulator takes the place of the loss")
        if self.feedback and self.feedback.touches(graph, verdict):
            return _lower(verdict, Trust.FEEDBACK, "errors come back from the read-outs through random matrices")
        return verdict


AT_ENTRY = LearningSignal()


class FoldedSteps(NamedTuple):
    """A known sequence of steps, with time leading.

    Attributes:
        values: what the algorithm reads of the steps.
        signals: the cotangents of the states at the entry of every step, or at its exit.
        drives: for every marked operator the cotangent of its output within the call, None for a structural zero; with
            the signal at the exit without the ways through the states that the traces account for.
        followed: the traces after the steps, of a :class:`FollowingAlgorithm`.
        spacing: the signals are those of one step in so many, of the first, and zero between; more than 1 for windows.
        ahead: with signals at the entry, the cotangents of the states after the last step; None for zero.
    """

    values: RecordedSteps
    signals: Signals
    drives: tuple[jax.Array | None, ...]
    followed: Any = ()
    spacing: int = 1
    ahead: Signals | None = None

    def spread_signals(self) -> Signals:
        """The signals of every step."""
        return jax.tree.map(lambda s: spread_in_time(s, self.spacing), self.signals)


def spread_in_time(signal: jax.Array, spacing: int) -> jax.Array:
    """What there is of one step in ``spacing``, time leading, with zeros between."""
    if spacing == 1:
        return signal
    between = jnp.zeros((signal.shape[0], spacing - 1, *signal.shape[1:]), signal.dtype)
    whole = jnp.concatenate([signal[:, None], between], 1)
    return whole.reshape(-1, *signal.shape[1:])


@runtime_checkable
class TraceAlgorithm(Protocol):
    """How traces are stored, rolled and contracted: pure functions of arrays, and no state; one value per algorithm.

    A :class:`Learner` does the rest. At every step it calls ``read`` and ``roll``; in the backward pass of a window it
    calls ``solve`` once, with the signals that reached the states at the window's entry (or, with the signal at the
    exit, once per step). Traces, what is tracked and what is read are pytrees of the algorithm's own choice.

    ``signals`` are, for every hidden group and state of it, the cotangents per position: a tuple over
    ``graph.hidden_groups`` of tuples of ``S`` arrays of the group's ``varshape``, the batch axis first.

    >>> import etp_algorithms as ea
    >>> config = ea.ETraceConfig(temporal_recursion="scalar_leak", decay=0.9)
    >>> isinstance(config.algorithm(), ea.TraceAlgorithm)
    True
    """

    @property
    def name(self) -> str:
        """The algorithm's name in messages and reports."""
        ...

    @property
    def signal(self) -> LearningSignal:
        """Where the credit of a traced weight comes from."""
        ...

    @property
    def marked_only(self) -> bool:
        """Whether only the weights of marked operators can be traced."""
        ...

    def check(self, graph: TraceGraph) -> None:
        """Raise if ``graph`` lacks something that the algorithm needs."""
        ...

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """The verdict on a parameter under this algorithm, given what per-position traces would promise."""
        ...

    def init(self, graph: TraceGraph) -> Any:
        """Zero traces, a pytree of arrays with stable keys; ``roll`` keeps its structure, shapes and dtypes."""
        ...

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """The traces at the start of another sequence, after one that left ``traces``."""
        ...

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """The memory of the traces of one parameter."""
        ...

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> Any:
        """What the traces are traces of, a pytree of differentiable functions of the parameters.

        ``parameters`` are arrays in the order of ``graph.step.parameters``.
        """
        ...

    def read(self, point: StepPoint) -> Any:
        """What the traces need of a step; a pytree of arrays if several steps can be taken at once."""
        ...

    def roll(self, graph: TraceGraph, traces: Any, values: Any, tracked: Any, /) -> Any:
        """The traces after one more step, from what ``read`` gave as ``values``."""
        ...

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Any, /) -> Any:
        """The cotangents of what is tracked that ``signals`` at the groups' states entail: a pytree like ``tracked``.

        If that is a tuple, the last ones may be left out; they are zero.
        """
        ...


@runtime_checkable
class FoldingAlgorithm(TraceAlgorithm, Protocol):
    """An algorithm that takes several steps at once; it tracks the operands of the marked operators."""

    def roll_window(self, graph: TraceGraph, traces: Any, steps: RecordedSteps, tracked: Operands, /) -> Any:
        """The traces after all ``steps``; equal to rolling one by one."""
        ...

    def fold(
        self, graph: TraceGraph, traces: Any, steps: FoldedSteps, tracked: Operands, /, *, last: bool = False
    ) -> tuple[Operands, Any]:
        """The sum of the gradients of all ``steps``, and the traces after them; None for traces that are zero.

        Equal to solving and rolling step by step. The gradients are of the operands of every marked operator
        and contain what passes within a step.

        Args:
            graph: the compiled step.
            traces: the traces before the steps; None for zero.
            steps: the recorded steps.
            tracked: the operands.
            last: the traces after the steps are not asked for; None is returned in their place.
        """
        ...


@runtime_checkable
class FollowingAlgorithm(FoldingAlgorithm, Protocol):
    """A folding algorithm with traces so small that they move along while a sequence is recorded."""

    def follow(self, graph: TraceGraph, traces: Any, values: Any, tracked: Operands, /) -> tuple[Any, Any]:
        """The traces after one more step, and what is recorded of the step in place of ``values``."""
        ...


@runtime_checkable
class BootstrappingAlgorithm(TraceAlgorithm, Protocol):
    """An algorithm that predicts the credit which the state at the end of a window gets from later steps."""

    def predict(self, graph: TraceGraph, traces: Any, states: Signals) -> Signals:
        """The predicted cotangents of ``states``."""
        ...


class WindowResult(NamedTuple):
    """Outputs (stacked over the window, if there is one), new hidden and other states, new traces."""

    outputs: Arrays
    hidden: Arrays
    others: Arrays
    traces: Any


class _Carry(NamedTuple):
    hidden: Arrays
    others: Arrays
    traces: Any


def run_window(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    *,
    parameters: Arrays,
    hidden: Arrays,
    others: Arrays,
    traces: Any,
    arguments: Arrays,
    stacked: Sequence[bool] | None = None,
    modulator: Any = None,
    modulator_stacked: bool = False,
) -> WindowResult:
    """Run one step, or a window of steps, and roll the traces.

    Args:
        graph: the compiled step.
        algorithm: how to keep traces.
        parameters: the parameter arrays.
        hidden: the hidden arrays at entry.
        others: the arrays of other states at entry.
        traces: the traces at entry.
        arguments: the argument arrays.
        stacked: for a window, which arguments have a leading time axis; None for a single step.
        modulator: for a modulated algorithm, the signal per group and state.
        modulator_stacked: whether the modulator has a leading time axis.
    """
    tracked = algorithm.tracked(graph, parameters)
    hidden, others, modulator = _detach((hidden, others, modulator))
    at_entry = algorithm.signal.place == "entry"
    if at_entry:
        hidden = attach_traces(graph, algorithm, hidden, tracked, traces)
    start = _Carry(hidden, others, _detach(traces))
    substitutes = algorithm.signal.feedback.substitutes(graph) if algorithm.signal.feedback else None
    residuals = None  # or what to record of a window's steps, which are then rolled at once, afterwards
    if at_entry and stacked is not None and isinstance(algorithm, FoldingAlgorithm):
        residuals = residuals_of(graph, algorithm)

    def one_step(carry: _Carry, moving: Any) -> Any:
        changing, current_modulator = moving
        rest = iter(changing)
        flags = stacked or (False,) * len(arguments)
        current = [next(rest) if flag else array for array, flag in zip(arguments, flags, strict=True)]
        inputs = (parameters, carry.hidden, carry.others, current)
        if not at_entry:
            signals = current_modulator if modulator_stacked else modulator
            result, rolled = _step_to_exit(graph, algorithm, inputs, carry.traces, tracked, signals, substitutes)
            return _Carry(result[1], result[2], rolled), (result[0], None)
        env = evaluate_step(graph, *inputs, substitutes=substitutes)
        result, point = results_of(graph, env), point_at(graph, inputs, env)
        saved = None if residuals is None else residuals.save(point)
        rolled = carry.traces
        if residuals is None:
            rolled = algorithm.roll(graph, carry.traces, algorithm.read(point), _detach(tracked))
        return _Carry(result[1], result[2], rolled), (result[0], saved)

    if stacked is None:
        carry, (outputs, _) = one_step(start, ([], modulator))
    else:
        moving = [array for array, flag in zip(arguments, stacked, strict=True) if flag]
        changing = (moving, modulator if modulator_stacked else None)
        carry, (outputs, saved) = jax.lax.scan(one_step, start, changing)
        if residuals is not None:
            assert isinstance(algorithm, FoldingAlgorithm)
            length = jax.tree.leaves(changing)[0].shape[0]
            steps = residuals.steps(parameters, _detach(saved), length)
            carry = carry._replace(traces=algorithm.roll_window(graph, carry.traces, steps, _detach(tracked)))
    if isinstance(algorithm, BootstrappingAlgorithm):
        states = group_signals(graph, carry.hidden)
        outputs = _tie(outputs, states, algorithm.predict(graph, _detach(traces), _detach(states)))
    return WindowResult(outputs, carry.hidden, carry.others, carry.traces)


def attach_traces(
    graph: TraceGraph, algorithm: TraceAlgorithm, hidden: Arrays, tracked: Any, traces: Any, modulator: Any = None
) -> Arrays:
    """``hidden`` unchanged; its cotangent, contracted with ``traces``, becomes a cotangent of what is tracked.

    With a modulator that is contracted instead, whatever the cotangent.
    """

    @jax.custom_vjp
    def entry(hidden: Arrays, tracked: Any, traces: Any, modulator: Any) -> Arrays:
        return hidden

    def forward(hidden: Arrays, tracked: Any, traces: Any, modulator: Any) -> Any:
        return hidden, (tracked, traces, modulator)

    def backward(residuals: Any, cotangents: Arrays) -> Any:
        tracked, traces, modulator = residuals
        signals = group_signals(graph, cotangents) if modulator is None else modulator
        solved = algorithm.solve(graph, traces, signals, tracked)
        return cotangents, _complete(solved, tracked), None, None

    entry.defvjp(forward, backward)
    return entry(hidden, tracked, traces, modulator)


def _step_to_exit(
    graph: TraceGraph,
    algorithm: TraceAlgorithm,
    inputs: Any,
    traces: Any,
    tracked: Any,
    modulator: Any,
    substitutes: Substitutes | None,
) -> tuple[StepResult, Any]:
    """One step whose traced weights are credited at its new states; nothing flows in from later steps."""
    parameters, hidden, others, arguments = inputs
    hidden, others = _detach((hidden, others))
    values = algorithm.read(point_at(graph, inputs, evaluate_step(graph, *_detach(inputs))))
    rolled = algorithm.roll(graph, traces, values, _detach(tracked))
    zeros = [jnp.zeros_like(a) for a, leaf in zip(hidden, graph.step.hidden, strict=True) if leaf.differentiable]
    attached = attach_traces(graph, algorithm, _spread(graph, hidden, zeros), tracked, rolled, modulator)
    shifts = [a for a, leaf in zip(attached, graph.step.hidden, strict=True) if leaf.differentiable]
    everywhere = algorithm.signal.modulated
    seen = hidden
    if graph.exit_plan.reads_entry and not everywhere:
        seen = attach_traces(graph, algorithm, seen, tracked, traces)
    result = evaluate_at_exit(
        graph,
        parameters,
        hidden,
        others,
        arguments,
        shifts,
        seen=seen,
        everywhere=everywhere,
        whole=not algorithm.marked_only,
        substitutes=substitutes,
    )
    return (_tie(result[0], shifts, zeros) if everywhere else result[0], _detach(result[1]), result[2]), rolled


def _spread(graph: TraceGraph, hidden: Arrays, shifts: Arrays) -> Arrays:
    """``shifts`` at the places of the differentiable hidden arrays, the arrays themselves elsewhere."""
    rest = iter(shifts)
    return [next(rest) if leaf.differentiable else a for a, leaf in zip(hidden, graph.step.hidden, strict=True)]


def _tie(outputs: Arrays, values: Any, cotangents: Any) -> Arrays:
    """``outputs`` unchanged, but whoever differentiates any of them gives ``values`` these cotangents."""

    @jax.custom_vjp
    def tie(outputs: Arrays, values: Any, cotangents: Any) -> Arrays:
        return outputs

    tie.defvjp(
        lambda outputs, values, cotangents: (outputs, cotangents),
        lambda cotangents, direct: (direct, cotangents, None),
    )
    return tie(outputs, values, cotangents)


def _complete(solved: Any, tracked: Any) -> Any:
    """The cotangents in the dtype of what is tracked; zero for what comes after those that are given."""
    if isinstance(solved, tuple):
        solved = (*solved, *jax.tree.map(jnp.zeros_like, tuple(tracked[len(solved) :])))

    def matching(cotangent: jax.Array, value: jax.Array) -> Any:
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return cotangent.astype(value.dtype)
        return np.zeros(value.shape, jax.dtypes.float0)

    return jax.tree.map(matching, solved, tracked)


def _lower(verdict: ParameterTrust, trust: Trust, reason: str) -> ParameterTrust:
    return replace(verdict, trust=trust, reasons=(*verdict.reasons, reason))


def _detach(tree: Any) -> Any:
    return jax.tree.map(jax.lax.stop_gradient, tree)
