"""Leaky integrate-and-fire neurons, plain and adaptive."""

from collections.abc import Callable
from typing import Any

import brainstate
import brainunit as u
import jax

from etp_ops.nn._neurons import check_same_dimension, decay, initial_state, per_neuron, reset_voltage, time_step
from etp_ops.nn._values import Initializer, Size, as_size
from etp_ops.nn.surrogate import ReluGrad

__all__ = ["ALIF", "LIF"]

_SPIKE = ReluGrad()


class LIF(brainstate.nn.Module):
    """Leaky integrate-and-fire neurons.

    ::

        τ dV/dt = −(V − V_rest) + R x           integrated exactly over dt, for x constant within it
        s = spk_fun((V − V_th) / (V_th − V_reset))
        V ← V − (V_th − V_reset) s              at the next step; with a hard reset V ← V_reset where s = 1

    Voltages, times and currents are all quantities, or all plain numbers.

    Args:
        in_size: the shape of the population.
        R: membrane resistance; like all numbers below, one or one per neuron.
        tau: membrane time constant.
        V_th: threshold.
        V_reset: voltage after a spike; None for zero.
        V_rest: resting voltage; None for zero.
        V_initializer: initial voltage; None for ``V_rest``.
        spk_fun: from the scaled distance to threshold to a spike, with a surrogate derivative.
        spk_reset: ``"soft"`` subtracts, ``"hard"`` sets and takes no derivative of the jump.
        name: name of the module.
        dt: time step; None for that of ``brainstate.environ``.

    Attributes:
        V: the voltage, a hidden state.

    Raises:
        ValueError: units or shapes do not fit, an unknown reset, or no time step.

    Source: Gerstner et al. 2014, Neuronal Dynamics, §1.3.
    """

    V_initializer: Any
    dt: Any

    def __init__(
        self,
        in_size: Size,
        R: Any = 1.0 * u.ohm,
        tau: Any = 5.0 * u.ms,
        V_th: Any = 1.0 * u.mV,
        V_reset: Any = None,
        V_rest: Any = None,
        V_initializer: Initializer | None = None,
        spk_fun: Callable[[Any], jax.Array] = _SPIKE,
        spk_reset: str = "soft",
        name: str | None = None,
        *,
        dt: Any = None,
    ) -> None:
        super().__init__(name=name)
        self.in_size = as_size(in_size)
        self.out_size = self.in_size
        _set_membrane(self, R, tau, V_th, V_reset, V_rest)
        _set_spikes(self, spk_fun, spk_reset)
        self.V_initializer, self.dt = V_initializer, dt

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the voltage, with a leading axis of ``batch_size`` if given."""
        self.V = initial_state(self.V_initializer, self.V_rest, self.in_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the voltage its initial value again."""
        self.V.value = initial_state(self.V_initializer, self.V_rest, self.in_size, batch_size).value

    def get_spike(self, V: Any = None) -> jax.Array:
        """The spikes at the voltage ``V``, by default the present one."""
        v = self.V.value if V is None else V
        return self.spk_fun((v - self.V_th) / (self.V_th - self.V_reset))

    def update(self, x: Any) -> jax.Array:
        """A current ``(..., *in_size)`` to spikes of the same shape."""
        v, spike = self.V.value, self.get_spike()
        v = reset_voltage(v, spike, threshold=self.V_th, reset=self.V_reset, how=self.spk_reset)
        self.V.value = _integrate(self, v, x)
        return self.get_spike()


class ALIF(brainstate.nn.Module):
    """Leaky integrate-and-fire neurons whose threshold rises with every spike.

    ::

        τ dV/dt = −(V − V_rest) + R x           τ_a da/dt = −a
        s = spk_fun((V − V_th − β a) / (V_th − V_reset))
        V ← V − (V_th − V_reset) s,  a ← a + s  at the next step; with a hard reset V ← V_reset where s = 1

    Voltages, times and currents are all quantities, or all plain numbers.

    Args:
        in_size: the shape of the population.
        R: membrane resistance; like all numbers below, one or one per neuron.
        tau: membrane time constant.
        tau_a: time constant of the adaptation.
        V_th: threshold at rest.
        V_reset: voltage after a spike; None for zero.
        V_rest: resting voltage; None for zero.
        beta: rise of the threshold per spike.
        spk_fun: from the scaled distance to threshold to a spike, with a surrogate derivative.
        spk_reset: ``"soft"`` subtracts, ``"hard"`` sets and takes no derivative of the jump.
        V_initializer: initial voltage; None for ``V_rest``.
        a_initializer: initial adaptation.
        name: name of the module.
        dt: time step; None for that of ``brainstate.environ``.

    Attributes:
        V: the voltage, a hidden state.
        a: the adaptation, a hidden state without unit.

    Raises:
        ValueError: units or shapes do not fit, an unknown reset, or no time step.

    Source: Bellec et al. 2018, Long short-term memory and learning-to-learn in networks of spiking neurons.
    """

    tau_a: Any
    beta: Any
    V_initializer: Any
    a_initializer: Any
    dt: Any
    a: brainstate.HiddenState

    def __init__(
        self,
        in_size: Size,
        R: Any = 1.0 * u.ohm,
        tau: Any = 5.0 * u.ms,
        tau_a: Any = 100.0 * u.ms,
        V_th: Any = 1.0 * u.mV,
        V_reset: Any = None,
        V_rest: Any = None,
        beta: Any = 0.1 * u.mV,
        spk_fun: Callable[[Any], jax.Array] = _SPIKE,
        spk_reset: str = "soft",
        V_initializer: Initializer | None = None,
        a_initializer: Initializer = 0.0,
        name: str | None = None,
        *,
        dt: Any = None,
    ) -> None:
        super().__init__(name=name)
        self.in_size = as_size(in_size)
        self.out_size = self.in_size
        _set_membrane(self, R, tau, V_th, V_reset, V_rest)
        _set_spikes(self, spk_fun, spk_reset)
        check_same_dimension("ALIF", V_th=self.V_th, beta=beta)
        self.tau_a = per_neuron(tau_a, self.in_size, name="tau_a")
        self.beta = per_neuron(beta, self.in_size, name="beta")
        self.V_initializer, self.a_initializer, self.dt = V_initializer, a_initializer, dt

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make voltage and adaptation, with a leading axis of ``batch_size`` if given."""
        self.V = initial_state(self.V_initializer, self.V_rest, self.in_size, batch_size)
        self.a = initial_state(self.a_initializer, 0.0, self.in_size, batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give voltage and adaptation their initial values again."""
        self.V.value = initial_state(self.V_initializer, self.V_rest, self.in_size, batch_size).value
        self.a.value = initial_state(self.a_initializer, 0.0, self.in_size, batch_size).value

    def get_spike(self, V: Any = None, a: Any = None) -> jax.Array:
        """The spikes at the voltage ``V`` and the adaptation ``a``, by default the present ones."""
        v = self.V.value if V is None else V
        a = self.a.value if a is None else a
        return self.spk_fun((v - self.V_th - self.beta * a) / (self.V_th - self.V_reset))

    def update(self, x: Any) -> jax.Array:
        """A current ``(..., *in_size)`` to spikes of the same shape."""
        v, spike = self.V.value, self.get_spike()
        v = reset_voltage(v, spike, threshold=self.V_th, reset=self.V_reset, how=self.spk_reset)
        self.V.value = _integrate(self, v, x)
        self.a.value = (self.a.value + spike) * decay(time_step(self.dt), self.tau_a, name="tau_a")
        return self.get_spike()


def _set_membrane(neuron: Any, R: Any, tau: Any, V_th: Any, V_reset: Any, V_rest: Any) -> None:
    zero = 0.0 * V_th if not callable(V_th) else 0.0 * u.math.asarray(V_th(neuron.in_size))
    given = {"R": R, "tau": tau, "V_th": V_th, "V_reset": V_reset, "V_rest": V_rest}
    for name, value in given.items():
        setattr(neuron, name, per_neuron(zero if value is None else value, neuron.in_size, name=name))
    check_same_dimension(type(neuron).__name__, V_th=neuron.V_th, V_reset=neuron.V_reset, V_rest=neuron.V_rest)


def _set_spikes(neuron: Any, spk_fun: Any, spk_reset: str) -> None:
    if spk_reset not in ("soft", "hard"):
        raise ValueError(f"spk_reset must be 'soft' or 'hard', got {spk_reset!r}.")
    neuron.spk_fun, neuron.spk_reset = spk_fun, spk_reset


def _integrate(neuron: Any, v: Any, x: Any) -> Any:
    target = neuron.V_rest + neuron.R * x
    return target + (v - target) * decay(time_step(neuron.dt), neuron.tau)
