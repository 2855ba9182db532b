"""Relations: one use of a marked operator whose output reaches hidden states.

A relation knows its operands (functions of parameters), and for every hidden group it reaches a *link*: how
the elements of ``y`` lie on the group's positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._diagnostics import Diagnostic, DiagnosticKind
from etp_algorithms._compiler._groups import HiddenGroup, PositionSpace, bears_weight
from etp_algorithms._compiler._guarded import GuardedOperator
from etp_algorithms._compiler._positions import MIXED, NONE, Labels, PositionAnalysis, join_labels
from etp_algorithms._compiler._program import StepProgram
from etp_core import ETPPrimitive
from etp_core.jaxpr import Atom, Equation, Variable, needed, trace

BEHIND_WEIGHT = "it reaches hidden states only through another marked weight"
NOT_TEMPORAL = "it reaches no hidden state"

__all__ = [
    "BEHIND_WEIGHT",
    "NOT_TEMPORAL",
    "GroupLink",
    "HiddenParamOpRelation",
    "Layout",
    "Operand",
    "find_relations",
    "link_key",
]


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """A trainable operand ``V = g(θ)``.

    Attributes:
        atom: the operand in the step.
        equations: the equations of ``g``.
        parameters: numbers of the parameter arrays that ``g`` reads; empty if the operand is not traced.
    """

    atom: Atom
    equations: tuple[Equation, ...]
    parameters: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Where the elements of ``y`` lie among the positions of a group.

    Attributes:
        positions: flat position of every element, shape ``(lanes, *y.shape)``; ``NONE`` where there is none.
        lanes: the number of positions that one element of ``y`` can reach, 1 unless ``y`` is broadcast; with
            one lane several elements may share a position (fused gates), with more every position has its own.
    """

    positions: Labels
    lanes: int

    def gather(self, values: jax.Array) -> jax.Array:
        """Values per position, shape ``varshape``, at the elements of ``y``: ``(*y.shape)``, lanes first if any."""
        shape = self.positions.shape if self.lanes > 1 else self.positions.shape[1:]
        if np.array_equal(self.positions.reshape(-1), np.arange(values.size)):
            return values.reshape(shape)
        prefix = self._aligned_axes(values.shape)
        lead, size = values.shape[:prefix], int(np.prod(values.shape[prefix:], dtype=np.int64))
        index = self.positions.reshape(*lead, -1)[(0,) * prefix]  # one for all rows of the leading (batch) axes
        copies, rest = divmod(index.size, size)
        if not rest and np.array_equal(index, np.tile(np.arange(size), copies)):  # fused gates, side by side
            return jnp.broadcast_to(values.reshape(*lead, 1, size), (*lead, copies, size)).reshape(shape)
        if prefix:
            return jnp.take(values.reshape(*lead, size), index, axis=prefix).reshape(shape)
        taken = jnp.take(values.reshape(-1), np.maximum(self.positions, 0).reshape(-1)).reshape(shape)
        return jnp.where(self.positions.reshape(shape) == NONE, 0, taken)

    def _aligned_axes(self, varshape: tuple[int, ...]) -> int:
        """How many leading axes ``y`` and the positions share, element for element."""
        if self.lanes > 1 or np.any(self.positions == NONE):
            return 0
        shape, aligned = self.positions.shape[1:], 0
        for axis in range(1, min(len(shape), len(varshape))):
            inner = int(np.prod(varshape[axis:], dtype=np.int64))
            rows = int(np.prod(varshape[:axis], dtype=np.int64))
            if shape[:axis] != varshape[:axis]:
                break
            table = self.positions.reshape(rows, -1)
            if np.array_equal(table, table[:1] + np.arange(rows)[:, None] * inner):
                aligned = axis
        return aligned


@dataclass(frozen=True, eq=False, slots=True)
class GroupLink:
    """How one relation meets one hidden group.

    Attributes:
        group: the group's number.
        layout: where ``y`` lies.
        fed: for every state of the group, whether ``y`` reaches it in the same step.
        present: for every state, whether its trace can differ from zero.
    """

    group: int
    layout: Layout
    fed: tuple[bool, ...]
    present: tuple[bool, ...]


@dataclass(frozen=True, eq=False, slots=True)
class HiddenParamOpRelation:
    """One use of a marked operator that is learned forward in time.

    Attributes:
        index: the relation's number; stable for one model.
        equation: the operator's equation.
        operands: the trainable operands by name.
        links: one per hidden group that ``y`` reaches; none for a use that has no trace.
    """

    index: int
    equation: Equation
    operands: Mapping[str, Operand]
    links: tuple[GroupLink, ...]

    @property
    def primitive(self) -> ETPPrimitive:
        """The marked primitive."""
        assert isinstance(self.equation.primitive, ETPPrimitive)
        return self.equation.primitive

    @property
    def x(self) -> Atom | None:
        """The data operand, or None."""
        return None if self.primitive.x_invar_index is None else self.equation.inputs[self.primitive.x_invar_index]

    @property
    def y(self) -> Variable:
        """The output."""
        return self.equation.outputs[self.primitive.y_outvar_index]

    @property
    def trainable_vars(self) -> dict[str, Atom]:
        """The trainable operands of the equation by name."""
        return {key: operand.atom for key, operand in self.operands.items()}

    @property
    def guarded(self) -> bool:
        """Whether the operator stands in a branch, so that its weights may be at a bad point while it is dead."""
        return isinstance(self.equation, GuardedOperator)

    @property
    def static(self) -> Mapping[str, Any]:
        """The static parameters of the equation."""
        return self.equation.params


def link_key(relation: HiddenParamOpRelation, link: GroupLink) -> str:
    """The stable name of one relation's traces in one group."""
    return f"{relation.index}:{relation.primitive.name}->{link.group}"


def find_relations(
    step: StepProgram,
    analysis: PositionAnalysis,
    groups: tuple[HiddenGroup, ...],
    spaces: tuple[PositionSpace, ...],
) -> tuple[tuple[HiddenParamOpRelation, ...], dict[Equation, str], tuple[Diagnostic, ...]]:
    """Find every use of a marked operator on functions of parameters.

    Returns:
        The uses, those that can be traced first; for every marked equation without a trace the reason; the
        diagnostics.
    """
    relations: list[HiddenParamOpRelation] = []
    others: list[tuple[Equation, dict[str, Operand]]] = []
    untraced: dict[Equation, str] = {}
    diagnostics: list[Diagnostic] = []
    numbers = {leaf.input: n for n, leaf in enumerate(step.parameters)}
    ends = analysis.influences(leaf.output for group in groups for leaf in group.leaves)
    for equation in step.equations:
        if not isinstance(equation.primitive, ETPPrimitive):
            continue
        operands = _find_operands(analysis, numbers, equation)
        if not any(operand.parameters for operand in operands.values()):
            untraced[equation] = "its weight is not a function of parameters alone"
            diagnostics.append(_not_a_parameter(equation))
            continue
        if moving := _moving_operands(equation, operands):
            untraced[equation] = f"its operand {', '.join(moving)} is not a function of parameters alone"
            diagnostics.append(_not_a_parameter(equation))
            continue
        links, refused = _find_links(analysis, equation, groups, spaces)
        if refused:
            diagnostics.append(_mixed_tail(step, equation, operands, refused))
        if links:
            relations.append(HiddenParamOpRelation(len(relations), equation, operands, links))
            continue
        if equation.primitive.rule("xy_to_dw") is not None:
            others.append((equation, operands))
        untraced[equation] = _why_untraced(analysis, equation, groups, refused, ends)
        if untraced[equation] == BEHIND_WEIGHT:
            diagnostics.append(_behind_weight(step, equation, operands))
    relations += [HiddenParamOpRelation(len(relations) + n, *other, links=()) for n, other in enumerate(others)]
    return tuple(relations), untraced, tuple(diagnostics)


def _find_operands(
    analysis: PositionAnalysis, numbers: Mapping[Variable, int], equation: Equation
) -> dict[str, Operand]:
    assert isinstance(equation.primitive, ETPPrimitive)
    operands = {}
    bare = equation.bare if isinstance(equation, GuardedOperator) else {}
    for key, k in equation.primitive.trainable_invars(equation.params).items():
        outside = bare.get(k)
        atom = equation.inputs[k] if outside is None else outside.atom
        equations = analysis.needed([atom]) if outside is None else outside.equations
        made = {v for e in equations for v in e.outputs}
        read = [v for e in equations for v in e.inputs if isinstance(v, Variable)] + [atom]
        sources = {v for v in read if isinstance(v, Variable)} - made
        traced = bool(sources) and sources <= numbers.keys()
        parameters = tuple(sorted(numbers[v] for v in sources)) if traced else ()
        operands[key] = Operand(atom, tuple(equations) if traced else (), parameters)
    return operands


def _moving_operands(equation: Equation, operands: Mapping[str, Operand]) -> list[str]:
    """The operands that are no functions of parameters and that the gradient of one that is depends on.

    A trace is contracted with the operands of the present, so these (the frozen factor of a low-rank product,
    say) would have to be those of the past. A bias is none of them: the gradient of its weight does not read it.
    """
    primitive = equation.primitive
    assert isinstance(primitive, ETPPrimitive)
    names = list(operands)
    moving = [key for key, o in operands.items() if not o.parameters and isinstance(o.atom, Variable)]
    pull, x_index = primitive.rule("xy_to_dw"), primitive.x_invar_index
    if not moving or pull is None:
        return moving

    def gradient(y: jax.Array, *values: Any) -> list[jax.Array]:
        weights = dict(zip(names, values, strict=False))
        out = pull(values[-1] if x_index is not None else None, y, weights, **equation.params)
        return [out[key] for key, o in operands.items() if o.parameters]

    atoms = [equation.outputs[0], *(o.atom for o in operands.values())]
    atoms += [] if x_index is None else [equation.inputs[x_index]]
    program = trace(gradient, *(jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in atoms))
    read = {v for e in needed(program.equations, program.outputs) for v in e.inputs} | set(program.outputs)
    return [key for key, v in zip(names, program.inputs[1:], strict=False) if key in moving and v in read]


def _find_links(
    analysis: PositionAnalysis,
    equation: Equation,
    groups: tuple[HiddenGroup, ...],
    spaces: tuple[PositionSpace, ...],
) -> tuple[tuple[GroupLink, ...], tuple[str, ...]]:
    """The links of one operator, and the names of the groups that its output reaches mixed."""
    y = equation.outputs[0]
    links, refused = [], []
    for number, space in enumerate(spaces):
        reach = analysis.reach([y], boundary=bears_weight, cuts=space.cuts)
        for group in groups:
            if group.space != number or not any(leaf.output in reach for leaf in group.leaves):
                continue
            layout = _find_layout(analysis, y, group, space)
            if layout is None:
                refused.append(group.name)
            else:
                fed = tuple(group.leaves[i].output in reach for i, _ in group.states)
                links.append(GroupLink(group.index, layout, fed, _present(group, fed)))
    return tuple(links), tuple(refused)


def _why_untraced(
    analysis: PositionAnalysis,
    equation: Equation,
    groups: tuple[HiddenGroup, ...],
    refused: tuple[str, ...],
    ends: set[Variable],
) -> str:
    if refused:
        return f"its output is mixed over positions on the way to {', '.join(refused)}"
    direct = analysis.reach(equation.outputs, boundary=bears_weight)
    cut = [leaf.name for g in groups for leaf in g.leaves if leaf.output in direct]
    if cut:
        return f"its way to {', '.join(cut)} is cut"
    return BEHIND_WEIGHT if any(v in ends for v in equation.outputs) else NOT_TEMPORAL


def _find_layout(analysis: PositionAnalysis, y: Variable, group: HiddenGroup, space: PositionSpace) -> Layout | None:
    reached = space.reached.get(y)
    shape = tuple(y.aval.shape)
    if reached is not None and not np.any(reached == MIXED):
        return Layout(reached.reshape(1, *shape), 1)
    elements = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    depends = analysis.forward({y: elements}, boundary=bears_weight, cuts=space.cuts)
    drivers: Labels | None = None
    for leaf in group.leaves:
        found = depends.get(leaf.output) if isinstance(leaf.output, Variable) else None
        for column in () if found is None else found.reshape(-1, len(leaf.columns)).T:
            drivers = join_labels(drivers, column)
    if drivers is None or np.any(drivers == MIXED):
        return None
    return _lanes(drivers, shape)


def _lanes(drivers: Labels, shape: tuple[int, ...]) -> Layout:
    """The layout of a broadcast ``y``, from the element that drives each position."""
    positions = np.flatnonzero(drivers != NONE)
    order = positions[np.argsort(drivers[positions], kind="stable")]
    elements = drivers[order]
    starts = np.r_[0, np.flatnonzero(np.diff(elements)) + 1]
    rank = np.arange(elements.size) - np.repeat(starts, np.diff(np.r_[starts, elements.size]))
    lanes = int(rank.max()) + 1
    table = np.full((lanes, int(np.prod(shape, dtype=np.int64))), NONE, np.int64)
    table[rank, elements] = order
    return Layout(table.reshape(lanes, *shape), lanes)


def _present(group: HiddenGroup, fed: tuple[bool, ...]) -> tuple[bool, ...]:
    present = np.array(fed)
    coupling = np.array(group.coupling, dtype=bool).reshape(len(fed), len(fed))
    for _ in fed:
        present = present | (coupling @ present)
    return tuple(bool(p) for p in present)


def _not_a_parameter(equation: Equation) -> Diagnostic:
    return Diagnostic(
        kind=DiagnosticKind.NOT_A_PARAMETER,
        level="warning",
        path=equation.primitive.name,
        place=equation.source,
        message=(
            "no trainable operand is a function of parameters alone (it reads data, a state or a constant), so it has "
            "no trace; its parameters are learned exactly within a window only. Pass a parameter, or a function of "
            "parameters."
        ),
    )


def _mixed_tail(
    step: StepProgram, equation: Equation, operands: Mapping[str, Operand], refused: tuple[str, ...]
) -> Diagnostic:
    return Diagnostic(
        kind=DiagnosticKind.MIXED_TAIL,
        level="warning",
        path=_names(step, operands),
        place=equation.source,
        message=(
            f"the output of {equation.primitive.name} is mixed over positions on the way to {', '.join(refused)}, so "
            f"it has no trace there and is learned exactly within a window only. Keep the way from operator to state "
            f"position-wise."
        ),
    )


def _behind_weight(step: StepProgram, equation: Equation, operands: Mapping[str, Operand]) -> Diagnostic:
    return Diagnostic(
        kind=DiagnosticKind.WEIGHT_BEHIND_WEIGHT,
        level="info",
        path=_names(step, operands),
        place=equation.source,
        message=f"{equation.primitive.name} has no trace: {BEHIND_WEIGHT}. It is learned exactly within a window only.",
    )


def _names(step: StepProgram, operands: Mapping[str, Operand]) -> str:
    return ", ".join(sorted({step.parameters[n].name for operand in operands.values() for n in operand.parameters}))
