"""Jacobians as the kernels of this package read them: known numbers apart from arrays."""

from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._relations import HiddenParamOpRelation, Layout
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._compiler._uniform import Uniform, uniform_entries
from etp_algorithms._step import StepPoint

__all__ = ["gathered", "known_apart", "spread"]

Factor = jax.Array | Uniform


def known_apart(point: StepPoint, jacobians: tuple[GroupJacobian | None, ...]) -> tuple[GroupJacobian | None, ...]:
    """``jacobians``, made of those of ``point``, with the entries that are known numbers as :class:`Uniform`.

    An entry that is known to be zero becomes a structural zero.
    """
    table: dict[int, Uniform | None] = {}
    for found, numbers in zip(point.jacobians, uniform_entries(point.graph), strict=True):
        for leaf, number in zip(jax.tree.leaves(found), numbers, strict=True):
            if number is not None:
                table[id(leaf)] = Uniform(number) if number else None
    return tuple(None if j is None else _replaced(j, table) for j in jacobians)


def _replaced(jacobian: GroupJacobian, table: dict[int, Uniform | None]) -> GroupJacobian:
    def entry(factor: Any) -> Any:
        return None if factor is None else table.get(id(factor), factor)

    return GroupJacobian(
        tuple(tuple(map(entry, row)) for row in jacobian.transition),
        {n: tuple(map(entry, df)) for n, df in jacobian.inputs.items()},
    )


def gathered(relation: HiddenParamOpRelation, layout: Layout, factor: Factor) -> jax.Array:
    """A factor per position as an array laid out like ``y``."""
    return spread(relation, layout, factor) if isinstance(factor, Uniform) else layout.gather(factor)


def spread(relation: HiddenParamOpRelation, layout: Layout, factor: Factor) -> jax.Array:
    """A factor that is laid out like ``y``, as an array."""
    if not isinstance(factor, Uniform):
        return factor
    lanes = (layout.lanes,) if layout.lanes > 1 else ()
    return jnp.full((*lanes, *relation.y.aval.shape), factor.value, relation.y.aval.dtype)
