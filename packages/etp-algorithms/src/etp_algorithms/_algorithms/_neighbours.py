"""The positions that each element of an operator's output reaches within some steps, and sums over them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._adjacency import closure
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._groups import bears_weight
from etp_algorithms._compiler._positions import MIXED, NONE, PositionAnalysis
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, Layout, link_key
from etp_algorithms._compiler._trust import ParameterTrust
from etp_algorithms._step import operand_cuts
from etp_algorithms._trees import add_trees
from etp_core.jaxpr import dependents

__all__ = ["Neighbourhood", "find_neighbourhoods", "is_saturated"]

Trace = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Where one relation is followed in one group.

    Attributes:
        link: the link with a lane for every position that an element of ``y`` reaches.
        base: the link of the graph.
        colours: the colour of every position of the group.
        pattern: which positions depend on which in one step.
        samples: the number of samples along the leading axis of ``y`` and of the trace, or None without one.
    """

    link: GroupLink
    base: GroupLink
    colours: np.ndarray
    pattern: Any
    samples: int | None

    def spread(self, df: jax.Array) -> jax.Array:
        """``Df``, laid out like the base link, at the lanes that are reached directly; zero at the others."""
        lanes, near = self.base.layout.positions, self.link.layout.positions
        df = df if self.base.layout.lanes > 1 else df[None]
        parts = [jnp.where(jnp.asarray(near == lane) & (lane != NONE), d, 0) for lane, d in zip(lanes, df, strict=True)]
        whole = add_trees(*parts)
        return whole if self.link.layout.lanes > 1 else whole[0]

    def carry(self, coloured: jax.Array, trace: Trace, propagate: Callable[[jax.Array, Trace], Trace]) -> Trace:
        """``Σ_k′ J[p_k, p_k′] ε_k′`` for one pair of states."""
        lanes = self.link.layout.lanes
        if self.shared is not None:
            factors = jnp.where(self._shared_valid, jnp.take(coloured.reshape(-1), self._shared_index), 0)
            return {key: self._multiply(factors, e) for key, e in trace.items()}
        if lanes == 1:
            return propagate(self._factor(coloured, 0, 0), trace)
        total = None
        for k in range(lanes):  # from position k to all
            column = jnp.stack([self._factor(coloured, m, k) for m in range(lanes)])
            repeated = {key: jnp.broadcast_to(e[k], e.shape) for key, e in trace.items()}
            moved = propagate(column, repeated)
            total = moved if total is None else {key: total[key] + moved[key] for key in total}
        assert total is not None
        return total

    @cached_property
    def shared(self) -> np.ndarray | None:
        """The positions of a sample's lanes, ``(samples, K)``, where all elements of its ``y`` have the same."""
        positions = self.link.layout.positions
        rows = positions.reshape(len(positions), self.samples or 1, -1)
        if len(positions) < 2 or np.any(rows != rows[:, :, :1]) or np.any(rows == NONE):
            return None
        return rows[:, :, 0].T

    @cached_property
    def _shared_index(self) -> np.ndarray:
        assert self.shared is not None
        rows, columns = self.shared[:, :, None], self.shared[:, None, :]
        return self.colours[rows] * self.colours.size + columns

    @cached_property
    def _shared_valid(self) -> np.ndarray:
        assert self.shared is not None
        rows, columns = np.broadcast_arrays(self.shared[:, :, None], self.shared[:, None, :])
        return np.asarray(self.pattern[rows.reshape(-1), columns.reshape(-1)]).reshape(rows.shape)

    def _multiply(self, factors: jax.Array, trace: jax.Array) -> jax.Array:
        """``(samples, K, K) × (K, samples, …)``, or without samples ``(1, K, K) × (K, …)``."""
        factors = factors.astype(jnp.result_type(factors, trace))
        if self.samples is None:
            return jnp.tensordot(factors[0], trace, 1)
        return jnp.einsum("bkm,mb...->kb...", factors, trace)

    def _factor(self, coloured: jax.Array, row: int, column: int) -> jax.Array:
        """``J[p_row, p_column]`` at every element of ``y``."""
        positions = self.link.layout.positions
        p, q = positions[row].reshape(-1), positions[column].reshape(-1)
        valid = (p != NONE) & (q != NONE)
        index = self.colours[np.maximum(p, 0)] * self.colours.size + np.maximum(q, 0)
        valid &= np.asarray(self.pattern[np.maximum(p, 0), np.maximum(q, 0)]).reshape(-1)
        taken = jnp.where(valid, jnp.take(coloured.reshape(-1), index), 0)
        return taken.reshape(positions.shape[1:])


_FOUND: WeakKeyDictionary[TraceGraph, dict[int, Mapping[str, Neighbourhood]]] = WeakKeyDictionary()


def find_neighbourhoods(graph: TraceGraph, steps: int) -> Mapping[str, Neighbourhood]:
    """The neighbourhood of every relation and group, by the stable name of their traces."""
    by_steps = _FOUND.setdefault(graph, {})
    if steps not in by_steps:
        reached = [closure(a.pattern.T.tocsr(), steps - 1) for a in graph.adjacencies]  # row p: what p reaches
        by_steps[steps] = {
            link_key(relation, link): _neighbourhood(graph, relation, link, reached[link.group])
            for relation in graph.hidden_param_op_relations
            for link in relation.links
        }
    return by_steps[steps]


def _neighbourhood(graph: TraceGraph, relation: HiddenParamOpRelation, link: GroupLink, reached: Any) -> Neighbourhood:
    base = link.layout.positions.reshape(len(link.layout.positions), -1)
    sets = []
    for element in base.T:
        starts = element[element != NONE]
        sets.append(
            np.unique(
                np.concatenate([reached.indices[reached.indptr[p] : reached.indptr[p + 1]] for p in starts] or [[]])
            )
        )
    width = max((len(s) for s in sets), default=1)
    positions = np.full((max(width, 1), base.shape[1]), NONE, np.int64)
    for n, s in enumerate(sets):
        positions[: len(s), n] = s
    shape = link.layout.positions.shape[1:]
    layout = Layout(positions.reshape(len(positions), *shape), len(positions))
    adjacency = graph.adjacencies[link.group]
    samples = shape[0] if relation.primitive.batched else None
    return Neighbourhood(replace(link, layout=layout), link, adjacency.colours, adjacency.pattern, samples)


def is_saturated(graph: TraceGraph, verdict: ParameterTrust, steps: int) -> bool:
    """Whether every way of a parameter's influence is followed: one group, all its reach, nothing past it."""
    relations = [graph.hidden_param_op_relations[n] for n in verdict.relations]
    if len(graph.hidden_groups) != 1:
        return False
    pattern = graph.adjacencies[0].pattern.T.tocsr()
    if closure(pattern, steps - 1).nnz != closure(pattern, math.prod(graph.hidden_groups[0].varshape)).nnz:
        return False
    step, cuts = graph.step, operand_cuts(relations)
    sources = [leaf.input for leaf in step.parameters if leaf.path == verdict.path]
    ends = {leaf.output for leaf in graph.hidden_groups[0].leaves}
    past = set(sources)
    for equation in step.equations:
        if any(v in past for k, v in enumerate(equation.inputs) if k not in cuts.get(equation, frozenset())):
            past.update(equation.outputs)
    behind = any(bears_weight(e) for relation in relations for e in dependents(step.equations, [relation.y]))
    return ends.isdisjoint(past) and not behind and not any(_mixes(graph, relation) for relation in relations)


def _mixes(graph: TraceGraph, relation: HiddenParamOpRelation) -> bool:
    """Whether a new hidden value depends on several elements of ``y``, which only some traces can follow."""
    y = relation.y
    labels = PositionAnalysis(graph.step.equations).forward({y: np.arange(math.prod(y.aval.shape), dtype=np.int64)})
    ends = [leaf.output for leaf in graph.hidden_groups[0].leaves]
    return any(v in labels and bool(np.any(labels[v] == MIXED)) for v in ends)
