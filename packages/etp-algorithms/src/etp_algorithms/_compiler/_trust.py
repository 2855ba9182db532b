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
from etp_core import ETPPrimitive
from etp_core.jaxpr import Atom, Equation, Variable

__all__ = ["ParameterTrust", "Trust", "judge_parameters"]


class Trust(StrEnum):
    """How a parameter's gradient relates to backpropagation through time."""

    EXACT = "exact"
    """Equal, whatever the window."""
    FACTORISED = "factorised"
    """The trace is stored as a product of two low-pass filters (pp_prop)."""
    UNBIASED = "unbiased"
    """A random estimate whose mean is exact (UORO)."""
    BOOTSTRAPPED = "bootstrapped"
    """What lies beyond the window is predicted by a model that is learned along (DNI)."""
    FEEDBACK = "feedback"
    """Errors come back from the read-outs through random matrices."""
    MODULATED = "modulated"
    """A modulator takes the place of the loss."""
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
        self._analysis, self._spaces = analysis, spaces
        self._groups = groups
        results = [*step.outputs, *(leaf.output for leaf in step.memories)]
        read = {v for e in analysis.needed(results) for v in e.inputs} | set(results)
        self._live = [leaf for leaf in step.memories if leaf.input in read]
        self._ending: dict[Atom, list[int]] = {}
        for n, leaf in enumerate(self._live):
            self._ending.setdefault(leaf.output, []).append(n)
        self._remembered = analysis.influences(leaf.output for leaf in self._live)
        self._used = analysis.influences(results)
        self._space_of: dict[StateLeaf, int] = {leaf: n for n, space in enumerate(spaces) for leaf in space.leaves}
        self._tracing: dict[int, list[HiddenParamOpRelation]] = {}
        for r in relations:
            for number in sorted({n for o in r.operands.values() for n in o.parameters}):
                self._tracing.setdefault(number, []).append(r)
        self._group_leaks = [self._leaks([leaf.input for leaf in g.leaves], {g.index}) for g in groups]

    def verdict(self, number: int, leaf: StateLeaf, untraced: Mapping[Equation, str]) -> ParameterTrust:
        if leaf.input not in self._remembered:
            used = leaf.input in self._used
            trust, reason = (
                (Trust.EXACT, "no later step depends on it") if used else (Trust.UNUSED, "no output depends on it")
            )
            return ParameterTrust(leaf.path, trust, (reason,), ())
        traced = self._tracing.get(number, [])
        if not traced:
            return ParameterTrust(leaf.path, Trust.WINDOW, self._why_untraced(leaf, untraced), ())
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

    def _why_untraced(self, leaf: StateLeaf, untraced: Mapping[Equation, str]) -> tuple[str, ...]:
        reach = self._analysis.reach([leaf.input])
        marked = {
            equation: reason
            for equation, reason in untraced.items()
            if isinstance(equation.primitive, ETPPrimitive)
            and any(equation.inputs[k] in reach for k in equation.primitive.trainable_invars(equation.params).values())
        }
        reasons = dict.fromkeys(
            f"{reason} ({equation.primitive.name}, {equation.place})"
            for equation, reason in marked.items()
            if reason != NOT_TEMPORAL
        )
        if reasons:
            return tuple(reasons)
        if marked:
            return ("its operator reaches no hidden state, but a state that is remembered; make that a HiddenState",)
        return ("it reaches a hidden state through plain operations, not through a marked operator",)

    def _bypasses(self, number: int, leaf: StateLeaf, traced: Sequence[HiddenParamOpRelation]) -> list[_Leak]:
        """The memories that the parameter reaches without passing through its own traced operands."""
        cuts: Cuts = {
            r.equation: frozenset(
                r.primitive.trainable_invars(r.static)[key] for key, o in r.operands.items() if number in o.parameters
            )
            for r in traced
        }
        reach = self._analysis.reach([leaf.input], cuts=cuts)
        return [_Leak("also reaches a state past its marked operators", m.name) for m in self._ends_among(reach)]

    def _leaks(self, sources: list[Variable], captured: set[int]) -> list[_Leak]:
        """The ways in which ``sources`` influence later steps that the traces of ``captured`` groups leave out."""
        leaks: list[_Leak] = []
        followed = {self._groups[g].space for g in captured}
        leaves = {leaf for g in captured for leaf in self._groups[g].leaves}
        for number in sorted(followed) or [None]:
            cuts = self._spaces[number].cuts if number is not None else {}
            direct = self._analysis.reach(sources, boundary=bears_weight, cuts=cuts)
            for m in self._ends_among(direct):
                space = self._space_of.get(m)
                if m not in leaves and (space == number or space not in followed):
                    leaks.append(_Leak("flows into a state outside its group", m.name))
            touched = self._analysis.readers(direct)
            for equation in touched:
                mixing = any(equation.inputs[k] in direct for k in cuts.get(equation, ()))
                if mixing and self._survives(equation.outputs):
                    what = "has no reverse derivative" if is_irreversible(equation) else "mixes positions"
                    leaks.append(_Leak(f"{equation.primitive.name} {what}", equation.place))
            for equation in touched:
                if bears_weight(equation) and self._survives(equation.outputs):
                    leaks.append(_Leak(f"recurrence through {equation.primitive.name} is cut", equation.place))
        return leaks

    def _ends_among(self, variables: Iterable[Variable]) -> list[StateLeaf]:
        """The live memories whose new value is among ``variables``, in the model's order."""
        return [self._live[n] for n in sorted({n for v in variables for n in self._ending.get(v, ())})]

    def _survives(self, variables: Iterable[Variable]) -> bool:
        """Whether a later step can depend on ``variables``."""
        return any(v in self._remembered for v in variables)
