"""Entries of the Jacobians that are one known number, at every position and in every step.

A leak that the model writes as a literal, ``v ← 0.9 v + …``, makes an entry of ``D`` such a number; ``Df`` often is 1.
What is known when the step is compiled need not be recorded, stacked over time or read from memory at every step.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._transitions import GroupJacobian, Transition, evaluate_transition
from etp_core.jaxpr import Atom, Constant, Equation, Variable, trace

__all__ = ["Uniform", "known_decays", "spread_evenly", "uniform_entries"]


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class Uniform:
    """A factor that is ``value`` everywhere; a pytree without leaves."""

    value: float
    __array_ufunc__ = None  # NumPy arrays leave the arithmetic to this class

    def __mul__(self, other: Any) -> Any:
        return Uniform(self.value * other.value) if isinstance(other, Uniform) else self.value * other

    def __add__(self, other: Any) -> Any:
        return Uniform(self.value + other.value) if isinstance(other, Uniform) else self.value + other

    __rmul__, __radd__ = __mul__, __add__


@functools.lru_cache(maxsize=16)
def uniform_entries(graph: TraceGraph) -> tuple[tuple[float | None, ...], ...]:
    """For every group the known numbers among the leaves of its Jacobians, None for the others."""
    return tuple(_uniform_leaves(graph, t)[0] if t.links else () for t in graph.transitions)


def known_decays(graph: TraceGraph) -> dict[str, list[float]]:
    """For every group that is traced the known numbers by which its states carry themselves on."""
    found = {}
    for group, numbers in zip(graph.hidden_groups, uniform_entries(graph), strict=True):
        if not numbers:
            continue
        entries = iter(numbers)  # the leaves of D come first, row by row, without structural zeros
        pairs = [(a == b, next(entries)) for a, row in enumerate(group.coupling) for b, kept in enumerate(row) if kept]
        found[group.name] = [value for own, value in pairs if own and value is not None]
    return found


@functools.lru_cache(maxsize=64)
def spread_evenly(graph: TraceGraph, group: int, relation: int) -> tuple[bool, ...]:
    """For every state whether its trace for ``relation`` is the same along the last axis of the positions.

    It is where what drives the state and what moves it are, from itself and from such states.
    """
    _, structure, even_leaves = _uniform_leaves(graph, graph.transitions[group])
    jacobian = jax.tree.unflatten(structure, even_leaves)
    even = [d is not False for d in jacobian.inputs[relation]]
    for _ in range(len(even)):
        for a, row in enumerate(jacobian.transition):
            even[a] = even[a] and all(d is None or (d and even[b]) for b, d in enumerate(row))
    return tuple(even)


def _uniform_leaves(
    graph: TraceGraph, transition: Transition
) -> tuple[tuple[float | None, ...], Any, tuple[bool, ...]]:
    """The known numbers among the leaves, their structure, and which are the same along the last axis."""
    probes = tuple(transition.probes)
    structures: list[Any] = []

    def jacobian(*values: Any) -> GroupJacobian:
        found = evaluate_transition(transition, dict(zip(probes, values, strict=True)))
        structures.append(jax.tree.structure(found))
        return found

    program = trace(jacobian, *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in probes))
    known_before = _propagate(graph.step.equations, {})
    even_before = _even_variables(graph.step.equations, known_before, ())
    probed = list(zip(program.inputs, probes, strict=True))
    known = _propagate(program.equations, {v: known_before[p] for v, p in probed if p in known_before})
    even = _even_variables(program.equations, known, [v for v, p in probed if p in even_before])
    numbers = tuple(_number(atom, known) for atom in program.outputs)
    return numbers, structures[0], tuple(_is_even(atom, known, even) for atom in program.outputs)


_ELEMENT_BY_ELEMENT = frozenset(
    "add add_any and copy convert_element_type div max min mul neg not or select_n sub".split()
)


def _even_variables(
    equations: Sequence[Equation], known: dict[Variable, float], given: Iterable[Variable]
) -> set[Variable]:
    """The variables that are the same along their last axis, for all that the equations say."""
    even = set(given)
    for equation in equations:
        name, (first, *rest) = equation.primitive.name, equation.inputs or (None,)
        if name == "broadcast_in_dim" and first is not None and equation.outputs[0].aval.shape:
            shape, axes = first.aval.shape, tuple(equation.params["broadcast_dimensions"])
            last = len(equation.outputs[0].aval.shape) - 1
            if last not in axes or shape[axes.index(last)] == 1 or _is_even(first, known, even):
                even.add(equation.outputs[0])
        elif name in _ELEMENT_BY_ELEMENT and all(_is_even(a, known, even) for a in (first, *rest) if a is not None):
            even.add(equation.outputs[0])
    return even


def _is_even(atom: Atom, known: dict[Variable, float], even: set[Variable]) -> bool:
    return atom.aval.shape == () or (isinstance(atom, Variable) and atom in even) or _number(atom, known) is not None


_SAME = frozenset("broadcast_in_dim convert_element_type copy copy_p reshape squeeze transpose".split())
_ARITHMETIC = {
    "add": np.add,
    "add_any": np.add,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "neg": np.negative,
    "sub": np.subtract,
}


def _propagate(equations: Sequence[Equation], given: dict[Variable, float]) -> dict[Variable, float]:
    """The variables that are one known number."""
    known = dict(given)
    for equation in equations:
        name, numbers = equation.primitive.name, [_number(atom, known) for atom in equation.inputs]
        if len(equation.outputs) != 1 or None in numbers or not _is_floating(equation.outputs[0]):
            continue
        dtype = equation.outputs[0].aval.dtype
        if name in _SAME and len(numbers) == 1:
            known[equation.outputs[0]] = float(np.asarray(numbers[0], dtype))
        elif name in _ARITHMETIC:
            with np.errstate(all="ignore"):
                found = float(_ARITHMETIC[name](*(np.asarray(n, dtype) for n in numbers)))
            if np.isfinite(found):
                known[equation.outputs[0]] = found
    return known


def _number(atom: Atom, known: dict[Variable, float]) -> float | None:
    if isinstance(atom, Variable):
        return known.get(atom)
    assert isinstance(atom, Constant)
    if isinstance(atom.value, Tracer) or not _is_floating(atom):
        return None
    values = np.asarray(atom.value)
    first = values.reshape(-1)[:1]
    return float(first[0]) if values.size and np.isfinite(first[0]) and np.all(values == first) else None


def _is_floating(atom: Atom) -> bool:
    return bool(jax.numpy.issubdtype(atom.aval.dtype, jax.numpy.floating))
