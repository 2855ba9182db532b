"""Hidden groups: the states that one position carries from step to step.

Hidden states of one shape share a position space. Their positions are followed through the step with every
output of a weight-bearing operator held fixed; a use of hidden data that reaches another position than its
own is cut, with a diagnostic, and never read as a row or column sum. What couples after that, position by
position, is one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etp_algorithms._compiler._diagnostics import CompilationError, Diagnostic, DiagnosticKind
from etp_algorithms._compiler._links import is_irreversible
from etp_algorithms._compiler._positions import MIXED, NONE, Cuts, Labels, PositionAnalysis, join_labels
from etp_algorithms._compiler._program import HiddenLeaf, StepProgram
from etp_core import ETPPrimitive
from etp_core.jaxpr import Equation, Variable

__all__ = ["HiddenGroup", "PositionSpace", "bears_weight", "find_hidden_groups"]

_MAX_ROUNDS = 64


def bears_weight(equation: Equation) -> bool:
    """Whether ``equation`` is a marked operator that ends the path of another weight."""
    return isinstance(equation.primitive, ETPPrimitive) and not equation.primitive.gradient_enabled


@dataclass(frozen=True, eq=False, slots=True)
class HiddenGroup:
    """States that couple position by position.

    Attributes:
        index: the group's number; stable for one model.
        leaves: the hidden states, in the model's order.
        coupling: ``coupling[a][b]``, whether the new state ``a`` may depend on the old state ``b``.
        space: the index of the position space.
    """

    index: int
    leaves: tuple[HiddenLeaf, ...]
    coupling: tuple[tuple[bool, ...], ...]
    space: int

    @property
    def varshape(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return self.leaves[0].varshape

    @property
    def states(self) -> tuple[tuple[int, int | None], ...]:
        """The states of a position, each as (number of its leaf, entry of the leaf's last axis or None)."""
        return tuple((i, column) for i, leaf in enumerate(self.leaves) for column in leaf.columns)

    @property
    def num_state(self) -> int:
        """The number of states per position, ``S``."""
        return len(self.coupling)

    @property
    def hidden_paths(self) -> tuple[tuple[object, ...], ...]:
        """The paths of the hidden states."""
        return tuple(leaf.path for leaf in self.leaves)

    @property
    def name(self) -> str:
        """The names of the hidden states, joined."""
        return "+".join(leaf.name for leaf in self.leaves)


@dataclass(frozen=True, eq=False, slots=True)
class PositionSpace:
    """The hidden states of one shape, and what the analysis found about them.

    Attributes:
        varshape: the shape of the positions.
        leaves: the states.
        cuts: the operands through which no derivative passes.
        reached: for every variable, the position that each element reaches.
    """

    varshape: tuple[int, ...]
    leaves: tuple[HiddenLeaf, ...]
    cuts: Cuts
    reached: dict[Variable, Labels]


def find_hidden_groups(
    step: StepProgram, analysis: PositionAnalysis
) -> tuple[tuple[HiddenGroup, ...], tuple[PositionSpace, ...], tuple[Diagnostic, ...]]:
    """Partition the differentiable hidden states into groups."""
    by_shape: dict[tuple[int, ...], list[HiddenLeaf]] = {}
    for leaf in step.hidden:
        if leaf.differentiable:
            by_shape.setdefault(leaf.varshape, []).append(leaf)
    spaces: list[PositionSpace] = []
    found, diagnostics = [], []
    for varshape, leaves in by_shape.items():
        for space, noticed in _analyse_apart(step, analysis, varshape, leaves):
            diagnostics += noticed
            found += [(members, coupling, len(spaces)) for members, coupling in _couple(analysis, space)]
            spaces.append(space)
    order = {leaf: n for n, leaf in enumerate(step.hidden)}
    found.sort(key=lambda item: order[item[0][0]])
    groups = tuple(HiddenGroup(n, *item) for n, item in enumerate(found))
    return groups, tuple(spaces), tuple(diagnostics)


def _analyse_apart(
    step: StepProgram, analysis: PositionAnalysis, varshape: tuple[int, ...], leaves: Sequence[HiddenLeaf]
) -> list[tuple[PositionSpace, list[Diagnostic]]]:
    """The states of one shape in one space, or, where a drive reaches some of them in another order, in several."""
    together = _analyse_space(step, analysis, varshape, leaves)
    if not any(d.kind is DiagnosticKind.MIXED_TAIL for d in together[1]):
        return [together]
    parts = _couple(analysis, together[0])
    if len(parts) == 1:
        return [together]
    return [_analyse_space(step, analysis, varshape, members) for members, _ in parts]


def own_positions(leaf: HiddenLeaf) -> Labels:
    """The position of every element of a hidden state."""
    positions = np.arange(int(np.prod(leaf.varshape, dtype=np.int64)), dtype=np.int64)
    return np.repeat(positions, len(leaf.columns))


def _analyse_space(
    step: StepProgram, analysis: PositionAnalysis, varshape: tuple[int, ...], leaves: Sequence[HiddenLeaf]
) -> tuple[PositionSpace, list[Diagnostic]]:
    """Find the operands to cut: those through which hidden data, or an operator's output, leaves its position."""
    marked = [v for e in step.equations if isinstance(e.primitive, ETPPrimitive) for v in e.outputs]
    driven = analysis.reach(marked, boundary=bears_weight)
    starts = {leaf.input: own_positions(leaf) for leaf in leaves}
    ends: dict[Variable, Labels] = {}
    for leaf in leaves:
        if isinstance(leaf.output, Variable):
            ends[leaf.output] = join_labels(ends.get(leaf.output), own_positions(leaf))
    cuts: dict[Equation, frozenset[int]] = {}
    for _ in range(_MAX_ROUNDS):
        depends = analysis.forward(starts, boundary=bears_weight, cuts=cuts)
        round_ = _Round(depends, driven, cuts)
        reached = analysis.backward(ends, boundary=bears_weight, visit=round_.visit)
        new = round_.violations()
        if not new:
            space = PositionSpace(varshape, tuple(leaves), cuts, reached)
            return space, [_cut_diagnostic(analysis, leaves, e, kind) for e, kind in round_.kinds(cuts)]
        for equation, operands in new.items():
            cuts[equation] = cuts.get(equation, frozenset()) | operands
    raise CompilationError(
        f"the position analysis of the hidden states of shape {varshape} did not settle in {_MAX_ROUNDS} rounds; "
        f"simplify how the states mix, or mark the mixing with an operator."
    )


class _Round:
    """One backward pass: it collects the uses of every value and says which of them must be cut."""

    def __init__(self, depends: dict[Variable, Labels], driven: set[Variable], cuts: Cuts) -> None:
        self._depends, self._driven, self._cuts = depends, driven, cuts
        self._new: dict[Equation, frozenset[int]] = {}
        self._uses: dict[Variable, list[tuple[Equation, int, Labels]]] = {}

    def visit(self, equation: Equation, uses: dict[int, Labels]) -> list[int]:
        cut = list(self._cuts.get(equation, ()))
        for k, use in uses.items():
            operand = equation.inputs[k]
            if k in cut or not isinstance(operand, Variable):
                continue
            own = self._depends.get(operand)
            severed = own is None and operand in self._driven and is_irreversible(equation)
            if severed or (own is not None and np.any((own >= 0) & (use != NONE) & (use != own))):
                self._new[equation] = self._new.get(equation, frozenset()) | {k}
                cut.append(k)
            elif own is None and operand in self._driven:
                self._uses.setdefault(operand, []).append((equation, k, use))
        return cut

    def violations(self) -> dict[Equation, frozenset[int]]:
        """The cuts this round calls for; those of drives only once hidden data is clean."""
        if not self._new:
            for uses in self._uses.values():
                for equation, k in _conflicts(uses):
                    self._new[equation] = self._new.get(equation, frozenset()) | {k}
        return self._new

    def kinds(self, cuts: Cuts) -> list[tuple[Equation, DiagnosticKind]]:
        """Each cut equation with the class of its finding."""
        transition = {e for e, ks in cuts.items() if any(e.inputs[k] in self._depends for k in ks)}
        return [(e, DiagnosticKind.MIXED_TRANSITION if e in transition else DiagnosticKind.MIXED_TAIL) for e in cuts]


def _conflicts(uses: list[tuple[Equation, int, Labels]]) -> list[tuple[Equation, int]]:
    """The uses of one value that spread it over positions while another use keeps every element at one."""
    clean = [use for use in uses if not np.any(use[2] == MIXED)]
    if not clean or len(uses) == 1:
        return []
    kept = min(clean, key=lambda use: int(np.count_nonzero(use[2] != np.arange(use[2].size))))
    return [(equation, k) for equation, k, labels in uses if np.any(join_labels(kept[2], labels) == MIXED)]


def _cut_diagnostic(
    analysis: PositionAnalysis, leaves: Sequence[HiddenLeaf], equation: Equation, kind: DiagnosticKind
) -> Diagnostic:
    touched = analysis.reach(equation.outputs, boundary=bears_weight)
    names = ", ".join(leaf.name for leaf in leaves if leaf.output in touched)
    if is_irreversible(equation):
        return Diagnostic(
            kind=DiagnosticKind.NO_REVERSE_DERIVATIVE,
            level="warning",
            path=names,
            place=equation.source,
            message=(
                f"{equation.primitive.name} runs for a number of iterations that is not fixed, so no derivative can be "
                f"pulled through it to {names}: the traces leave this path out, and a gradient through it raises. Use "
                f"a loop of fixed length (jax.lax.scan, or jax.lax.fori_loop with static bounds)."
            ),
        )
    what = "hidden data" if kind is DiagnosticKind.MIXED_TRANSITION else "an operator's output"
    return Diagnostic(
        kind=kind,
        level="warning",
        path=names,
        place=equation.source,
        message=(
            f"{equation.primitive.name} carries {what} to other positions of {names}; the traces leave this path out. "
            f"Make it position-wise, or express the mixing with a marked operator; within a window it stays exact."
        ),
    )


def _couple(
    analysis: PositionAnalysis, space: PositionSpace
) -> list[tuple[tuple[HiddenLeaf, ...], tuple[tuple[bool, ...], ...]]]:
    """The connected components of the states, each with the pattern of its couplings."""
    leaves = space.leaves
    reach = [analysis.reach([leaf.input], boundary=bears_weight, cuts=space.cuts) for leaf in leaves]
    depends = np.array([[target.output in reach[j] for j in range(len(leaves))] for target in leaves], dtype=bool)
    component = list(range(len(leaves)))
    for i, j in zip(*np.nonzero(depends), strict=True):
        old, new = component[i], component[j]
        component = [new if c == old else c for c in component]
    found = []
    for c in dict.fromkeys(component):
        members = [i for i in range(len(leaves)) if component[i] == c]
        states = [i for i in members for _ in leaves[i].columns]
        coupling = tuple(tuple(bool(depends[a, b]) for b in states) for a in states)
        found.append((tuple(leaves[i] for i in members), coupling))
    return found
