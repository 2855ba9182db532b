"""One step of a compiled model, evaluated: at its values, and with chosen derivatives let through."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._positions import Cuts
from etp_algorithms._compiler._relations import HiddenParamOpRelation, Operand
from etp_algorithms._compiler._transitions import GroupJacobian, evaluate_transition
from etp_core.jaxpr import Constant, Equation, Variable, evaluate, value_of

__all__ = [
    "Operands",
    "Signals",
    "StepPoint",
    "StepResult",
    "StepValues",
    "Substitutes",
    "evaluate_at_exit",
    "evaluate_operands",
    "evaluate_step",
    "group_signals",
    "operand_cuts",
    "point_at",
    "results_of",
    "states_to_arrays",
]

Arrays = list[jax.Array]
Operands = tuple[dict[str, jax.Array], ...]
"""For every marked operator its trainable operands by name."""
Signals = tuple[tuple[jax.Array, ...], ...]
"""For every hidden group and state the cotangent per position."""
StepResult = tuple[Arrays, Arrays, Arrays]
"""The outputs, the new hidden arrays and the new arrays of other states."""
Substitutes = Mapping[Equation, Callable[..., Any]]
"""Equations that are evaluated by another function of their operands."""


class StepValues(NamedTuple):
    """What per-position algorithms read of one step, or of several with time leading; no derivative is in it.

    Attributes:
        xs: for every marked operator the data operand, or None.
        jacobians: for every hidden group its Jacobians; None for one that no relation reaches.
    """

    xs: tuple[jax.Array | None, ...]
    jacobians: tuple[GroupJacobian | None, ...]


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
    env = _inputs(graph, parameters, hidden, others, arguments)
    return evaluate(graph.step.equations, env, **options)


def results_of(graph: TraceGraph, env: Mapping[Variable, Any]) -> StepResult:
    """Outputs, new hidden and other arrays of an evaluated step."""
    step = graph.step
    return (
        [value_of(atom, env) for atom in step.outputs],
        [value_of(leaf.output, env) for leaf in step.hidden],
        [value_of(leaf.output, env) for leaf in step.others],
    )


def evaluate_at_exit(
    graph: TraceGraph,
    parameters: Arrays,
    hidden: Arrays,
    others: Arrays,
    arguments: Arrays,
    shifts: Arrays,
    *,
    seen: Arrays | None = None,
    drives: Sequence[jax.Array | None] | None = None,
    products: Mapping[Equation, tuple[frozenset[int], jax.Array]] | None = None,
    everywhere: bool = False,
    whole: bool = False,
    substitutes: Substitutes | None = None,
) -> StepResult:
    """One step whose new hidden states can be differentiated where they are read, one group apart from another.

    ``shifts``, zeros, are added to every new hidden state for all its readers but the other states of its own group.
    Their cotangents are therefore the partial derivatives of the loss with the other states of the group held fixed.
    The way from a traced weight to the states of its groups lets no derivative through: the trace accounts for it.

    Args:
        graph: the compiled step.
        parameters: the parameter arrays.
        hidden: the hidden arrays at entry.
        others: the arrays of other states at entry.
        arguments: the argument arrays.
        shifts: one per differentiable hidden array.
        seen: the hidden arrays at entry as outputs see them that read them directly; None for ``hidden``.
        drives: zeros, one per marked operator, added to its output wherever its weight is not traced, or None for
            an operator without such a place; with them no weight of a marked operator gets a derivative of its own.
        products: equations with places of operands that get no derivative either, and what is added to the result.
        everywhere: a traced weight gets no derivative on any other way either.
        whole: the traces account for every way to any new hidden state, so that only outputs see the shifts.
        substitutes: equations to be evaluated by another function.
    """
    plan, step = graph.exit_plan, graph.step
    given = _inputs(graph, parameters, hidden, others, arguments)
    moves = iter(shifts)
    shift = {n: next(moves) for n, leaf in enumerate(step.hidden) if leaf.differentiable}
    environments = {context: dict(given) for context in plan.contexts}
    if whole:
        raw = {v: jax.lax.stop_gradient(value) for v, value in given.items()}
        environments = dict.fromkeys(plan.contexts, raw) | {None: dict(given)}
    if seen is not None:
        environments[None].update(zip((leaf.input for leaf in step.hidden), seen, strict=True))
    products = products or {}
    places = {equation: place for equation, (place, _) in products.items()}
    added = {equation.outputs[0]: zero for equation, (_, zero) in products.items()}
    allowed = {context: _allow(graph, context, drives, everywhere) for context in plan.contexts}
    allowed = {context: ({**cuts, **places}, {**offsets, **added}) for context, (cuts, offsets) in allowed.items()}
    for equation, contexts in plan.schedule:
        for context in contexts:
            cuts, offsets = allowed[context]
            evaluate([equation], environments[context], cuts=cuts, offsets=offsets, substitutes=substitutes)
        for variable in equation.outputs:
            if variable in plan.exits:
                group, n = plan.exits[variable]
                shifted = environments[group][variable] + shift[n]
                for context in (None,) if whole else plan.contexts:
                    if context != group:
                        environments[context][variable] = shifted
    hidden_of = [environments[plan.home[n]] for n in range(len(step.hidden))]
    return (
        [value_of(atom, environments[None]) for atom in step.outputs],
        [value_of(leaf.output, env) for leaf, env in zip(step.hidden, hidden_of, strict=True)],
        [value_of(leaf.output, environments[None]) for leaf in step.others],
    )


def _allow(
    graph: TraceGraph, context: int | None, drives: Sequence[jax.Array | None] | None, everywhere: bool
) -> tuple[Cuts, dict[Variable, jax.Array]]:
    """Which operands let no derivative through, and what is added to which output, on the way to ``context``."""
    into = {o.index for o in graph.operators if any(link.group == context for link in o.links)}
    if drives is not None:
        paired = zip(graph.operators, drives, strict=True)
        free = [(o.y, drive) for o, drive in paired if o.index not in into and drive is not None]
        return operand_cuts(graph.operators), dict(free)
    return operand_cuts([o for o in graph.operators if o.index in into or (everywhere and o.links)]), {}


def operand_cuts(operators: Sequence[HiddenParamOpRelation]) -> Cuts:
    """The places where the parameters of ``operators`` enter."""
    return {
        o.equation: frozenset(
            o.primitive.trainable_invars(o.static)[key] for key, operand in o.operands.items() if operand.parameters
        )
        for o in operators
    }


def group_signals(graph: TraceGraph, cotangents: Sequence[Any]) -> Signals:
    """The cotangents of the hidden arrays, by group and state."""
    by_leaf = dict(zip(graph.step.hidden, cotangents, strict=True))
    return tuple(
        tuple(
            by_leaf[group.leaves[i]] if column is None else by_leaf[group.leaves[i]][..., column]
            for i, column in group.states
        )
        for group in graph.hidden_groups
    )


@dataclass(frozen=True, eq=False)
class StepPoint:
    """One step at its values: what a :class:`TraceAlgorithm` may ask of it. Nothing here carries a derivative.

    Attributes:
        graph: the compiled step.
        parameters: the parameter arrays, in the order of ``graph.step.parameters``.
        hidden: the hidden arrays at entry, in the order of ``graph.step.hidden``.
        others: the arrays of other states at entry, in the order of ``graph.step.others``.
        arguments: the argument arrays, the leaves of the step's inputs.
        env: the values of the step.
    """

    graph: TraceGraph
    parameters: Arrays
    hidden: Arrays
    others: Arrays
    arguments: Arrays
    env: Mapping[Variable, Any]

    @cached_property
    def _values(self) -> dict[Variable, Any]:
        return {v: jax.lax.stop_gradient(self.env[v]) for v in self.graph.probes}

    @property
    def xs(self) -> tuple[jax.Array | None, ...]:
        """For every marked operator the data operand, or None."""
        return tuple(None if o.x is None else value_of(o.x, self._values) for o in self.graph.operators)

    @cached_property
    def jacobians(self) -> tuple[GroupJacobian | None, ...]:
        """For every hidden group its Jacobians, position by position; None for one that no relation reaches.

        Every marked operator's output is held fixed in them: what passes through a marked weight is left out.
        """
        return tuple(evaluate_transition(t, self._values) if t.links else None for t in self.graph.transitions)

    def advance(self, hidden: Signals, parameters: Arrays) -> Signals:
        """The new states as a differentiable function of the old ones and of the parameters, by group and state.

        Args:
            hidden: the old states like :attr:`states`, a tuple per group of arrays of its ``varshape``.
            parameters: arrays like :attr:`parameters`.

        Returns:
            The new states, like the old ones. Other states and the step's inputs are held fixed.
        """
        old = states_to_arrays(self.graph, hidden, self.hidden)
        frozen = [jax.lax.stop_gradient(a) for a in (*self.others, *self.arguments)]
        others, arguments = frozen[: len(self.others)], frozen[len(self.others) :]
        env = evaluate_step(self.graph, parameters, old, others, arguments)
        return group_signals(self.graph, results_of(self.graph, env)[1])

    @property
    def states(self) -> Signals:
        """The hidden states at entry, by group and state."""
        return group_signals(self.graph, [jax.lax.stop_gradient(a) for a in self.hidden])


def point_at(
    graph: TraceGraph, inputs: tuple[Arrays, Arrays, Arrays, Arrays], env: Mapping[Variable, Any]
) -> StepPoint:
    """The point of a step with these parameters, hidden arrays, other arrays and arguments, detached from it."""
    parameters, hidden, others, arguments = jax.tree.map(jax.lax.stop_gradient, inputs)
    return StepPoint(graph, parameters, hidden, others, arguments, env)


def states_to_arrays(graph: TraceGraph, states: Signals, hidden: Arrays) -> Arrays:
    """The hidden arrays that ``states``, by group and state, make up; those that are in no group as in ``hidden``."""
    parts: dict[Any, list[jax.Array]] = {}
    for group, values in zip(graph.hidden_groups, states, strict=True):
        for (i, _), value in zip(group.states, values, strict=True):
            parts.setdefault(group.leaves[i], []).append(value)
    made = []
    for leaf, array in zip(graph.step.hidden, hidden, strict=True):
        found = parts.get(leaf)
        made.append(array if found is None else jnp.stack(found, -1) if leaf.stacked else found[0])
    return made


def _inputs(
    graph: TraceGraph, parameters: Arrays, hidden: Arrays, others: Arrays, arguments: Arrays
) -> dict[Variable, Any]:
    step = graph.step
    env: dict[Variable, Any] = dict(zip((leaf.input for leaf in step.parameters), parameters, strict=True))
    env.update(zip(step.arguments, arguments, strict=True))
    env.update(zip((leaf.input for leaf in step.hidden), hidden, strict=True))
    env.update(zip((leaf.input for leaf in step.others), others, strict=True))
    return env
