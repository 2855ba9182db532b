"""Episodes that begin within a sequence: the flags of a call, and the step that puts flagged lanes back first."""

from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._calls import CompiledStep
from etp_algorithms._compiler._capture import capture_module
from etp_algorithms._compiler._graph import compile_step
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._engine import TraceAlgorithm
from etp_algorithms._inputs import MultiStepData
from etp_algorithms._lanes import check_lanes, reset_slots, resettable, with_resets
from etp_algorithms._ready import ready_step

__all__ = ["read_flags", "resetting_step"]


def read_flags(resets: Any, of_driver: tuple[jax.Array, bool] | None, length: int | None) -> jax.Array | None:
    """The flags of one call; a driver's own, if it has any.

    Args:
        resets: what the call was given.
        of_driver: the flags that a driver gives, and whether they have a time axis.
        length: the steps of a window; None for a single step.
    """
    if of_driver is not None and resets is not None:
        raise TypeError("step_fn gave the learner resets, and so did the driver; give them once.")
    given = resets.data if isinstance(resets, MultiStepData) else resets
    if of_driver is not None:
        given, windowed = of_driver
        given = given if windowed or length is None else given[None]
    if given is None:
        return None
    flags = jnp.asarray(given)
    if flags.dtype != bool:
        raise ValueError(f"resets must be booleans, got {flags.dtype.name}.")
    if length is not None and flags.shape[:1] != (length,):
        raise ValueError(f"resets of a window need one set of flags per step, ({length}, ...); got {flags.shape}.")
    return flags


def resetting_step(
    program: CompiledStep,
    traces: Any,
    algorithm: TraceAlgorithm,
    shape: tuple[int, ...],
    control_flow: ControlFlowPolicy,
) -> CompiledStep:
    """The step that takes flags of this shape and the start values before its arguments, and puts lanes back first."""
    slots = reset_slots(program.captured)
    if len(shape) > 1:
        raise ValueError(f"resets have one flag per step, or one per step and lane; got {shape} per step.")
    if shape:
        check_lanes(program.graph, slots, shape[0])
    start = [jax.eval_shape(lambda s=slot: s.state.value) for slot in slots]
    example = jax.tree.unflatten(program.captured.argument_tree, program.captured.argument_avals)
    flags = jax.ShapeDtypeStruct(shape, bool)
    model = resettable(program.model, slots)
    captured = capture_module(model, flags, start, *example)
    graph = compile_step(captured.step, control_flow=control_flow)
    resetting = with_resets(algorithm)
    made = jax.eval_shape(lambda: resetting.init(graph))
    assert jax.tree.structure(made) == jax.tree.structure(traces), "a reset must not move the traces"
    return ready_step(model, captured, graph, resetting)
