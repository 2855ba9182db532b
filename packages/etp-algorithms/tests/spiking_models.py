"""Spiking models of one to five states per position, each written out; inputs and widths are those of the zoo."""

import jax
import jax.numpy as jnp

from etp_ops import element_wise, matmul

from .models import IN, N, array, cell, spike


def weights(**more):
    return lambda: {"W": array(0, IN, N, scale=2.0), **{name: make() for name, make in more.items()}}


@cell({"v": (N,)}, weights(leak=lambda: array(1, N)))
def leaky_with_hard_reset(self, x):
    v = jax.nn.sigmoid(element_wise(self.leak.value)) * self.v.value + matmul(x, self.W.value)
    s = spike(v - 0.3)
    self.v.value = jnp.where(s > 0, 0.0, v)
    return s + 0.1 * v


@cell({"v": (N,), "i": (N,)}, weights())
def current_based_synapse(self, x):
    self.i.value = 0.6 * self.i.value + matmul(x, self.W.value)
    v = 0.8 * self.v.value + self.i.value
    s = spike(v - 0.5)
    self.v.value = v - 0.5 * s
    return s + 0.1 * self.v.value


@cell({"v": (N,), "i": (N,), "a": (N,)}, weights(tau=lambda: array(1, N)))
def synapse_and_adaptation(self, x):
    self.i.value = 0.6 * self.i.value + matmul(x, self.W.value)
    v = 0.8 * self.v.value + self.i.value - self.a.value
    s = spike(v - 0.3)
    decay = jax.nn.sigmoid(element_wise(self.tau.value))
    self.a.value = decay * self.a.value + (1 - decay) * (0.4 * s + 0.1 * jnp.tanh(v))
    self.v.value = v - 0.3 * s
    return s + 0.1 * self.v.value


@cell({"v": (N,), "i1": (N,), "i2": (N,), "theta": (N,)}, weights())
def two_currents_and_a_moving_threshold(self, x):
    """The reset of the currents and of the threshold follow the spike of this step."""
    v = self.v.value + 0.2 * (matmul(x, self.W.value) + self.i1.value + self.i2.value - self.v.value)
    s = spike(v - self.theta.value - 0.1)
    self.i1.value = 0.7 * self.i1.value * (1 - s) + 0.3 * s
    self.i2.value = 0.9 * self.i2.value - 0.2 * s
    self.theta.value = self.theta.value + 0.1 * (0.5 * v - self.theta.value) + 0.2 * s
    self.v.value = v * (1 - s)
    return s + self.v.value


@cell({f"s{n}": (N,) for n in range(5)}, weights(E=lambda: array(2, IN, N)))
def five_states(self, x):
    """Excitation and inhibition as conductances, a gate, adaptation and a voltage that reads all of them."""
    excitation = 0.7 * self.s0.value + jnp.abs(matmul(x, self.W.value))
    inhibition = 0.8 * self.s1.value + jnp.abs(matmul(x, self.E.value))
    v = self.s4.value + 0.1 * (excitation * (2.0 - self.s4.value) - inhibition * (self.s4.value + 1.0))
    gate = self.s2.value + 0.2 * (jax.nn.sigmoid(4 * v) - self.s2.value)
    s = spike(v - 0.5 - self.s3.value)
    self.s0.value, self.s1.value, self.s2.value = excitation, inhibition, gate
    self.s3.value = 0.9 * self.s3.value + 0.2 * s
    self.s4.value = v * (1 - s) - 0.1 * gate
    return s + self.s4.value


@cell({"s": (N, 3)}, weights(), group=("s",))
def three_states_in_one_array(self, x):
    v, i, a = (self.s.value[..., n] for n in range(3))
    i = 0.6 * i + matmul(x, self.W.value)
    v = 0.8 * v + i - a
    s = spike(v - 0.3)
    self.s.value = jnp.stack([v - 0.3 * s, i, 0.9 * a + 0.3 * s], -1)
    return s + 0.1 * v


SPIKING = {
    "leaky_with_hard_reset": (leaky_with_hard_reset, 1),
    "current_based_synapse": (current_based_synapse, 2),
    "synapse_and_adaptation": (synapse_and_adaptation, 3),
    "two_currents_and_a_moving_threshold": (two_currents_and_a_moving_threshold, 4),
    "five_states": (five_states, 5),
    "three_states_in_one_array": (three_states_in_one_array, 3),
}
"""Every model with its number of states per position; each parameter of each is exact."""
