"""One window of learning, as a pure function.

For a window with entry state ``h₀``, entry trace ``ε₀`` and loss ``L``,

    ∇θ = ∂L/∂θ at fixed h₀  +  Σ_r,g ⟨∂L/∂h₀,g , ε₀,r,g⟩ ,        ε_K = the trace rolled over the K steps.

The first term is ordinary reverse mode through the window. The second enters at one point only: the entry
state passes through :func:`attach_traces`, an identity whose pull-back contracts the cotangent of the state
with the trace into cotangents of the operands. The trace itself is rolled on values that carry no derivative.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import Operand
from etp_algorithms._compiler._transitions import GroupJacobian, evaluate_transition
from etp_algorithms._compiler._trust import Trust
from etp_core.jaxpr import Constant, Variable, evaluate, value_of

__all__ = ["Operands", "Signals", "StepValues", "TraceAlgorithm", "WindowResult", "run_window"]

Arrays = list[jax.Array]
Operands = tuple[dict[str, jax.Array], ...]
"""For every relation its trainable operands by name."""
Signals = tuple[tuple[jax.Array, ...], ...]
"""For every hidden group and state the cotangent per position."""


class StepValues(NamedTuple):
    """What an algorithm reads of one step; nothing here carries a derivative.

    Attributes:
        xs: for every relation the data operand, or None.
        operands: for every relation the trainable operands.
        jacobians: for every hidden group its Jacobians; None for one that no relation reaches.
    """

    xs: tuple[jax.Array | None, ...]
    operands: Operands
    jacobians: tuple[GroupJacobian | None, ...]


class TraceAlgorithm(Protocol):
    """How traces are stored, rolled and contracted; pure functions of arrays, one value per algorithm."""

    @property
    def name(self) -> str:
        """The algorithm's name in messages and reports."""
        ...

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive of ``graph`` lacks a rule that the algorithm needs."""
        ...

    def init(self, graph: TraceGraph) -> Any:
        """Zero traces, a pytree of arrays with stable keys."""
        ...

    def by_link(self, traces: Any) -> Mapping[str, Any]:
        """The part of ``traces`` that belongs to each relation and group, by its stable name."""
        ...

    def grade(self, trust: Trust) -> Trust:
        """The trust of a traced parameter, given what the graph alone promises."""
        ...

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues) -> Any:
        """The traces after one more step."""
        ...

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """The cotangents of the operands that ``signals`` at the groups' states entail."""
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
    step = graph.step
    given = dict(zip((leaf.input for leaf in step.parameters), parameters, strict=True))
    operands = _operands(graph, given)
    hidden = attach_traces(graph, algorithm, _detach(hidden), operands, traces)

    def one_step(carry: Any, moving: Arrays) -> Any:
        hidden, others, traces = carry
        rest, changing = iter(arguments), iter(moving)
        current = [next(changing) if s else a for s, a in zip(stacked or (False,) * len(arguments), rest, strict=True)]
        env = dict(given)
        env.update(zip(step.arguments, current, strict=True))
        env.update(zip((leaf.input for leaf in step.hidden), hidden, strict=True))
        env.update(zip((leaf.input for leaf in step.others), others, strict=True))
        evaluate(step.equations, env)
        traces = algorithm.roll(graph, traces, _step_values(graph, env))
        new_hidden = [value_of(leaf.output, env) for leaf in step.hidden]
        new_others = [value_of(leaf.output, env) for leaf in step.others]
        return (new_hidden, new_others, traces), [value_of(atom, env) for atom in step.outputs]

    carry = (hidden, _detach(others), _detach(traces))
    if stacked is None:
        carry, outputs = one_step(carry, [])
    else:
        moving = [a for a, s in zip(arguments, stacked, strict=True) if s]
        carry, outputs = jax.lax.scan(one_step, carry, moving)
    return WindowResult(outputs, *carry)


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
        solved = algorithm.solve(graph, traces, _signals(graph, cotangents), operands)
        return cotangents, jax.tree.map(lambda c, w: c.astype(w.dtype), solved, operands), None

    entry.defvjp(forward, backward)
    return entry(hidden, operands, traces)


def _signals(graph: TraceGraph, cotangents: Arrays) -> Signals:
    by_leaf = dict(zip(graph.step.hidden, cotangents, strict=True))
    return tuple(
        tuple(
            by_leaf[group.leaves[i]] if column is None else by_leaf[group.leaves[i]][..., column]
            for i, column in group.states
        )
        for group in graph.hidden_groups
    )


def _operands(graph: TraceGraph, given: dict[Variable, jax.Array]) -> Operands:
    """The trainable operands as differentiable functions of the parameters; one that is none stays a constant."""

    def operand(o: Operand) -> jax.Array:
        if o.parameters:
            return value_of(o.atom, evaluate(o.equations, dict(given)))
        return (
            jnp.asarray(o.atom.value)
            if isinstance(o.atom, Constant)
            else jnp.zeros(o.atom.aval.shape, o.atom.aval.dtype)
        )

    return tuple({key: operand(o) for key, o in r.operands.items()} for r in graph.hidden_param_op_relations)


def _step_values(graph: TraceGraph, env: dict[Variable, Any]) -> StepValues:
    relations = graph.hidden_param_op_relations
    values = {v: jax.lax.stop_gradient(env[v]) for v in graph.probes}
    return StepValues(
        xs=tuple(None if r.x is None else value_of(r.x, values) for r in relations),
        operands=tuple(
            {k: jax.lax.stop_gradient(value_of(o.atom, env)) for k, o in r.operands.items()} for r in relations
        ),
        jacobians=tuple(evaluate_transition(t, values) if t.links else None for t in graph.transitions),
    )


def _detach(tree: Any) -> Any:
    return jax.tree.map(jax.lax.stop_gradient, tree)
