"""Take marked operators that do the same in every iteration out of a scan.

    for i: h ← f(h, op(x, w))      becomes      y = op(x, w);  for i: h ← f(h, y)

The values are the same. A learnable time constant or an input current inside an Euler loop is then one use of
its operator, and the loop stays a loop.
"""

from dataclasses import dataclass, replace
from typing import Any

from jax import lax
from jax.extend.core import primitives as jex_primitives

from etp_core import ETPPrimitive
from etp_core.jaxpr import (
    Atom,
    Equation,
    Program,
    Scan,
    Variable,
    contains,
    inline,
    needed,
    renamed,
    run,
    scan_of,
    trace,
)

__all__ = ["hoist_invariants", "holds_operator", "is_scan", "parts_of"]


@dataclass(frozen=True, eq=False, slots=True)
class _Hoisted(Equation):
    """A scan that was traced anew; ``scan`` has the equations of its body where the user wrote them."""

    scan: Scan


def is_scan(equation: Equation) -> bool:
    """Whether ``equation`` is a loop of fixed length."""
    return equation.primitive is jex_primitives.scan_p


def holds_operator(equation: Equation) -> bool:
    """Whether a marked operator stands inside ``equation``, at any depth."""
    return contains(equation, lambda inner: isinstance(inner.primitive, ETPPrimitive))


def parts_of(equation: Equation) -> Scan:
    """A scan taken apart, with the lines of the user's source."""
    return equation.scan if isinstance(equation, _Hoisted) else scan_of(equation)


def hoist_invariants(equation: Equation) -> tuple[list[Equation], list[Atom]]:
    """A scan as what its iterations share of marked operators, then the scan without it: equations and outputs."""
    scan = parts_of(equation)
    body = _hoist_within(scan.body)
    shared = _shared(body, body.inputs[: scan.consts])
    if not shared and body is scan.body:
        return [equation], list(equation.outputs)
    fixed = body.inputs[: scan.consts]
    values = tuple(v for e in shared for v in e.outputs)
    prelude = Program(fixed, values, tuple(shared))
    before, hoisted = inline(prelude, equation.inputs[: scan.consts], at=equation)
    before = [_at(copy, original) for copy, original in zip(before, shared, strict=True)]
    taken = set(shared)
    rest = tuple(e for e in body.equations if e not in taken)
    inputs = (*fixed, *values, *body.inputs[scan.consts :])
    operands = [*equation.inputs[: scan.consts], *hoisted, *equation.inputs[scan.consts :]]
    loop = _loop(scan, Program(inputs, body.outputs, rest), operands, unroll=equation.params.get("unroll", 1))
    after, outputs = inline(loop, operands, at=equation)
    return [*before, *(_placed(e, rest) if is_scan(e) else e for e in after)], outputs


def _placed(loop: Equation, written: tuple[Equation, ...]) -> Equation:
    """A scan over the equations ``written``, each of which keeps its place."""
    scan = scan_of(loop)
    if [e.primitive for e in scan.body.equations] != [e.primitive for e in written]:
        return loop
    placed = tuple(_at(e, w) for e, w in zip(scan.body.equations, written, strict=True))
    known = replace(scan, body=Program(scan.body.inputs, scan.body.outputs, placed))
    return _Hoisted(loop.primitive, loop.inputs, loop.outputs, loop.params, loop.source_info, loop.context, known)


def _hoist_within(body: Program) -> Program:
    """The body with the same done to the scans in it; the body itself where there is nothing to do."""
    if not any(is_scan(e) and holds_operator(e) for e in body.equations):
        return body
    env: dict[Variable, Atom] = {}
    equations: list[Equation] = []
    for old in body.equations:
        equation = _reading(old, env)
        if is_scan(old) and holds_operator(old):
            made, outputs = hoist_invariants(equation)
            equations += made
            env.update((v, o) for v, o in zip(old.outputs, outputs, strict=True) if v is not o)
        else:
            equations.append(equation)
    if all(new is old for new, old in zip(equations, body.equations, strict=False)):
        return body
    return Program(body.inputs, tuple(renamed(atom, env) for atom in body.outputs), tuple(equations))


def _shared(body: Program, constants: tuple[Variable, ...]) -> list[Equation]:
    """The equations of the operators that read nothing but constants of the loop."""
    fixed = set(constants)
    operators: list[Variable] = []
    for equation in body.equations:
        if all(v in fixed for v in equation.inputs if isinstance(v, Variable)):
            fixed.update(equation.outputs)
            if isinstance(equation.primitive, ETPPrimitive) or holds_operator(equation):
                operators += equation.outputs
    return needed(body.equations, operators)


def _loop(scan: Scan, body: Program, operands: list[Atom], *, unroll: Any) -> Program:
    """A scan over ``body``, whose leading inputs are constants."""
    consts = len(body.inputs) - len(scan.body.inputs) + scan.consts
    moving_from = consts + scan.carries

    def loop(*values: Any) -> list[Any]:
        def iteration(carry: Any, moving: Any) -> Any:
            out = run(body, [*values[:consts], *carry, *moving])
            return tuple(out[: scan.carries]), tuple(out[scan.carries :])

        end, stacked = lax.scan(
            iteration,
            tuple(values[consts:moving_from]),
            tuple(values[moving_from:]),
            length=scan.length,
            reverse=scan.reverse,
            unroll=unroll,
        )
        return [*end, *stacked]

    return trace(loop, *(atom.aval for atom in operands))


def _at(copy: Equation, original: Equation) -> Equation:
    """``copy`` with the source line of ``original``."""
    return Equation(copy.primitive, copy.inputs, copy.outputs, copy.params, original.source_info, original.context)


def _reading(equation: Equation, env: dict[Variable, Atom]) -> Equation:
    """``equation`` with its inputs renamed."""
    inputs = tuple(renamed(atom, env) for atom in equation.inputs)
    if all(new is old for new, old in zip(inputs, equation.inputs, strict=True)):
        return equation
    return replace(equation, inputs=inputs)
