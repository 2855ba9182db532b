"""The order in which a step is evaluated when its new hidden states are to be differentiated where they are read.

The new states of one group are computed from one another as they are; every other reader, another group or an
output, gets a version that can be differentiated apart. A *context* is one group, or None for all that is no new
state of a group; every context evaluates the equations it needs, up to the new states of other contexts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etp_algorithms._compiler._groups import HiddenGroup
from etp_algorithms._compiler._program import StateLeaf, StepProgram
from etp_core.jaxpr import Equation, Variable, needed

__all__ = ["ExitPlan", "plan_exits"]


@dataclass(frozen=True, eq=False, slots=True)
class ExitPlan:
    """Which context evaluates what.

    Attributes:
        contexts: the numbers of the groups, then None.
        schedule: every equation with the contexts that evaluate it, in order.
        exits: the new hidden states that the step computes, each with its group and the number of its array.
        home: for every hidden array the context that computes it.
        reads_entry: whether an output reads a hidden state as it was at entry.
    """

    contexts: tuple[int | None, ...]
    schedule: tuple[tuple[Equation, tuple[int | None, ...]], ...]
    exits: Mapping[Variable, tuple[int, int]]
    home: tuple[int | None, ...]
    reads_entry: bool


def plan_exits(step: StepProgram, groups: Sequence[HiddenGroup]) -> ExitPlan:
    """Plan one step."""
    computed = {v for equation in step.equations for v in equation.outputs}
    group_of: dict[StateLeaf, int] = {leaf: group.index for group in groups for leaf in group.leaves}
    exits: dict[Variable, tuple[int, int]] = {}
    for n, leaf in enumerate(step.hidden):
        if leaf in group_of and leaf.output in computed and isinstance(leaf.output, Variable):
            exits.setdefault(leaf.output, (group_of[leaf], n))
    contexts = (*(group.index for group in groups), None)
    home = tuple(_home(leaf, group_of, exits) for leaf in step.hidden)
    users: dict[Equation, list[int | None]] = {}
    old = {leaf.input for leaf in step.hidden if leaf in group_of}
    reads_entry = not old.isdisjoint(step.outputs)
    for context in contexts:
        if context is None:
            rest = [leaf.output for leaf, place in zip(step.hidden, home, strict=True) if place is None]
            wanted = [*step.outputs, *(leaf.output for leaf in step.others), *rest]
        else:
            wanted = [leaf.output for leaf, place in zip(step.hidden, home, strict=True) if place == context]
        foreign = [v for v, (group, _) in exits.items() if group != context]
        for equation in needed(step.equations, wanted, foreign):
            users.setdefault(equation, []).append(context)
            reads_entry = reads_entry or (context is None and not old.isdisjoint(equation.inputs))
    schedule = tuple((equation, tuple(users[equation])) for equation in step.equations if equation in users)
    return ExitPlan(contexts, schedule, exits, home, reads_entry)


def _home(leaf: StateLeaf, group_of: Mapping[StateLeaf, int], exits: Mapping[Variable, tuple[int, int]]) -> int | None:
    if isinstance(leaf.output, Variable) and leaf.output in exits:
        return exits[leaf.output][0]
    return group_of.get(leaf)
