"""Position analysis: which position of a hidden group an element depends on, and which one it reaches.

Every value gets an array of *labels*, one per element: a flat position, ``NONE`` (independent) or ``MIXED``
(several positions). Labels are carried forward from hidden states and backward from them through the links
of each equation, so reshapes, transposes, slices, splits, concatenations, broadcasts and rolls are followed
exactly and nothing else is assumed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from etp_algorithms._compiler._links import OPAQUE, Gather, Link, Nested, Scatter, links_of, size_of
from etp_core.jaxpr import Atom, Constant, Equation, Program, Variable, evaluate, is_differentiable, value_of

__all__ = ["MIXED", "NONE", "Cuts", "Labels", "PositionAnalysis", "join_labels"]

NONE, MIXED = -1, -2
Labels = np.ndarray
Cuts = Mapping[Equation, frozenset[int]]
Boundary = Callable[[Equation], bool]
_MAX_CONSTANT_EQUATIONS = 64  # index arithmetic of one gather; longer chains are data, not layout


def join_labels(a: Labels | None, b: Labels) -> Labels:
    """Element by element: the label both agree on, or the one that is not ``NONE``, else ``MIXED``."""
    if a is None:
        return b
    return np.where(a == NONE, b, np.where((b == NONE) | (a == b), a, MIXED))


def _collect(labels: Labels, index: np.ndarray, size: int) -> Labels:
    """Write ``labels`` to the slots ``index``; a slot that receives different labels is ``MIXED``."""
    out = np.full(size, NONE, np.int64)
    valid = (labels != NONE) & (index >= 0)
    slots, values = index[valid], labels[valid]
    out[slots] = values
    out[slots[out[slots] != values]] = MIXED
    return out


def _common(labels: Labels, size: int) -> Labels:
    """The one label that all elements share, spread over ``size`` elements."""
    present = np.unique(labels[labels != NONE])
    label = NONE if present.size == 0 else present[0] if present.size == 1 else MIXED
    return np.full(size, label, np.int64)


def _take(labels: Labels, index: np.ndarray) -> Labels:
    return np.where(index >= 0, labels[np.maximum(index, 0)], NONE)


class PositionAnalysis:
    """Labels over one sequence of equations; links are computed once and shared by every pass."""

    def __init__(self, equations: Sequence[Equation]) -> None:
        self.equations = tuple(equations)
        self._links: dict[Equation, dict[tuple[int, int], Link]] = {}
        self._nested: dict[Program, PositionAnalysis] = {}
        self._producers = {v: n for n, equation in enumerate(self.equations) for v in equation.outputs}

    def links(self, equation: Equation) -> dict[tuple[int, int], Link]:
        """The links of ``equation``."""
        if equation not in self._links:
            self._links[equation] = links_of(equation, self.constant)
        return self._links[equation]

    def constant(self, atom: Atom) -> Any | None:
        """The value of an atom that no input of the program influences, else None."""
        if isinstance(atom, Constant):
            return None if isinstance(atom.value, jax.core.Tracer) else atom.value
        producers, stack = set[int](), [atom]
        while stack:
            n = self._producers.get(stack.pop())
            if n is None or len(producers) > _MAX_CONSTANT_EQUATIONS:
                return None
            if n not in producers:
                producers.add(n)
                stack += [v for v in self.equations[n].inputs if isinstance(v, Variable)]
        with jax.ensure_compile_time_eval():
            return value_of(atom, evaluate([self.equations[n] for n in sorted(producers)], {}))

    def reach(
        self, sources: Iterable[Variable], *, boundary: Boundary = lambda _: False, cuts: Cuts | None = None
    ) -> set[Variable]:
        """Every variable that a derivative with respect to ``sources`` can reach.

        Args:
            sources: the starting variables, included in the result.
            boundary: equations that are not crossed.
            cuts: operands through which no derivative passes.
        """
        reached = set(sources)
        for equation in self.equations:
            if not any(isinstance(a, Variable) and a in reached for a in equation.inputs) or boundary(equation):
                continue
            cut = cuts.get(equation, frozenset()) if cuts else frozenset()
            for k, m in self.links(equation):
                if k not in cut and equation.inputs[k] in reached:
                    reached.add(equation.outputs[m])
        return reached

    def forward(
        self, seeds: Mapping[Variable, Labels], *, boundary: Boundary = lambda _: False, cuts: Cuts | None = None
    ) -> dict[Variable, Labels]:
        """The label of the seed element that each element depends on."""
        labels: dict[Variable, Labels] = dict(seeds)
        for equation in self.equations:
            if not any(isinstance(a, Variable) and a in labels for a in equation.inputs) or boundary(equation):
                continue
            cut = cuts.get(equation, frozenset()) if cuts else frozenset()
            for (k, m), link in self.links(equation).items():
                operand, output = equation.inputs[k], equation.outputs[m]
                if k not in cut and isinstance(operand, Variable) and operand in labels:
                    pushed = self._push(link, labels[operand], size_of(output))
                    labels[output] = join_labels(labels.get(output), pushed)
        return labels

    def backward(
        self,
        seeds: Mapping[Variable, Labels],
        *,
        boundary: Boundary = lambda _: False,
        visit: Callable[[Equation, dict[int, Labels]], Iterable[int]] = lambda *_: (),
    ) -> dict[Variable, Labels]:
        """The label of the seed element that each element reaches.

        Args:
            seeds: labels of final values.
            boundary: equations that are not crossed.
            visit: called with an equation and the labels that each operand reaches through it; returns the
                operands to cut, whose labels are not carried on.
        """
        labels: dict[Variable, Labels] = dict(seeds)
        for equation in reversed(self.equations):
            if not any(v in labels for v in equation.outputs) or boundary(equation):
                continue
            uses: dict[int, Labels] = {}
            for (k, m), link in self.links(equation).items():
                if equation.outputs[m] in labels:
                    pulled = self._pull(link, labels[equation.outputs[m]], size_of(equation.inputs[k]))
                    uses[k] = join_labels(uses.get(k), pulled)
            cut = set(visit(equation, uses))
            for k, use in uses.items():
                operand = equation.inputs[k]
                if k not in cut and isinstance(operand, Variable):
                    labels[operand] = join_labels(labels.get(operand), use)
        return labels

    def _inside(self, program: Program) -> "PositionAnalysis":
        if program not in self._nested:
            self._nested[program] = PositionAnalysis(program.equations)
        return self._nested[program]

    def _push(self, link: Link, labels: Labels, size: int) -> Labels:
        if isinstance(link, Gather):
            return labels if link.source is None else _take(labels, link.source)
        if isinstance(link, Scatter):
            return _collect(labels, link.target, size)
        if link is OPAQUE:
            return _common(labels, size)
        assert isinstance(link, Nested)
        return self._out_of(link, labels) if link.transposed else self._into(link, labels)

    def _pull(self, link: Link, labels: Labels, size: int) -> Labels:
        if isinstance(link, Gather):
            return labels if link.source is None else _collect(labels, link.source, size)
        if isinstance(link, Scatter):
            return _take(labels, link.target)
        if link is OPAQUE:
            return _common(labels, size)
        assert isinstance(link, Nested)
        return self._into(link, labels) if link.transposed else self._out_of(link, labels)

    def _into(self, link: Nested, labels: Labels) -> Labels:
        """Labels of the program's input carried to its output."""
        inner = self._inside(link.program).forward({link.program.inputs[link.input]: labels})
        return _label_of(link.program.outputs[link.output], inner)

    def _out_of(self, link: Nested, labels: Labels) -> Labels:
        """Labels of the program's output carried back to its input."""
        output, start = link.program.outputs[link.output], link.program.inputs[link.input]
        if not isinstance(output, Variable) or not is_differentiable(output):
            return np.full(size_of(start), NONE, np.int64)
        return _label_of(start, self._inside(link.program).backward({output: labels}))


def _label_of(atom: Atom, labels: Mapping[Variable, Labels]) -> Labels:
    found = labels.get(atom) if isinstance(atom, Variable) else None
    return np.full(size_of(atom), NONE, np.int64) if found is None else found
