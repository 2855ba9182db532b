"""Operators inside branches: what a dead branch makes of its weights stays inside it.

A branch may take the root of a weight that is negative while the branch is dead. The step computes with weights
that enter the branch through its guards, as all data does. A trace, however, is kept for the operand as a function
of parameters alone, and outlives the branch: it is contracted with the operand outside the guards. There the same
care is taken by linearity: a pull-back of zero is zero, whatever the slope it meets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from etp_core.jaxpr import Atom, Equation, Program, Variable, run

__all__ = ["BareOperand", "GuardedOperator", "as_function", "zero_from_zero"]


@dataclass(frozen=True, eq=False, slots=True)
class BareOperand:
    """A trainable operand outside the guards: ``atom`` is made by ``equations`` from parameters alone."""

    atom: Atom
    equations: tuple[Equation, ...]


@dataclass(frozen=True, eq=False, slots=True)
class GuardedOperator(Equation):
    """A marked operator in a branch; ``bare`` are its operands outside the guards, by position."""

    bare: Mapping[int, BareOperand]


@dataclass(frozen=True, eq=False, slots=True)
class _Function(Equation):
    """A whole program as one equation, which is finite where it can be and pulls zero back to zero."""

    program: Program

    def bind(self, *operands: Any) -> list[Any]:
        def value(*operands: Any) -> Any:
            return run(self.program, operands)[0]

        def backward(operands: Any, cotangent: Any) -> Any:
            return tuple(zero_from_zero(cotangent, jax.vjp(value, *operands)[1](cotangent)))

        function = jax.custom_vjp(value)
        function.defvjp(lambda *operands: (value(*operands), operands), backward)
        made = function(*operands)
        return [jnp.where(jnp.isfinite(made), made, 0)]


def as_function(atom: Atom, equations: Sequence[Equation]) -> BareOperand:
    """The operand ``atom`` that ``equations`` make from parameters, safe to pull back through in a dead branch."""
    if not equations:
        return BareOperand(atom, ())
    made = {v for e in equations for v in e.outputs}
    read = dict.fromkeys(v for e in equations for v in e.inputs if isinstance(v, Variable) and v not in made)
    last, output = equations[-1], Variable(atom.aval)
    program = Program(tuple(read), (atom,), tuple(equations))
    whole = _Function(last.primitive, tuple(read), (output,), {}, last.source_info, last.context, program)
    return BareOperand(output, (whole,))


def zero_from_zero(given: Any, made: Any) -> Any:
    """``made``, a linear function of ``given``, or zeros where all of ``given`` is zero."""
    alive = jnp.any(jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(given)]))

    def chosen(leaf: Any) -> Any:
        return leaf if leaf.dtype == jax.dtypes.float0 else jnp.where(alive, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(chosen, made)
