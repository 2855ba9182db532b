"""The trace graph: what the compiler knows about one step of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from etp_algorithms._compiler._diagnostics import CompilationError, Diagnostic
from etp_algorithms._compiler._groups import HiddenGroup, find_hidden_groups
from etp_algorithms._compiler._positions import PositionAnalysis
from etp_algorithms._compiler._program import StepProgram
from etp_algorithms._compiler._relations import HiddenParamOpRelation, find_relations
from etp_algorithms._compiler._transitions import Transition, build_transition
from etp_algorithms._compiler._trust import ParameterTrust, judge_parameters
from etp_core import ETPPrimitive
from etp_core.jaxpr import Equation, Variable, contains

__all__ = ["TraceGraph", "compile_step"]


@dataclass(frozen=True, eq=False)
class TraceGraph:
    """Hidden groups, relations and transitions of one step.

    Attributes:
        step: the step as equations with roles.
        hidden_groups: the states that couple position by position.
        hidden_param_op_relations: the uses of marked operators that are learned forward in time.
        transitions: for each group the equations that its Jacobians need.
        trust: the verdict on every parameter array.
        diagnostics: what the compiler noticed.
    """

    step: StepProgram
    hidden_groups: tuple[HiddenGroup, ...]
    hidden_param_op_relations: tuple[HiddenParamOpRelation, ...]
    transitions: tuple[Transition, ...]
    trust: tuple[ParameterTrust, ...]
    diagnostics: tuple[Diagnostic, ...]

    @cached_property
    def probes(self) -> tuple[Variable, ...]:
        """The values of a step that the traces read."""
        found: dict[Variable, None] = {}
        for transition in self.transitions:
            if transition.links:
                found.update(dict.fromkeys(sorted(transition.probes, key=self._order.__getitem__)))
        for relation in self.hidden_param_op_relations:
            if isinstance(relation.x, Variable):
                found[relation.x] = None
        return tuple(found)

    @cached_property
    def _order(self) -> Mapping[Variable, int]:
        step = self.step
        inputs = [*step.arguments, *(leaf.input for leaf in (*step.parameters, *step.hidden, *step.others))]
        return {v: n for n, v in enumerate([*inputs, *(v for e in step.equations for v in e.outputs)])}


def compile_step(step: StepProgram, *, strict: bool = False) -> TraceGraph:
    """Run every pass over one step.

    Raises:
        CompilationError: a marked operator stands where no trace can follow it, or ``strict`` is set and
            some path had to be cut.
    """
    for equation in step.equations:
        _refuse_hidden_operator(equation)
    analysis = PositionAnalysis(step.equations)
    groups, spaces, cut = find_hidden_groups(step, analysis)
    relations, untraced, noticed = find_relations(step, analysis, groups, spaces)
    transitions = tuple(build_transition(step, g, spaces[g.space], relations) for g in groups)
    trust = judge_parameters(step, analysis, groups, spaces, relations, untraced)
    diagnostics = (*cut, *noticed)
    warnings = [d for d in diagnostics if d.level == "warning"]
    if strict and warnings:
        raise CompilationError("strict=True, and the compiler had to cut:\n" + "\n".join(f"- {d}" for d in warnings))
    return TraceGraph(step, groups, relations, transitions, trust, diagnostics)


def _refuse_hidden_operator(equation: Equation) -> None:
    if contains(equation, lambda inner: isinstance(inner.primitive, ETPPrimitive)):
        raise CompilationError(
            f"a marked operator stands inside {equation.primitive.name} ({equation.source}), where its traces cannot "
            f"be followed. Move the operator out of it, use jnp.where instead of cond, or use the plain operation there."
        )
