"""Straighten: lay out flat the control flow that holds marked operators; leave all other control flow alone.

A conditional becomes its branches, side by side, and one selection per output. Every floating operand enters a
branch through ``where(live, v, stop_gradient(v))``, an identity whose pull-back is ``where(live, cotangent, 0)``,
so that what a dead branch divides by zero stays inside it; the data of its operators is replaced by zeros, so
that it cannot enter a trace. Traces are kept for the weights outside the guards (see ``_guarded``). What the
iterations of a scan share is taken out (see ``_hoist``); then it is unrolled up to a limit, and beyond that its
operators are taken out for all iterations at once (see ``_substeps``). Anything else that holds an operator is refused.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as jex_primitives

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._guarded import BareOperand, GuardedOperator, as_function
from etp_algorithms._compiler._hoist import hoist_invariants, holds_operator, is_scan, parts_of
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._compiler._program import StepProgram
from etp_algorithms._compiler._substeps import spread_operators
from etp_core import ETPPrimitive
from etp_core.jaxpr import (
    Atom,
    Constant,
    Equation,
    Program,
    Scan,
    Variable,
    contains,
    flatten,
    inline,
    inner_programs,
    is_differentiable,
    needed,
    renamed,
    trace,
)

__all__ = ["straighten"]


def straighten(step: StepProgram, policy: ControlFlowPolicy) -> StepProgram:
    """The same step with every marked operator among its own equations.

    Raises:
        CompilationError: an operator stands where no trace can follow it, or a limit of ``policy`` is passed.
    """
    for equation in step.equations:
        _check_nesting(equation, policy.nesting_limit)
    if not any(holds_operator(equation) for equation in step.equations):
        return step
    layout = _Layout(policy, {leaf.input for leaf in step.parameters})
    env = _Env()
    layout.lay(step.equations, env, _Place(None, 0))

    def final(atom: Atom) -> Atom:
        return renamed(atom, env.guarded)

    hidden, others = (
        tuple(replace(leaf, output=final(leaf.output)) for leaf in leaves) for leaves in (step.hidden, step.others)
    )
    outputs = tuple(map(final, step.outputs))
    acting = {e for e in layout.equations if _acts(e)}
    results = [*outputs, *(leaf.output for leaf in (*hidden, *others)), *(a for e in acting for a in e.inputs)]
    kept = acting.union(needed(layout.equations, results))
    equations = tuple(e for e in layout.equations if e in kept)
    return replace(step, equations=equations, outputs=outputs, hidden=hidden, others=others)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where equations are laid: under which condition (None: always), and how deeply nested."""

    live: Atom | None
    depth: int


class _Env:
    """What stands for a variable: inside the guards of its branch, and, for functions of parameters, outside."""

    def __init__(self) -> None:
        self.guarded: dict[Variable, Atom] = {}
        self.bare: dict[Variable, Atom] = {}

    def read(self, atom: Atom) -> Atom:
        return renamed(atom, self.guarded)

    def read_bare(self, atom: Atom) -> Atom:
        return renamed(atom, self.bare) if atom in self.bare else self.read(atom)

    def write(self, variables: Sequence[Variable], guarded: Sequence[Atom], bare: Sequence[Atom] | None = None) -> None:
        self.guarded.update((v, a) for v, a in zip(variables, guarded, strict=True) if v is not a)
        if bare is not None:
            self.bare.update(zip(variables, bare, strict=True))


class _Layout:
    """The growing list of flat equations."""

    def __init__(self, policy: ControlFlowPolicy, parameters: set[Variable]) -> None:
        self.equations: list[Equation] = []
        self._programs: dict[Any, Program] = {}
        self._policy = policy
        self._parametric = parameters
        self._makers: dict[Variable, int] = {}  # of what is a function of parameters
        self._holds: dict[Equation, bool] = {}

    def lay(self, equations: Sequence[Equation], env: _Env, place: _Place) -> None:
        """Append ``equations``, control flow that holds operators laid out, and record their outputs in ``env``."""
        for equation in equations:
            if isinstance(equation.primitive, ETPPrimitive):
                self._operator(equation, env, place)
            elif not self._holds_operator(equation):
                self._plain(equation, env, place)
            elif equation.primitive is jex_primitives.cond_p:
                self._conditional(equation, env, self._deeper(place, equation))
            elif is_scan(equation):
                self._loop(equation, env, self._deeper(place, equation))
            else:
                raise CompilationError(_no_way_in(equation))

    def _holds_operator(self, equation: Equation) -> bool:
        if equation not in self._holds:
            self._holds[equation] = holds_operator(equation)
        return self._holds[equation]

    def _deeper(self, place: _Place, equation: Equation) -> _Place:
        limit = self._policy.nesting_limit
        if place.depth >= limit:
            raise CompilationError(_too_deep(equation, limit))
        return _Place(place.live, place.depth + 1)

    # --- one equation at a time ------------------------------------------------------------------------------

    def _emit(self, equation: Equation) -> tuple[Variable, ...]:
        limit = self._policy.equation_limit
        if len(self.equations) >= limit:
            raise CompilationError(
                f"laying out the control flow around marked operators makes more than {limit} equations (reached at "
                f"{equation.primitive.name}, {equation.source}). Move operators out of nested branches and loops, "
                f"lower ControlFlowPolicy(scan_unroll_limit=...), or raise ControlFlowPolicy(equation_limit=...)."
            )
        self.equations.append(equation)
        if all(self._is_parametric(atom) for atom in equation.inputs):
            self._parametric.update(equation.outputs)
            self._makers.update(dict.fromkeys(equation.outputs, len(self.equations) - 1))
        return equation.outputs

    def _is_parametric(self, atom: Atom) -> bool:
        return isinstance(atom, Constant) or atom in self._parametric

    def _glue(self, made: Callable[..., Any], *operands: Atom, at: Equation, number: int | None = None) -> Atom:
        """Equations of our own, which stand where ``at`` stands; ``number`` is a first argument of ``made``."""
        avals = tuple(jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in operands)
        key = (made, number, avals)
        if key not in self._programs:
            self._programs[key] = trace(made if number is None else functools.partial(made, number), *avals)
        equations, (output,) = inline(self._programs[key], operands, at=at)
        for equation in equations:
            self._emit(equation)
        return output

    def _plain(self, equation: Equation, env: _Env, place: _Place) -> None:
        inputs = tuple(map(env.read, equation.inputs))
        if place.depth == 0:
            self._emit(_on(equation, inputs, equation.outputs))
            return
        if place.live is not None and _runs_long(equation):
            outputs = self._only_if(place.live, equation, inputs)
        else:
            outputs = self._emit(_on(equation, inputs))
        bare = tuple(map(env.read_bare, equation.inputs))
        differs = any(a is not b for a, b in zip(bare, inputs, strict=True))
        if differs and all(map(self._is_parametric, bare)) and not _runs_long(equation):
            env.write(equation.outputs, outputs, self._emit(_on(equation, bare)))
        else:
            env.write(equation.outputs, outputs)

    def _operator(self, equation: Equation, env: _Env, place: _Place) -> None:
        primitive = equation.primitive
        assert isinstance(primitive, ETPPrimitive)
        inputs = list(map(env.read, equation.inputs))
        bare = {}
        for k in primitive.trainable_invars(equation.params).values():
            outside = env.read_bare(equation.inputs[k])
            if outside is not inputs[k] and self._is_parametric(outside):
                bare[k] = self._function(outside)
        k = primitive.x_invar_index
        if place.live is not None and k is not None and is_differentiable(inputs[k]):
            inputs[k] = self._glue(_zero_unless, place.live, inputs[k], at=equation)
        laid = _on(equation, inputs, equation.outputs if place.depth == 0 else None)
        if bare:
            laid = GuardedOperator(
                laid.primitive, laid.inputs, laid.outputs, laid.params, laid.source_info, laid.context, bare
            )
        outputs = self._emit(laid)
        env.write(equation.outputs, [self._guard(v, place.live, equation) for v in outputs])

    def _function(self, atom: Atom) -> BareOperand:
        """``atom``, a function of parameters, with the equations that make it."""
        found: set[int] = set()
        stack = [atom] if isinstance(atom, Variable) else []
        while stack:
            n = self._makers.get(stack.pop())
            if n is not None and n not in found:
                found.add(n)
                stack += [v for v in self.equations[n].inputs if isinstance(v, Variable)]
        return as_function(atom, [self.equations[n] for n in sorted(found)])

    def _guard(self, atom: Atom, live: Atom | None, at: Equation) -> Atom:
        if live is None or isinstance(atom, Constant) or not is_differentiable(atom):
            return atom
        return self._glue(_pass_if, live, atom, at=at)

    def _only_if(self, live: Atom, equation: Equation, inputs: Sequence[Atom]) -> Sequence[Atom]:
        """The equation behind a real conditional: it must not run, or not run for ever, in a dead branch."""

        def chosen(live: Any, *operands: Any) -> list[Any]:
            zeros = lambda *_: [jnp.zeros(v.aval.shape, v.aval.dtype) for v in equation.outputs]  # noqa: E731
            return lax.cond(live, equation.bind, zeros, *operands)

        program = trace(chosen, live.aval, *(atom.aval for atom in inputs))
        equations, outputs = inline(program, [live, *inputs], at=equation)
        for made in equations:
            self._emit(made)
        return outputs

    # --- control flow ----------------------------------------------------------------------------------------

    def _conditional(self, equation: Equation, env: _Env, place: _Place) -> None:
        index, *operands = map(env.read, equation.inputs)
        bare = [env.read_bare(atom) for atom in equation.inputs[1:]]
        results = []
        for number, branch in enumerate(equation.params["branches"]):
            program = flatten(branch)
            live = self._glue(_is, index, at=equation, number=number)
            if place.live is not None:
                live = self._glue(_both, place.live, live, at=equation)
            inner = _Env()
            guarded = [self._guard(atom, live, equation) for atom in operands]
            inner.write(
                program.inputs,
                guarded,
                [b if self._is_parametric(b) else g for b, g in zip(bare, guarded, strict=True)],
            )
            self.lay(program.equations, inner, _Place(live, place.depth))
            results.append([inner.read(atom) for atom in program.outputs])
        for variable, *values in zip(equation.outputs, *results, strict=True):
            env.write([variable], [self._glue(lax.select_n, index, *values, at=equation)])

    def _loop(self, equation: Equation, env: _Env, place: _Place) -> None:
        made, outputs = hoist_invariants(equation)
        if len(made) > 1 or made[0] is not equation:
            self.lay(made, env, place)
            env.write(equation.outputs, [env.read(a) for a in outputs], [env.read_bare(a) for a in outputs])
            return
        scan, limit = parts_of(equation), self._policy.scan_unroll_limit
        if scan.length <= limit:
            self._unroll(equation, scan, env, place)
            return
        made, outputs = spread_operators(equation, replace(scan, body=self._flat_body(equation, scan, env, place)))
        self.lay(made, env, place)
        env.write(equation.outputs, [env.read(a) for a in outputs], [env.read_bare(a) for a in outputs])

    def _flat_body(self, equation: Equation, scan: Scan, env: _Env, place: _Place) -> Program:
        """The body of a loop with its operators among its own equations."""
        first = scan.consts + scan.carries
        given = {
            v
            for n, (v, atom) in enumerate(zip(scan.body.inputs, equation.inputs, strict=True))
            if not scan.consts <= n < first and self._is_parametric(env.read_bare(atom))
        }
        inside, inner = _Layout(self._policy, given), _Env()
        inside.lay(scan.body.equations, inner, _Place(None, place.depth))
        outputs = tuple(inner.read(atom) for atom in scan.body.outputs)
        return Program(scan.body.inputs, outputs, tuple(inside.equations))

    def _unroll(self, equation: Equation, scan: Scan, env: _Env, place: _Place) -> None:
        readings = (env.read, env.read_bare)
        operands = [[read(atom) for atom in equation.inputs] for read in readings]
        first = scan.consts + scan.carries
        carries = [values[scan.consts : first] for values in operands]
        stacked: list[list[Atom]] = [[] for _ in equation.outputs[scan.carries :]]
        for i in reversed(range(scan.length)) if scan.reverse else range(scan.length):
            inner = _Env()
            slices = [[self._slice(i, atom, equation) for atom in operands[0][first:]]]
            slices.append(
                [
                    s if b is g else self._slice(i, b, equation)
                    for s, b, g in zip(slices[0], operands[1][first:], operands[0][first:], strict=True)
                ]
            )
            inner.write(
                scan.body.inputs,
                *(
                    [*values[: scan.consts], *carry, *moving]
                    for values, carry, moving in zip(operands, carries, slices, strict=True)
                ),
            )
            self.lay(scan.body.equations, inner, place)
            results = [[read(atom) for atom in scan.body.outputs] for read in (inner.read, inner.read_bare)]
            carries = [values[: scan.carries] for values in results]
            for made, value in zip(stacked, results[0][scan.carries :], strict=True):
                made.append(value)
        env.write(equation.outputs[: scan.carries], *carries)
        for variable, values in zip(equation.outputs[scan.carries :], stacked, strict=True):
            ordered = values[::-1] if scan.reverse else values
            if ordered:
                whole = self._glue(_stack, *ordered, at=equation)
            else:
                whole = Constant(jnp.zeros(variable.aval.shape, variable.aval.dtype))
            env.write([variable], [whole])

    def _slice(self, i: int, atom: Atom, at: Equation) -> Atom:
        return self._glue(_element, atom, at=at, number=i)


def _on(equation: Equation, inputs: Sequence[Atom], outputs: tuple[Variable, ...] | None = None) -> Equation:
    """``equation`` on other inputs, with fresh outputs unless given."""
    fresh = tuple(Variable(v.aval) for v in equation.outputs) if outputs is None else outputs
    return Equation(equation.primitive, tuple(inputs), fresh, equation.params, equation.source_info, equation.context)


def _pass_if(live: jax.Array, value: jax.Array) -> jax.Array:
    return lax.select(jnp.broadcast_to(live, value.shape), value, lax.stop_gradient(value))


def _zero_unless(live: jax.Array, value: jax.Array) -> jax.Array:
    return lax.select(jnp.broadcast_to(live, value.shape), value, jnp.zeros_like(value))


def _is(number: int, index: jax.Array) -> jax.Array:
    return index == number


def _both(a: jax.Array, b: jax.Array) -> jax.Array:
    return a & b


def _element(i: int, values: jax.Array) -> jax.Array:
    return lax.index_in_dim(values, i, keepdims=False)


def _stack(*parts: jax.Array) -> jax.Array:
    return jnp.stack(parts)


def _runs_long(equation: Equation) -> bool:
    """Whether the equation may not end, or acts on the world."""
    return _acts(equation) or _is_while(equation) or contains(equation, _is_while)


def _is_while(equation: Equation) -> bool:
    return equation.primitive is jex_primitives.while_p


def _acts(equation: Equation) -> bool:
    """Whether the equation calls back to Python."""
    return "callback" in equation.primitive.name or contains(equation, lambda e: "callback" in e.primitive.name)


def _check_nesting(equation: Equation, limit: int) -> None:
    """Raise where branches and loops are nested deeper than any pass should follow, operators in them or not."""
    pending = [(equation, 0)]
    while pending:
        inner, depth = pending.pop()
        if inner.primitive is jex_primitives.cond_p or is_scan(inner):
            if depth >= limit:
                raise CompilationError(_too_deep(inner, limit))
            pending += [(e, depth + 1) for program in inner_programs(inner) for e in program.equations]


def _too_deep(equation: Equation, limit: int) -> str:
    return (
        f"the step nests more than {limit} branches and loops in one another (reached at {equation.primitive.name}, "
        f"{equation.source}). Flatten them, for example with jax.lax.switch, or raise "
        f"ControlFlowPolicy(nesting_limit=...)."
    )


def _no_way_in(equation: Equation) -> str:
    remedies: Mapping[Any, str] = {
        jex_primitives.while_p: (
            "use a loop of fixed length (lax.scan, or lax.fori_loop with static bounds), or move the operator out"
        ),
        jex_primitives.custom_jvp_call_p: (
            "move the operator out of the function with the derivative rule of its own: a custom rule hides its weights"
        ),
        jex_primitives.custom_vjp_call_p: (
            "move the operator out of the function with the derivative rule of its own: a custom rule hides its weights"
        ),
    }
    remedy = remedies.get(equation.primitive, "move the operator out of it, or use the plain operation there")
    return (
        f"a marked operator stands inside {equation.primitive.name} ({equation.source}), where no trace can follow it. "
        f"Please {remedy}."
    )
