"""Four recurrent models, written once for any library with the same operators.

``rnn`` dense tanh recurrence, ``gru`` three gates, ``lif`` synaptic current and membrane with surrogate spikes,
``indrnn`` element-wise recurrence. Every model has a plain read-out.
"""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

IN, OUT = 32, 10
FAMILIES = ("rnn", "gru", "lif", "indrnn")


@jax.custom_vjp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, g: (g * 0.3 * jnp.maximum(0.0, 1.0 - jnp.abs(v)),))


def data(batch, steps):
    """Inputs and targets, ``(T, B, ...)``."""
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(size=(steps, batch, IN)), rng.normal(size=(steps, batch, OUT))
    return jnp.asarray(xs, jnp.float32), jnp.asarray(ys, jnp.float32)


def make(library, family, width, dtype=jnp.float32):
    """A brainstate module whose weights are marked with the operators of ``library``."""
    rng = np.random.default_rng(1)

    def weight(rows, columns):
        value = rng.normal(size=(rows, columns)) / np.sqrt(rows)
        return brainstate.ParamState(jnp.asarray(value, dtype))

    def vector(value):
        return brainstate.ParamState(jnp.full(width, value, dtype))

    class Model(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            inputs = IN if family == "indrnn" else IN + width
            for name in ("Wz", "Wr", "W") if family == "gru" else ("W",):
                setattr(self, name, weight(inputs, width))
                setattr(self, "b" + name, vector(0.0))
            if family == "indrnn":
                self.u = vector(0.9)
            self.readout = weight(width, OUT)

        def init_state(self, batch_size=None, **kwargs):
            for name in ("i", "v") if family == "lif" else ("h",):
                setattr(self, name, brainstate.HiddenState(self._zeros(batch_size)))

        def reset_state(self, batch_size=None, **kwargs):
            for name in ("i", "v") if family == "lif" else ("h",):
                getattr(self, name).value = self._zeros(batch_size)

        def _zeros(self, batch_size):
            return jnp.zeros((width,) if batch_size is None else (batch_size, width), dtype)

        def update(self, x):
            return STEPS[family](library, self, x) @ self.readout.value

    return Model()


def _rnn(library, m, x):
    xh = jnp.concatenate([x, m.h.value], -1)
    m.h.value = jnp.tanh(library.matmul(xh, m.W.value, m.bW.value))
    return m.h.value


def _gru(library, m, x):
    h = m.h.value
    xh = jnp.concatenate([x, h], -1)
    z = jax.nn.sigmoid(library.matmul(xh, m.Wz.value, m.bWz.value))
    r = jax.nn.sigmoid(library.matmul(xh, m.Wr.value, m.bWr.value))
    c = jnp.tanh(library.matmul(jnp.concatenate([x, r * h], -1), m.W.value, m.bW.value))
    m.h.value = (1 - z) * h + z * c
    return m.h.value


def _lif(library, m, x):
    s = spike(m.v.value - 1.0)
    i = 0.8 * m.i.value + library.matmul(jnp.concatenate([x, s], -1), m.W.value, m.bW.value)
    m.v.value = 0.9 * m.v.value + i - s
    m.i.value = i
    return spike(m.v.value - 1.0)


def _indrnn(library, m, x):
    y = library.matmul(x, m.W.value, m.bW.value)
    m.h.value = jnp.tanh(y + library.element_wise(m.u.value) * m.h.value)
    return m.h.value


STEPS = {"rnn": _rnn, "gru": _gru, "lif": _lif, "indrnn": _indrnn}
