"""The linear recurrent unit."""

import math
from typing import Any

import brainstate
import jax.numpy as jnp

from etp_ops._element_wise import element_wise
from etp_ops.nn._cells import hidden_state, reset_hidden_states
from etp_ops.nn._linear import Linear
from etp_ops.nn._values import ZERO

__all__ = ["LRUCell"]


class LRUCell(brainstate.nn.RNNCell):
    """A linear recurrent unit: a complex, diagonal, linear recurrence.

    ::

        λ = exp(−e^ν + i e^θ)
        h ← λ h + e^γ (B x)
        y = Re(C h) + D x

    ``h``, ``B`` and ``C`` are kept as real and imaginary parts. Initially the magnitude of λ is spread over the ring
    between ``r_min`` and ``r_max``, the phase between 0 and ``max_phase``, and e^γ = √(1 − λ λ*).

    Args:
        d_model: width of input and output.
        d_hidden: hidden width.
        r_min: least initial magnitude of λ.
        r_max: largest initial magnitude of λ.
        max_phase: largest initial phase.
        name: name of the module.

    Attributes:
        nu_log: ν, ``(d_hidden,)``.
        theta_log: θ, ``(d_hidden,)``.
        gamma_log: γ, ``(d_hidden,)``.
        B_re: the layer ``d_model`` to ``d_hidden`` of the real part of B; ``B_im`` that of the imaginary part.
        C_re: the layer ``d_hidden`` to ``d_model`` of the real part of C; ``C_im`` that of the imaginary part.
        D: ``(d_model,)``.
        h_re: the real part of the hidden state.
        h_im: the imaginary part of the hidden state.

    Raises:
        ValueError: not 0 ≤ r_min < r_max ≤ 1, or ``max_phase`` is not positive.

    Source: Orvieto et al. 2023, Resurrecting recurrent neural networks for long sequences.
    """

    d_model: int
    d_hidden: int
    nu_log: brainstate.ParamState
    theta_log: brainstate.ParamState
    gamma_log: brainstate.ParamState
    B_re: Linear
    B_im: Linear
    C_re: Linear
    C_im: Linear
    h_re: brainstate.HiddenState
    h_im: brainstate.HiddenState

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.28,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if not 0 <= r_min < r_max <= 1 or not max_phase > 0:
            raise ValueError(
                f"LRUCell takes 0 <= r_min < r_max <= 1 and a positive max_phase; got r_min={r_min}, r_max={r_max}, "
                f"max_phase={max_phase}."
            )
        self.d_model, self.d_hidden = d_model, d_hidden
        self.in_size, self.out_size = (d_model,), (d_model,)
        squared, turn = _inside(d_hidden), _inside(d_hidden)
        squared = r_min**2 + (r_max**2 - r_min**2) * squared  # |λ|²
        self.nu_log = brainstate.ParamState(jnp.log(-0.5 * jnp.log(squared)))
        self.theta_log = brainstate.ParamState(jnp.log(max_phase * turn))
        self.gamma_log = brainstate.ParamState(0.5 * jnp.log1p(-squared))
        inward = brainstate.nn.init.Normal(scale=1 / math.sqrt(2 * d_model))
        outward = brainstate.nn.init.Normal(scale=1 / math.sqrt(d_hidden))
        self.B_re = Linear(d_model, d_hidden, w_init=inward, b_init=None)
        self.B_im = Linear(d_model, d_hidden, w_init=inward, b_init=None)
        self.C_re = Linear(d_hidden, d_model, w_init=outward, b_init=None)
        self.C_im = Linear(d_hidden, d_model, w_init=outward, b_init=None)
        self.D = brainstate.ParamState(brainstate.nn.init.Normal()((d_model,)))

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make both parts of the hidden state, zero, with a leading axis of ``batch_size`` if given."""
        self.h_re = hidden_state(ZERO, (self.d_hidden,), batch_size)
        self.h_im = hidden_state(ZERO, (self.d_hidden,), batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Set both parts of the hidden state to zero."""
        reset_hidden_states(ZERO, (self.d_hidden,), batch_size, self.h_re, self.h_im)

    def update(self, x: Any) -> Any:
        """``(..., d_model)`` to ``y``, ``(..., d_model)``."""
        modulus = jnp.exp(-jnp.exp(element_wise(self.nu_log.value)))
        phase = jnp.exp(element_wise(self.theta_log.value))
        re, im = modulus * jnp.cos(phase), modulus * jnp.sin(phase)
        gain = jnp.exp(element_wise(self.gamma_log.value))
        h_re, h_im = self.h_re.value, self.h_im.value
        self.h_re.value = re * h_re - im * h_im + gain * self.B_re(x)
        self.h_im.value = re * h_im + im * h_re + gain * self.B_im(x)
        return self.C_re(self.h_re.value) - self.C_im(self.h_im.value) + element_wise(self.D.value) * x


def _inside(size: int) -> Any:
    """Uniform random numbers away from 0 and 1, where the logarithms of the initialisation end."""
    return brainstate.random.uniform(1e-6, 1 - 1e-6, (size,))
