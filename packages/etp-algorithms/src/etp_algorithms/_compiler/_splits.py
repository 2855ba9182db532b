"""A split as the slices that it consists of.

Its derivative puts the parts together again: by a concatenation, of which XLA's CPU back-end compiles every single one
anew; by sums of padded parts, which are one loop, compiled once for all layers alike.
"""

from collections.abc import Iterator
from dataclasses import replace

from jax.extend.core.primitives import slice_p

from etp_algorithms._compiler._program import StepProgram
from etp_core.jaxpr import Equation

__all__ = ["slice_splits"]


def slice_splits(step: StepProgram) -> StepProgram:
    """``step`` with a slice per part of every split."""
    return replace(step, equations=tuple(e for equation in step.equations for e in _slices(equation)))


def _slices(equation: Equation) -> Iterator[Equation]:
    if equation.primitive.name != "split":
        yield equation
        return
    (whole,), axis, start = equation.inputs, equation.params["axis"], 0
    shape = whole.aval.shape
    for part in equation.outputs:
        stop = start + part.aval.shape[axis]
        params = {
            "start_indices": tuple(start if n == axis else 0 for n in range(len(shape))),
            "limit_indices": tuple(stop if n == axis else size for n, size in enumerate(shape)),
            "strides": None,
        }
        yield Equation(slice_p, (whole,), (part,), params, equation.source_info, equation.context)
        start = stop
