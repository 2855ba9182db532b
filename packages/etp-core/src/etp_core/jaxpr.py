"""Jaxprs as plain data: the one place that knows JAX's versions.

A :class:`Program` is a jaxpr with every call inlined, every constant an operand and every variable unique.
Compilers read it, slice it and evaluate parts of it; nothing here knows about learning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend.core import primitives as jex_primitives

__all__ = [
    "Atom",
    "Constant",
    "Equation",
    "Program",
    "Variable",
    "contains",
    "dependents",
    "evaluate",
    "flatten",
    "inner_programs",
    "is_differentiable",
    "needed",
    "run",
    "trace",
    "value_of",
]

_CALLS = frozenset(
    getattr(jex_primitives, name)
    for name in ("jit_p", "closed_call_p", "call_p", "remat_p")
    if hasattr(jex_primitives, name)
)
_FOREIGN_FRAMES = (
    "/jax/",
    "/jaxlib/",
    "/brainstate/",
    "/saiunit/",
    "/brainunit/",
    "/etp_core/",
    "/etp_ops/",
    "functools.py",
)


class Variable:
    """One value of a program; equal only to itself."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"%{id(self) % 0xFFFF:04x}:{self.aval.str_short()}"


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """A literal or captured array."""

    value: Any

    @property
    def aval(self) -> Any:
        """The abstract value: shape and dtype."""
        return jax.typeof(self.value)


Atom = Variable | Constant


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """``outputs = primitive(*inputs, **params)``."""

    primitive: jex.Primitive
    inputs: tuple[Atom, ...]
    outputs: tuple[Variable, ...]
    params: Mapping[str, Any]
    source_info: Any
    context: Any

    def bind(self, *operands: Any) -> list[Any]:
        """Apply the primitive, custom derivative rules included, to ``operands``."""
        params = self.primitive.get_bind_params(dict(self.params))
        with self.context.manager:  # x64 and device settings under which the equation was traced
            out = self.primitive.bind(*operands, **params)
        return list(out) if self.primitive.multiple_results else [out]

    @property
    def source(self) -> str:
        """``file:line (function)`` of the user's line that made this equation."""
        frame = self._user_frame()
        return "unknown source" if frame is None else f"{frame.file_name}:{frame.line_num} ({frame.function_name})"

    @property
    def place(self) -> str:
        """The same in short: the file's name and the line."""
        frame = self._user_frame()
        return "unknown source" if frame is None else f"{frame.file_name.rpartition('/')[2]}:{frame.line_num}"

    def _user_frame(self) -> Any | None:
        traceback = getattr(self.source_info, "traceback", None)
        for frame in () if traceback is None else traceback.frames:
            if not any(part in frame.file_name for part in _FOREIGN_FRAMES):
                return frame
        return None

    def __repr__(self) -> str:
        return f"{self.primitive.name} at {self.source}"


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A flat, closed sequence of equations."""

    inputs: tuple[Variable, ...]
    outputs: tuple[Atom, ...]
    equations: tuple[Equation, ...]


def trace(fn: Callable[..., Any], *args: Any) -> Program:
    """The program of ``fn`` on the flat arrays (or shapes) ``args``."""
    return flatten(jax.make_jaxpr(fn)(*args))


def flatten(closed: Any) -> Program:
    """Inline every call of a closed jaxpr: ``jit``, ``checkpoint`` and plain calls, at any depth.

    Functions with derivative rules of their own and control flow stay single equations.
    """
    variables, consts, jaxpr = _open(closed)
    inputs = tuple(Variable(v.aval) for v in variables)
    equations: list[Equation] = []
    outputs = _inline(jaxpr, [*(Constant(c) for c in consts), *inputs], equations)
    return Program(inputs, tuple(outputs), tuple(equations))


def _open(closed: Any) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """The true inputs, the constants and the body, whichever class this JAX uses for closed jaxprs."""
    jaxpr = getattr(closed, "jaxpr", closed)
    return jaxpr.invars, getattr(closed, "consts", ()), jaxpr


def _inline(jaxpr: Any, operands: Sequence[Atom], equations: list[Equation]) -> list[Atom]:
    env: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

    def read(atom: Any) -> Atom:
        return Constant(atom.val) if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        inputs = tuple(read(v) for v in eqn.invars)
        if eqn.primitive in _CALLS:
            _, consts, inner = _open(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")))
            outputs = _inline(inner, [*(Constant(c) for c in consts), *inputs], equations)
            env.update(zip(eqn.outvars, outputs, strict=True))
        else:
            made = tuple(Variable(v.aval) for v in eqn.outvars)
            equations.append(Equation(eqn.primitive, inputs, made, eqn.params, eqn.source_info, eqn.ctx))
            env.update(zip(eqn.outvars, made, strict=True))
    return [read(v) for v in jaxpr.outvars]


def inner_programs(equation: Equation) -> Iterator[Program]:
    """The flat programs held in the parameters of ``equation``: branches, loop bodies, custom-rule bodies."""
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (jex.Jaxpr, jex.ClosedJaxpr)):
                yield flatten(item)


def contains(equation: Equation, predicate: Callable[[Equation], bool]) -> bool:
    """Whether any equation inside ``equation``, at any depth, satisfies ``predicate``."""
    return any(
        predicate(inner) or contains(inner, predicate)
        for program in inner_programs(equation)
        for inner in program.equations
    )


def is_differentiable(atom: Atom) -> bool:
    """Whether ``atom`` has a floating-point or complex type, so that a derivative can pass through it."""
    return jax.numpy.issubdtype(atom.aval.dtype, jax.numpy.inexact)


def evaluate(
    equations: Iterable[Equation],
    env: dict[Variable, Any],
    *,
    cuts: Mapping[Equation, frozenset[int]] | None = None,
) -> dict[Variable, Any]:
    """Evaluate ``equations`` in order and return ``env`` with their results added.

    Values that ``env`` already holds are kept, so an equation whose outputs are all given is skipped.

    Args:
        equations: in topological order.
        env: the given values; extended in place.
        cuts: operands through which no derivative passes, as ``{equation: operand positions}``.
    """
    for equation in equations:
        if all(v in env for v in equation.outputs):
            continue
        operands = [value_of(atom, env) for atom in equation.inputs]
        for k in cuts.get(equation, ()) if cuts else ():
            operands[k] = jax.lax.stop_gradient(operands[k])
        for variable, value in zip(equation.outputs, equation.bind(*operands), strict=True):
            env.setdefault(variable, value)
    return env


def run(program: Program, operands: Sequence[Any]) -> list[Any]:
    """The outputs of ``program`` on ``operands``."""
    env = evaluate(program.equations, dict(zip(program.inputs, operands, strict=True)))
    return [value_of(atom, env) for atom in program.outputs]


def value_of(atom: Atom, env: Mapping[Variable, Any]) -> Any:
    """The value of ``atom``: its own if constant, else the one in ``env``."""
    return atom.value if isinstance(atom, Constant) else env[atom]


def needed(equations: Sequence[Equation], outputs: Iterable[Atom], given: Iterable[Variable] = ()) -> list[Equation]:
    """The equations, in order, that ``outputs`` depend on when the variables ``given`` are inputs."""
    stop = set(given)
    wanted = {v for v in outputs if isinstance(v, Variable)} - stop
    kept = []
    for equation in reversed(equations):
        if wanted.intersection(equation.outputs):
            kept.append(equation)
            wanted.update(v for v in equation.inputs if isinstance(v, Variable) and v not in stop)
    return kept[::-1]


def dependents(equations: Iterable[Equation], sources: Iterable[Variable]) -> list[Equation]:
    """The equations, in order, that read ``sources`` or anything computed from them."""
    reached = set(sources)
    kept = []
    for equation in equations:
        if any(v in reached for v in equation.inputs if isinstance(v, Variable)):
            kept.append(equation)
            reached.update(equation.outputs)
    return kept
