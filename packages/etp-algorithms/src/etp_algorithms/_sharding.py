"""A learner on a mesh of devices: lanes of the batch over one axis, wide layers over another.

Nothing here communicates by itself. A known sequence runs under ``jax.shard_map`` over the data axis: every device
rolls the traces of its own lanes, and the gradients of all devices are summed once, at the end. The model axis is left
to the compiler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from etp_algorithms._calls import CompiledStep
from etp_algorithms._lanes import lane_axes, moves_by_derivative, reset_slots

__all__ = [
    "MeshPlan",
    "Placed",
    "also_placed",
    "check_gates",
    "make_plan",
    "place",
    "placed_states",
    "run_on_mesh",
]

State = brainstate.State[Any]


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """Where a learner lives.

    Attributes:
        mesh: the devices.
        data: the axis that lanes are split over.
        model: the axis that the last axis of parameters, states and traces is split over, where it divides; or None.
        lanes: the lanes of the whole batch.
    """

    mesh: Mesh
    data: str
    model: str | None
    lanes: int

    def spec(self, array: Any, lane_axis: int | None) -> PartitionSpec:
        """How an array is split."""
        shape = jnp.shape(array)
        names: list[str | None] = [None] * len(shape)
        last = len(shape) - 1
        if self.model is not None and shape and last != lane_axis and shape[last] % self.mesh.shape[self.model] == 0:
            names[last] = self.model
        if lane_axis is not None:
            names[lane_axis] = self.data
        return PartitionSpec(*names)


@dataclass(frozen=True, eq=False, slots=True)
class Placed:
    """A state and for each of its arrays the axis that counts lanes, or None."""

    state: State
    axes: tuple[int | None, ...]

    def specs(self, plan: MeshPlan) -> Any:
        """How its value is split over both axes."""
        leaves, tree = jax.tree.flatten(self.state.value)
        return jax.tree.unflatten(tree, [plan.spec(leaf, axis) for leaf, axis in zip(leaves, self.axes, strict=True)])

    def lane_specs(self, plan: MeshPlan) -> Any:
        """How its value is split over the data axis alone."""
        found = [PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, plan.data) for axis in self.axes]
        return jax.tree.unflatten(jax.tree.structure(self.state.value), found)

    @property
    def is_key(self) -> bool:
        """Whether it is a generator of random numbers."""
        return isinstance(self.state, brainstate.random.RandomState)


def make_plan(program: CompiledStep, mesh: Mesh, data: str, model: str | None) -> MeshPlan:
    """Check a mesh against a compiled learner.

    Raises:
        ValueError: an unknown axis, an axis of another type than ``Auto``, or a batch that the devices do not divide.
    """
    for axis in (data, *(() if model is None else (model,))):
        if axis not in mesh.axis_names:
            raise ValueError(f"the mesh has the axes {', '.join(map(str, mesh.axis_names))}, not {axis!r}.")
    if any(kind is not AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            "the axes of the mesh must be of the type Auto: make it by jax.make_mesh(shape, names, axis_types=...)."
        )
    sizes = {jnp.shape(leaf)[:1] for slot in program.captured.hidden for leaf in slot.read()}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError(f"every hidden state needs the batch as its first axis; they have {sorted(sizes)}.")
    ((lanes,),) = sizes
    if lanes % mesh.shape[data]:
        raise ValueError(f"{mesh.shape[data]} devices along {data!r} do not divide a batch of {lanes}.")
    return MeshPlan(mesh, data, model, lanes)


def placed_states(program: CompiledStep, traces: State, start: State) -> list[Placed]:
    """Every state of a learner, with the axes of its lanes.

    Raises:
        ValueError: the step writes a state that the devices would have to agree on, or a trace shared by all lanes.
    """
    captured, own = program.captured, {id(slot.state) for slot in reset_slots(program.captured)}
    written = {leaf.path for leaf in captured.step.others if leaf.output is not leaf.input}
    placed = [Placed(slot.state, (None,) * slot.tree.num_leaves) for slot in captured.parameters]
    for slot in (*captured.hidden, *captured.others):
        mine = id(slot.state) in own
        key = isinstance(slot.state, brainstate.random.RandomState)
        if not mine and not key and any(path[: len(slot.path)] == slot.path for path in written):
            raise ValueError(
                f"the step writes the {type(slot.state).__name__} {slot.name}, which all lanes share; devices cannot "
                f"agree on it without talking at every step. Make it a ShortTermState with a batch axis."
            )
        placed.append(Placed(slot.state, (0 if mine else None,) * slot.tree.num_leaves))
    axes = lane_axes(program.algorithm, program.graph, traces.value)
    sizes = [
        None if axis is None else leaf.shape[axis]
        for axis, leaf in zip(axes, jax.tree.leaves(traces.value), strict=True)
    ]
    lanes = {jnp.shape(leaf)[:1] for slot in captured.hidden for leaf in slot.read()}
    if moves_by_derivative(program.algorithm) or any((size,) not in lanes for size in sizes):
        raise ValueError(
            f"{program.algorithm.name} keeps traces that cannot be split by lane. Put D_RTRL, pp_prop or one of their "
            f"kin on a mesh, or a learner of its own on every device."
        )
    return [*placed, Placed(traces, tuple(axes)), Placed(start, (0,) * len(start.value))]


def also_placed(placed: Sequence[Placed], extra: Sequence[State]) -> list[Placed]:
    """``placed``, and those of the ``extra`` states that are not among them, which every device has whole."""
    known = {id(one.state) for one in placed}
    return [*placed, *(Placed(s, (None,) * len(jax.tree.leaves(s.value))) for s in extra if id(s) not in known)]


def check_gates(gates: Any) -> None:
    """Raise unless the losses that ``gates`` let through are by lane."""
    if any(gate.ndim < 2 for gate in jax.tree.leaves(gates)):
        raise ValueError(
            "on a mesh a loss over the whole batch cannot be told apart by device: let step_fn return one loss per "
            "lane, and give a mask of shape (T, B), for example ones."
        )


def place(plan: MeshPlan, placed: Sequence[Placed]) -> None:
    """Put every state where the plan says; inside a compiled function: keep it there."""
    for one in placed:
        if one.is_key:
            continue
        shardings = jax.tree.map(
            lambda spec: NamedSharding(plan.mesh, spec),
            one.specs(plan),
            is_leaf=lambda n: isinstance(n, PartitionSpec),
        )
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(one.state.value))
        put = jax.lax.with_sharding_constraint if traced else jax.device_put
        one.state.value = jax.tree.map(put, one.state.value, shardings)


def run_on_mesh(
    plan: MeshPlan,
    placed: Sequence[Placed],
    core: Callable[[Any, Any], tuple[list[Any], Any]],
    timed: Any,
    shared: Any,
    *,
    lead: int,
) -> tuple[list[Any], Any]:
    """``core(timed, shared)`` on every device for its own lanes.

    Args:
        plan: the mesh.
        placed: the states that it reads and writes.
        core: returns what is summed over devices, and what has lanes after ``lead`` axes.
        timed: arrays with time first and lanes second; those without a second axis go to every device.
        shared: what every device gets.
        lead: the axes before the lanes in the second result.
    """
    for leaf in jax.tree.leaves(timed):
        if leaf.ndim > 1 and leaf.shape[1] != plan.lanes:
            raise ValueError(
                f"on a mesh the second axis of every sequence, mask and flag is the batch of {plan.lanes}; got an "
                f"array of shape {leaf.shape}."
            )
    split = jax.tree.map(lambda a: PartitionSpec(None, plan.data) if a.ndim > 1 else PartitionSpec(), timed)
    lanes_out = PartitionSpec(*[None] * lead, plan.data)
    specs = [one.lane_specs(plan) for one in placed]

    def local(values: list[Any], timed: Any, shared: Any) -> Any:
        with brainstate.StateTraceStack():
            for one, value in zip(placed, values, strict=True):
                one.state.restore_value(_own_key(value, plan.data) if one.is_key else value)
            total, out = core(timed, shared)
            after = [jax.random.split(v)[0] if p.is_key else p.state.value for p, v in zip(placed, values, strict=True)]
        return jax.lax.psum(total, plan.data), out, after

    mapped = jax.shard_map(
        local,
        mesh=plan.mesh,
        in_specs=(specs, split, PartitionSpec()),
        out_specs=(PartitionSpec(), lanes_out, specs),
        axis_names={plan.data},
        check_vma=False,
    )
    before = [one.state.value for one in placed]
    try:
        total, out, after = jax.jit(mapped)(before, timed, shared)
    finally:
        for one, value in zip(placed, before, strict=True):
            one.state.restore_value(value)
    for one, value in zip(placed, after, strict=True):
        one.state.value = value
    place(plan, placed)
    return total, out


def _own_key(key: jax.Array, axis: str) -> jax.Array:
    """Another random key on every device."""
    return jax.random.fold_in(key, jax.lax.axis_index(axis))
