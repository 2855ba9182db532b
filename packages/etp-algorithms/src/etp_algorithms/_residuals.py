"""As little of a step as what an algorithm reads can be made from.

An LSTM's Jacobians are ten arrays per step and products of six; recording the six saves memory and the time to write
and read it. Which values to record is a minimum cut through the equations between the step and what is read of it:
every value weighs its bytes, a cheap equation may be evaluated again, and what the parameters alone decide is free.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._step import Arrays, StepPoint
from etp_core.jaxpr import (
    Atom,
    Constant,
    Equation,
    Program,
    Variable,
    dependents,
    evaluate,
    needed,
    renamed,
    trace,
    value_of,
)

__all__ = ["RecordedSteps", "Residuals", "bytes_in", "residuals_of"]

_CHEAP = frozenset(
    "abs add add_any and broadcast_in_dim clamp concatenate convert_element_type copy copy_p eq expand_dims ge gt"
    " integer_pow is_finite le lt max min mul ne neg not one_minus_square or pad reshape select_n sign slice split"
    " square squeeze stop_gradient sub".split()
)
_SCALE = 2**30


@dataclass(frozen=True)
class RecordedSteps:
    """Several steps in a row, of each of which as little is kept as what the algorithm reads can be made from.

    Attributes:
        saved: what is kept, a pytree of arrays with time leading.
        read: what was kept of one step → what ``read`` gave for it.
        length: the number of steps.
    """

    saved: Any
    read: Callable[[Any], Any]
    length: int

    @functools.cached_property
    def stacked(self) -> Any:
        """The values of all steps, time leading."""
        return jax.vmap(self.read, axis_size=self.length)(self.saved)

    def last(self) -> Any:
        """The values of the last step."""
        return self.read(jax.tree.map(lambda a: a[-1], self.saved))

    def scan(self, body: Callable[[Any, Any], Any], carry: Any, rest: Any, *, reverse: bool = False) -> Any:
        """``jax.lax.scan`` of ``body(carry, (values of a step, slice of rest))``."""

        def step(carry: Any, now: Any) -> Any:
            return body(carry, (self.read(now[0]), now[1]))

        return jax.lax.scan(step, carry, (self.saved, rest), length=self.length, reverse=reverse)

    def map(self, change: Callable[[Any], Any]) -> "RecordedSteps":
        """The steps with their values changed one by one."""
        return replace(self, read=lambda saved: change(self.read(saved)))


@runtime_checkable
class Reader(Protocol):
    """Whatever reads a step."""

    def read(self, point: StepPoint) -> Any:
        """What the traces need of a step."""
        ...


@dataclass(frozen=True, eq=False)
class Residuals:
    """What of a step is recorded for one algorithm.

    Attributes:
        graph: the compiled step.
        program: from the values of a step to what the algorithm reads.
        sources: what the inputs of the program are in the step, of those from which what is kept is made.
        structure: of what it reads.
        kept: the values of the program that are recorded.
        fixed: those of its inputs, by variable of the step, that the parameters alone decide.
    """

    graph: TraceGraph
    program: Program
    sources: tuple[tuple[Variable, Variable], ...]
    structure: Any
    kept: tuple[Variable, ...]
    fixed: tuple[tuple[Variable, Variable], ...]

    @property
    def bytes(self) -> int:
        """The memory of what is kept of one step."""
        return sum(map(bytes_in, self.kept))

    def save(self, point: StepPoint) -> list[jax.Array]:
        """What is recorded of a step, without any derivative."""
        given = {inner: jax.lax.stop_gradient(point.env[v]) for inner, v in self.sources}
        env = evaluate(needed(self.program.equations, self.kept), given)
        return [env[v] for v in self.kept]

    def steps(self, parameters: Arrays, saved: Any, length: int) -> RecordedSteps:
        """Recorded steps, as algorithms take them.

        Args:
            parameters: the parameter arrays.
            saved: what :meth:`save` gave, time leading.
            length: the number of steps.
        """
        return RecordedSteps(saved, self.reader(jax.lax.stop_gradient(parameters)), length)

    def reader(self, parameters: Arrays) -> Callable[[Any], Any]:
        """From what :meth:`save` gave of one step to what the algorithm reads; no derivative in ``parameters``."""
        step, program = self.graph.step, self.program
        known: dict[Variable, Any] = dict(zip((leaf.input for leaf in step.parameters), parameters, strict=True))
        evaluate(needed(step.equations, [v for _, v in self.fixed]), known)
        equations = needed(program.equations, program.outputs, self.kept)
        moving = dependents(equations, self.kept)
        made = set(moving)
        constants = evaluate([e for e in equations if e not in made], {inner: known[v] for inner, v in self.fixed})

        def read(saved: Sequence[jax.Array]) -> Any:
            env = evaluate(moving, {**constants, **dict(zip(self.kept, saved, strict=True))})
            return jax.tree.unflatten(self.structure, [value_of(atom, env) for atom in program.outputs])

        return read


@functools.lru_cache(maxsize=64)
def residuals_of(graph: TraceGraph, algorithm: Reader) -> Residuals:
    """What to record of a step for ``algorithm``."""
    step = graph.step
    inputs = [*(leaf.input for leaf in (*step.parameters, *step.hidden, *step.others)), *step.arguments]
    sources = tuple(dict.fromkeys([*inputs, *(v for e in step.equations for v in e.outputs)]))
    structures: list[Any] = []

    def read(*values: Any) -> Any:
        env = dict(zip(sources, values, strict=True))
        leaves = (step.parameters, step.hidden, step.others)
        parameters, hidden, others = ([env[leaf.input] for leaf in part] for part in leaves)
        found = algorithm.read(StepPoint(graph, parameters, hidden, others, [env[v] for v in step.arguments], env))
        structures.append(jax.tree.structure(found))
        return found

    program = trace(read, *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in sources))
    program = _merged(program, step.equations, dict(zip(sources, program.inputs, strict=True)))
    inner = dict(zip(program.inputs, sources, strict=True))
    moving = {*inputs} - {leaf.input for leaf in step.parameters}
    moving.update(v for e in dependents(step.equations, moving) for v in e.outputs)
    fixed = {v for v, source in inner.items() if source not in moving}
    kept = _cut(program, fixed)
    made = _read_by(needed(program.equations, kept), kept)
    made_again = _read_by(needed(program.equations, program.outputs, kept), program.outputs)
    return Residuals(
        graph,
        program,
        tuple((v, inner[v]) for v in program.inputs if v in made),
        structures[0],
        kept,
        tuple((v, inner[v]) for v in program.inputs if v in fixed and v in made_again),
    )


def _merged(program: Program, equations: Sequence[Equation], inputs: dict[Variable, Variable]) -> Program:
    """``program`` without what ``equations`` find already: their outputs are inputs of it, as ``inputs`` says."""
    known = {_key(e, [renamed(atom, inputs) for atom in e.inputs]): [inputs[v] for v in e.outputs] for e in equations}
    env: dict[Variable, Atom] = {}
    kept = []
    for equation in program.equations:
        operands = tuple(renamed(atom, env) for atom in equation.inputs)
        found: list[Any] = list(operands)
        if equation.primitive.name != "stop_gradient":
            found = known.setdefault(_key(equation, operands), list(equation.outputs))
        if found == list(equation.outputs):
            kept.append(replace(equation, inputs=operands))
        else:
            env.update(zip(equation.outputs, found, strict=True))
    return Program(program.inputs, tuple(renamed(atom, env) for atom in program.outputs), tuple(kept))


def _key(equation: Equation, operands: Sequence[Atom]) -> Any:
    """Equal for two equations that give the same; the equation itself if that cannot be told."""
    atoms = [a if isinstance(a, Variable) else _constant(a) for a in operands]
    key = (equation.primitive, tuple(sorted(equation.params.items())), tuple(atoms))
    try:
        hash(key)
    except TypeError:
        return equation
    return key


def _constant(atom: Constant) -> Any:
    value = np.asarray(atom.value)
    return (value.dtype, value.item()) if value.ndim == 0 else atom


def _read_by(equations: Sequence[Equation], outputs: Sequence[Atom]) -> set[Atom]:
    return {v for e in equations for v in e.inputs} | set(outputs)


def _cut(program: Program, fixed: set[Variable]) -> tuple[Variable, ...]:
    """The values to record: of all cuts of the fewest bytes the one closest to what is read."""
    equations = needed(program.equations, program.outputs)
    varying = {v for v in program.inputs if v not in fixed}
    varying.update(v for e in dependents(equations, varying) for v in e.outputs)
    asked = {v for v in program.outputs if isinstance(v, Variable) and v in varying}
    if not asked:
        return ()
    made_by = {v: e for e in equations for v in e.outputs}
    seen = _read_by(equations, program.outputs)
    order = [v for v in (*program.inputs, *made_by) if v in varying and v in seen]
    number = {v: n for n, v in enumerate(order)}
    source, sink = 2 * len(order), 2 * len(order) + 1
    weights = _weights(order)
    endless = sum(weights) + 1
    edges: dict[tuple[int, int], int] = {}
    for v, n in number.items():
        edges[2 * n, 2 * n + 1] = weights[n]
        if v in asked:
            edges[2 * n + 1, sink] = endless
        equation = made_by.get(v)
        if equation is None or equation.primitive.name not in _CHEAP:
            edges[source, 2 * n] = endless
            continue
        for operand in equation.inputs:
            if operand in varying:
                edges[2 * number[operand] + 1, 2 * n] = endless
    size = len(order) * 2 + 2
    rows, columns = np.array(list(edges), np.int32).T
    capacity = csr_matrix((np.array(list(edges.values()), np.int32), (rows, columns)), shape=(size, size))
    left = capacity - maximum_flow(capacity, source, sink).flow
    left.eliminate_zeros()
    behind = set(breadth_first_order(left.T.tocsr(), sink, return_predecessors=False).tolist())
    return tuple(v for v, n in number.items() if 2 * n + 1 in behind and 2 * n not in behind)


def bytes_in(atom: Atom) -> int:
    """The memory of one value."""
    return math.prod(atom.aval.shape) * atom.aval.dtype.itemsize


def _weights(variables: Sequence[Atom]) -> list[int]:
    """The bytes of the variables, as numbers small enough that their sum is one of 32 bits."""
    sizes = [max(1, bytes_in(v)) for v in variables]
    unit = sum(sizes) // _SCALE + 1
    return [-(-size // unit) for size in sizes]
