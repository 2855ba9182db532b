"""The two Jacobians of a step that traces need, position by position.

    D  = ∂h′_g/∂h_g   and   Df_r = ∂h′_g/∂y_r

are taken with every operator's output held as an independent input. Both are total over the dependencies
inside the group in the same step. After the position analysis each position of ``h′`` depends on itself
alone, so one reverse pass per state yields a whole row of both for all positions at once. A state that reads other new
states of its group, its *siblings*, is pulled back to them and not through them:

    D_a = ∂h′_a/∂h + Σ_s ∂h′_a/∂h′_s · D_s ,      the like for Df.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._groups import HiddenGroup, PositionSpace, bears_weight
from etp_algorithms._compiler._positions import Cuts, PositionAnalysis
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation
from etp_algorithms._compiler._tiles import Tiling, find_tiling
from etp_core.jaxpr import Atom, Equation, Variable, dependents, evaluate, is_differentiable, value_of

__all__ = ["GroupJacobian", "Transition", "build_transitions", "evaluate_transition"]

Factors = tuple[tuple[jax.Array | None, ...], ...]


class GroupJacobian(NamedTuple):
    """The Jacobians of one group at one step; None stands for a structural zero.

    Attributes:
        transition: ``D[a][b]``, each of the group's ``varshape``.
        inputs: for each relation number ``Df[a]``, each laid out like ``y`` (lanes first).
    """

    transition: Factors
    inputs: Mapping[int, tuple[jax.Array | None, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """What one hidden state reads of old states, siblings and drives; ``constants`` are the other values it reads."""

    output: Atom
    hidden: tuple[int, ...]
    siblings: tuple[int, ...]
    drives: tuple[int, ...]
    equations: tuple[Equation, ...]
    constants: tuple[Variable, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Transition:
    """The part of the step that makes one group's new states.

    Attributes:
        group: the hidden group.
        links: the relations that reach it, by relation number.
        drives: the outputs of those relations, by relation number, in their parts.
        cuts: the operands through which no derivative passes.
        rows: one per hidden state.
        order: the numbers of the rows, siblings before those who read them.
    """

    group: HiddenGroup
    links: Mapping[int, GroupLink]
    drives: Mapping[int, Tiling]
    cuts: Cuts
    rows: tuple[_Row, ...]
    order: tuple[int, ...]

    @property
    def probes(self) -> set[Variable]:
        """The values of a step that :func:`evaluate_transition` reads."""
        constants = {v for row in self.rows for v in row.constants}
        constants |= {v for row in self.rows for n in row.siblings if isinstance(v := self.rows[n].output, Variable)}
        parts = {v for tiling in self.drives.values() for v in tiling.parts}
        return constants | parts | {leaf.input for leaf in self.group.leaves}


def build_transitions(
    analysis: PositionAnalysis,
    groups: Sequence[HiddenGroup],
    spaces: Sequence[PositionSpace],
    relations: Sequence[HiddenParamOpRelation],
) -> tuple[Transition, ...]:
    """For every group the equations that its Jacobians need."""
    links: list[dict[int, GroupLink]] = [{} for _ in groups]
    for relation in relations:
        for link in relation.links:
            links[link.group][relation.index] = link
    return tuple(
        _build_transition(analysis, group, spaces[group.space], own, {n: relations[n].y for n in own})
        for group, own in zip(groups, links, strict=True)
    )


def _build_transition(
    analysis: PositionAnalysis,
    group: HiddenGroup,
    space: PositionSpace,
    links: Mapping[int, GroupLink],
    drives: Mapping[int, Variable],
) -> Transition:
    first_state = [next(a for a, (i, _) in enumerate(group.states) if i == n) for n in range(len(group.leaves))]
    new_states = _new_states(group, links)
    rows = []
    for i, leaf in enumerate(group.leaves):
        a = first_state[i]
        hidden = {group.leaves[j].input: j for j, b in enumerate(first_state) if group.coupling[a][b]}
        fed = {drives[n]: n for n, link in links.items() if link.fed[a]}
        siblings = {v: j for v, j in new_states.items() if j != i}
        sources = [*hidden, *fed, *siblings]
        equations = dependents(analysis.needed([leaf.output], sources, boundary=bears_weight), sources)
        made = {v for e in equations for v in e.outputs}
        read = {v: None for e in equations for v in e.inputs if isinstance(v, Variable) and v not in made}
        used = {*read, leaf.output}
        rows.append(
            _Row(
                output=leaf.output,
                hidden=tuple(j for v, j in hidden.items() if v in used),
                siblings=tuple(j for v, j in siblings.items() if v in used),
                drives=tuple(n for v, n in fed.items() if v in used),
                equations=tuple(equations),
                constants=tuple(v for v in read if v not in sources),
            )
        )
    place = {v: n for n, e in enumerate(analysis.equations) for v in e.outputs} if len(rows) > 1 else {}
    order = sorted(range(len(rows)), key=lambda n: place.get(rows[n].output, -1))
    equations = dict.fromkeys(e for row in rows for e in row.equations)
    left_alone = [*space.cuts, *(row.output for row in rows)]
    tilings = {
        n: find_tiling(v, equations, left_alone) if links[n].layout.lanes == 1 else Tiling((v,))
        for n, v in drives.items()
    }
    return Transition(group, links, tilings, space.cuts, tuple(rows), tuple(order))


def _new_states(group: HiddenGroup, links: Mapping[int, GroupLink]) -> dict[Variable, int]:
    """The new states that others of the group may be pulled back to: arrays of one state, and drives of one lane."""
    if any(leaf.stacked for leaf in group.leaves) or any(link.layout.lanes > 1 for link in links.values()):
        return {}
    outputs = [leaf.output for leaf in group.leaves]
    old = {leaf.input for leaf in group.leaves}
    return {
        v: n
        for n, v in enumerate(outputs)
        if isinstance(v, Variable) and v not in old and outputs.count(v) == 1 and is_differentiable(v)
    }


def evaluate_transition(transition: Transition, env: Mapping[Variable, Any]) -> GroupJacobian:
    """The Jacobians at the values ``env`` of a step.

    Args:
        transition: what to evaluate.
        env: the values of the step; no derivative is taken through them.
    """
    group = transition.group
    factors: list[list[jax.Array | None]] = [[None] * group.num_state for _ in range(group.num_state)]
    inputs: dict[int, list[jax.Array | None]] = {n: [None] * group.num_state for n in transition.links}
    slopes: list[tuple[int, int, jax.Array]] = []
    driven: dict[int, dict[int, list[jax.Array]]] = {n: {} for n in transition.links}
    for i in transition.order:
        row = transition.rows[i]
        if not (row.hidden or row.drives or row.siblings):
            continue
        pull = _linearise(transition, row, env)
        for a in (a for a, (leaf, _) in enumerate(group.states) if leaf == i):
            hidden, siblings, drives = pull(_unit(row.output, group.states[a][1]))
            for b, (j, column) in enumerate(group.states):
                if j in row.hidden:
                    whole = hidden[row.hidden.index(j)]
                    factors[a][b] = whole if column is None else whole[..., column]
            for n, cotangents in zip(row.drives, drives, strict=True):
                if transition.links[n].layout.lanes == 1:
                    driven[n][a] = cotangents
            slopes += [(a, s, slope) for s, slope in zip(row.siblings, siblings, strict=True)]
        for n in row.drives:
            if transition.links[n].layout.lanes > 1:
                _fill_broadcast(transition, row, i, n, pull, inputs[n])
    for n, columns in driven.items():
        for a, joined in zip(columns, transition.drives[n].join(list(columns.values())), strict=True):
            inputs[n][a] = joined
    for a, s, slope in slopes:  # with siblings, states and arrays are one to one
        _add_through(transition, a, s, slope, factors, inputs)
    return GroupJacobian(tuple(map(tuple, factors)), {n: tuple(df) for n, df in inputs.items()})


def _add_through(
    transition: Transition,
    a: int,
    s: int,
    slope: jax.Array,
    factors: list[list[jax.Array | None]],
    inputs: Mapping[int, list[jax.Array | None]],
) -> None:
    """Add what state ``a`` owes to its sibling ``s``: the sibling's row times ``slope``, position by position."""
    for b, factor in enumerate(factors[s]):
        if factor is not None and transition.group.coupling[a][b]:
            factors[a][b] = _plus(factors[a][b], slope * factor)
    for n, df in inputs.items():
        link = transition.links[n]
        theirs = df[s]
        if theirs is not None and link.fed[a]:
            df[a] = _plus(df[a], link.layout.gather(slope) * theirs)


def _plus(sum_: jax.Array | None, term: jax.Array) -> jax.Array:
    return term if sum_ is None else sum_ + term


def _linearise(transition: Transition, row: _Row, env: Mapping[Variable, Any]) -> Any:
    """The pull-back of one new state to the old states, siblings and drives that it reads."""
    sources = (
        [transition.group.leaves[j].input for j in row.hidden],
        [v for s in row.siblings if isinstance(v := transition.rows[s].output, Variable)],
        [list(transition.drives[n].parts) for n in row.drives],
    )
    variables, structure = jax.tree.flatten(sources)
    constants = {v: env[v] for v in row.constants}

    def new_state(*values: Any) -> jax.Array:
        given = {**constants, **dict(zip(variables, jax.tree.leaves(values), strict=True))}
        return value_of(row.output, evaluate(row.equations, given, cuts=transition.cuts))

    return jax.vjp(new_state, *jax.tree.unflatten(structure, [env[v] for v in variables]))[1]


def _unit(output: Atom, column: int | None) -> jax.Array:
    """The cotangent that selects one state at every position."""
    if column is None:
        return jnp.ones(output.aval.shape, output.aval.dtype)
    return jnp.zeros(output.aval.shape, output.aval.dtype).at[..., column].set(1)


def _fill_broadcast(
    transition: Transition,
    row: _Row,
    i: int,
    n: int,
    pull: Any,
    df: list[jax.Array | None],
) -> None:
    """``Df`` of a broadcast ``y``: every position has one driving element, so one forward pass separates them."""
    ((y,), place) = transition.drives[n].parts, row.drives.index(n)
    cotangent = jax.ShapeDtypeStruct(row.output.aval.shape, row.output.aval.dtype)
    push = jax.linear_transpose(lambda ct: pull(ct)[2][place][0], cotangent)
    (tangent,) = push(jnp.ones(y.aval.shape, y.aval.dtype))
    for a, (leaf, column) in enumerate(transition.group.states):
        if leaf == i:
            df[a] = transition.links[n].layout.gather(tangent if column is None else tangent[..., column])
