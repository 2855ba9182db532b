"""Signals at the entry of single steps, credited to the step before.

Let ``s_t`` be the cotangent of the states that enter step ``t``, ``ȳ_t`` that of an operator's output, and ``e_t`` that
of the new states where anything but their own group reads them. What of the first two does not pass through ``e_t``,

    w_t = s_t − D_tᵀ e_t ,      o_t = ȳ_t − Df_tᵀ e_t ,

is all that need be recorded, because a sweep finds the rest: with ``μ_t`` the whole credit of the new states,

    μ_t−1 = (e_t−1 + w_t) + D_tᵀ μ_t ,      ∂L/∂y_t = o_t + Df_tᵀ μ_t .

That holds for any ``e``; with this one ``o`` is zero for every operator whose output reaches the new states of its
groups position by position, and the record is one array per state that is read.
"""

from typing import Any, Protocol, runtime_checkable

import jax

from etp_algorithms._algorithms._sweep import meet, passed_back
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._engine import TraceAlgorithm
from etp_algorithms._step import Signals
from etp_core.jaxpr import dependents

__all__ = ["feeds_its_groups", "reaches_in_place", "send_back", "sends_back"]


@runtime_checkable
class JacobianAlgorithm(Protocol):
    """An algorithm that folds steps that read as values with ``jacobians``."""

    @property
    def by_jacobian(self) -> bool:
        """Whether those are the Jacobians of the step itself."""
        ...


def sends_back(algorithm: TraceAlgorithm) -> bool:
    """Whether single steps are recorded in this way."""
    signal = algorithm.signal
    plain = signal.place == "entry" and not signal.feedback and not signal.modulated
    return plain and isinstance(algorithm, JacobianAlgorithm) and algorithm.by_jacobian


def feeds_its_groups(graph: TraceGraph, operator: HiddenParamOpRelation) -> bool:
    """Whether nothing but new states of the groups that it drives is made from the output of an operator."""
    into = {link.group for link in operator.links}
    schedule = graph.exit_plan.schedule
    return all(into.issuperset(users) for equation, users in schedule if equation is operator.equation)


def reaches_in_place(graph: TraceGraph, operator: HiddenParamOpRelation) -> bool:
    """Whether the output of an operator reaches the loss through new states of its groups, by position, alone."""
    if not feeds_its_groups(graph, operator):
        return False
    into = {link.group for link in operator.links}
    mixing = {o.equation for o in graph.operators}.union(*(graph.transitions[g].cuts for g in into))
    within = [equation for equation, users in graph.exit_plan.schedule if into.intersection(users)]
    return mixing.isdisjoint(dependents(within, [operator.y]))


def send_back(
    graph: TraceGraph,
    jacobians: tuple[GroupJacobian | None, ...],
    entering: Signals,
    new: Signals,
    drives: list[jax.Array | None],
    before: Signals,
) -> tuple[Signals, list[jax.Array | None]]:
    """``e_t−1 + w_t`` and ``o_t``.

    Args:
        graph: the compiled step.
        jacobians: ``D`` and ``Df``.
        entering: ``s``.
        new: ``e``.
        drives: ``ȳ``, None where ``o`` is zero.
        before: ``e`` of the step before.
    """
    signals: list[Any] = []
    for found, credit, earlier, jacobian in zip(entering, new, before, jacobians, strict=True):
        passed = [None if jacobian is None else passed_back(jacobian.transition, credit, b) for b in range(len(found))]
        kept = (s if p is None else s - p for s, p in zip(found, passed, strict=True))
        signals.append(tuple(e + w for e, w in zip(earlier, kept, strict=True)))
    rest = list(drives)
    for r, relation in enumerate(graph.hidden_param_op_relations):
        for link in relation.links:
            jacobian, drive = jacobians[link.group], rest[r]
            met = None if jacobian is None or drive is None else meet(link, jacobian.inputs[r], new[link.group])
            rest[r] = drive if met is None or drive is None else drive - met
    return tuple(signals), rest
