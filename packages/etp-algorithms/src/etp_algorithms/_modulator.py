"""The modulator of a three-factor rule, per hidden group and state."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._groups import HiddenGroup
from etp_algorithms._engine import TraceAlgorithm
from etp_algorithms._inputs import MultiStepData
from etp_algorithms._step import Signals

__all__ = ["read_modulator", "zero_modulator"]


def read_modulator(
    algorithm: TraceAlgorithm, graph: TraceGraph, modulator: Any, length: int | None
) -> tuple[Signals | None, bool]:
    """The modulator at every state of every group, and whether it has a leading time axis."""
    if not algorithm.signal.modulated:
        if modulator is not None:
            raise TypeError(f"{algorithm.name} takes no modulator: its credit comes from the loss.")
        return None, False
    if modulator is None:
        raise TypeError(f"{algorithm.name} needs a modulator with every call: learner(x, modulator=reward).")
    stacked = isinstance(modulator, MultiStepData)
    given = modulator.data if isinstance(modulator, MultiStepData) else modulator
    lead = (length,) if stacked else ()
    if stacked and length is None:
        raise ValueError("the modulator is MultiStepData, but no input is; give the value of the one step.")
    if isinstance(given, Mapping) and (unknown := given.keys() - {g.name for g in graph.hidden_groups}):
        names = ", ".join(group.name for group in graph.hidden_groups)
        raise ValueError(f"the modulator names the groups {sorted(unknown)}; there are {names}.")
    signals = []
    for group in graph.hidden_groups:
        value = given.get(group.name, 0.0) if isinstance(given, Mapping) else given
        signals.append(_expand(jnp.asarray(value), group, lead))
    return tuple(signals), stacked


def zero_modulator(graph: TraceGraph) -> Signals:
    """A modulator of the right shapes."""
    return tuple(_expand(jnp.zeros(()), group, ()) for group in graph.hidden_groups)


def _expand(value: jax.Array, group: HiddenGroup, lead: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    shape = (*lead, *group.varshape)
    if value.shape[: len(lead)] != lead:
        raise ValueError(f"the modulator must have one entry per step, leading shape {lead}; got {value.shape}.")
    if value.shape == shape[: value.ndim]:
        spread = value.reshape(value.shape + (1,) * (len(shape) - value.ndim))
    else:
        inner = value.shape[len(lead) :]
        spread = value.reshape(*lead, *(1,) * (len(group.varshape) - len(inner)), *inner)
    try:
        whole = jnp.broadcast_to(spread, shape)
    except ValueError:
        raise ValueError(
            f"the modulator has shape {value.shape}; the group {group.name} has positions of shape "
            f"{group.varshape}. Give a scalar, an array over its leading axes, or one that broadcasts to it."
        ) from None
    dtypes = [leaf.input.aval.dtype for leaf in group.leaves for _ in leaf.columns]
    return tuple(whole.astype(dtype) for dtype in dtypes)
