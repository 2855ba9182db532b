"""Episodes that end in the middle of a batch: a lane starts anew while the others go on.

A reset is part of the step. Before a step the states of a flagged lane take the values they were compiled with, and
its traces are those of a new sequence:

    h ← where(r, h₀, h) ,      ε ← where(r, ε₀, ε)

As a part of the step it has its own derivative, which is zero where ``r`` is set: no credit passes from an episode to
the one before, inside a window or between windows. Where traces move by Jacobians alone the second line is ``D ← 0``.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._capture import CapturedModel, StateSlot
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._groups import HiddenGroup
from etp_algorithms._compiler._positions import NONE
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._compiler._trust import ParameterTrust
from etp_algorithms._compiler._uniform import Uniform
from etp_algorithms._engine import (
    BootstrappingAlgorithm,
    FoldedSteps,
    FoldingAlgorithm,
    LearningSignal,
    TraceAlgorithm,
)
from etp_algorithms._residuals import RecordedSteps
from etp_algorithms._step import Arrays, Operands, Signals, StepPoint, StepValues
from etp_algorithms._stepped import SteppedModel, stepped

__all__ = [
    "LanedAlgorithm",
    "check_lanes",
    "lane_axes",
    "moves_by_derivative",
    "reset_slots",
    "resettable",
    "with_resets",
]


@runtime_checkable
class LanedAlgorithm(TraceAlgorithm, Protocol):
    """An algorithm that knows where the lanes of a batch lie in its traces."""

    def lane_axes(self, graph: TraceGraph, traces: Any) -> list[int | None]:
        """For every array of ``traces``, in order, the axis that counts lanes; None for one that all lanes share."""
        ...


@runtime_checkable
class _JacobianAlgorithm(FoldingAlgorithm, Protocol):
    """An algorithm whose traces move by the Jacobians of :class:`StepValues` alone."""

    @property
    def recursion(self) -> Any: ...


def resettable(model: brainstate.nn.Module, slots: Sequence[StateSlot]) -> SteppedModel:
    """``model`` with a step that takes flags and start values before its own arguments.

    Args:
        model: whose step it is.
        slots: the states that are put back, as :func:`reset_slots` gives them.
    """

    def step(flags: jax.Array, start: Sequence[Any], *args: Any) -> Any:
        now = model.states()
        for slot, first in zip(slots, start, strict=True):
            state = now.get(slot.path, slot.state)
            state.value = jax.tree.map(lambda a, b: jnp.where(_spread(flags, b), b, a), state.value, first)
        return model.update(*args)

    return stepped(model, step)


def reset_slots(captured: CapturedModel) -> tuple[StateSlot, ...]:
    """The states that belong to a sequence: hidden and other short-term ones; no statistics, no random keys."""
    others = [slot for slot in captured.others if isinstance(slot.state, brainstate.ShortTermState)]
    return (*captured.hidden, *others)


def moves_by_derivative(algorithm: TraceAlgorithm) -> bool:
    """Whether the traces move by derivatives of the whole step, which a reset is a part of, and by nothing else."""
    return bool(getattr(algorithm, "moves_by_derivative", False))


def check_lanes(graph: TraceGraph, slots: Sequence[StateSlot], lanes: int) -> None:
    """Raise unless every state that a reset touches has ``lanes`` lanes.

    Raises:
        ValueError: the model runs one sample, or a state has no batch axis of this size.
    """
    batched = any(
        r.primitive.batched or any(link.layout.lanes > 1 for link in r.links) for r in graph.hidden_param_op_relations
    )
    for slot in slots:
        for leaf in slot.read():
            if not batched or jnp.shape(leaf)[:1] != (lanes,):
                raise ValueError(
                    f"resets name {lanes} lanes, but the state {slot.name} has shape {jnp.shape(leaf)}"
                    f"{'' if batched else ' and the model runs one sample'}: it has no batch axis of that size. Give "
                    f"the state one in init_state(self, batch_size=None), or start all lanes at once with resets of "
                    f"one flag per step."
                )


def with_resets(algorithm: TraceAlgorithm) -> TraceAlgorithm:
    """``algorithm`` on the graph of a :func:`resettable` step."""
    if isinstance(algorithm, BootstrappingAlgorithm):
        return _BootstrappingResets(algorithm)
    return _FoldingResets(algorithm) if isinstance(algorithm, _JacobianAlgorithm) else _Resets(algorithm)


class _Resets:
    """Whatever an algorithm does, on traces whose flagged lanes start anew before the step."""

    def __init__(self, algorithm: TraceAlgorithm) -> None:
        self._inner = algorithm

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def signal(self) -> LearningSignal:
        return self._inner.signal

    @property
    def marked_only(self) -> bool:
        return self._inner.marked_only

    def check(self, graph: TraceGraph) -> None:
        self._inner.check(graph)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        return self._inner.judge(graph, verdict)

    def init(self, graph: TraceGraph) -> Any:
        return self._inner.init(graph)

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        return self._inner.reset(graph, traces)

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        return self._inner.bytes_for(graph, traces, verdict)

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> Any:
        return self._inner.tracked(graph, parameters)

    def read(self, point: StepPoint) -> Any:
        return self._inner.read(point), point.arguments[0]

    def roll(self, graph: TraceGraph, traces: Any, values: Any, tracked: Any) -> Any:
        inner, flags = values
        if not moves_by_derivative(self._inner):
            traces = _clear(self._inner, graph, traces, flags)
        return self._inner.roll(graph, traces, inner, tracked)

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, tracked: Any) -> Any:
        return self._inner.solve(graph, traces, signals, tracked)


class _BootstrappingResets(_Resets):
    """The same for an algorithm that predicts credit."""

    _inner: BootstrappingAlgorithm

    def predict(self, graph: TraceGraph, traces: Any, states: Signals) -> Signals:
        return self._inner.predict(graph, traces, states)


class _FoldingResets(_Resets):
    """The same for traces that move by Jacobians: ``D ← 0`` in a lane that starts anew."""

    _inner: FoldingAlgorithm

    def roll(self, graph: TraceGraph, traces: Any, values: Any, tracked: Any) -> Any:
        return self._inner.roll(graph, traces, _cut(graph, *values), tracked)

    def roll_window(self, graph: TraceGraph, traces: Any, steps: RecordedSteps, tracked: Operands) -> Any:
        return self._inner.roll_window(graph, traces, steps.map(lambda values: _cut(graph, *values)), tracked)

    def fold(
        self, graph: TraceGraph, traces: Any, steps: FoldedSteps, tracked: Operands, *, last: bool = False
    ) -> tuple[Operands, Any]:
        values = steps.values.map(lambda values: _cut(graph, *values))
        return self._inner.fold(graph, traces, steps._replace(values=values), tracked, last=last)


def _cut(graph: TraceGraph, values: StepValues, flags: jax.Array) -> StepValues:
    """The values of steps that remember nothing in flagged lanes."""

    def zero(factor: Any, group: HiddenGroup) -> Any:
        if isinstance(factor, Uniform):
            lead = flags.shape[: flags.ndim - (len(group.varshape) > 0 and flags.shape[-1:] == group.varshape[:1])]
            dtype = group.leaves[0].input.aval.dtype
            factor = jnp.full((*lead, *group.varshape), factor.value, dtype)
        return None if factor is None else jnp.where(_spread(flags, factor), 0, factor)

    cut = [
        None if j is None else j._replace(transition=tuple(tuple(zero(f, g) for f in row) for row in j.transition))
        for g, j in zip(graph.hidden_groups, values.jacobians, strict=True)
    ]
    return values._replace(jacobians=tuple(cut))


def _clear(algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any, flags: jax.Array) -> Any:
    """``traces`` with those of a new sequence in flagged lanes."""
    fresh = algorithm.reset(graph, traces)
    if flags.ndim == 0:
        return jax.tree.map(lambda old, new: old if old is new else jnp.where(flags, new, old), traces, fresh)
    axes = lane_axes(algorithm, graph, traces)
    old, tree = jax.tree.flatten(traces)
    cleared = []
    for kept, new, axis in zip(old, jax.tree.leaves(fresh), axes, strict=True):
        if kept is not new and (axis is None or kept.shape[axis] != flags.shape[0]):
            raise ValueError(
                f"{algorithm.name} keeps a trace that all lanes share, so single lanes cannot start anew. Start all "
                f"lanes at once with resets of one flag per step."
            )
        mask = None if axis is None else flags.reshape(*(1,) * axis, -1, *(1,) * (kept.ndim - axis - 1))
        cleared.append(kept if kept is new or mask is None else jnp.where(mask, new, kept))
    return jax.tree.unflatten(tree, cleared)


def lane_axes(algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any) -> list[int | None]:
    """For every array of ``traces``, in order, the axis that counts the lanes of the batch; None where none does.

    An algorithm may say so itself (:class:`LanedAlgorithm`); else an array under the name of a relation, or of a
    relation's link to a group, lies as the output of that relation does.
    """
    if isinstance(algorithm, LanedAlgorithm):
        return algorithm.lane_axes(graph, traces)
    axes: dict[str, int | None] = {}
    for relation in graph.hidden_param_op_relations:
        axes[f"{relation.index}:{relation.primitive.name}"] = 0 if relation.primitive.batched else None
        for link in relation.links:
            axes[link_key(relation, link)] = _link_axis(relation, link, graph.hidden_groups[link.group])
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(traces)[0]]
    names = [[str(getattr(key, "key", "")) for key in path] for path in paths]
    return [next((axes[name] for name in path if name in axes), None) for path in names]


def _link_axis(relation: HiddenParamOpRelation, link: GroupLink, group: HiddenGroup) -> int | None:
    """The axis of the lanes in a trace of this link: that of ``y``, or of the positions that ``y`` is spread over."""
    if relation.primitive.batched:
        return 1 if link.layout.lanes > 1 else 0
    if link.layout.lanes == 1 or len(group.varshape) == 0:
        return None
    inner = int(np.prod(group.varshape[1:], dtype=np.int64))
    table = link.layout.positions.reshape(link.layout.lanes, -1)
    lane = np.arange(link.layout.lanes)[:, None]
    return 0 if link.layout.lanes == group.varshape[0] and np.all((table == NONE) | (table // inner == lane)) else None


def _spread(flags: jax.Array, like: Any) -> jax.Array:
    """``flags`` over the leading axes of ``like``."""
    return flags.reshape(flags.shape + (1,) * (jnp.ndim(like) - flags.ndim))
