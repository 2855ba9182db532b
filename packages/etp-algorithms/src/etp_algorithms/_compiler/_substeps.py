"""Loops too long to unroll: their operators are taken out, all iterations at once, and the loop stays a loop.

    for l: h ← f(h, op(x_l, w))     becomes     X = (x_1 … x_L);   Y = op×L(X, w);   for l: h ← f(h, Y_l)

``X`` is what the loop itself feeds to the operator; where that depends on the carry, a first run of the loop records
it, operators included. Value and derivative are those of the loop: ``Y`` is what the operator gives at every iteration,
as a function of everything that the iterations read. To the traces it is an operator in front of a loop without
operators, and the way from the carry through ``X`` to the operator is recurrence through a weight, as anywhere else.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jax import lax

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._guarded import GuardedOperator
from etp_algorithms._compiler._repeated import repeated
from etp_core import ETPPrimitive
from etp_core.jaxpr import (
    Atom,
    Constant,
    Equation,
    Program,
    Scan,
    Variable,
    evaluate,
    inline,
    needed,
    trace,
    value_of,
)

__all__ = ["spread_operators"]


def spread_operators(equation: Equation, scan: Scan) -> tuple[list[Equation], list[Atom]]:
    """A loop whose operators stand among the equations of its body, without them: equations and outputs."""
    spread = _Spread(equation, scan)
    operators = [e for e in scan.body.equations if isinstance(e.primitive, ETPPrimitive)]
    drives = [spread.operator(e) for e in operators]
    return spread.equations, spread.loop(operators, drives)


class _Spread:
    """The equations that take the place of one loop."""

    def __init__(self, equation: Equation, scan: Scan) -> None:
        self.equations: list[Equation] = []
        self._equation, self._scan, self._body = equation, scan, scan.body
        first = scan.consts + scan.carries
        self._consts = self._body.inputs[: scan.consts]
        self._carries = self._body.inputs[scan.consts : first]
        self._slices = self._body.inputs[first:]
        self._operand = dict(zip(self._body.inputs, equation.inputs, strict=True))

    def operator(self, operator: Equation) -> Variable:
        """Emit ``operator`` for all iterations; its output, iterations leading."""
        primitive = operator.primitive
        assert isinstance(primitive, ETPPrimitive)
        atoms = [_outside(operator, k) for k in range(len(operator.inputs))]
        moving = [self._moves(atom) for atom in atoms]
        weights = set(range(len(atoms))) - {primitive.x_invar_index}
        if not any(moving[k] for k in weights) and primitive.x_invar_index is not None:
            stacked = tuple(k not in weights for k in range(len(atoms)))
        else:
            stacked = (True,) * len(atoms)
        operands = [self._record(a) if s else self._fixed(a) for a, s in zip(atoms, stacked, strict=True)]
        made = repeated(primitive, self._scan.length, stacked)
        output = Variable(operator.outputs[0].aval.update(shape=(self._scan.length, *operator.outputs[0].aval.shape)))
        self.equations.append(
            Equation(made, tuple(operands), (output,), operator.params, operator.source_info, operator.context)
        )
        return output

    def loop(self, operators: Sequence[Equation], drives: Sequence[Variable]) -> list[Atom]:
        """Emit the loop over what the operators give; its outputs."""
        made = [operator.outputs[0] for operator in operators]
        rest = [e for e in self._body.equations if not isinstance(e.primitive, ETPPrimitive)]
        rest = needed(rest, self._body.outputs)
        body = Program((*self._body.inputs, *made), self._body.outputs, tuple(rest))
        return self._scan_over(body, [*self._equation.inputs, *drives], self._scan.consts, self._scan.carries)

    def _moves(self, atom: Atom) -> bool:
        """Whether ``atom`` differs from iteration to iteration."""
        read = {v for e in needed(self._body.equations, [atom]) for v in e.inputs} | {atom}
        return not read.isdisjoint((*self._carries, *self._slices))

    def _fixed(self, atom: Atom) -> Atom:
        """``atom``, which reads constants of the loop alone, outside of it."""
        if isinstance(atom, Constant):
            return atom
        prelude = Program(self._consts, (atom,), tuple(needed(self._body.equations, [atom])))
        made, (output,) = inline(prelude, self._equation.inputs[: self._scan.consts], at=self._equation)
        self.equations += made
        return output

    def _record(self, atom: Atom) -> Atom:
        """The values of ``atom`` at all iterations, by the part of the loop that makes them."""
        carried: set[Variable] = set()
        while True:
            wanted = [atom, *(self._body.outputs[n] for n, v in enumerate(self._carries) if v in carried)]
            kept = needed(self._body.equations, wanted)
            read = {v for e in kept for v in e.inputs if isinstance(v, Variable)} | set(wanted)
            more = {v for v in self._carries if v in read}
            if more <= carried:
                break
            carried |= more
        consts = [v for v in self._consts if v in read]
        carries = [v for v in self._carries if v in carried]
        slices = [v for v in self._slices if v in read]
        inputs = (*consts, *carries, *slices)
        body = Program(inputs, (*wanted[1:], atom), tuple(kept))
        operands = [self._operand[v] for v in inputs]
        return self._scan_over(body, operands, len(consts), len(carries))[-1]

    def _scan_over(self, body: Program, operands: Sequence[Atom], consts: int, carries: int) -> list[Atom]:
        """Emit a loop of the same length over ``body``; operators in it become plain operations."""
        scan, first = self._scan, consts + carries
        plain = {e: _plain(e) for e in body.equations if isinstance(e.primitive, ETPPrimitive)}

        def loop(*values: Any) -> list[Any]:
            def iteration(carry: Any, moving: Any) -> Any:
                given = dict(zip(body.inputs, [*values[:consts], *carry, *moving], strict=True))
                env = evaluate(body.equations, given, substitutes=plain)
                out = [value_of(atom, env) for atom in body.outputs]
                return tuple(out[:carries]), tuple(out[carries:])

            start, moving = tuple(values[consts:first]), tuple(values[first:])
            unroll = self._equation.params.get("unroll", 1)
            end, made = lax.scan(iteration, start, moving, length=scan.length, reverse=scan.reverse, unroll=unroll)
            return [*end, *made]

        made, outputs = inline(trace(loop, *(atom.aval for atom in operands)), operands, at=self._equation)
        self.equations += made
        return outputs


def _outside(operator: Equation, k: int) -> Atom:
    """Operand ``k``; a weight of an operator in a branch as it is outside of the branch."""
    bare = operator.bare.get(k) if isinstance(operator, GuardedOperator) else None
    if bare is None:
        return operator.inputs[k]
    if bare.equations or any(map(callable, operator.params.values())):
        raise CompilationError(
            f"{operator.primitive.name} ({operator.source}) stands in a branch, inside a loop that is too long to be "
            f"unrolled, and transforms its weight there. Transform the weight in front of the branch, or raise "
            f"ControlFlowPolicy(scan_unroll_limit=...)."
        )
    return bare.atom


def _plain(operator: Equation) -> Any:
    """The operation of an operator, unmarked."""
    assert isinstance(operator.primitive, ETPPrimitive)
    return functools.partial(operator.primitive.impl_fn, **operator.params)
