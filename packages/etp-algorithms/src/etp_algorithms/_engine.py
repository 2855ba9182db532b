"""One window of learning, as a pure function.

For a window with entry state ``h₀``, entry trace ``ε₀`` and loss ``L``,

    ∇θ = ∂L/∂θ at fixed h₀  +  Σ_r,g ⟨∂L/∂h₀,g , ε₀,r,g⟩ ,        ε_K = the trace rolled over the K steps.

The first term is ordinary reverse mode through the window. The second enters at one point only: the entry
state passes through :func:`attach_traces`, an identity whose pull-back contracts the cotangent of the state
with the trace into cotangents of the operands. The trace itself is rolled on values that carry no derivative.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import Operand
from etp_algorithms._compiler._transitions import GroupJacobian, evaluate_transition
from etp_algorithms._compiler._trust import Trust
from etp_core.jaxpr import Constant, Variable, evaluate, value_of

__all__ = [
    "FoldedSteps",
    "Operands",
    "Signals",
    "StepValues",
    "TraceAlgorithm",
    "WindowResult",
    "evaluate_operands",
    "evaluate_step",
    "group_signals",
    "run_window",
    "step_values",
]

Arrays = list[jax.Array]
Operands = tuple[dict[str, jax.Array], ...]
"""For every marked operator its trainable operands by name."""
Signals = tuple[tuple[jax.Array, ...], ...]
"""For every hidden group and state the cotangent per position."""


class StepValues(NamedTuple):
    """What an algorithm reads of one step, or of several with time leading; nothing here carries a derivative.

    Attributes:
        xs: for every marked operator the data operand, or None.
        jacobians: for every hidden group its Jacobians; None for one that no relation reaches.
    """

    xs: tuple[jax.Array | None, ...]
    jacobians: tuple[GroupJacobian | None, ...]


class FoldedSteps(NamedTuple):
    """A known sequence of steps, each its own window, with time leading.

    Attributes:
        values: what the algorithm reads of the steps.
        signals: the cotangents of the states at the entry of every step.
        drives: for every marked operator the cotangent of its output within the step.
    """

    values: StepValues
    signals: Signals
    drives: tuple[jax.Array, ...]


@runtime_checkable
class TraceAlgorithm(Protocol):
    """How traces are stored, rolled and contracted; pure functions of arrays, one value per algorithm."""

    @property
    def name(self) -> str:
        """The algorithm's name in messages and reports."""
        ...

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive of ``graph`` lacks a rule that the algorithm needs."""
        ...

    def grade(self, trust: Trust) -> Trust:
        """The trust of a traced parameter, given what the graph alone promises."""
        ...

    def init(self, graph: TraceGraph) -> Any:
        """Zero traces, a pytree of arrays with stable keys."""
        ...

    def by_link(self, traces: Any) -> Mapping[str, Any]:
        """The part of ``traces`` that belongs to each relation and group, by its stable name."""
        ...

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """The traces after one more step."""
        ...

    def roll_window(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """The traces after the steps of ``values``, time leading; equal to rolling one by one."""
        ...

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """The cotangents of the relations' operands that ``signals`` at the groups' states entail."""
        ...

    def fold(self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands) -> tuple[Operands, Any]:
        """The sum of the gradients of all ``steps``, each a window of its own, and the traces after them.

        With None for ``traces`` they are zero at the start and not asked for at the end; None is returned.
        Equal to solving and rolling step by step. The gradients are of the operands of every marked operator
        and contain what passes within a step.
        """
        ...


class WindowResult(NamedTuple):
    """Outputs (stacked over the window, if there is one), new hidden and other states, new traces."""

    outputs: Arrays
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
    """
    operands = evaluate_operands(graph, parameters)
    hidden = attach_traces(graph, algorithm, _detach(hidden), operands, traces)
    operands, traces = _detach(operands), _detach(traces)

    def one_step(carry: tuple[Arrays, Arrays], moving: Arrays) -> Any:
        changing = iter(moving)
        flags = stacked or (False,) * len(arguments)
        current = [next(changing) if flag else array for array, flag in zip(arguments, flags, strict=True)]
        env = evaluate_step(graph, parameters, carry[0], carry[1], current)
        outputs = [value_of(atom, env) for atom in graph.step.outputs]
        return _new_states(graph, env), (outputs, step_values(graph, env))

    carry = (hidden, _detach(others))
    if stacked is None:
        carry, (outputs, values) = one_step(carry, [])
        traces = algorithm.roll(graph, traces, values, operands)
    else:
        moving = [array for array, flag in zip(arguments, stacked, strict=True) if flag]
        carry, (outputs, values) = jax.lax.scan(one_step, carry, moving)
        traces = algorithm.roll_window(graph, traces, _detach(values), operands)
    return WindowResult(outputs, carry[0], carry[1], traces)


def attach_traces(
    graph: TraceGraph, algorithm: TraceAlgorithm, hidden: Arrays, operands: Operands, traces: Any
) -> Arrays:
    """``hidden`` unchanged; its cotangent, contracted with ``traces``, becomes a cotangent of the operands."""

    @jax.custom_vjp
    def entry(hidden: Arrays, operands: Operands, traces: Any) -> Arrays:
        return hidden

    def forward(hidden: Arrays, operands: Operands, traces: Any) -> Any:
        return hidden, (operands, traces)

    def backward(residuals: Any, cotangents: Arrays) -> Any:
        operands, traces = residuals
        solved = algorithm.solve(graph, traces, group_signals(graph, cotangents), operands)
        return cotangents, jax.tree.map(lambda c, w: c.astype(w.dtype), solved, operands), None

    entry.defvjp(forward, backward)
    return entry(hidden, operands[: len(graph.hidden_param_op_relations)], traces)


def group_signals(graph: TraceGraph, cotangents: Arrays) -> Signals:
    """The cotangents of the hidden arrays, by group and state."""
    by_leaf = dict(zip(graph.step.hidden, cotangents, strict=True))
    return tuple(
        tuple(
            by_leaf[group.leaves[i]] if column is None else by_leaf[group.leaves[i]][..., column]
            for i, column in group.states
        )
        for group in graph.hidden_groups
    )


def evaluate_operands(graph: TraceGraph, parameters: Arrays) -> Operands:
    """The trainable operands as differentiable functions of the parameters; one that is none stays a constant."""
    given = dict(zip((leaf.input for leaf in graph.step.parameters), parameters, strict=True))

    def operand(o: Operand) -> jax.Array:
        if o.parameters:
            return value_of(o.atom, evaluate(o.equations, dict(given)))
        if isinstance(o.atom, Constant):
            return jnp.asarray(o.atom.value)
        return jnp.zeros(o.atom.aval.shape, o.atom.aval.dtype)

    return tuple({key: operand(o) for key, o in operator.operands.items()} for operator in graph.operators)


def evaluate_step(
    graph: TraceGraph, parameters: Arrays, hidden: Arrays, others: Arrays, arguments: Arrays, **options: Any
) -> dict[Variable, Any]:
    """Every value of one step; ``options`` are those of :func:`etp_core.jaxpr.evaluate`."""
    step = graph.step
    env: dict[Variable, Any] = dict(zip((leaf.input for leaf in step.parameters), parameters, strict=True))
    env.update(zip(step.arguments, arguments, strict=True))
    env.update(zip((leaf.input for leaf in step.hidden), hidden, strict=True))
    env.update(zip((leaf.input for leaf in step.others), others, strict=True))
    return evaluate(step.equations, env, **options)


def step_values(graph: TraceGraph, env: Mapping[Variable, Any]) -> StepValues:
    """What algorithms read of a step, detached from it."""
    values = {v: jax.lax.stop_gradient(env[v]) for v in graph.probes}
    return StepValues(
        xs=tuple(None if o.x is None else value_of(o.x, values) for o in graph.operators),
        jacobians=tuple(evaluate_transition(t, values) if t.links else None for t in graph.transitions),
    )


def _new_states(graph: TraceGraph, env: Mapping[Variable, Any]) -> tuple[Arrays, Arrays]:
    hidden = [value_of(leaf.output, env) for leaf in graph.step.hidden]
    return hidden, [value_of(leaf.output, env) for leaf in graph.step.others]


def _detach(tree: Any) -> Any:
    return jax.tree.map(jax.lax.stop_gradient, tree)
