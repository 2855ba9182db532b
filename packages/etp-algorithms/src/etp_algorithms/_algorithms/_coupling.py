"""The whole Jacobian of a group, from as few derivatives as its pattern allows.

New positions that read no old position together share a *colour*, and one backward derivative for a colour gives the
rows of all its positions at once: one per colour and state, whatever the batch. Source: Curtis, Powell and Reid, 1974;
Menick et al., "Practical real time recurrent learning with a sparse approximation", ICLR 2021.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._step import Signals, StepPoint

__all__ = ["ColouredJacobian", "coloured_jacobian", "coupled_jacobians"]

ColouredJacobian = tuple[tuple[jax.Array, ...], ...]
"""``[a][b]``, shape ``(colours, positions)``: at an old position, of each colour the one row that reads it."""


def coloured_jacobian(point: StepPoint, group: int) -> ColouredJacobian:
    """The derivatives of one group's new states, a colour at a time, by its old ones."""
    graph, states = point.graph, point.states
    parameters = list(point.parameters)
    new, pull = jax.vjp(lambda own: point.advance(_with(states, group, own), parameters)[group], states[group])
    colours, shape = graph.adjacencies[group].colours, graph.hidden_groups[group].varshape
    masks = (colours[None] == np.arange(colours.max(initial=0) + 1)[:, None]).reshape(-1, *shape)
    rows = []
    for a in range(len(new)):

        def row(mask: jax.Array, a: int = a) -> Any:
            (by_state,) = pull(tuple(mask.astype(v.dtype) if b == a else jnp.zeros_like(v) for b, v in enumerate(new)))
            return by_state

        rows.append(tuple(v.reshape(len(masks), math.prod(shape)) for v in jax.vmap(row)(jnp.asarray(masks))))
    return tuple(rows)


def coupled_jacobians(point: StepPoint) -> tuple[GroupJacobian | None, ...]:
    """The per-position Jacobians with each position's own coupling through marked operators in ``D``."""
    found = []
    for g, jacobian in enumerate(point.jacobians):
        if jacobian is None:
            found.append(None)
            continue
        colours, shape = point.graph.adjacencies[g].colours, point.graph.hidden_groups[g].varshape
        own = colours * colours.size + np.arange(colours.size)  # row p at column p
        entries = coloured_jacobian(point, g)
        transition = tuple(tuple(jnp.take(v.reshape(-1), own).reshape(shape) for v in row) for row in entries)
        found.append(GroupJacobian(transition, jacobian.inputs))
    return tuple(found)


def _with(states: Signals, group: int, own: tuple[jax.Array, ...]) -> Signals:
    return tuple(own if g == group else values for g, values in enumerate(states))
