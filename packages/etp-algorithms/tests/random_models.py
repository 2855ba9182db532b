"""Random steps: small programs over hidden states, inputs and parameters, and the models that run them.

A program is a list of instructions ``(operation, i, j)``; ``i`` and ``j`` choose earlier values. Operations act on
the last axis, or on the batch where they say so. Values have several shapes; :func:`fit` brings one to the width
that an operation or a state wants, by moving elements only.
"""

from dataclasses import dataclass

import brainstate
import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from etp_ops import element_wise, matmul

from .models import IN, Cell, array, spike

N = 4


@jax.custom_jvp
def damped(v):
    return jnp.sin(v)


damped.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 0.5 * jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def shifting(v):
    """Position-wise forwards; its derivative is said to come from the neighbour."""
    return jnp.tanh(v)


shifting.defvjp(lambda v: (jnp.tanh(v), v), lambda v, g: (jnp.roll(g, 1, -1) * (1 - jnp.tanh(v) ** 2),))


def fit(v, width=N):
    """The last axis cut, repeated or spread to ``width``; two trailing position axes are merged first."""
    if v.shape[-1] == 2 and v.ndim > 1 and v.shape[-2] == 2 and v.size % 4 == 0 and getattr(v, "ndim", 0) != 0:
        v = v.reshape(*v.shape[:-2], 4)
    size = v.shape[-1]
    if size == width:
        return v
    if size > width:
        return v[..., :width]
    if size == 1:
        return jnp.broadcast_to(v, (*v.shape[:-1], width))
    return jnp.concatenate([v] * -(-width // size), -1)[..., :width]


UNARY = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "square": jnp.square,
    "scale": lambda v: -0.7 * v,
    "relu": jax.nn.relu,
    "spike": lambda v: spike(v - 0.1),
    "damped": damped,
    "shifting": shifting,
    "detach": jax.lax.stop_gradient,
    "checkpoint": jax.checkpoint(lambda v: jnp.tanh(v) * v),
    "jit": jax.jit(lambda v: jnp.tanh(v) + 0.1),
    # index maps
    "roll": lambda v: jnp.roll(v, 1, -1),
    "flip": lambda v: jnp.flip(v, -1),
    "half": lambda v: v[..., : v.shape[-1] // 2] if v.shape[-1] > 1 else v,
    "strided": lambda v: v[..., ::2],
    "first": lambda v: v[..., :1],
    "pick": lambda v: v[..., jnp.arange(v.shape[-1])[::-1].copy()],
    "repeat_first": lambda v: v[..., jnp.zeros(v.shape[-1], int)],
    "swap_halves": lambda v: jnp.concatenate([v[..., v.shape[-1] // 2 :], v[..., : v.shape[-1] // 2]], -1),
    "pad": lambda v: jnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(1, 0)])[..., : v.shape[-1]],
    "turn": lambda v: jnp.swapaxes(fit(v).reshape(*fit(v).shape[:-1], 2, 2), -1, -2).reshape(fit(v).shape),
    "there_and_back": lambda v: jnp.roll(jnp.tanh(jnp.roll(v, 1, -1)), -1, -1),
    "set_entry": lambda v: v.at[..., 0].set(0.3),
    "add_entry": lambda v: v.at[..., 0].add(0.3),
    "copy_entry": lambda v: v.at[..., 0].set(v[..., -1]),
    # mixing
    "mean": lambda v: jnp.broadcast_to(v.mean(-1, keepdims=True), v.shape),
    "max": lambda v: v.max(-1, keepdims=True),
    "centre": lambda v: v - v.mean(-1, keepdims=True),
    "cumsum": lambda v: jnp.cumsum(v, -1),
    "softmax": lambda v: jax.nn.softmax(v, -1),
    "sort": lambda v: jnp.sort(v, -1),
    "argmax_gate": lambda v: v * (jnp.argmax(v, -1, keepdims=True) == 0),
    "over_batch": lambda v: v - v.mean(0, keepdims=True) if v.ndim > 1 else v,
    "cond": lambda v: jax.lax.cond(v.sum() > 0, jnp.tanh, lambda v: 0.5 * v, v),
    "cond_roll": lambda v: jax.lax.cond(v.sum() > 0, lambda v: jnp.roll(v, 1, -1), lambda v: 0.5 * v, v),
    "scan": lambda v: jax.lax.scan(lambda c, _: (jnp.tanh(c + 0.1), None), v, None, length=2)[0],
}
BINARY = {
    "add": lambda a, b: fit(a) + fit(b),
    "mul": lambda a, b: fit(a) * fit(b),
    "where": lambda a, b: jnp.where(fit(a) > 0, fit(a), fit(b)),
    "select": lambda a, b: jnp.where(fit(a) > 0, fit(b), 0.2),
    "concat": lambda a, b: jnp.concatenate([fit(a)[..., :2], fit(b)[..., 2:]], -1),
    "concat_whole": lambda a, b: jnp.concatenate([fit(a), fit(b)], -1),
    "minimum": lambda a, b: jnp.minimum(fit(a), fit(b)),
    "dot": lambda a, b: (fit(a) * fit(b)).sum(-1, keepdims=True),
    "gate": lambda a, b: jax.nn.sigmoid(a[..., :1]) * fit(b),
}
WEIGHTED = {
    "matmul_x": lambda m, x, v: matmul(x, m.W.value),
    "matmul_x_wide": lambda m, x, v: matmul(x, m.V.value),
    "matmul_x_bias": lambda m, x, v: matmul(x, jnp.tanh(m.W.value), m.u.value),
    "matmul_x_narrow": lambda m, x, v: matmul(x, m.g.value),
    "matmul_v": lambda m, x, v: matmul(fit(v), m.R.value),
    "matmul_v_tied": lambda m, x, v: matmul(fit(v, IN), m.W.value),
    "element_wise": lambda m, x, v: element_wise(m.u.value) * fit(v),
    "element_wise_alone": lambda m, x, v: jnp.broadcast_to(element_wise(m.u.value), fit(v).shape),
    "plain": lambda m, x, v: fit(v) @ m.P.value,
    "plain_x": lambda m, x, v: x @ m.W.value,
    "data_weight": lambda m, x, v: matmul(x, m.W.value * jnp.tanh(x.sum())),
}
THIRD = {"none": None, "same": (N,), "square": (2, 2), "stacked": (N, 2), "other": (N,), "wide": (2 * N,)}


@dataclass(frozen=True)
class Program:
    """A random step.

    Attributes:
        instructions: ``(operation, i, j)``.
        third: the kind of the third state.
        results: for each new state the number of a value, and whether the old state is added.
        batch: batch size, or None.
    """

    instructions: tuple[tuple[str, int, int], ...]
    third: str
    results: tuple[tuple[int, bool], ...]
    batch: int | None

    def __call__(self):
        """Build the model."""
        hidden = {"h": (N,), "k": (N,)}
        if self.third not in ("none", "other"):
            hidden["s"] = THIRD[self.third]
        params = {
            "W": array(0, IN, N),
            "V": array(1, IN, 2 * N),
            "g": array(2, IN, 1),
            "R": array(3, N, N),
            "P": array(4, N, N),
            "u": array(5, N),
        }
        model = Cell(self.step, params, hidden, group=("s",) if self.third == "stacked" else ())
        if self.third == "other":
            lead = () if self.batch is None else (self.batch,)
            model.s = brainstate.ShortTermState(jnp.zeros((*lead, N)))
        return model

    def step(self, model, x):
        """Run the instructions."""
        states = self._states(model)
        pool = [*(value for value in states.values()), x]
        for operation, i, j in self.instructions:
            a, b = pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]
            if operation in UNARY:
                pool.append(UNARY[operation](a))
            elif operation in BINARY:
                pool.append(BINARY[operation](a, b))
            else:
                pool.append(WEIGHTED[operation](model, x, a))
        lead = x.shape[:-1]
        new = {}
        for (name, old), (i, leaky) in zip(states.items(), self.results, strict=False):
            width = old.shape[-1]
            value = jnp.tanh(0.8 * fit(pool[-1 - i % len(pool)], width))
            new[name] = jnp.broadcast_to(value, (*lead, width)) + (0.5 * old if leaky else 0.0)
        model.h.value, model.k.value = new["h"], new["k"]
        if self.third == "stacked":
            model.s.value = jnp.stack([new["s0"], new["s1"]], -1)
        elif self.third == "square":
            model.s.value = new["s"].reshape(*lead, 2, 2)
        elif self.third != "none":
            model.s.value = new["s"]
        return model.h.value + 0.5 * model.k.value, fit(pool[-1])

    def _states(self, model):
        states = {"h": model.h.value, "k": model.k.value}
        if self.third == "stacked":
            states |= {"s0": model.s.value[..., 0], "s1": model.s.value[..., 1]}
        elif self.third == "square":
            states["s"] = model.s.value.reshape(*model.s.value.shape[:-2], 4)
        elif self.third != "none":
            states["s"] = model.s.value
        return states


OPERATIONS = [*UNARY, *BINARY, *WEIGHTED]
_choice = st.integers(0, 7)
programs = st.builds(
    Program,
    instructions=st.lists(st.tuples(st.sampled_from(OPERATIONS), _choice, _choice), min_size=1, max_size=8).map(tuple),
    third=st.sampled_from(list(THIRD)),
    results=st.tuples(*[st.tuples(_choice, st.booleans())] * 4),
    batch=st.sampled_from([None, 2]),
)
