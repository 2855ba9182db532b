"""All hidden states of a model as one vector, for algorithms that do not treat positions apart."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._links import is_irreversible
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._step import Arrays, Signals
from etp_core.jaxpr import dependents, is_differentiable

__all__ = [
    "check_reversible",
    "flatten_states",
    "influencing",
    "judge_whole",
    "other_memories",
    "parameters_by_name",
    "state_count",
]


def state_count(graph: TraceGraph) -> int:
    """The number of hidden state values, batch included."""
    return sum(math.prod(group.varshape) * group.num_state for group in graph.hidden_groups)


def flatten_states(states: Signals) -> jax.Array:
    """One vector: group after group, state after state, position after position."""
    return jnp.concatenate([value.reshape(-1) for group in states for value in group])


def influencing(graph: TraceGraph) -> dict[str, int]:
    """The parameter arrays that can influence a hidden state within a step, with their numbers."""
    ends = {leaf.output for group in graph.hidden_groups for leaf in group.leaves}
    found = {}
    for n, leaf in enumerate(graph.step.parameters):
        made = {v for equation in dependents(graph.step.equations, [leaf.input]) for v in equation.outputs}
        if is_differentiable(leaf.input) and not ends.isdisjoint(made | {leaf.input}):
            found[leaf.name] = n
    return found


def parameters_by_name(graph: TraceGraph, parameters: Arrays) -> dict[str, jax.Array]:
    """The parameter arrays that can influence a hidden state."""
    return {name: parameters[n] for name, n in influencing(graph).items()}


def other_memories(graph: TraceGraph, verdict: ParameterTrust) -> list[str]:
    """The names of the states a parameter is remembered in that are no hidden states."""
    step = graph.step
    sources = {leaf.input for leaf in step.parameters if leaf.path == verdict.path}
    sources |= {leaf.input for group in graph.hidden_groups for leaf in group.leaves}
    made = {v for equation in dependents(step.equations, sources) for v in equation.outputs}
    read: set[Any] = {v for equation in step.equations for v in equation.inputs} | set(step.outputs)
    return [m.name for m in step.others if is_differentiable(m.input) and m.output in made and m.input in read]


def judge_whole(graph: TraceGraph, verdict: ParameterTrust, trust: Trust) -> ParameterTrust:
    """``trust`` for a parameter that can influence a hidden state, unless something is remembered outside of these."""
    if verdict.trust is Trust.UNUSED or verdict.name not in influencing(graph):
        return verdict
    outside = other_memories(graph, verdict)
    if outside:
        reason = f"also flows through {', '.join(outside)}, remembered but no HiddenState"
        return replace(verdict, trust=Trust.DIAGONAL, reasons=(reason,))
    return replace(verdict, trust=trust, reasons=())


def check_reversible(graph: TraceGraph, algorithm: str) -> None:
    """Raise if hidden states pass through a loop that has no reverse derivative."""
    hidden = [leaf.input for group in graph.hidden_groups for leaf in group.leaves]
    for equation in dependents(graph.step.equations, [*hidden, *(leaf.input for leaf in graph.step.parameters)]):
        if is_irreversible(equation):
            raise CompilationError(
                f"{algorithm} differentiates the whole step, and {equation.primitive.name} ({equation.source}) runs "
                f"for a number of iterations that is not fixed. Use a loop of fixed length (jax.lax.scan, or "
                f"jax.lax.fori_loop with static bounds)."
            )
