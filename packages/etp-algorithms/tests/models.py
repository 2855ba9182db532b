"""The zoo: small models, each with the trust that the compiler must give it.

A row is ``name: (factory, trust by parameter)``. Models are seeded by construction, so every call builds the
same one. Inputs are ``(T, B, 3)``; hidden width is 4.
"""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from etp_ops import element_wise, matmul

IN, N = 3, 4


def array(seed, *shape, scale=0.5):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale)


@jax.custom_vjp
def spike(v):
    """A step with a triangular surrogate derivative."""
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, g: (g * jnp.maximum(0.0, 1.0 - jnp.abs(v)),))


class Cell(brainstate.nn.Module):
    """A model made of parameter arrays, hidden shapes and one step function."""

    def __init__(self, step, params, hidden, group=()):
        super().__init__()
        self.step = step
        self.hidden_shapes = hidden
        self.group = group
        for name, value in params.items():
            setattr(self, name, brainstate.ParamState(value))

    def init_state(self, batch_size=None, **kwargs):
        lead = () if batch_size is None else (batch_size,)
        for name, shape in self.hidden_shapes.items():
            kind = brainstate.HiddenGroupState if name in self.group else brainstate.HiddenState
            setattr(self, name, kind(jnp.zeros((*lead, *shape))))

    def update(self, x):
        return self.step(self, x)


def cell(hidden, params, group=()):
    """Turn a step function into a factory of models."""

    def decorate(step):
        def factory():
            return Cell(step, params(), hidden, group)

        factory.__name__ = step.__name__
        return factory

    return decorate


def simple(hidden=None, group=()):
    """A cell with one dense input weight ``W`` and a decay."""
    return cell(hidden or {"h": (N,)}, lambda: {"W": array(0, IN, N)}, group)


# --- exact -----------------------------------------------------------------------------------------------


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "b": array(1, N)})
def leaky(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value, self.b.value)
    return self.h.value


@cell({"h": (N,)}, lambda: {"p": {"weight": array(0, IN, N), "bias": array(1, N)}})
def leaky_pytree(self, x):
    p = self.p.value
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, p["weight"], p["bias"]))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
def indrnn(self, x):
    self.h.value = jnp.tanh(element_wise(self.u.value) * self.h.value + matmul(x, self.W.value))
    return self.h.value


@cell({"v": (N,), "i": (N,)}, lambda: {"W": array(0, IN, N), "d": array(1, N)})
def two_states_same_step(self, x):
    self.i.value = 0.8 * self.i.value + matmul(x, self.W.value)
    self.v.value = 0.9 * self.v.value + self.i.value * (1 - jax.nn.sigmoid(element_wise(self.d.value)))
    return self.v.value


@cell({"v": (N,), "a": (N,)}, lambda: {"W": array(0, IN, N, scale=2.0)})
def adaptive_spiking(self, x):
    v = 0.8 * self.v.value + matmul(x, self.W.value) - self.a.value
    s = spike(v - 0.3)
    self.a.value = 0.9 * self.a.value + 0.4 * s
    self.v.value = v * (1 - s)
    return s + 0.1 * self.v.value


@cell({"c": (N,), "h": (N,)}, lambda: {"W": array(0, IN, 4 * N), "b": array(1, 4 * N)})
def lstm_without_recurrence(self, x):
    i, f, g, o = jnp.split(matmul(x, self.W.value, self.b.value), 4, axis=-1)
    self.c.value = jax.nn.sigmoid(f) * self.c.value + jax.nn.sigmoid(i) * jnp.tanh(g)
    self.h.value = jax.nn.sigmoid(o) * jnp.tanh(self.c.value)
    return self.h.value


@simple({"s": (N, 2)}, group=("s",))
def stacked_states(self, x):
    v, a = self.s.value[..., 0], self.s.value[..., 1]
    a = 0.9 * a + 0.3 * v
    v = jnp.tanh(0.8 * v + matmul(x, self.W.value) - a)
    self.s.value = jnp.stack([v, a], axis=-1)
    return v


@simple({"h": (2, N // 2)})
def reshaped(self, x):
    y = matmul(x, self.W.value)
    self.h.value = 0.7 * self.h.value + y.reshape(*y.shape[:-1], 2, N // 2)
    return self.h.value


@simple({"h": (N // 2, 2)})
def transposed(self, x):
    y = matmul(x, self.W.value)
    y = y.reshape(*y.shape[:-1], 2, N // 2)
    h = jnp.swapaxes(self.h.value, -1, -2)
    self.h.value = jnp.swapaxes(jnp.tanh(0.7 * h + y), -1, -2)
    return self.h.value


@simple()
def rolled_tail(self, x):
    self.h.value = 0.7 * self.h.value * self.h.value + jnp.roll(matmul(x, self.W.value), 1, axis=-1)
    return self.h.value


@simple()
def fancy_index_tail(self, x):
    y = matmul(x, self.W.value)
    self.h.value = jnp.tanh(0.7 * self.h.value + y[..., jnp.array([2, 0, 3, 1])])
    return self.h.value


@cell({"h": (N,)}, lambda: {"g": array(0, IN, 1), "W": array(1, IN, N)})
def width_one_gate(self, x):
    gate = jax.nn.sigmoid(matmul(x, self.g.value))
    self.h.value = gate * self.h.value + jnp.tanh(matmul(x, self.W.value))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, 2), "P": array(2, IN, 2)})
def plain_readout(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
    return self.h.value @ self.R.value + x @ self.P.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, 2)})
def marked_readout(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
    return matmul(self.h.value, self.R.value)


MASK = np.arange(IN * N).reshape(IN, N) % 3 > 0


@simple()
def scaled_weight(self, x):
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, 3.0 * self.W.value))
    return self.h.value


@simple()
def squashed_weight(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, jnp.tanh(self.W.value))
    return self.h.value


@simple()
def squashed_by_hook(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value, weight_fn=jnp.tanh)
    return self.h.value


@simple()
def standardised_by_hook(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value, weight_fn=lambda w: (w - w.mean()) / w.std())
    return self.h.value


@simple()
def masked_weight(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value * MASK)
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, N, IN)})
def transposed_weight(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value.T)
    return self.h.value


@cell({"h": (N,)}, lambda: {"A": array(0, IN, N), "B": array(1, IN, N)})
def sum_of_parameters(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.A.value + 2 * self.B.value)
    return self.h.value


@cell({"c": (N,), "h": (N,)}, lambda: {"W": array(0, IN, 2 * N)})
def sliced_weight(self, x):
    self.c.value = 0.5 * self.c.value + matmul(x, self.W.value[:, :N])
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value[:, N:]) * self.c.value
    return self.h.value


@simple()
def tied_weight(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) * jnp.tanh(matmul(2 * x, self.W.value))
    return self.h.value


@simple()
def wrapped(self, x):
    drive = jax.jit(lambda x, w: matmul(x, w))(x, self.W.value)
    decay = jax.checkpoint(lambda h: 0.7 * jax.nn.relu(h + 0.1))(self.h.value)
    self.h.value = jnp.where(drive > 0, decay + drive, decay - drive**2)
    return self.h.value


@simple()
def vmapped(self, x):
    y = jax.vmap(lambda row: matmul(row, self.W.value))(x) if x.ndim == 2 else matmul(x, self.W.value)
    self.h.value = jnp.tanh(0.7 * self.h.value + y)
    return self.h.value


@simple()
def conditional(self, x):
    y = matmul(x, self.W.value)
    decayed = jax.lax.cond(y.sum() > 0, lambda h: 0.7 * h, lambda h: 0.5 * jnp.tanh(h), self.h.value)
    self.h.value = decayed + y
    return self.h.value


@cell({"h": (N,), "k": (N,)}, lambda: {"W": array(0, IN, N), "V": array(1, IN, N)})
def independent_groups(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value)
    self.k.value = jnp.tanh(0.5 * self.k.value + matmul(x, self.V.value))
    return self.h.value * self.k.value


@cell({"h": (N,), "k": (N,)}, lambda: {"W": array(0, IN, N)})
def one_drive_two_groups(self, x):
    y = matmul(x, self.W.value)
    self.h.value = 0.7 * self.h.value + y
    self.k.value = jnp.tanh(0.5 * self.k.value - y)
    return self.h.value * self.k.value


@cell({"h": (N,), "k": (N,)}, lambda: {"W": array(0, IN, N)})
def one_drive_two_orders(self, x):
    y = matmul(x, self.W.value)
    self.h.value = 0.7 * self.h.value + y
    self.k.value = jnp.tanh(0.5 * self.k.value + y[..., ::-1])
    return self.h.value * self.k.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "b": array(1, N)})
def bias_from_data(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value, jnp.ones(N) * 0.3) + element_wise(self.b.value)
    return self.h.value


@simple()
def detached_reset(self, x):
    s = jax.lax.stop_gradient(spike(self.h.value - 0.2))
    self.h.value = 0.7 * self.h.value * (1 - s) + matmul(x, self.W.value)
    return self.h.value + spike(self.h.value - 0.2)


@simple()
def state_read_twice(self, x):
    self.h.value = jnp.concatenate([self.h.value, self.h.value], -1)[..., :N] * 0.7 + matmul(x, self.W.value)
    return self.h.value


EXACT = {
    "leaky": leaky,
    "leaky_pytree": leaky_pytree,
    "indrnn": indrnn,
    "two_states_same_step": two_states_same_step,
    "adaptive_spiking": adaptive_spiking,
    "lstm_without_recurrence": lstm_without_recurrence,
    "stacked_states": stacked_states,
    "reshaped": reshaped,
    "transposed": transposed,
    "rolled_tail": rolled_tail,
    "fancy_index_tail": fancy_index_tail,
    "width_one_gate": width_one_gate,
    "plain_readout": plain_readout,
    "marked_readout": marked_readout,
    "scaled_weight": scaled_weight,
    "squashed_weight": squashed_weight,
    "squashed_by_hook": squashed_by_hook,
    "standardised_by_hook": standardised_by_hook,
    "masked_weight": masked_weight,
    "transposed_weight": transposed_weight,
    "sum_of_parameters": sum_of_parameters,
    "sliced_weight": sliced_weight,
    "tied_weight": tied_weight,
    "wrapped": wrapped,
    "vmapped": vmapped,
    "conditional": conditional,
    "independent_groups": independent_groups,
    "one_drive_two_groups": one_drive_two_groups,
    "one_drive_two_orders": one_drive_two_orders,
    "bias_from_data": bias_from_data,
    "detached_reset": detached_reset,
    "state_read_twice": state_read_twice,
}
"""Models whose every parameter is promised ``exact``."""


# --- approximate, and said to be ---------------------------------------------------------------------------


@cell({"h": (N,)}, lambda: {"W": array(0, IN + N, N)})
def dense_tanh(self, x):
    self.h.value = jnp.tanh(0.3 * self.h.value + matmul(jnp.concatenate([x, self.h.value], -1), self.W.value))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "P": array(1, IN, N)})
def plain_input_weight(self, x):
    self.h.value = jnp.tanh(0.7 * self.h.value + x @ self.P.value + matmul(x, self.W.value))
    return self.h.value


@cell(
    {"h": (N,)},
    lambda: {"Wz": array(0, IN + N, N), "Wr": array(1, IN + N, N), "Wh": array(2, IN + N, N)},
)
def gru(self, x):
    h = self.h.value
    xh = jnp.concatenate([x, h], -1)
    z = jax.nn.sigmoid(matmul(xh, self.Wz.value))
    r = jax.nn.sigmoid(matmul(xh, self.Wr.value))
    c = jnp.tanh(matmul(jnp.concatenate([x, r * h], -1), self.Wh.value))
    self.h.value = (1 - z) * h + z * c
    return self.h.value


@cell({"c": (N,), "h": (N,)}, lambda: {"W": array(0, IN + N, 4 * N)})
def lstm(self, x):
    i, f, g, o = jnp.split(matmul(jnp.concatenate([x, self.h.value], -1), self.W.value), 4, axis=-1)
    self.c.value = jax.nn.sigmoid(f) * self.c.value + jax.nn.sigmoid(i) * jnp.tanh(g)
    self.h.value = jax.nn.sigmoid(o) * jnp.tanh(self.c.value)
    return self.h.value


@cell({"h": (N,), "k": (N,)}, lambda: {"W1": array(0, IN, N), "W2": array(1, N, N)})
def two_layers(self, x):
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, self.W1.value))
    self.k.value = jnp.tanh(0.5 * self.k.value + matmul(self.h.value, self.W2.value))
    return self.k.value


@simple()
def rolled_state(self, x):
    self.h.value = 0.5 * self.h.value + 0.3 * jnp.roll(self.h.value, 1, axis=-1) + matmul(x, self.W.value)
    return self.h.value


@simple()
def mean_of_state(self, x):
    self.h.value = 0.5 * self.h.value + 0.3 * self.h.value.mean(-1, keepdims=True) + matmul(x, self.W.value)
    return self.h.value


@simple()
def normalised_drive(self, x):
    y = matmul(x, self.W.value)
    self.h.value = jnp.tanh(0.7 * self.h.value + y - y.mean(-1, keepdims=True))
    return self.h.value


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, N)})
def plain_recurrence(self, x):
    self.h.value = jnp.tanh(0.5 * self.h.value + matmul(x, self.W.value) + self.h.value @ self.R.value)
    return self.h.value


DIAGONAL = {
    "dense_tanh": (dense_tanh, {"W": "diagonal"}),
    "plain_input_weight": (plain_input_weight, {"W": "exact", "P": "window"}),
    "gru": (gru, {"Wz": "diagonal", "Wr": "window", "Wh": "diagonal"}),
    "lstm": (lstm, {"W": "diagonal"}),
    "two_layers": (two_layers, {"W1": "diagonal", "W2": "exact"}),
    "rolled_state": (rolled_state, {"W": "diagonal"}),
    "mean_of_state": (mean_of_state, {"W": "diagonal"}),
    "normalised_drive": (normalised_drive, {"W": "diagonal"}),
    "plain_recurrence": (plain_recurrence, {"W": "diagonal", "R": "window"}),
}
"""Models that are approximated, with the trust of every parameter."""


RELATIONS = {
    "leaky": [("etp_mm", "W,b", "h")],
    "leaky_pytree": [("etp_mm", "p.bias,p.weight", "h")],
    "indrnn": [("etp_elemwise", "u", "h"), ("etp_mm", "W", "h")],
    "two_states_same_step": [("etp_elemwise", "d", "i+v"), ("etp_mm", "W", "i+v")],
    "adaptive_spiking": [("etp_mm", "W", "v+a")],
    "lstm_without_recurrence": [("etp_mm", "W,b", "c+h")],
    "stacked_states": [("etp_mm", "W", "s")],
    "reshaped": [("etp_mm", "W", "h")],
    "transposed": [("etp_mm", "W", "h")],
    "rolled_tail": [("etp_mm", "W", "h")],
    "fancy_index_tail": [("etp_mm", "W", "h")],
    "width_one_gate": [("etp_mm", "W", "h"), ("etp_mm", "g", "h")],
    "plain_readout": [("etp_mm", "W", "h")],
    "marked_readout": [("etp_mm", "W", "h")],
    "scaled_weight": [("etp_mm", "W", "h")],
    "squashed_weight": [("etp_mm", "W", "h")],
    "squashed_by_hook": [("etp_mm", "W", "h")],
    "standardised_by_hook": [("etp_mm", "W", "h")],
    "masked_weight": [("etp_mm", "W", "h")],
    "transposed_weight": [("etp_mm", "W", "h")],
    "sum_of_parameters": [("etp_mm", "A,B", "h")],
    "sliced_weight": [("etp_mm", "W", "c+h"), ("etp_mm", "W", "c+h")],
    "tied_weight": [("etp_mm", "W", "h"), ("etp_mm", "W", "h")],
    "wrapped": [("etp_mm", "W", "h")],
    "vmapped": [("etp_mm", "W", "h")],
    "conditional": [("etp_mm", "W", "h")],
    "independent_groups": [("etp_mm", "V", "k"), ("etp_mm", "W", "h")],
    "one_drive_two_groups": [("etp_mm", "W", "h,k")],
    "one_drive_two_orders": [("etp_mm", "W", "h,k")],
    "bias_from_data": [("etp_elemwise", "b", "h"), ("etp_mm", "W", "h")],
    "detached_reset": [("etp_mm", "W", "h")],
    "state_read_twice": [("etp_mm", "W", "h")],
    "dense_tanh": [("etp_mm", "W", "h")],
    "plain_input_weight": [("etp_mm", "W", "h")],
    "gru": [("etp_mm", "Wh", "h"), ("etp_mm", "Wz", "h")],
    "lstm": [("etp_mm", "W", "h+c")],
    "two_layers": [("etp_mm", "W1", "h"), ("etp_mm", "W2", "k")],
    "rolled_state": [("etp_mm", "W", "h")],
    "mean_of_state": [("etp_mm", "W", "h")],
    "normalised_drive": [("etp_mm", "W", "h")],
    "plain_recurrence": [("etp_mm", "W", "h")],
}
"""For every batched model its relations: primitive, parameters, hidden groups."""


def inputs(steps=6, batch=2, seed=7):
    """A sequence ``(T, B, 3)``, or ``(T, 3)`` with ``batch=None``."""
    lead = (steps,) if batch is None else (steps, batch)
    return array(seed, *lead, IN, scale=1.0)
