"""What serves a relation, and what one step of its traces costs.

For one group, with ``P`` present entries ``D_ab``, ``F`` states that ``y`` reaches in the same step, ``S`` states that
have a trace, ``|w|`` elements of a sample's operands (``I·O + O`` for a dense weight and its bias) and a batch ``B``:

    trace                       roll                          solve
    per weight                  B|w| (P + F)                  B|w| S
    filter over the data        B(I + 1) (P + F)              B|w| S
    last step                   0                             B|w| S + B·O·S
    two filters (pp_prop)       B·I + B·O (P + F)             B|w| + B·O·S

multiply-adds. A roll reads and writes what is stored, twice its bytes; the gradient of one step reads it once more. A
sequence that is folded pays for the traces once per fold and not at every step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from etp_algorithms._algorithms._recursion import TemporalRecursion
from etp_algorithms._algorithms._rule_calls import closed_form, input_key
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._engine import TraceAlgorithm

__all__ = ["RelationCost", "bytes_of", "relation_cost"]

RULES, DERIVATIVE = "rules", "derivative of the step"


@dataclass(frozen=True, slots=True)
class RelationCost:
    """One use of an operator under one algorithm.

    Attributes:
        kernels: for every group what serves it: the name of the package whose closed form does, ``"rules"``, or
            ``"derivative of the step"`` for algorithms that differentiate the whole step.
        traces: for every group what is stored.
        bytes_per_step: bytes of traces that a step reads and writes.
        operations_per_step: multiply-adds of one roll and one solve; None where no formula counts them.
    """

    kernels: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    bytes_per_step: int = 0
    operations_per_step: int | None = 0


@runtime_checkable
class _PerWeight(Protocol):
    recursion: TemporalRecursion
    use_kernels: bool


@runtime_checkable
class _Factorised(Protocol):
    decay_x: float
    decay_f: float


def relation_cost(
    algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any, relation: HiddenParamOpRelation
) -> RelationCost:
    """The cost of one use of an operator; nothing for one without a trace."""
    if not relation.links:
        return RelationCost()
    if isinstance(algorithm, _PerWeight):
        return _per_weight(algorithm, graph, traces, relation)
    if isinstance(algorithm, _Factorised):
        return _factorised(graph, traces, relation)
    served = RULES if algorithm.marked_only else DERIVATIVE
    kept = [traces[key] for key in _keys(relation)] if algorithm.marked_only else None
    stored = sum(_of_parameters(algorithm, graph, traces, relation)) if kept is None else bytes_of(kept)
    form = "none" if not stored else "per weight and neighbour" if algorithm.marked_only else "per parameter"
    count = len(relation.links)
    return RelationCost((served,) * count, (form,) * count, 2 * stored, None)


def bytes_of(tree: Any) -> int:
    """The memory of all arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _per_weight(algorithm: _PerWeight, graph: TraceGraph, traces: Any, relation: HiddenParamOpRelation) -> RelationCost:
    recursion, operations = algorithm.recursion, 0
    for link in relation.links:
        kept, coupling = traces[link_key(relation, link)], graph.hidden_groups[link.group].coupling
        pattern, fed = _pattern(recursion, coupling), link.fed * 2 if recursion.kappa else link.fed
        for a, trace in enumerate(kept):
            if trace is None:
                continue
            form, stored = _form(trace), sum(leaf.size for leaf in trace.values())
            if not recursion.kappa or a >= len(coupling):  # signals meet the filtered traces alone
                operations += stored if form == "per weight" else _elements(relation)
            terms = sum(flag and kept[b] is not None for b, flag in enumerate(pattern[a])) + fed[a]
            operations += _size(relation.y) if form == "last step" else terms * stored
    kept = [traces[key] for key in _keys(relation)]
    served = tuple(_served(relation, link) if algorithm.use_kernels else RULES for link in relation.links)
    return RelationCost(served, tuple(map(_forms, kept)), 2 * bytes_of(kept), operations)


def _factorised(graph: TraceGraph, traces: Any, relation: HiddenParamOpRelation) -> RelationCost:
    seen = traces["input"].get(input_key(graph, relation))
    stored, operations = bytes_of(seen), _elements(relation) + (0 if seen is None else seen.size)
    for link in relation.links:
        kept, coupling = traces["output"][link_key(relation, link)], graph.hidden_groups[link.group].coupling
        stored += bytes_of(kept)
        for a, trace in enumerate(kept):
            if trace is not None:
                terms = sum(flag and kept[b] is not None for b, flag in enumerate(coupling[a])) + link.fed[a]
                operations += trace.size * (terms + 1)
    count = len(relation.links)
    return RelationCost((RULES,) * count, ("two filters",) * count, 2 * stored, operations)


def _served(relation: HiddenParamOpRelation, link: GroupLink) -> str:
    """The package whose closed form serves a relation, if one does."""
    kernel = closed_form(relation) if link.layout.lanes == 1 else None
    return RULES if kernel is None else kernel.recurrent.__module__.partition(".")[0]


def _forms(kept: Sequence[dict[str, Any] | None]) -> str:
    return " and ".join(dict.fromkeys(_form(trace) for trace in kept if trace is not None)) or "none"


def _form(trace: dict[str, Any]) -> str:
    """What the arrays of a state's trace are."""
    return "filter" if "filter" in trace else "last step" if "df" in trace else "per weight"


def _pattern(recursion: TemporalRecursion, coupling: Sequence[Sequence[bool]]) -> list[list[bool]]:
    """``[a][b]``, whether the trace of state ``a`` moves by that of ``b``."""
    states = range(len(coupling))
    if recursion.kind == "jacobian":
        moves = [[coupling[a][b] or (recursion.coupled and a == b) for b in states] for a in states]
    else:
        moves = [[bool(recursion.leak) and recursion.kind == "scalar_leak" and a == b for b in states] for a in states]
    if not recursion.kappa:
        return moves
    nothing = [False for _ in states]
    return [row + nothing for row in moves] + [row + [a == b for b in states] for a, row in enumerate(moves)]


def _elements(relation: HiddenParamOpRelation) -> int:
    """``B|w|``."""
    batch = relation.y.aval.shape[0] if relation.primitive.batched else 1
    return batch * sum(_size(atom) for atom in relation.trainable_vars.values())


def _size(atom: Any) -> int:
    return int(np.prod(atom.aval.shape, dtype=np.int64))


def _keys(relation: HiddenParamOpRelation) -> Iterator[str]:
    return (link_key(relation, link) for link in relation.links)


def _of_parameters(
    algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any, relation: HiddenParamOpRelation
) -> Iterator[int]:
    return (algorithm.bytes_for(graph, traces, v) for v in graph.trust if relation.index in v.relations)
