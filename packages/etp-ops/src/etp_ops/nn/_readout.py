"""The leaky read-out."""

from typing import Any

import brainstate
import brainunit as u

from etp_ops._dense import matmul
from etp_ops.nn._cells import hidden_state, reset_hidden_states
from etp_ops.nn._neurons import decay, per_neuron, time_step
from etp_ops.nn._values import KAIMING_NORMAL, ZERO, Initializer, Size, make_value, matching_sizes

__all__ = ["LeakyRateReadout"]


class LeakyRateReadout(brainstate.nn.Module):
    """A low-pass filter of a dense layer, ``r ← e^{−dt/τ} r + x · W``.

    Args:
        in_size: input size; only its last entry, ``I``, is contracted.
        out_size: output size; equal to ``in_size`` but for its last entry, ``O``.
        tau: time constant, one or one per output; with a unit if ``dt`` has one.
        w_init: the weight, ``(I, O)``.
        r_init: initial value of the output, ``out_size``.
        name: name of the module.
        dt: time step; None for that of ``brainstate.environ``.

    Attributes:
        weight: the parameter, ``W``.
        r: the output, a hidden state.

    Raises:
        ValueError: sizes, units or shapes do not fit, or no time step.

    Source: Bellec et al. 2020, A solution to the learning dilemma for recurrent networks of spiking neurons.
    """

    tau: Any
    r_init: Any
    dt: Any
    weight: brainstate.ParamState
    r: brainstate.HiddenState

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        tau: Any = 5.0 * u.ms,
        w_init: Initializer = KAIMING_NORMAL,
        r_init: Initializer = ZERO,
        name: str | None = None,
        *,
        dt: Any = None,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = matching_sizes(in_size, out_size)
        shape = (self.in_size[-1], self.out_size[-1])
        self.tau = per_neuron(tau, self.out_size, name="tau")
        self.r_init, self.dt = r_init, dt
        self.weight = brainstate.ParamState(make_value(w_init, shape, name="w_init"))

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the output, with a leading axis of ``batch_size`` if given."""
        self.r = hidden_state(self.r_init, self.out_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the output its initial value again."""
        reset_hidden_states(self.r_init, self.out_size, batch_size, self.r)

    def update(self, x: Any) -> Any:
        """``(..., I)`` to the new ``r``, ``(..., O)``."""
        self.r.value = self.r.value * decay(time_step(self.dt), self.tau) + matmul(x, self.weight.value)
        return self.r.value
