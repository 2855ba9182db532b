"""Trust: what each parameter's gradient will contain, decided from the graph alone.

A parameter is ``exact`` when every path on which it can influence a later step runs through a traced
relation into a group whose per-position recurrence is complete. Anything else is named with its reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from etp_algorithms._compiler._groups import HiddenGroup, PositionSpace, bears_weight
from etp_algorithms._compiler._links import is_irreversible
from etp_algorithms._compiler._positions import Cuts, PositionAnalysis
from etp_algorithms._compiler._program import StateLeaf, StepProgram
from etp_algorithms._compiler._relations import NOT_TEMPORAL, HiddenParamOpRelation
from etp_core.jaxpr import Equation, Variable, needed

__all__ = ["ParameterTrust", "Trust", "judge_parameters"]


class Trust(StrEnum):
    """How a parameter's gradient relates to backpropagation through time."""

    EXACT = "exact"
    """Equal, whatever the window."""
    FACTORISED = "factorised"
    """The trace is stored as a product of two low-pass filters (pp_prop)."""
    DIAGONAL = "diagonal"
    """Some influence on later steps is left out of the trace."""
    WINDOW = "window"
    """No trace: only influence within a window counts."""
    UNUSED = "unused"
    """The step does not depend on it."""


@dataclass(frozen=True, slots=True)
class ParameterTrust:
    """The verdict on one parameter array.

    Attributes:
        path: the path of the array.
        trust: the grade.
        reasons: what lowers the grade, or why the parameter needs no trace.
        relations: the numbers of the relations that trace it.
    """

    path: tuple[object, ...]
    trust: Trust
    reasons: tuple[str, ...]
    relations: tuple[int, ...]

    @property
    def name(self) -> str:
        """The path in dotted form."""
        return ".".join(str(part) for part in self.path)


def judge_parameters(
    step: StepProgram,
    analysis: PositionAnalysis,
    groups: Sequence[HiddenGroup],
    spaces: Sequence[PositionSpace],
    relations: Sequence[HiddenParamOpRelation],
    untraced: Mapping[Equation, str],
) -> tuple[ParameterTrust, ...]:
    """Grade every parameter array of the step."""
    judge = _Judge(step, analysis, groups, spaces, relations)
    return tuple(judge.verdict(n, leaf, untraced) for n, leaf in enumerate(step.parameters))


class _Leak(NamedTuple):
    """A way past the traces, and the state or the place where it happens."""

    what: str
    where: str


def _sentences(leaks: Sequence[_Leak]) -> tuple[str, ...]:
    """One sentence per kind of leak, with every place once."""
    places: dict[str, dict[str, None]] = {}
    for leak in leaks:
        places.setdefault(leak.what, {})[leak.where] = None
    return tuple(f"{what} ({', '.join(where)})" for what, where in places.items())


class _Judge:
    def __init__(
        self,
        step: StepProgram,
        analysis: PositionAnalysis,
        groups: Sequence[HiddenGroup],
        spaces: Sequence[PositionSpace],
        relations: Sequence[HiddenParamOpRelation],
    ) -> None:
        self._step, self._analysis, self._spaces = step, analysis, spaces
        self._groups, self._relations = groups, relations
        results = [*step.outputs, *(leaf.output for leaf in step.memories)]
        read = {v for e in needed(step.equations, results) for v in e.inputs} | set(results)
        self._live = [leaf for leaf in step.memories if leaf.input in read]
        self._group_leaks = [self._leaks([leaf.input for leaf in g.leaves], {g.index}) for g in groups]

    def verdict(self, number: int, leaf: StateLeaf, untraced: Mapping[Equation, str]) -> ParameterTrust:
        reach = self._analysis.reach([leaf.input])
        remembered = [m for m in self._live if m.output in reach]
        if not remembered:
            used = any(atom in reach for atom in self._step.outputs) or any(
                m.output in reach for m in self._step.memories
            )
            trust, reason = (
                (Trust.EXACT, "no later step depends on it") if used else (Trust.UNUSED, "no output depends on it")
            )
            return ParameterTrust(leaf.path, trust, (reason,), ())
        traced = [r for r in self._relations if any(number in o.parameters for o in r.operands.values())]
        if not traced:
            return ParameterTrust(leaf.path, Trust.WINDOW, self._why_untraced(leaf, reach, untraced), ())
        leaks = [
            leak
            for relation in traced
            for leak in (
                *self._leaks([relation.y], {link.group for link in relation.links}),
                *(leak for link in relation.links for leak in self._group_leaks[link.group]),
            )
        ]
        leaks += self._bypasses(number, leaf, traced)
        trust = Trust.DIAGONAL if leaks else Trust.EXACT
        return ParameterTrust(leaf.path, trust, _sentences(leaks), tuple(r.index for r in traced))

    def _why_untraced(self, leaf: StateLeaf, reach: set[Variable], untraced: Mapping[Equation, str]) -> tuple[str, ...]:
        reasons = dict.fromkeys(
            f"{reason} ({equation.primitive.name}, {equation.place})"
            for equation, reason in untraced.items()
            if reason != NOT_TEMPORAL
            and any(equation.inputs[k] in reach for k in equation.primitive.trainable_invars(equation.params).values())
        )
        return tuple(reasons) or ("it reaches a hidden state through plain operations, not through a marked operator",)

    def _bypasses(self, number: int, leaf: StateLeaf, traced: Sequence[HiddenParamOpRelation]) -> list[_Leak]:
        """The memories that the parameter reaches without passing through its own traced operands."""
        cuts: Cuts = {
            r.equation: frozenset(
                r.primitive.trainable_invars(r.static)[key] for key, o in r.operands.items() if number in o.parameters
            )
            for r in traced
        }
        reach = self._analysis.reach([leaf.input], cuts=cuts)
        return [
            _Leak("also reaches a state past its marked operators", m.name) for m in self._live if m.output in reach
        ]

    def _leaks(self, sources: list[Variable], captured: set[int]) -> list[_Leak]:
        """The ways in which ``sources`` influence later steps that the traces of ``captured`` groups leave out."""
        leaks: list[_Leak] = []
        followed = {self._groups[g].space for g in captured}
        leaves = {leaf for g in captured for leaf in self._groups[g].leaves}
        for number in sorted(followed) or [None]:
            cuts = self._spaces[number].cuts if number is not None else {}
            direct = self._analysis.reach(sources, boundary=bears_weight, cuts=cuts)
            for m in self._live:
                in_space = number is not None and m in self._spaces[number].leaves
                if m not in leaves and m.output in direct and (in_space or not self._in_spaces(m, followed)):
                    leaks.append(_Leak("flows into a state outside its group", m.name))
            for equation, operands in cuts.items():
                if any(equation.inputs[k] in direct for k in operands) and self._survives(equation.outputs):
                    what = "has no reverse derivative" if is_irreversible(equation) else "mixes positions"
                    leaks.append(_Leak(f"{equation.primitive.name} {what}", equation.place))
            for equation in self._step.equations:
                crossed = bears_weight(equation) and any(a in direct for a in equation.inputs)
                if crossed and self._survives(equation.outputs):
                    leaks.append(_Leak(f"recurrence through {equation.primitive.name} is cut", equation.place))
        return leaks

    def _in_spaces(self, leaf: StateLeaf, numbers: Iterable[int]) -> bool:
        return any(leaf in self._spaces[n].leaves for n in numbers)

    def _survives(self, variables: Iterable[Variable]) -> bool:
        """Whether a later step can depend on ``variables``."""
        reach = self._analysis.reach(variables)
        return any(m.output in reach for m in self._live)
