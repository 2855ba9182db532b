"""A recurrent spiking cell of excitatory and inhibitory neurons with conductance-based synapses."""

from collections.abc import Callable
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from etp_ops.nn._cells import with_hidden
from etp_ops.nn._linear import SignedWLinear
from etp_ops.nn._neurons import check_same_dimension, decay, initial_state, per_neuron, reset_voltage, time_step
from etp_ops.nn._values import KAIMING_NORMAL, Initializer
from etp_ops.nn.surrogate import ReluGrad

__all__ = ["ConductanceEICell"]

_SPIKE = ReluGrad()


class ConductanceEICell(brainstate.nn.Module):
    """Excitatory and inhibitory neurons that drive each other through conductances.

    ::

        g_e ← e^{−dt/τ_e} g_e + [x; s_e] |W_e|
        g_i ← e^{−dt/τ_i} g_i + s_i |W_i|
        τ dV/dt = (V_rest − V) + g_e (E_e − V) + g_i (E_i − V)      integrated exactly over dt
        s = spk_fun((V − V_th) / (V_th − V_reset))
        V ← V − (V_th − V_reset) s              at the next step; with a hard reset V ← V_reset where s = 1

    The first ``num_exc`` neurons are excitatory, with spikes ``s_e``, the others inhibitory, ``s_i``; inputs excite.
    Conductances are in units of the leak conductance. Voltages and times are all quantities, or all plain numbers.

    Args:
        num_in: input width.
        num_out: number of neurons.
        num_exc: number of excitatory neurons; None for four fifths, rounded down.
        tau: membrane time constant.
        tau_e: time constant of excitatory synapses.
        tau_i: time constant of inhibitory synapses.
        E_e: reversal potential of excitatory synapses.
        E_i: reversal potential of inhibitory synapses.
        V_rest: resting voltage.
        V_th: threshold.
        V_reset: voltage after a spike.
        w_init: the weights; their absolute values are used.
        V_initializer: initial voltage; None for ``V_rest``.
        spk_fun: from the scaled distance to threshold to a spike, with a surrogate derivative.
        spk_reset: ``"soft"`` subtracts, ``"hard"`` sets and takes no derivative of the jump.
        name: name of the module.
        dt: time step; None for that of ``brainstate.environ``.

    Attributes:
        W_e: the layer ``num_in + num_exc`` to ``num_out``.
        W_i: the layer ``num_out − num_exc`` to ``num_out``.
        V: the voltage, a hidden state; so are the conductances.
        g_e: the excitatory conductance.
        g_i: the inhibitory conductance.

    Raises:
        ValueError: sizes, units or shapes do not fit, an unknown reset, or no time step.

    Source: Gerstner et al. 2014, Neuronal Dynamics, §3.1 and §13.6; Vogels and Abbott 2005.
    """

    num_exc: int
    num_in: int
    num_out: int
    spk_fun: Callable[..., Any]
    V_initializer: Any
    dt: Any
    W_e: SignedWLinear
    W_i: SignedWLinear
    g_e: brainstate.HiddenState
    g_i: brainstate.HiddenState

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        num_exc: int | None = None,
        tau: Any = 20.0 * u.ms,
        tau_e: Any = 5.0 * u.ms,
        tau_i: Any = 10.0 * u.ms,
        E_e: Any = 0.0 * u.mV,
        E_i: Any = -80.0 * u.mV,
        V_rest: Any = -60.0 * u.mV,
        V_th: Any = -50.0 * u.mV,
        V_reset: Any = -60.0 * u.mV,
        w_init: Initializer = KAIMING_NORMAL,
        V_initializer: Initializer | None = None,
        spk_fun: Callable[[Any], jax.Array] = _SPIKE,
        spk_reset: str = "soft",
        name: str | None = None,
        dt: Any = None,
    ) -> None:
        super().__init__(name=name)
        self.num_exc = num_out * 4 // 5 if num_exc is None else num_exc
        if not 0 < self.num_exc < num_out:
            raise ValueError(f"there must be neurons of both kinds; got {self.num_exc} excitatory ones of {num_out}.")
        if spk_reset not in ("soft", "hard"):
            raise ValueError(f"spk_reset must be 'soft' or 'hard', got {spk_reset!r}.")
        self.num_in, self.num_out = num_in, num_out
        self.in_size, self.out_size = (num_in,), (num_out,)
        voltages = {"V_th": V_th, "V_reset": V_reset, "V_rest": V_rest, "E_e": E_e, "E_i": E_i}
        for key, value in {**voltages, "tau": tau, "tau_e": tau_e, "tau_i": tau_i}.items():
            setattr(self, key, per_neuron(value, self.out_size, name=key))
        check_same_dimension("ConductanceEICell", **{key: getattr(self, key) for key in voltages})
        self.spk_fun, self.spk_reset = spk_fun, spk_reset
        self.V_initializer, self.dt = V_initializer, dt
        self.W_e = SignedWLinear(num_in + self.num_exc, num_out, w_init=w_init)
        self.W_i = SignedWLinear(num_out - self.num_exc, num_out, w_init=w_init)

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make voltage and conductances, with a leading axis of ``batch_size`` if given."""
        self.V, self.g_e, self.g_i = self._initial(batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give voltage and conductances their initial values again."""
        for state, fresh in zip((self.V, self.g_e, self.g_i), self._initial(batch_size), strict=True):
            state.value = fresh.value

    def _initial(self, batch_size: int | None) -> tuple[brainstate.HiddenState, ...]:
        zero = jnp.zeros((), self.W_e.weight.value.dtype)
        values = ((self.V_initializer, self.V_rest), (None, zero), (None, zero))
        return tuple(initial_state(given, default, self.out_size, batch_size) for given, default in values)

    def get_spike(self, V: Any = None) -> jax.Array:
        """The spikes at the voltage ``V``, by default the present one."""
        v = self.V.value if V is None else V
        return self.spk_fun((v - self.V_th) / (self.V_th - self.V_reset))

    def update(self, x: Any) -> jax.Array:
        """Rates or spikes ``(..., num_in)`` to spikes ``(..., num_out)``."""
        dt, v, spike = time_step(self.dt), self.V.value, self.get_spike()
        excitation = self.W_e(with_hidden(x, spike[..., : self.num_exc]))
        inhibition = self.W_i(spike[..., self.num_exc :])
        g_e = self.g_e.value * decay(dt, self.tau_e, name="tau_e") + excitation
        g_i = self.g_i.value * decay(dt, self.tau_i, name="tau_i") + inhibition
        v = reset_voltage(v, spike, threshold=self.V_th, reset=self.V_reset, how=self.spk_reset)
        total = 1.0 + g_e + g_i
        target = (self.V_rest + g_e * self.E_e + g_i * self.E_i) / total
        self.V.value = target + (v - target) * decay(dt, self.tau / total)
        self.g_e.value, self.g_i.value = g_e, g_i
        return self.get_spike()
