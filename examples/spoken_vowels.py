"""Tell nine speakers apart by two spoken vowels, with spiking neurons that learn forward in time.

Each utterance of the Japanese Vowels data (UCI; shipped with sktime) is 7 to 29 frames of 12 spectral coefficients.
A layer of adaptive spiking neurons reads them frame by frame; utterances of a batch end at different frames, and a
mask by lane lets every frame of an utterance count and no other. D-RTRL, exact but for the recurrent weights, and
pp_prop never store the sequence; backpropagation through time is the yardstick.

    python examples/spoken_vowels.py
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
from sktime.datasets import load_japanese_vowels
from tqdm import tqdm

import etp

SPEAKERS = 9


@jax.custom_jvp
def spike(v):
    """A step whose derivative is replaced by that of a fast sigmoid."""
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    (v,), (t,) = primals, tangents
    return spike(v), t / (1.0 + 4.0 * jnp.abs(v)) ** 2


class Listener(brainstate.nn.Module):
    """Integrate-and-fire neurons with adaptive thresholds; a leaky read-out of their spikes."""

    def __init__(self, inputs, width, key):
        super().__init__()
        self.width = width
        first, second, third = jax.random.split(key, 3)
        self.input = brainstate.ParamState(1.5 * jax.random.normal(first, (inputs, width)) / np.sqrt(inputs))
        self.recurrent = brainstate.ParamState(0.5 * jax.random.normal(second, (width, width)) / np.sqrt(width))
        self.bias = brainstate.ParamState(jnp.zeros(width))
        self.readout = brainstate.ParamState(jax.random.normal(third, (width, SPEAKERS)) / np.sqrt(width))

    def init_state(self, batch_size=1, **kwargs):
        for name in ("v", "threshold", "spikes", "rate"):
            setattr(self, name, brainstate.HiddenState(jnp.zeros((batch_size, self.width))))

    def update(self, x):
        drive = etp.matmul(x, self.input.value, self.bias.value) + etp.matmul(self.spikes.value, self.recurrent.value)
        v = 0.7 * self.v.value * (1 - self.spikes.value) + drive
        s = spike(v - 0.5 - self.threshold.value)
        self.v.value, self.spikes.value = v, s
        self.threshold.value = 0.8 * self.threshold.value + 0.1 * s
        self.rate.value = 0.9 * self.rate.value + s
        return self.rate.value @ self.readout.value


def load(split, scale=None):
    """Frames ``(samples, steps, 12)``, zero after the end; lengths; speakers; mean and deviation of a coefficient."""
    frames, labels = load_japanese_vowels(split, return_type="nested_univ")
    utterances = [np.stack([np.asarray(c) for c in row], axis=-1) for row in frames.to_numpy()]
    lengths = np.array([len(u) for u in utterances])
    if scale is None:
        everything = np.concatenate(utterances)
        scale = everything.mean(0), everything.std(0)
    x = np.zeros((len(utterances), 29, 12), np.float32)
    for row, utterance in zip(x, utterances, strict=True):
        row[: len(utterance)] = (utterance - scale[0]) / scale[1]
    return x, lengths, np.asarray(labels).astype(np.int32) - 1, scale


def losses(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def make_step(model, algorithm, optimizer, batch):
    """A function ``(x, mask, y) -> loss`` that updates the model once; ``x`` is ``(T, B, 12)``, the mask ``(T, B)``."""
    learner = None
    if algorithm == "bptt":
        brainstate.nn.init_all_states(model, batch_size=batch)
    else:
        options = {"decay_or_rank": 0.8} if algorithm == "pp_prop" else {}
        learner = etp.compile(model, algorithm, jnp.zeros((batch, 12)), batch_size=batch, **options)
    weights = model.states(brainstate.ParamState)
    memory = brainstate.ShortTermState(optimizer.init({path: s.value for path, s in weights.items()}))

    @brainstate.transform.jit
    def step(x, mask, y):
        brainstate.nn.init_all_states(model, batch_size=batch)
        if learner is None:

            def mean_loss():
                every = brainstate.transform.for_loop(lambda frame: losses(model.update(frame), y), x)
                return (every * mask).sum() / mask.sum()

            gradient, loss = brainstate.transform.grad(mean_loss, weights, return_value=True)()
        else:
            gradient, loss = learner.etrace_grad(
                x,
                step_fn=lambda frame: losses(learner(frame), y),
                mask=mask,
                weights=weights,
                loss_output="scalar",
                return_value=True,
                complete_sequence=True,
            )
        values = {path: s.value for path, s in weights.items()}
        updates, memory.value = optimizer.update(dict(gradient), memory.value, values)
        for path, value in optax.apply_updates(values, updates).items():
            weights[path].value = value
        return loss

    return step


def make_test(model, width, x, lengths, y):
    """A function that gives the share of speakers named right at the last frame of every utterance."""
    twin = Listener(12, width, jax.random.key(0))
    own, theirs = model.states(brainstate.ParamState), twin.states(brainstate.ParamState)
    frames, last = jnp.swapaxes(jnp.asarray(x), 0, 1), jnp.asarray(lengths - 1)

    @brainstate.transform.jit
    def accuracy(values):
        brainstate.nn.init_all_states(twin, batch_size=len(y))
        for path, value in values.items():
            theirs[path].value = value
        logits = brainstate.transform.for_loop(twin.update, frames)
        return (logits[last, jnp.arange(len(y))].argmax(-1) == y).mean()

    return lambda: float(accuracy({path: s.value for path, s in own.items()}))


def run(algorithm, args, train, test):
    """Train one model with one algorithm; the test accuracy after every epoch, and the seconds it took."""
    x, lengths, y = train
    model = Listener(12, args.width, jax.random.key(args.seed))
    per_epoch = len(y) // args.batch
    schedule = optax.cosine_decay_schedule(args.rate, max(args.epochs * per_epoch, 1), alpha=0.05)
    step = make_step(model, algorithm, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)), args.batch)
    accuracy, order = make_test(model, args.width, *test), np.random.default_rng(args.seed)
    started, accuracies = time.perf_counter(), []
    bar = tqdm(range(args.epochs), desc=f"{algorithm:8s}", unit="epoch", disable=args.quiet)
    for _ in bar:
        for rows in order.permutation(len(y))[: per_epoch * args.batch].reshape(per_epoch, args.batch):
            mask = np.arange(x.shape[1])[:, None] < lengths[rows]
            loss = step(jnp.swapaxes(x[rows], 0, 1), jnp.asarray(mask, jnp.float32), jnp.asarray(y[rows]))
        accuracies.append(accuracy())
        bar.set_postfix(loss=f"{float(loss):.3f}", test=f"{accuracies[-1]:.1%}")
    return accuracies, time.perf_counter() - started


def show(results, args):
    """Print the table and draw the learning curves."""
    print(f"\n{'algorithm':10s} {'test accuracy':>13s} {'seconds':>8s}")
    for name, (accuracies, seconds) in results.items():
        print(f"{name:10s} {accuracies[-1]:13.1%} {seconds:8.1f}")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, (accuracies, _) in results.items():
        axes.plot(np.arange(1, len(accuracies) + 1), 100 * np.array(accuracies), label=name)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", title=f"nine speakers, {args.width} spiking neurons")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.output, dpi=150)
    print(f"\nlearning curves: {args.output}")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv=None):
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--algorithm", choices=("all", "d_rtrl", "pp_prop", "bptt"), default="all")
    parser.add_argument("--epochs", type=int, default=None, help="default: 40")
    parser.add_argument("--width", type=int, default=100, help="spiking neurons (default: 100)")
    parser.add_argument("--batch", type=int, default=27, help="utterances per update (default: 27)")
    parser.add_argument("--rate", type=float, default=0.005, help="learning rate of Adam (default: 0.005)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("spoken_vowels.png"), help="the picture")
    parser.add_argument("--smoke", action="store_true", help="a few seconds on a part of the data")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    args.epochs = args.epochs if args.epochs is not None else 1 if args.smoke else 40
    for name in ("epochs", "width", "batch", "rate"):
        if getattr(args, name) <= 0:
            parser.error(f"argument --{name}: must be positive, got {getattr(args, name)}")
    if args.batch > 54:
        parser.error(f"argument --batch: at most 54 utterances, got {args.batch}")
    x, lengths, y, scale = load("train")
    train, test = (x, lengths, y), load("test", scale)[:3]
    if args.smoke:
        train, test = tuple(a[::5] for a in train), tuple(a[::5] for a in test)
    every = ("d_rtrl",) if args.smoke else ("d_rtrl", "pp_prop", "bptt")
    names = every if args.algorithm == "all" else (args.algorithm,)
    show({name: run(name, args, train, test) for name in names}, args)


if __name__ == "__main__":
    main()
