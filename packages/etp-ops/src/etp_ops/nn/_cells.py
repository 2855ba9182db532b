"""What gated cells have in common: sizes, hidden states, the concatenated input."""

from typing import Any

import brainstate
import jax.numpy as jnp

from etp_core.arguments import Advice, advised
from etp_ops.nn._values import make_value

__all__ = ["hidden_state", "reset_hidden_states", "set_sizes", "sized", "with_hidden"]

sized = advised(Advice(renamed={"in_size": "num_in", "out_size": "num_out"}))
"""Decorates a cell: its sizes are called as in brainstate's own cells, and braintrace's names work too."""


def set_sizes(cell: Any, num_in: int, num_out: int) -> None:
    """Set the four attributes that tell a cell's sizes."""
    cell.num_in, cell.num_out = num_in, num_out
    cell.in_size, cell.out_size = (num_in,), (num_out,)


def hidden_state(state_init: Any, size: tuple[int, ...], batch_size: int | None) -> brainstate.HiddenState:
    """A hidden state of the shape ``([batch_size,] *size)``."""
    return brainstate.HiddenState(make_value(state_init, _batched(size, batch_size), name="state_init"))


def reset_hidden_states(state_init: Any, size: tuple[int, ...], batch_size: int | None, *states: Any) -> None:
    """Give hidden states their initial value again."""
    for state in states:
        state.value = make_value(state_init, _batched(size, batch_size), name="state_init")


def with_hidden(x: Any, h: Any) -> Any:
    """``[x; h]``, side by side along the last axis."""
    return jnp.concatenate([x, h], axis=-1)


def _batched(size: tuple[int, ...], batch_size: int | None) -> tuple[int, ...]:
    return size if batch_size is None else (batch_size, *size)
