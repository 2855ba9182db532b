"""Cells with one hidden state and no reset: the plain one, and the minimal one."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax

from etp_ops.nn._cells import hidden_state, reset_hidden_states, set_sizes, sized, with_hidden
from etp_ops.nn._linear import Linear
from etp_ops.nn._values import XAVIER_NORMAL, ZERO, Initializer, activation_of

__all__ = ["MinimalRNNCell", "ValinaRNNCell"]


@sized
class ValinaRNNCell(brainstate.nn.RNNCell):
    """A plain recurrent cell.

    ::

        h ← φ(W [x; h])

    Args:
        num_in: input width.
        num_out: hidden width.
        state_init: initial hidden value, ``(num_out,)``.
        w_init: the weights.
        b_init: the biases; None for none.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        W: the layer ``num_in + num_out`` to ``num_out``.
        h: the hidden state.

    Source: Elman 1990, Finding structure in time.
    """

    activation: Callable[..., Any]
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        state_init: Initializer = ZERO,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = ZERO,
        activation: str | Callable[..., Any] = "relu",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.activation = activation_of(activation)
        self.W = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        self.h.value = self.activation(self.W(with_hidden(x, self.h.value)))
        return self.h.value


@sized
class MinimalRNNCell(brainstate.nn.RNNCell):
    """A cell that only mixes a mapped input into its state.

    ::

        z = phi(x)
        f = σ(W_u [z; h])
        h ← f h + (1 − f) z

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        phi: the map of the input, ``(..., num_in)`` to ``(..., num_out)``; None for a dense layer.
        name: name of the module.

    Attributes:
        phi: the map of the input.
        W_u: the layer of the gate, ``2 num_out`` to ``num_out``.
        h: the hidden state.

    Source: Chen 2017, MinimalRNN: toward more interpretable and trainable recurrent neural networks.
    """

    phi: Any
    W_u: Linear
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = ZERO,
        state_init: Initializer = ZERO,
        phi: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.phi = Linear(num_in, num_out, w_init=w_init, b_init=b_init) if phi is None else phi
        self.W_u = Linear(2 * num_out, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        z, h = self.phi(x), self.h.value
        f = jax.nn.sigmoid(self.W_u(with_hidden(z, h)))
        self.h.value = f * h + (1 - f) * z
        return self.h.value
