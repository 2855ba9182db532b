"""Predict the next reading of a worn motion sensor, learning from every reading as it comes, while activities change.

Accelerometer and gyroscope at 10 Hz (BasicMotions, UEA archive; shipped with sktime): recordings of standing,
walking, running and badminton form one stream. Every reading is predicted before it is learned from, once, in order;
the error is prequential. A twin that stops learning after the first activity shows what the drift costs, the last
reading repeated is the error to beat.

    python examples/motion_stream.py
"""

import argparse
import time
from pathlib import Path

import brainstate
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sktime.datasets import load_basic_motions

import etp

ACTIVITIES = ("standing", "walking", "running", "badminton")


class Predictor(brainstate.nn.Module):
    """Leaky units of many time constants, driven by what is read, and a linear read-out of the change to come."""

    def __init__(self, channels, width, key):
        super().__init__()
        self.width, self.channels = width, channels
        keys = jax.random.split(key, 2)
        self.input = brainstate.ParamState(jax.random.normal(keys[0], (channels, width)) / np.sqrt(channels))
        self.bias = brainstate.ParamState(jnp.zeros(width))
        self.leak = brainstate.ParamState(jnp.linspace(-1.0, 3.0, width))
        self.readout = brainstate.ParamState(0.1 * jax.random.normal(keys[1], (width, channels)) / np.sqrt(width))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros(self.width))
        self.slow = brainstate.HiddenState(jnp.zeros(self.width))

    def update(self, x):
        leak = jax.nn.sigmoid(etp.element_wise(self.leak.value))
        drive = etp.matmul(x, self.input.value, self.bias.value)
        self.h.value = jnp.tanh(leak * self.h.value + drive)
        self.slow.value = leak * self.slow.value + (1 - leak) * self.h.value
        return x + etp.matmul(self.h.value - self.slow.value, self.readout.value)


def load(smoke):
    """The stream ``(steps, channels)``, one activity after the other, and the number of steps of one activity."""
    x, labels = load_basic_motions(return_type="numpy3d")
    order = np.argsort([ACTIVITIES.index(label.lower()) for label in labels], kind="stable")
    recordings = x[order].transpose(0, 2, 1)  # (recordings, steps, channels)
    if smoke:
        recordings = recordings[::10]
    stream = recordings.reshape(-1, recordings.shape[-1])
    first = stream[: len(stream) // len(ACTIVITIES)]
    return ((stream - first.mean(0)) / stream.std(0)).astype(np.float32), len(first)


def run(stream, args, until):
    """The squared error of every prediction, learning from each reading of the first ``until``."""
    model = Predictor(stream.shape[1], args.width, jax.random.key(args.seed))
    learner = etp.compile(model, args.algorithm, stream[0])
    weights, optimizer = learner.param_states, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(args.rate))
    memory = brainstate.ShortTermState(optimizer.init({path: s.value for path, s in weights.items()}))

    def one_reading(now):
        reading, following, rate = now
        gradient, error = brainstate.transform.grad(
            lambda: jnp.mean((learner(reading) - following) ** 2), grad_states=weights, return_value=True
        )()
        values = {path: s.value for path, s in weights.items()}
        updates, memory.value = optimizer.update(dict(gradient), memory.value, values)
        for path, value in values.items():
            weights[path].value = value + rate * updates[path]
        return error

    learns = jnp.asarray(np.arange(len(stream) - 1) < until, jnp.float32)
    started = time.perf_counter()
    once = brainstate.transform.jit(lambda *s: brainstate.transform.for_loop(one_reading, s))
    errors = np.asarray(once(jnp.asarray(stream[:-1]), jnp.asarray(stream[1:]), learns))
    return errors, time.perf_counter() - started


def show(results, per_activity, args):
    """Print the error per activity and draw the course of the errors."""
    print(f"{'mean squared error':24s}" + "".join(f"{a:>11s}" for a in ACTIVITIES) + f"{'seconds':>9s}")
    for name, (errors, seconds) in results.items():
        parts = [errors[n * per_activity : (n + 1) * per_activity].mean() for n in range(len(ACTIVITIES))]
        print(f"{name:24s}" + "".join(f"{p:11.4f}" for p in parts) + f"{seconds:9.1f}")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    span = max(1, per_activity // 10)
    for name, (errors, _) in results.items():
        axes.semilogy(np.convolve(errors, np.ones(span) / span, mode="valid"), label=name)
    for n, activity in enumerate(ACTIVITIES):
        axes.axvline(n * per_activity, color="grey", lw=0.5)
        axes.annotate(activity, (n * per_activity, 1.0), xycoords=("data", "axes fraction"), va="bottom", fontsize=8)
    axes.set(xlabel="reading", ylabel="squared error, running mean")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.output, dpi=150)
    print(f"\ncourse of the errors: {args.output}")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv=None):
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--algorithm", choices=("d_rtrl", "ostl_recurrent", "eprop"), default="d_rtrl")
    parser.add_argument("--width", type=int, default=64, help="hidden units (default: 64)")
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate of Adam (default: 0.003)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("motion_stream.png"), help="the picture")
    parser.add_argument("--smoke", action="store_true", help="a few seconds on a part of the data")
    args = parser.parse_args(argv)
    for name in ("width", "rate"):
        if getattr(args, name) <= 0:
            parser.error(f"argument --{name}: must be positive, got {getattr(args, name)}")
    stream, per_activity = load(args.smoke)
    results = {
        "learning all along": run(stream, args, until=len(stream)),
        "frozen after the first": run(stream, args, until=per_activity),
        "last reading repeated": (((stream[1:] - stream[:-1]) ** 2).mean(-1), 0.0),
    }
    show(results, per_activity, args)


if __name__ == "__main__":
    main()
