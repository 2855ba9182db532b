"""Cells with a memory of their own beside the hidden state, and their minimal relative."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from etp_ops._element_wise import element_wise
from etp_ops.nn._cells import hidden_state, reset_hidden_states, set_sizes, sized, with_hidden
from etp_ops.nn._linear import Linear
from etp_ops.nn._values import ORTHOGONAL, XAVIER_NORMAL, ZERO, Initializer, activation_of

__all__ = ["LSTMCell", "MiniLSTM", "URLSTMCell"]


@sized
class LSTMCell(brainstate.nn.RNNCell):
    """A long short-term memory.

    ::

        i, g, f, o = W [x; h]
        c ← σ(f + 1) c + σ(i) φ(g)
        h ← σ(o) φ(c)

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        W: the layer of all gates, ``num_in + num_out`` to ``4 num_out``.
        c: the cell state.
        h: the hidden state.

    Source: Hochreiter and Schmidhuber 1997; the bias of the forget gate after Jozefowicz et al. 2015.
    """

    activation: Callable[..., Any]
    c: brainstate.HiddenState
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
        self.W = Linear(num_in + num_out, 4 * num_out, w_init=w_init, b_init=b_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.c = hidden_state(self.state_init, self.out_size, batch_size)
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.c, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        i, g, f, o = jnp.split(self.W(with_hidden(x, self.h.value)), 4, axis=-1)
        self.c.value = jax.nn.sigmoid(f + 1.0) * self.c.value + jax.nn.sigmoid(i) * self.activation(g)
        self.h.value = jax.nn.sigmoid(o) * self.activation(self.c.value)
        return self.h.value


@sized
class URLSTMCell(brainstate.nn.RNNCell):
    """A long short-term memory with uniform gate initialisation and refine gate.

    ::

        f, r, u, o = W [x; h]                     without bias
        f = σ(f + b),  r = σ(r − b)
        g = 2 r f + (1 − 2 r) f²
        c ← g c + (1 − g) φ(u)
        h ← σ(o) φ(c)

    and initially ``b = −log(1/u − 1)`` with u uniform between 1/num_out and 1 − 1/num_out: time scales are spread.

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        state_init: initial hidden value, ``(num_out,)``.
        activation: φ, a function or the name of one in ``brainstate.nn``.
        name: name of the module.

    Attributes:
        W: the layer of all gates, ``num_in + num_out`` to ``4 num_out``.
        bias: ``b``, ``(num_out,)``.
        c: the cell state.
        h: the hidden state.

    Source: Gu et al. 2020, Improving the gating mechanism of recurrent neural networks.
    """

    activation: Callable[..., Any]
    bias: brainstate.ParamState
    c: brainstate.HiddenState
    h: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        w_init: Initializer = XAVIER_NORMAL,
        state_init: Initializer = ZERO,
        activation: str | Callable[..., Any] = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        set_sizes(self, num_in, num_out)
        self.state_init = state_init
        self.activation = activation_of(activation)
        self.W = Linear(num_in + num_out, 4 * num_out, w_init=w_init, b_init=None)
        u = brainstate.random.uniform(1 / num_out, 1 - 1 / num_out, (num_out,))
        self.bias = brainstate.ParamState(-jnp.log(1 / u - 1))

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the hidden states from ``state_init``, with a leading axis of ``batch_size`` if given."""
        self.c = hidden_state(self.state_init, self.out_size, batch_size)
        self.h = hidden_state(self.state_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the hidden states their initial value again."""
        reset_hidden_states(self.state_init, self.out_size, batch_size, self.c, self.h)

    def update(self, x: Any) -> Any:
        """``(..., num_in)`` to the new ``h``, ``(..., num_out)``."""
        f, r, u, o = jnp.split(self.W(with_hidden(x, self.h.value)), 4, axis=-1)
        b = element_wise(self.bias.value)
        f, r = jax.nn.sigmoid(f + b), jax.nn.sigmoid(r - b)
        g = 2 * r * f + (1 - 2 * r) * f**2
        self.c.value = g * self.c.value + (1 - g) * self.activation(u)
        self.h.value = jax.nn.sigmoid(o) * self.activation(self.c.value)
        return self.h.value


@sized
class MiniLSTM(brainstate.nn.RNNCell):
    """A long short-term memory reduced to its forget and input gates, linear in its input.

    ::

        f = σ(W_f [x; h])
        i = σ(W_i [x; h])
        h ← f h + i (W_x x)

    Args:
        num_in: input width.
        num_out: hidden width.
        w_init: the weights.
        b_init: the biases; None for none.
        state_init: initial hidden value, ``(num_out,)``.
        name: name of the module.

    Attributes:
        W_x: the layer of the input, ``num_in`` to ``num_out``.
        W_f: the layer of the forget gate, ``num_in + num_out`` to ``num_out``.
        W_i: the layer of the input gate, ``num_in + num_out`` to ``num_out``.
        h: the hidden state.

    Source: Feng et al. 2024, Were RNNs all we needed?, with gates that read the state.
    """

    W_x: Linear
    W_f: Linear
    W_i: Linear
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
        self.W_f = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)
        self.W_i = Linear(num_in + num_out, num_out, w_init=w_init, b_init=b_init)

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
        f, i = jax.nn.sigmoid(self.W_f(xh)), jax.nn.sigmoid(self.W_i(xh))
        self.h.value = f * h + i * self.W_x(x)
        return self.h.value
