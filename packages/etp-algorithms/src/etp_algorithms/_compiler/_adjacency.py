"""Which positions of a hidden group depend on which in one step, every way counted.

The position analysis follows hidden data between marked operators, a primitive's ``adjacency`` rule takes it through
them (one sample apart from the other for batched primitives), and what mixes positions otherwise counts as mixing
all. A matrix is sparse and boolean, with a row for every element of the value and a column for every old position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from etp_algorithms._compiler._groups import HiddenGroup, bears_weight, own_positions
from etp_algorithms._compiler._positions import MIXED, Labels, PositionAnalysis
from etp_algorithms._compiler._program import StepProgram
from etp_core import ETPPrimitive
from etp_core.jaxpr import Equation, Variable

__all__ = ["GroupAdjacency", "closure", "find_adjacencies"]


@dataclass(frozen=True, eq=False)
class GroupAdjacency:
    """The pattern of one group's coupling.

    Attributes:
        pattern: ``(positions, positions)``, whether a new position (row) may depend on an old one (column).
    """

    pattern: Any

    @cached_property
    def colours(self) -> np.ndarray:
        """A colour per row, such that no column is read by two rows of one colour."""
        by_row, by_column = self.pattern.tocsr(), self.pattern.tocsc()
        colours = np.full(by_row.shape[0], -1, np.int64)
        for row in range(by_row.shape[0]):
            columns = by_row.indices[by_row.indptr[row] : by_row.indptr[row + 1]]
            rivals = [by_column.indices[by_column.indptr[c] : by_column.indptr[c + 1]] for c in columns]
            taken = np.unique(colours[np.concatenate(rivals)])  # a row reads itself, so there are some
            taken = taken[taken >= 0]
            free = np.flatnonzero(taken != np.arange(taken.size))
            colours[row] = free[0] if free.size else taken.size
        return colours


def closure(pattern: Any, steps: int) -> Any:
    """The pattern of ``steps`` steps together, each position reaching itself."""
    reached = _identity(pattern.shape[0])
    for _ in range(steps):
        further = (reached + reached @ pattern).astype(bool).tocsr()
        if further.nnz == reached.nnz:
            break
        reached = further
    return reached


def _identity(size: int) -> Any:
    return sp.csr_matrix(sp.eye(size).astype(bool))


def find_adjacencies(step: StepProgram, groups: Sequence[HiddenGroup]) -> tuple[GroupAdjacency, ...]:
    """The coupling of every group."""
    analysis = PositionAnalysis(step.equations)
    operators = [e for e in step.equations if bears_weight(e)]
    flows = {e: analysis.forward(_own_elements(e), boundary=bears_weight) for e in operators}
    return tuple(GroupAdjacency(_adjacency(analysis, operators, flows, group)) for group in groups)


def _own_elements(equation: Equation) -> dict[Variable, Labels]:
    return {v: np.arange(math.prod(v.aval.shape), dtype=np.int64) for v in equation.outputs}


def _adjacency(
    analysis: PositionAnalysis,
    operators: Sequence[Equation],
    flows: dict[Equation, dict[Variable, Labels]],
    group: HiddenGroup,
) -> Any:
    count = math.prod(group.varshape)
    seeds = {leaf.input: own_positions(leaf) for leaf in group.leaves}
    direct = analysis.forward(seeds, boundary=bears_weight)
    made: dict[Equation, Any] = {}

    def dependence(variable: Any) -> Any:
        """The old positions that every element of a value depends on."""
        size = math.prod(variable.aval.shape)
        found = sp.csr_matrix((size, count), dtype=bool)
        if isinstance(variable, Variable):
            if variable in direct:
                found = found + _incidence(direct[variable], count)
            for equation, pattern in made.items():
                if variable in flows[equation]:
                    found = found + (_incidence(flows[equation][variable], pattern.shape[0]) @ pattern)
        return found.astype(bool).tocsr()

    for equation in operators:
        pattern = _through(equation, [dependence(atom) for atom in equation.inputs])
        if pattern.nnz:
            made[equation] = pattern
    total = _identity(count)
    for leaf in group.leaves:
        rows = own_positions(leaf)
        collect = sp.csr_matrix((np.ones(rows.size, bool), (rows, np.arange(rows.size))), shape=(count, rows.size))
        total = total + collect @ dependence(leaf.output)
    return total.astype(bool).tocsr()


def _incidence(labels: Labels, columns: int) -> Any:
    """Every element's one label as a row; an element that mixes depends on all."""
    known = np.flatnonzero(labels >= 0)
    mixed = np.flatnonzero(labels == MIXED)
    rows = np.concatenate([known, np.repeat(mixed, columns)])
    cols = np.concatenate([labels[known], np.tile(np.arange(columns), mixed.size)])
    return sp.csr_matrix((np.ones(rows.size, bool), (rows, cols)), shape=(labels.size, columns))


def _through(equation: Equation, operands: Sequence[Any]) -> Any:
    """What the output of a marked operator depends on, given what its operands do."""
    primitive = equation.primitive
    assert isinstance(primitive, ETPPrimitive)
    y = equation.outputs[primitive.y_outvar_index].aval
    size, count = math.prod(y.shape), operands[0].shape[1]
    found = sp.csr_matrix((size, count), dtype=bool)
    for k, operand in enumerate(operands):
        if not operand.nnz:
            continue
        if k == primitive.x_invar_index:
            found = found + _of_data(primitive, equation, y.shape) @ operand
        else:  # a weight that depends on hidden data
            found = found + sp.csr_matrix(np.ones((size, operand.shape[0]), bool)) @ operand
    return found.astype(bool).tocsr()


def _of_data(primitive: ETPPrimitive, equation: Equation, y_shape: tuple[int, ...]) -> Any:
    assert primitive.x_invar_index is not None
    x_shape = tuple(equation.inputs[primitive.x_invar_index].aval.shape)
    samples = x_shape[0] if primitive.batched else 1
    x_one, y_one = (x_shape[1:], y_shape[1:]) if primitive.batched else (x_shape, y_shape)
    rule = primitive.rule("adjacency")
    if rule is None:
        pattern = np.ones((math.prod(y_one), math.prod(x_one)), bool)
    else:
        pattern = np.asarray(rule(x_one, y_one, **equation.params))
    return sp.kron(_identity(samples), sp.csr_matrix(pattern), format="csr")
