"""Cells with one hidden state and gates."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_ops.nn._cells import hidden_state, reset_hidden_states, set_sizes, sized, with_hidden
from etp_ops.nn._linear import Linear
from etp_ops.nn._values import ORTHOGONAL, XAVIER_NORMAL, ZERO, Initializer, activation_of

__all__ = ["CFNCell", "GRUCell", "MGUCell", "MiniGRU"]


@sized
class GRUCell(brainstate.nn.RNNCell):
    """A gated recurrent unit.

    ::

        r, z = σ(Wrz [x; h])
        h ← (1 − z) h + z φ(Wh [x; r h])

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        Wrz: the layer of both gates, ``num_in + num_out`` to ``2 num_out``.
        Wh: the layer of the candidate, ``num_in + num_out`` to ``num_out``.
        h: the hidden state.

    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder.
    """

    activation: Callable[..., Any]
    Wrz: Linear
    Wh: Linear
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZERO,
        state_init: Initializer = ZERO,
        activation: str | Callable[..., Any] = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.activation = activation_of(activation)
        self.Wrz = Linear(num_in + num_out, 2 * num_out, w_init=w_init, b_init=b_init)
        self.Wh = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        h = self.h.value
        r, z = jnp.split(jax.nn.sigmoid(self.Wrz(with_hidden(x, h))), 2, axis=-1)
        candidate = self.activation(self.Wh(with_hidden(x, r * h)))
        self.h.value = (1 - z) * h + z * candidate
        return self.h.value


@sized
class MGUCell(brainstate.nn.RNNCell):
    """A minimal gated unit.

    ::

        f = σ(Wf [x; h])
        h ← (1 − f) h + f φ(Wh [x; f h])

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        Wf: the layer of the gate, ``num_in + num_out`` to ``num_out``.
        Wh: the layer of the candidate, ``num_in + num_out`` to ``num_out``.
        h: the hidden state.

    Source: Zhou et al. 2016, Minimal gated unit for recurrent neural networks.
    """

    activation: Callable[..., Any]
    Wf: Linear
    Wh: Linear
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZERO,
        state_init: Initializer = ZERO,
        activation: str | Callable[..., Any] = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.activation = activation_of(activation)
        self.Wf = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)
        self.Wh = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        h = self.h.value
        f = jax.nn.sigmoid(self.Wf(with_hidden(x, h)))
        candidate = self.activation(self.Wh(with_hidden(x, f * h)))
        self.h.value = (1 - f) * h + f * candidate
        return self.h.value


@sized
class CFNCell(brainstate.nn.RNNCell):
    """A chaos-free cell.

    ::

        f = σ(Wf [x; h])
        i = σ(Wi [x; h])
        h ← f φ(h) + i φ(Wh x)

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        Wf: the layer of the forget gate, ``num_in + num_out`` to ``num_out``.
        Wi: the layer of the input gate, ``num_in + num_out`` to ``num_out``.
        Wh: the layer of the input, ``num_in`` to ``num_out``.
        h: the hidden state.

    Source: Laurent and von Brecht 2017, A recurrent neural network without chaos.
    """

    activation: Callable[..., Any]
    Wf: Linear
    Wi: Linear
    Wh: Linear
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = ZERO,
        state_init: Initializer = ZERO,
        activation: str | Callable[..., Any] = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.activation = activation_of(activation)
        self.Wf = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)
        self.Wi = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)
        self.Wh = Linear(num_in, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        h = self.h.value
        xh = with_hidden(x, h)
        f, i = jax.nn.sigmoid(self.Wf(xh)), jax.nn.sigmoid(self.Wi(xh))
        self.h.value = f * self.activation(h) + i * self.activation(self.Wh(x))
        return self.h.value


@sized
class MiniGRU(brainstate.nn.RNNCell):
    """A gated recurrent unit without reset, linear in its input.

    ::

        z = σ(W_z [x; h])
        h ← (1 − z) h + z (W_x x)

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        name: name of the module.

    Attributes:
        W_x: the layer of the input, ``num_in`` to ``num_out``.
        W_z: the layer of the gate, ``num_in + num_out`` to ``num_out``.
        h: the hidden state.

    Source: Feng et al. 2024, Were RNNs all we needed?, with the gate reading the state.
    """

    W_x: Linear
    W_z: Linear
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZERO,
        state_init: Initializer = ZERO,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.W_x = Linear(num_in, num_out, w_init=w_init, b_init=b_init)
        self.W_z = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        h = self.h.value
        z = jax.nn.sigmoid(self.W_z(with_hidden(x, h)))
        self.h.value = (1 - z) * h + z * self.W_x(x)
        return self.h.value
