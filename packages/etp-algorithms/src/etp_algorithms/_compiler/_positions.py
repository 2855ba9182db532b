"""Position analysis: which position of a hidden group an element depends on, and which one it reaches.

Every value gets an array of *labels*, one per element: a flat position, ``NONE`` (independent) or ``MIXED``
(several positions). Labels are carried forward from hidden states and backward from them through the links
of each equation, so reshapes, transposes, slices, splits, concatenations, broadcasts and rolls are followed
exactly and nothing else is assumed.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from etp_algorithms._compiler._links import (
    OPAQUE,
    SEVERED,
    Branches,
    Gather,
    Link,
    Loop,
    Nested,
    Scatter,
    links_of,
    opaque_links,
    size_of,
)
from etp_core.jaxpr import Atom, Constant, Equation, Program, Variable, evaluate, is_differentiable, value_of

__all__ = ["MIXED", "NONE", "Cuts", "Labels", "PositionAnalysis", "join_labels"]

NONE, MIXED = -1, -2
Labels = np.ndarray
Cuts = Mapping[Equation, frozenset[int]]
Boundary = Callable[[Equation], bool]
_MAX_LOOP_ROUNDS = 32  # labels that still change then are MIXED
_MAX_DERIVATIVES = 4  # of primitives in the derivatives of primitives; a rule may lead to itself without end
_MAX_CONSTANT_EQUATIONS = 64  # index arithmetic of one gather; longer chains are data, not layout


def join_labels(a: Labels | None, b: Labels) -> Labels:
    """Element by element: the label both agree on, or the one that is not ``NONE``, else ``MIXED``."""
    if a is None or a is b:
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


def _over_slices(labels: Labels, length: int) -> Labels:
    """The join of the ``length`` leading slices."""
    if not length:
        return np.full(0, NONE, np.int64)
    rows = labels.reshape(length, -1)
    low = np.where(rows == NONE, np.iinfo(np.int64).max, rows).min(0)  # MIXED is lower than any position
    high = rows.max(0)
    return np.where(high < 0, np.where(low == MIXED, MIXED, NONE), np.where(low == high, high, MIXED))


def _take(labels: Labels, index: np.ndarray) -> Labels:
    if labels.size == 0:
        return np.full(index.shape, NONE, np.int64)
    return np.where(index >= 0, labels[np.maximum(index, 0)], NONE)


class PositionAnalysis:
    """Labels over one sequence of equations; links are computed once and shared by every pass.

    Every walk visits the equations it reaches and no others.
    """

    def __init__(self, equations: Sequence[Equation], derivatives: int = 0) -> None:
        self.equations = tuple(equations)
        self._derivatives = derivatives
        self._links: dict[Equation, dict[tuple[int, int], Link]] = {}
        self._nested: dict[Program, PositionAnalysis] = {}
        self._producers: dict[Variable, int] = {}
        self._readers: dict[Variable, list[int]] = {}
        for n, equation in enumerate(self.equations):
            self._producers.update(dict.fromkeys(equation.outputs, n))
            for v in dict.fromkeys(a for a in equation.inputs if isinstance(a, Variable)):
                self._readers.setdefault(v, []).append(n)

    def links(self, equation: Equation) -> dict[tuple[int, int], Link]:
        """The links of ``equation``."""
        if equation not in self._links:
            too_deep = self._derivatives > _MAX_DERIVATIVES
            found = opaque_links(equation) if too_deep else links_of(equation, self.constant)
            link = next(iter(found.values()), None)
            if isinstance(link, (Branches, Loop)):
                inside = {k: self._reach_inside(link, k) for k in {k for k, _ in found}}
                found = {(k, m): link for k, m in found if m in inside[k]}
            self._links[equation] = found
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

    def needed(
        self, outputs: Iterable[Atom], given: Iterable[Variable] = (), *, boundary: Boundary = lambda _: False
    ) -> list[Equation]:
        """The equations, in order, that ``outputs`` depend on.

        Args:
            outputs: what is wanted.
            given: variables that count as inputs.
            boundary: equations whose outputs count as inputs.
        """
        stop = set(given)
        stack = [v for v in outputs if isinstance(v, Variable) and v not in stop]
        found: set[int] = set()
        while stack:
            n = self._producers.get(stack.pop())
            if n is not None and n not in found and not boundary(self.equations[n]):
                found.add(n)
                stack += [v for v in self.equations[n].inputs if isinstance(v, Variable) and v not in stop]
        return [self.equations[n] for n in sorted(found)]

    def readers(self, variables: Iterable[Variable]) -> list[Equation]:
        """The equations, in order, that read any of ``variables``."""
        return [self.equations[n] for n in sorted({n for v in variables for n in self._readers.get(v, ())})]

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
        stack = list(reached)
        while stack:
            variable = stack.pop()
            for n in self._readers.get(variable, ()):
                equation = self.equations[n]
                if boundary(equation):
                    continue
                cut = cuts.get(equation, frozenset()) if cuts else frozenset()
                for k, m in self.links(equation):
                    output = equation.outputs[m]
                    if equation.inputs[k] is variable and k not in cut and output not in reached:
                        reached.add(output)
                        stack.append(output)
        return reached

    def influences(self, targets: Iterable[Atom]) -> set[Variable]:
        """Every variable with respect to which ``targets`` can have a derivative; the targets included."""
        found = {v for v in targets if isinstance(v, Variable)}
        stack = list(found)
        while stack:
            variable = stack.pop()
            n = self._producers.get(variable)
            if n is None:
                continue
            equation = self.equations[n]
            for k, m in self.links(equation):
                operand = equation.inputs[k]
                if equation.outputs[m] is variable and isinstance(operand, Variable) and operand not in found:
                    found.add(operand)
                    stack.append(operand)
        return found

    def forward(
        self, seeds: Mapping[Variable, Labels], *, boundary: Boundary = lambda _: False, cuts: Cuts | None = None
    ) -> dict[Variable, Labels]:
        """The label of the seed element that each element depends on."""
        labels: dict[Variable, Labels] = dict(seeds)
        queue = _Queue(n for v in seeds for n in self._readers.get(v, ()))
        for n in queue:
            equation = self.equations[n]
            if boundary(equation):
                continue
            cut = cuts.get(equation, frozenset()) if cuts else frozenset()
            given = {
                k: labels[atom]
                for k, atom in enumerate(equation.inputs)
                if isinstance(atom, Variable) and atom in labels and k not in cut
            }
            for m, pushed in self._push_all(equation, given).items():
                output = equation.outputs[m]
                labels[output] = join_labels(labels.get(output), pushed)
                queue.add(self._readers.get(output, ()))
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
        queue = _Queue(-self._producers[v] for v in seeds if v in self._producers)
        for n in queue:
            equation = self.equations[-n]
            if boundary(equation):
                continue
            uses = self._pull_all(equation, {m: labels[v] for m, v in enumerate(equation.outputs) if v in labels})
            cut = set(visit(equation, uses))
            for k, use in uses.items():
                operand = equation.inputs[k]
                if k not in cut and isinstance(operand, Variable):
                    labels[operand] = join_labels(labels.get(operand), use)
                    if operand in self._producers:
                        queue.add([-self._producers[operand]])
        return labels

    def _inside(self, program: Program, *, derivative: bool = False) -> "PositionAnalysis":
        if program not in self._nested:
            self._nested[program] = PositionAnalysis(program.equations, self._derivatives + derivative)
        return self._nested[program]

    # --- through one equation --------------------------------------------------------------------------------

    def _push_all(self, equation: Equation, given: Mapping[int, Labels]) -> dict[int, Labels]:
        """Labels of operands carried to the outputs they reach."""
        pairs = {(k, m): link for (k, m), link in self.links(equation).items() if k in given}
        whole = next(iter(pairs.values()), None)
        if isinstance(whole, (Branches, Loop)):
            inside = {k: given[k] for k, _ in pairs}
            branches = isinstance(whole, Branches)
            outputs = self._through_branches(whole, inside) if branches else self._through_loop(whole, inside)
            return {m: outputs[m] for m in dict.fromkeys(m for _, m in pairs)}
        found: dict[int, Labels] = {}
        for (k, m), link in pairs.items():
            found[m] = join_labels(found.get(m), self._push(link, given[k], size_of(equation.outputs[m])))
        return found

    def _pull_all(self, equation: Equation, given: Mapping[int, Labels]) -> dict[int, Labels]:
        """Labels of outputs carried back to the operands that reach them."""
        pairs = {(k, m): link for (k, m), link in self.links(equation).items() if m in given}
        whole = next(iter(pairs.values()), None)
        if isinstance(whole, (Branches, Loop)):
            inside = {m: given[m] for _, m in pairs}
            branches = isinstance(whole, Branches)
            inputs = self._back_through_branches(whole, inside) if branches else self._back_through_loop(whole, inside)
            return {k: inputs[k] for k in dict.fromkeys(k for k, _ in pairs)}
        found: dict[int, Labels] = {}
        for (k, m), link in pairs.items():
            found[k] = join_labels(found.get(k), self._pull(link, given[m], size_of(equation.inputs[k])))
        return found

    def _push(self, link: Link, labels: Labels, size: int) -> Labels:
        if isinstance(link, Gather):
            return labels if link.source is None else _take(labels, link.source)
        if isinstance(link, Scatter):
            return _collect(labels, link.target, size)
        if isinstance(link, Nested):
            return self._out_of(link, labels) if link.transposed else self._into(link, labels)
        return _opaque(link, labels, size)

    def _pull(self, link: Link, labels: Labels, size: int) -> Labels:
        if isinstance(link, Gather):
            return labels if link.source is None else _collect(labels, link.source, size)
        if isinstance(link, Scatter):
            return _take(labels, link.target)
        if isinstance(link, Nested):
            return self._into(link, labels) if link.transposed else self._out_of(link, labels)
        return _opaque(link, labels, size)

    def _into(self, link: Nested, labels: Labels) -> Labels:
        """Labels of the program's input carried to its output."""
        inner = self._inside(link.program, derivative=True).forward({link.program.inputs[link.input]: labels})
        return _label_of(link.program.outputs[link.output], inner)

    def _out_of(self, link: Nested, labels: Labels) -> Labels:
        """Labels of the program's output carried back to its input."""
        output, start = link.program.outputs[link.output], link.program.inputs[link.input]
        if not isinstance(output, Variable) or not is_differentiable(output):
            return np.full(size_of(start), NONE, np.int64)
        inner = self._inside(link.program, derivative=True)
        found = inner.backward({output: labels}, boundary=lambda e: e not in link.carrying)
        return _label_of(start, found)

    # --- through control flow --------------------------------------------------------------------------------

    def _reach_inside(self, link: Branches | Loop, operand: int) -> set[int]:
        """The outputs that one operand of control flow reaches."""
        if isinstance(link, Branches):
            return {m for p in link.programs for m in self._outputs_reached(p, {operand - 1})} if operand else set()
        scan, sources = link.scan, {operand}
        while True:
            outputs = self._outputs_reached(scan.body, sources)
            fed = {scan.consts + m for m in outputs if m < scan.carries}
            if fed <= sources:
                passed = operand - scan.consts  # the carry itself, where there is no iteration
                return outputs | {passed} if 0 <= passed < scan.carries else outputs
            sources |= fed

    def _outputs_reached(self, program: Program, inputs: set[int]) -> set[int]:
        reached = self._inside(program).reach([program.inputs[i] for i in sorted(inputs)])
        return {m for m, atom in enumerate(program.outputs) if atom in reached}

    def _through_branches(self, link: Branches, given: Mapping[int, Labels]) -> list[Labels]:
        results = [self._run_forward(p, {k - 1: labels for k, labels in given.items()}) for p in link.programs]
        return [_join_all(labels) for labels in zip(*results, strict=True)]

    def _back_through_branches(self, link: Branches, given: Mapping[int, Labels]) -> dict[int, Labels]:
        results = [self._run_backward(p, given) for p in link.programs]
        return {k + 1: _join_all(labels) for k, labels in enumerate(zip(*results, strict=True))}

    def _through_loop(self, link: Loop, given: Mapping[int, Labels]) -> list[Labels]:
        scan = link.scan
        first = scan.consts + scan.carries
        seeds = {k: _over_slices(labels, scan.length) if k >= first else labels for k, labels in given.items()}

        def iterate(seeds: dict[int, Labels]) -> tuple[list[Labels], dict[int, Labels]]:
            outputs = self._run_forward(scan.body, seeds)
            return outputs, {scan.consts + m: outputs[m] for m in range(scan.carries)}

        outputs, _ = _settle(iterate, seeds)
        if not scan.length:
            outputs = [given.get(scan.consts + m, outputs[m]) for m in range(scan.carries)] + outputs[scan.carries :]
        return [np.tile(labels, scan.length) if m >= scan.carries else labels for m, labels in enumerate(outputs)]

    def _back_through_loop(self, link: Loop, given: Mapping[int, Labels]) -> dict[int, Labels]:
        scan = link.scan
        seeds = {m: _over_slices(labels, scan.length) if m >= scan.carries else labels for m, labels in given.items()}

        def iterate(seeds: dict[int, Labels]) -> tuple[list[Labels], dict[int, Labels]]:
            inputs = self._run_backward(scan.body, seeds)
            return inputs, {m: inputs[scan.consts + m] for m in range(scan.carries)}

        inputs, _ = _settle(iterate, seeds)
        if not scan.length:
            for m in range(scan.carries):
                inputs[scan.consts + m] = given.get(m, inputs[scan.consts + m])
        first = scan.consts + scan.carries
        return {k: np.tile(labels, scan.length) if k >= first else labels for k, labels in enumerate(inputs)}

    def _run_forward(self, program: Program, given: Mapping[int, Labels]) -> list[Labels]:
        labels = self._inside(program).forward({program.inputs[k]: label for k, label in given.items()})
        return [_label_of(atom, labels) for atom in program.outputs]

    def _run_backward(self, program: Program, given: Mapping[int, Labels]) -> list[Labels]:
        seeds: dict[Variable, Labels] = {}
        for m, labels in given.items():
            atom = program.outputs[m]
            if isinstance(atom, Variable) and is_differentiable(atom):
                seeds[atom] = join_labels(seeds.get(atom), labels)
        found = self._inside(program).backward(seeds)
        return [_label_of(v, found) for v in program.inputs]


class _Queue:
    """Numbers in ascending order, each once, while more are added."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._heap: list[int] = []
        self._seen: set[int] = set()
        self.add(numbers)

    def add(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            if n not in self._seen:
                self._seen.add(n)
                heapq.heappush(self._heap, n)

    def __iter__(self) -> Iterator[int]:
        while self._heap:
            yield heapq.heappop(self._heap)


def _settle(
    iterate: Callable[[dict[int, Labels]], tuple[list[Labels], dict[int, Labels]]], seeds: dict[int, Labels]
) -> tuple[list[Labels], dict[int, Labels]]:
    """Feed what an iteration hands to the next one back to it until nothing changes."""
    fed: dict[int, Labels] = {}
    for _ in range(_MAX_LOOP_ROUNDS):
        results, fed = iterate(seeds)
        joined = {**seeds, **{k: join_labels(seeds.get(k), labels) for k, labels in fed.items()}}
        if all(_same(seeds.get(k), labels) for k, labels in joined.items()):
            return results, joined
        seeds = joined
    worst = {k: np.full(labels.size, MIXED, np.int64) if k in fed else labels for k, labels in seeds.items()}
    return iterate(worst)


def _same(a: Labels | None, b: Labels) -> bool:
    return bool(np.all(b == NONE)) if a is None else np.array_equal(a, b)


def _join_all(labels: Iterable[Labels]) -> Labels:
    found: Labels | None = None
    for other in labels:
        found = join_labels(found, other)
    assert found is not None
    return found


def _opaque(link: Link, labels: Labels, size: int) -> Labels:
    if link is SEVERED:
        return np.full(size, MIXED, np.int64)
    assert link is OPAQUE
    return _common(labels, size)


def _label_of(atom: Atom, labels: Mapping[Variable, Labels]) -> Labels:
    found = labels.get(atom) if isinstance(atom, Variable) else None
    return np.full(size_of(atom), NONE, np.int64) if found is None else found
