"""The tasks of ``choosing.py``: data, a model, and how far back each asks a learner to look.

Inputs are ``(T, B, I + 1)``; the last column is the weight of the step in the loss: zero where nothing is asked, one
in sum over the steps of a sequence. A model returns ``(logits, weight)``, so that one loss serves every task.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax

import etp


@dataclass(frozen=True)
class Task:
    """One task.

    ``cell(random)`` makes the model of one step, ``draw(random, count)`` yields ``count`` batches of inputs and
    labels, ``test`` is one larger batch. ``decay`` is the trace decay for algorithms that need one, ``window`` the
    steps of truncated backpropagation.
    """

    name: str
    cell: Callable[[Any], brainstate.nn.Module]
    draw: Callable[[np.random.Generator, int], Any]
    test: tuple[np.ndarray, np.ndarray]
    updates: int
    decay: float
    window: int
    facts: dict[str, int] = field(default_factory=dict)

    def model(self, seed):
        return Asked(self.cell(np.random.default_rng(seed)))


class Asked(brainstate.nn.Module):
    """Takes the weight of the step off the input and hands it on beside the answer."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def update(self, x):
        return self.cell(x[..., :-1]), x[..., -1]


def loss(output, labels):
    """The cross-entropy of one step, weighted, a mean over the batch."""
    logits, weight = output
    return (optax.softmax_cross_entropy_with_integer_labels(logits, labels) * weight).mean()


def right(logits, weights, labels):
    """Whether each sequence's last answer that counts is right: ``(T, B, C)``, ``(T, B)``, ``(B,)`` to ``(B,)``."""
    last = len(weights) - 1 - jnp.argmax(weights[::-1] > 0, axis=0)
    return logits[last, jnp.arange(len(labels))].argmax(-1) == labels


def normal(random, rows, columns, scale=1.0):
    return brainstate.ParamState(jnp.asarray(scale * random.normal(size=(rows, columns)) / rows**0.5, jnp.float32))


class Hidden(brainstate.nn.Module):
    """Hidden states of one width, by name."""

    names: tuple[str, ...] = ("h",)

    def init_state(self, batch_size=None, **kwargs):
        for name in self.names:
            setattr(self, name, brainstate.HiddenState(jnp.zeros((batch_size, self.width), jnp.float32)))


class Gated(Hidden):
    """A gated recurrent unit: every unit acts on every other through three dense weights."""

    def __init__(self, random, inputs, width, classes):
        super().__init__()
        self.width = width
        self.update_gate, self.reset_gate, self.candidate = (normal(random, inputs + width, width) for _ in range(3))
        self.bias = brainstate.ParamState(jnp.full(width, -1.0))
        self.readout = normal(random, width, classes)

    def update(self, x):
        h = self.h.value
        xh = jnp.concatenate([x, h], -1)
        z = jax.nn.sigmoid(etp.matmul(xh, self.update_gate.value, self.bias.value))
        r = jax.nn.sigmoid(etp.matmul(xh, self.reset_gate.value))
        c = jnp.tanh(etp.matmul(jnp.concatenate([x, r * h], -1), self.candidate.value))
        self.h.value = (1 - z) * h + z * c
        return etp.matmul(self.h.value, self.readout.value)


class Memory(Hidden):
    """Units that act on themselves alone: a gate decides what is written, a learned leak how long it stays."""

    def __init__(self, random, inputs, width, classes):
        super().__init__()
        self.width = width
        self.write, self.gate = normal(random, inputs, width, inputs**0.5), normal(random, inputs, width, 0.0)
        self.bias = brainstate.ParamState(jnp.full(width, -6.0))
        self.leak = brainstate.ParamState(jnp.linspace(3.0, 8.0, width))
        self.inner, self.outer = normal(random, width + inputs, 32), normal(random, 32, classes)

    def update(self, x):
        gate = jax.nn.sigmoid(etp.matmul(x, self.gate.value, self.bias.value))
        leak = jax.nn.sigmoid(etp.element_wise(self.leak.value))
        self.h.value = leak * self.h.value + gate * jnp.tanh(etp.matmul(x, self.write.value))
        seen = jnp.concatenate([self.h.value, x], -1)
        return etp.matmul(jnp.tanh(etp.matmul(seen, self.inner.value)), self.outer.value)


spike = etp.nn.surrogate.SuperSpike(4.0)


class Spiking(Hidden):
    """Neurons that integrate, fire and adapt, with recurrent weights; a read-out of their filtered spikes."""

    names = ("v", "threshold", "spikes", "rate")

    def __init__(self, random, inputs, width, classes):
        super().__init__()
        self.width = width
        self.input, self.recurrent = normal(random, inputs, width, 1.5), normal(random, width, width, 0.5)
        self.bias = brainstate.ParamState(jnp.zeros(width))
        self.readout = normal(random, width, classes)

    def update(self, x):
        drive = etp.matmul(x, self.input.value, self.bias.value) + etp.matmul(self.spikes.value, self.recurrent.value)
        v = 0.7 * self.v.value * (1 - self.spikes.value) + drive
        s = spike(v - 0.5 - self.threshold.value)
        self.v.value, self.spikes.value = v, s
        self.threshold.value = 0.8 * self.threshold.value + 0.1 * s
        self.rate.value = 0.9 * self.rate.value + s
        return etp.matmul(self.rate.value, self.readout.value)


def weighted(x, weights):
    """``(N, T, I)`` with ``(N, T)`` weights behind, time leading; the weights of a sequence sum to one."""
    weights = weights / weights.sum(-1, keepdims=True)
    return np.swapaxes(np.concatenate([x, weights[..., None]], -1).astype(np.float32), 0, 1)


def drawn_from(x, y, batch):
    """A ``draw`` that goes through a data set again and again, every time in another order."""

    def draw(random, count):
        order = np.array([], int)
        for _ in range(count):
            if len(order) < batch:
                order = random.permutation(len(y))
            rows, order = order[:batch], order[batch:]
            yield x[:, rows], y[rows]

    return draw


def digits(smoke):
    """scikit-learn's 8 × 8 digits, a row per step; the answer counts after the last."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    width, batch, updates = (4, 4, 1) if smoke else (20, 16, 1350)
    parts = train_test_split(
        (found.images / 16.0).astype(np.float32),
        found.target.astype(np.int32),
        test_size=360,
        stratify=found.target,
        random_state=0,
    )
    last = np.zeros((1, 8)) + (np.arange(8) == 7)
    train, test = (weighted(x, np.repeat(last, len(x), 0)) for x in parts[:2])
    return Task(
        "digits",
        lambda random: Gated(random, 8, width, 10),
        drawn_from(train, parts[2], batch),
        (test, parts[3]),
        updates,
        decay=0.7,
        window=2,
        facts={"steps": 8, "batch": batch, "width": width},
    )


def delayed_match(smoke):
    """A sign, noise, a sign: do they agree? The answer counts at the last step, and lies before any short window."""
    steps, width, batch, updates = (8, 4, 4, 1) if smoke else (100, 24, 32, 600)

    def sample(random, count):
        signs = random.choice([-1.0, 1.0], (2, count))
        x = np.zeros((count, steps, 3), np.float32)
        x[..., 2] = random.normal(size=(count, steps))
        for step, sign in zip((0, -1), signs, strict=True):
            x[:, step, 0], x[:, step, 1] = sign, 1.0
        last = np.repeat([np.arange(steps) == steps - 1], count, 0).astype(float)
        return weighted(x, last), (signs[0] == signs[1]).astype(np.int32)

    return Task(
        "delayed match",
        lambda random: Memory(random, 3, width, 2),
        lambda random, count: (sample(random, batch) for _ in range(count)),
        sample(np.random.default_rng(2**31), 1000),
        updates,
        decay=0.98,
        window=4 if smoke else 10,
        facts={"steps": steps, "batch": batch, "width": width},
    )


def vowels(smoke):
    """Nine speakers by two spoken vowels; every frame counts, the answer is that of the last."""
    from sktime.datasets import load_japanese_vowels

    width, batch, updates = (4, 4, 1) if smoke else (24, 18, 450)
    sets, scale = [], None
    for split in ("train", "test"):
        frames, labels = load_japanese_vowels(split, return_type="nested_univ")
        utterances = [np.stack([np.asarray(c) for c in row], -1) for row in frames.to_numpy()]
        if scale is None:
            everything = np.concatenate(utterances)
            scale = everything.mean(0), everything.std(0)
        x, weights = np.zeros((len(utterances), 29, 12)), np.zeros((len(utterances), 29))
        for n, utterance in enumerate(utterances):
            x[n, : len(utterance)] = (utterance - scale[0]) / scale[1]
            weights[n, : len(utterance)] = 1.0
        sets.append((weighted(x, weights), np.asarray(labels).astype(np.int32) - 1))
    train, test = sets
    return Task(
        "vowels",
        lambda random: Spiking(random, 12, width, 9),
        drawn_from(*train, batch),
        test,
        updates,
        decay=0.8,
        window=5,
        facts={"steps": 29, "batch": batch, "width": width},
    )


TASKS = {"digits": digits, "delayed match": delayed_match, "vowels": vowels}
