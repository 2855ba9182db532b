"""Generalised integrate-and-fire neurons."""

from collections.abc import Callable
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from etp_ops.nn._neurons import check_same_dimension, decay, initial_state, per_neuron, time_step
from etp_ops.nn._values import Initializer, Size, as_size
from etp_ops.nn.surrogate import ReluGrad

__all__ = ["GIF"]

_SPIKE = ReluGrad()


class GIF(brainstate.nn.Module):
    """Generalised integrate-and-fire neurons: two internal currents and a moving threshold.

    ::

        dI1/dt = −k1 I1         dI2/dt = −k2 I2
        τ dV/dt = −(V − V_rest) + R (x + I1 + I2)
        dV_th/dt = a (V − V_rest) − b (V_th − V_th_inf)
        s = spk_fun((V − V_th) / (V_th_inf − V_reset))

    and at the step after a spike::

        I1 ← R1 I1 + A1,   I2 ← R2 I2 + A2,   V ← V_reset,   V_th ← max(V_th, V_th_reset)

    Each equation is integrated exactly over dt with the others held, in this order. Voltages, times and currents
    are all quantities, or all plain numbers.

    Args:
        in_size: the shape of the population.
        R: membrane resistance; like all numbers below, one or one per neuron.
        tau: membrane time constant.
        V_rest: resting voltage.
        V_reset: voltage after a spike.
        V_th_inf: threshold at rest.
        V_th_reset: least threshold after a spike.
        a: rate at which the threshold follows the voltage.
        b: rate at which the threshold returns to ``V_th_inf``; positive.
        k1: decay rate of the first current.
        k2: decay rate of the second current.
        R1: part of the first current that is left by a spike.
        R2: part of the second current that is left by a spike.
        A1: jump of the first current at a spike.
        A2: jump of the second current at a spike.
        V_initializer: initial voltage; None for ``V_rest``.
        I1_initializer: initial first current; None for zero.
        I2_initializer: initial second current; None for zero.
        Vth_initializer: initial threshold; None for ``V_th_inf``.
        spk_fun: from the scaled distance to threshold to a spike, with a surrogate derivative.
        name: name of the module.
        dt: time step; None for that of ``brainstate.environ``.

    Attributes:
        V: the voltage, a hidden state; so are the others.
        V_th: the threshold.
        I1: the first current.
        I2: the second current.

    Raises:
        ValueError: units or shapes do not fit, or no time step.

    Source: Mihalas and Niebur 2009, A generalized linear integrate-and-fire neural model.
    """

    V_initializer: Any
    Vth_initializer: Any
    I1_initializer: Any
    I2_initializer: Any
    spk_fun: Callable[..., Any]
    dt: Any
    V_th: brainstate.HiddenState

    def __init__(
        self,
        in_size: Size,
        R: Any = 20.0 * u.ohm,
        tau: Any = 20.0 * u.ms,
        V_rest: Any = -70.0 * u.mV,
        V_reset: Any = -70.0 * u.mV,
        V_th_inf: Any = -50.0 * u.mV,
        V_th_reset: Any = -60.0 * u.mV,
        a: Any = 0.0 / u.ms,
        b: Any = 0.01 / u.ms,
        k1: Any = 0.2 / u.ms,
        k2: Any = 0.02 / u.ms,
        R1: Any = 0.0,
        R2: Any = 1.0,
        A1: Any = 0.0 * u.mA,
        A2: Any = 0.0 * u.mA,
        V_initializer: Initializer | None = None,
        I1_initializer: Initializer | None = None,
        I2_initializer: Initializer | None = None,
        Vth_initializer: Initializer | None = None,
        spk_fun: Callable[[Any], jax.Array] = _SPIKE,
        name: str | None = None,
        *,
        dt: Any = None,
    ) -> None:
        super().__init__(name=name)
        self.in_size = as_size(in_size)
        self.out_size = self.in_size
        voltages = {"V_rest": V_rest, "V_reset": V_reset, "V_th_inf": V_th_inf, "V_th_reset": V_th_reset}
        rates = {"a": a, "b": b, "k1": k1, "k2": k2}
        currents = {"A1": A1, "A2": A2}
        for name_, value in {**voltages, **rates, **currents, "R": R, "tau": tau, "R1": R1, "R2": R2}.items():
            setattr(self, name_, per_neuron(value, self.in_size, name=name_))
        check_same_dimension("GIF", **{key: getattr(self, key) for key in voltages})
        check_same_dimension("GIF", **{key: getattr(self, key) for key in rates})
        check_same_dimension("GIF", **{key: getattr(self, key) for key in currents})
        if not jnp.all(u.get_mantissa(self.b) > 0):
            raise ValueError(f"GIF: b must be positive, for the threshold to return to V_th_inf; got {b}.")
        self.V_initializer, self.Vth_initializer = V_initializer, Vth_initializer
        self.I1_initializer, self.I2_initializer = I1_initializer, I2_initializer
        self.spk_fun, self.dt = spk_fun, dt

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Make the four states, with a leading axis of ``batch_size`` if given."""
        self.V, self.V_th, self.I1, self.I2 = self._initial(batch_size)

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Give the four states their initial values again."""
        states = (self.V, self.V_th, self.I1, self.I2)
        for state, fresh in zip(states, self._initial(batch_size), strict=True):
            state.value = fresh.value

    def _initial(self, batch_size: int | None) -> tuple[brainstate.HiddenState, ...]:
        values = (
            (self.V_initializer, self.V_rest),
            (self.Vth_initializer, self.V_th_inf),
            (self.I1_initializer, 0.0 * self.A1),
            (self.I2_initializer, 0.0 * self.A2),
        )
        return tuple(initial_state(given, default, self.in_size, batch_size) for given, default in values)

    def get_spike(self, V: Any = None, V_th: Any = None) -> jax.Array:
        """The spikes at the voltage ``V`` and the threshold ``V_th``, by default the present ones."""
        v = self.V.value if V is None else V
        threshold = self.V_th.value if V_th is None else V_th
        return self.spk_fun((v - threshold) / (self.V_th_inf - self.V_reset))

    def update(self, x: Any) -> jax.Array:
        """A current ``(..., *in_size)`` to spikes of the same shape."""
        dt, spike = time_step(self.dt), self.get_spike()
        v, threshold, i1, i2 = self._after_spike(spike)
        self.I1.value = i1 * decay(dt, 1 / self.k1, name="1/k1")
        self.I2.value = i2 * decay(dt, 1 / self.k2, name="1/k2")
        target = self.V_rest + self.R * (x + self.I1.value + self.I2.value)
        self.V.value = target + (v - target) * decay(dt, self.tau)
        goal = self.V_th_inf + (self.a / self.b) * (self.V.value - self.V_rest)
        self.V_th.value = goal + (threshold - goal) * decay(dt, 1 / self.b, name="1/b")
        return self.get_spike()

    def _after_spike(self, spike: jax.Array) -> tuple[Any, Any, Any, Any]:
        v, threshold, i1, i2 = self.V.value, self.V_th.value, self.I1.value, self.I2.value
        return (
            v - (jax.lax.stop_gradient(v) - self.V_reset) * spike,
            threshold + u.math.maximum(self.V_th_reset - threshold, 0.0 * threshold) * spike,
            i1 + ((self.R1 - 1.0) * i1 + self.A1) * spike,
            i2 + ((self.R2 - 1.0) * i2 + self.A2) * spike,
        )
