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
    "Scan",
    "Variable",
    "contains",
    "dependents",
    "evaluate",
    "flatten",
    "inline",
    "inner_programs",
    "is_differentiable",
    "needed",
    "renamed",
    "run",
    "scan_of",
    "trace",
    "value_of",
]

_CALLS = frozenset(
    getattr(jex_primitives, name)
    for name in ("jit_p", "closed_call_p", "call_p", "remat_p")
    if hasattr(jex_primitives, name)
)
# newer versions have one class where older ones told open jaxprs from closed ones
_JAXPRS = tuple(getattr(jex, name) for name in ("Jaxpr", "ClosedJaxpr") if hasattr(jex, name))
_INNER_FRAMES = (
    "/jax/",
    "/jaxlib/",
    "/saiunit/",
    "/brainunit/",
    "/etp_core/",
    "/etp_ops/_",
    "/etp_algorithms/",
    "functools.py",
    "/jaxtyping/",
    "/beartype/",
)
_FOREIGN_FRAMES = (*_INNER_FRAMES, "/etp_ops/", "/brainstate/")


class Variable:
    """One value of a program; equal only to itself."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval: Any = aval

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
        frame = _user_frame(self.source_info)
        return "unknown source" if frame is None else f"{frame.file_name}:{frame.line_num} ({frame.function_name})"

    @property
    def place(self) -> str:
        """The same in short: the file's name and the line."""
        frame = _user_frame(self.source_info)
        return "unknown source" if frame is None else f"{frame.file_name.rpartition('/')[2]}:{frame.line_num}"

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


def _inline(jaxpr: Any, operands: Sequence[Atom], equations: list[Equation], call: Any = None) -> list[Atom]:
    """Append the equations of ``jaxpr`` on ``operands``; ``call`` is the source of the call they stand in, if any."""
    env: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

    def read(atom: Any) -> Atom:
        return Constant(atom.val) if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        inputs = tuple(read(v) for v in eqn.invars)
        source = eqn.source_info if call is None or _stands_in(eqn.source_info, call) else call
        if eqn.primitive in _CALLS:
            _, consts, inner = _open(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")))
            outputs = _inline(inner, [*(Constant(c) for c in consts), *inputs], equations, source)
            env.update(zip(eqn.outvars, outputs, strict=True))
        else:
            made = tuple(Variable(v.aval) for v in eqn.outvars)
            equations.append(Equation(eqn.primitive, inputs, made, eqn.params, source, eqn.ctx))
            env.update(zip(eqn.outvars, made, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _frames(source_info: Any) -> Sequence[Any]:
    traceback = getattr(source_info, "traceback", None)
    return () if traceback is None else traceback.frames


def _user_frame(source_info: Any) -> Any | None:
    """The innermost frame of the user; inside a layer that this workspace or brainstate ships, the layer's own."""
    frames = _frames(source_info)
    for foreign in (_FOREIGN_FRAMES, _INNER_FRAMES):
        for frame in frames:
            if not any(part in frame.file_name for part in foreign):
                return frame
    return None


def _stands_in(source_info: Any, call: Any) -> bool:
    """Whether an equation was traced at this call; JAX caches jits with the source of whoever traced them first."""
    caller = _user_frame(call)
    return caller is None or any(
        (frame.file_name, frame.line_num) == (caller.file_name, caller.line_num) for frame in _frames(source_info)
    )


def inline(program: Program, operands: Sequence[Atom], *, at: Equation) -> tuple[list[Equation], list[Atom]]:
    """A fresh copy of ``program`` on ``operands``, as if it stood where ``at`` stands: its equations and outputs."""
    env: dict[Variable, Atom] = dict(zip(program.inputs, operands, strict=True))
    equations = []
    for equation in program.equations:
        inputs = tuple(renamed(atom, env) for atom in equation.inputs)
        outputs = tuple(Variable(v.aval) for v in equation.outputs)
        env.update(zip(equation.outputs, outputs, strict=True))
        equations.append(Equation(equation.primitive, inputs, outputs, equation.params, at.source_info, at.context))
    return equations, [renamed(atom, env) for atom in program.outputs]


def renamed(atom: Atom, env: Mapping[Variable, Atom]) -> Atom:
    """What stands for ``atom`` under the renaming ``env``; itself where that says nothing."""
    return env.get(atom, atom) if isinstance(atom, Variable) else atom


@dataclass(frozen=True, eq=False, slots=True)
class Scan:
    """A scan taken apart; the body maps constants, carries and slices to carries and slices.

    Attributes:
        body: one iteration.
        consts: the number of operands that every iteration reads.
        carries: the number of carried values.
        length: the number of iterations.
        reverse: whether the last slice comes first.
    """

    body: Program
    consts: int
    carries: int
    length: int
    reverse: bool


def scan_of(equation: Equation) -> Scan:
    """The parts of a scan equation."""
    params = equation.params
    if "num_consts" in params:
        consts, carries = params["num_consts"], params["num_carry"]
    else:  # from JAX 0.11 on, operands are grouped by a tree
        consts, carries = (len(part) for part in params["ft_in"].unpack()[:2])
    return Scan(flatten(params["jaxpr"]), consts, carries, params["length"], params["reverse"])


def inner_programs(equation: Equation) -> Iterator[Program]:
    """The flat programs held in the parameters of ``equation``: branches, loop bodies, custom-rule bodies."""
    pending = list(equation.params.values())[::-1]
    while pending:
        value = pending.pop()
        if isinstance(value, _JAXPRS):
            yield flatten(value)
        elif isinstance(value, (tuple, list)):
            pending += reversed(value)
        elif isinstance(value, dict):
            pending += reversed(list(value.values()))


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
    offsets: Mapping[Variable, Any] | None = None,
    substitutes: Mapping[Equation, Callable[..., Any]] | None = None,
) -> dict[Variable, Any]:
    """Evaluate ``equations`` in order and return ``env`` with their results added.

    Values that ``env`` already holds are kept, so an equation whose outputs are all given is skipped.

    Args:
        equations: in topological order.
        env: the given values; extended in place.
        cuts: operands through which no derivative passes, as ``{equation: operand positions}``.
        offsets: values added to computed variables.
        substitutes: functions that stand in for an equation with one output: ``{equation: function of its operands}``.
    """
    for equation in equations:
        if all(v in env for v in equation.outputs):
            continue
        operands = [value_of(atom, env) for atom in equation.inputs]
        for k in cuts.get(equation, ()) if cuts else ():
            operands[k] = jax.lax.stop_gradient(operands[k])
        replaced = substitutes.get(equation) if substitutes else None
        values = equation.bind(*operands) if replaced is None else [replaced(*operands)]
        for variable, value in zip(equation.outputs, values, strict=True):
            env.setdefault(variable, value + offsets[variable] if offsets and variable in offsets else value)
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
