"""What a decay near 1 loses in a low precision.

A filter ``e ← d e + (1 − d) x`` stored with machine epsilon ``ε`` stops moving once its step is less than half a unit
in the last place: just below 1 that is ``ε/4``, so that a constant 1 settles ``ε / (4 (1 − d))`` away from 1. A decay
that loses more than one part in twenty is refused, or kept in float32.
"""

from typing import Any

import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._uniform import known_decays

__all__ = ["check_decay_holds", "check_known_decays", "holds", "limit_note", "wide_enough"]

_MOST = 0.05


def holds(decay: float, dtype: Any) -> bool:
    """Whether a filter of this decay settles where it should, when it is stored in ``dtype``."""
    return decay == 0.0 or float(jnp.finfo(dtype).eps) <= 4 * _MOST * (1.0 - decay)


def check_decay_holds(name: str, decay: float, dtype: Any) -> None:
    """Raise if ``dtype`` cannot hold a decay.

    Raises:
        ValueError: the filter would stall.
    """
    if holds(decay, dtype):
        return
    lost = float(jnp.finfo(dtype).eps) / (4 * (1.0 - decay))
    raise ValueError(
        f"the {name} {decay} cannot be held in {jnp.dtype(dtype).name}, where it rounds to "
        f"{float(jnp.asarray(decay, dtype)):.6g}: a constant input would settle {min(lost, 1.0):.0%} away from its "
        f"limit. Use a decay of at most {1 - float(jnp.finfo(dtype).eps) / (4 * _MOST):.4g}, or "
        f"trace_dtype=jnp.float32 with a model of that precision."
    )


def check_known_decays(graph: TraceGraph, dtype: Any) -> None:
    """Raise if a state's own decay, known when the step is compiled, cannot be held in the dtype of the traces."""
    for name, decays in known_decays(graph).items():
        for decay in decays:
            if 0.0 < decay < 1.0:
                check_decay_holds(f"decay of {name}", decay, dtype)


def limit_note(dtype: Any) -> str | None:
    """What a report says of traces in 16 bits, whose decays may come from the data; None for wider ones."""
    eps = float(jnp.finfo(dtype).eps)
    if eps < 1e-4:
        return None
    return f"traces in {jnp.dtype(dtype).name} follow decays up to {1 - eps / (4 * _MOST):.3g}; slower memory stalls"


def wide_enough(dtype: Any, decay: float) -> Any:
    """``dtype``, or float32 if that cannot hold a decay."""
    return dtype if not jnp.issubdtype(dtype, jnp.inexact) or holds(decay, dtype) else jnp.dtype(jnp.float32)
