"""The trace graph: what the compiler knows about one step of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from etp_algorithms._advice import GRAPH_ATTRIBUTES
from etp_algorithms._compiler._adjacency import GroupAdjacency, find_adjacencies
from etp_algorithms._compiler._diagnostics import CompilationError, Diagnostic
from etp_algorithms._compiler._exit_plan import ExitPlan, plan_exits
from etp_algorithms._compiler._groups import HiddenGroup, find_hidden_groups
from etp_algorithms._compiler._irreversible import name_irreversible_loops
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._compiler._positions import PositionAnalysis
from etp_algorithms._compiler._products import PlainProduct, find_products
from etp_algorithms._compiler._program import StepProgram
from etp_algorithms._compiler._relations import HiddenParamOpRelation, find_relations
from etp_algorithms._compiler._splits import slice_splits
from etp_algorithms._compiler._straighten import straighten
from etp_algorithms._compiler._transitions import Transition, build_transitions
from etp_algorithms._compiler._trust import ParameterTrust, judge_parameters
from etp_core.arguments import no_attribute
from etp_core.jaxpr import Variable

__all__ = ["TraceGraph", "compile_step"]


@dataclass(frozen=True, eq=False)
class TraceGraph:
    """Hidden groups, relations and transitions of one step.

    Attributes:
        step: the step as equations with roles.
        hidden_groups: the states that couple position by position.
        hidden_param_op_relations: the uses of marked operators that are learned forward in time.
        operators: the uses of marked operators on parameters: the relations, then those without a trace.
        transitions: for each group the equations that its Jacobians need.
        trust: the verdict on every parameter array.
        diagnostics: what the compiler noticed.
    """

    step: StepProgram
    hidden_groups: tuple[HiddenGroup, ...]
    hidden_param_op_relations: tuple[HiddenParamOpRelation, ...]
    operators: tuple[HiddenParamOpRelation, ...]
    transitions: tuple[Transition, ...]
    trust: tuple[ParameterTrust, ...]
    diagnostics: tuple[Diagnostic, ...]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, GRAPH_ATTRIBUTES)

    @cached_property
    def probes(self) -> tuple[Variable, ...]:
        """The values of a step that the traces read."""
        found: dict[Variable, None] = {}
        for transition in self.transitions:
            if transition.links:
                found.update(dict.fromkeys(sorted(transition.probes, key=self._order.__getitem__)))
        for operator in self.operators:
            if isinstance(operator.x, Variable):
                found[operator.x] = None
        return tuple(found)

    @cached_property
    def exit_plan(self) -> ExitPlan:
        """The order of evaluation that tells the new states of one group from another."""
        return plan_exits(self.step, self.hidden_groups)

    @cached_property
    def products(self) -> tuple[PlainProduct, ...]:
        """The products with weights that are not marked."""
        return find_products(self.step)

    @cached_property
    def adjacencies(self) -> tuple[GroupAdjacency, ...]:
        """Which positions of every group depend on which in one step, every way counted."""
        with jax.ensure_compile_time_eval():  # asked for while a step is being traced
            return find_adjacencies(self.step, self.hidden_groups)

    @cached_property
    def _order(self) -> Mapping[Variable, int]:
        step = self.step
        inputs = [*step.arguments, *(leaf.input for leaf in (*step.parameters, *step.hidden, *step.others))]
        return {v: n for n, v in enumerate([*inputs, *(v for e in step.equations for v in e.outputs)])}


def compile_step(
    step: StepProgram, *, strict: bool = False, control_flow: ControlFlowPolicy | None = None
) -> TraceGraph:
    """Run every pass over one step.

    Args:
        step: the step as captured.
        strict: raise where a path has to be left out of the traces.
        control_flow: limits of the pass that lays out control flow with marked operators; None for the defaults.

    Raises:
        CompilationError: a marked operator stands where no trace can follow it or drives a complex state, or
            ``strict`` is set and some path had to be cut.
    """
    step = slice_splits(name_irreversible_loops(straighten(step, control_flow or ControlFlowPolicy())))
    analysis = PositionAnalysis(step.equations)
    groups, spaces, cut = find_hidden_groups(step, analysis)
    operators, untraced, noticed = find_relations(step, analysis, groups, spaces)
    relations = tuple(operator for operator in operators if operator.links)
    _refuse_complex_states(groups, relations)
    transitions = build_transitions(analysis, groups, spaces, relations)
    trust = judge_parameters(step, analysis, groups, spaces, relations, untraced)
    diagnostics = (*cut, *noticed)
    warnings = [d for d in diagnostics if d.level == "warning"]
    if strict and warnings:
        raise CompilationError("strict=True, and the compiler had to cut:\n" + "\n".join(f"- {d}" for d in warnings))
    return TraceGraph(step, groups, relations, operators, transitions, trust, diagnostics)


def _refuse_complex_states(groups: tuple[HiddenGroup, ...], relations: tuple[HiddenParamOpRelation, ...]) -> None:
    for relation in relations:
        for leaf in (leaf for link in relation.links for leaf in groups[link.group].leaves):
            if jnp.issubdtype(leaf.input.aval.dtype, jnp.complexfloating):
                raise CompilationError(
                    f"the hidden state {leaf.name} is {leaf.input.aval.dtype.name}, and {relation.primitive.name} "
                    f"({relation.equation.source}) drives it; traces are real. Keep its real and imaginary parts as "
                    f"two hidden states; they couple position by position and are learned exactly."
                )
