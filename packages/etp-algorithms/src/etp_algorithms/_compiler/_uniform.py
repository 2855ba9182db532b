"""Entries of the Jacobians that are one known number, at every position and in every step.

A leak that the model writes as a literal, ``v ← 0.9 v + …``, makes an entry of ``D`` such a number; ``Df`` often is 1.
What is known when the step is compiled need not be recorded, stacked over time or read from memory at every step.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._transitions import GroupJacobian, Transition, evaluate_transition
from etp_core.jaxpr import Atom, Constant, Program, Variable, trace

__all__ = ["Uniform", "uniform_entries"]


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
    return tuple(_uniform_leaves(t) if t.links else () for t in graph.transitions)


def _uniform_leaves(transition: Transition) -> tuple[float | None, ...]:
    probes = tuple(transition.probes)

    def jacobian(*values: Any) -> GroupJacobian:
        return evaluate_transition(transition, dict(zip(probes, values, strict=True)))

    program = trace(jacobian, *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in probes))
    known = _propagate(program)
    return tuple(_number(atom, known) for atom in program.outputs)


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


def _propagate(program: Program) -> dict[Variable, float]:
    """The variables that are one known number."""
    known: dict[Variable, float] = {}
    for equation in program.equations:
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
