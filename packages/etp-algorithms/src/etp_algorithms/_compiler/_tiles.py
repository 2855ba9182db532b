"""A drive that its readers take apart, as fused gates are: its parts, and their cotangents put together again.

Each part is differentiated by itself, and the cotangents of all states are put together in one go: on the CPU, XLA
compiles every concatenation anew, however equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from etp_core.jaxpr import Equation, Variable

__all__ = ["Tiling", "find_tiling"]


@dataclass(frozen=True, eq=False, slots=True)
class Tiling:
    """Values that are a drive side by side.

    Attributes:
        parts: in order; the drive itself if it is not taken apart.
        axis: the axis along which they lie.
    """

    parts: tuple[Variable, ...]
    axis: int = 0

    def join(self, columns: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
        """For every state a cotangent of the drive, given those of the parts."""
        if len(self.parts) == 1:
            return [part for (part,) in columns]
        if len(columns) == 1 or not self.axis:
            return [jnp.concatenate(parts, self.axis) for parts in columns]
        rows = len(columns[0][0])
        whole = jnp.concatenate([jnp.concatenate(states) for states in zip(*columns, strict=True)], self.axis)
        return [whole[a * rows : (a + 1) * rows] for a in range(len(columns))]


def find_tiling(drive: Variable, equations: Iterable[Equation], others: Iterable[object]) -> Tiling:
    """How ``equations`` take ``drive`` apart: into slices that cover it once, along one axis.

    Args:
        drive: the value.
        equations: all that may read it.
        others: values and equations that must be left alone.
    """
    apart, left_alone = {e: None for e in equations if drive in e.inputs}, set(others)
    if drive in left_alone or not left_alone.isdisjoint(apart) or any(e.primitive.name != "slice" for e in apart):
        return Tiling((drive,))
    shape, end = drive.aval.shape, 0
    parts = [e.outputs[0] for e in sorted(apart, key=lambda e: e.params["start_indices"])]
    axes = {n for part in parts for n, size in enumerate(shape) if part.aval.shape[n] != size}
    if len(axes) != 1:
        return Tiling((drive,))
    (axis,) = axes
    for equation in sorted(apart, key=lambda e: e.params["start_indices"]):
        if equation.params["start_indices"][axis] != end or set(equation.params["strides"] or (1,)) != {1}:
            return Tiling((drive,))
        end = equation.params["limit_indices"][axis]
    return Tiling(tuple(parts), axis) if end == shape[axis] else Tiling((drive,))
