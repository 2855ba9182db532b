"""Recognise handwritten digits, read row by row, with a recurrent network that learns forward in time.

scikit-learn's 8 × 8 digits arrive as sequences of 8 rows (or, with --pixels, of 64 pixels), brighter than noise
and nothing else; after the last one the network names the digit. D-RTRL and pp_prop never store the sequence;
backpropagation through time, which does, is the yardstick. ``--compare`` runs all three on the same model.

    python examples/online_digits.py --compare
    python examples/online_digits.py --cell spiking --algorithm pp_prop
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import brainstate
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import etp

CLASSES = 10


@jax.custom_jvp
def spike(v):
    """A step whose derivative is replaced by that of a fast sigmoid."""
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    (v,), (t,) = primals, tangents
    return spike(v), t / (1.0 + 4.0 * jnp.abs(v)) ** 2


def glorot(rows, columns):
    return brainstate.ParamState(brainstate.random.randn(rows, columns) * np.sqrt(2.0 / (rows + columns)))


class GatedCell(brainstate.nn.Module):
    """A gated recurrent unit whose three weights are marked, with a plain read-out."""

    def __init__(self, inputs, width):
        super().__init__()
        self.width = width
        self.update_gate, self.reset_gate, self.candidate = (glorot(inputs + width, width) for _ in range(3))
        self.gate_bias = brainstate.ParamState(jnp.full(width, -1.0))
        self.readout = glorot(width, CLASSES)

    def init_state(self, batch_size=1):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.width)))

    def update(self, x):
        h = self.h.value
        xh = jnp.concatenate([x, h], axis=-1)
        z = jax.nn.sigmoid(etp.matmul(xh, self.update_gate.value, self.gate_bias.value))
        r = jax.nn.sigmoid(etp.matmul(xh, self.reset_gate.value))
        c = jnp.tanh(etp.matmul(jnp.concatenate([x, r * h], axis=-1), self.candidate.value))
        self.h.value = (1 - z) * h + z * c
        return self.h.value @ self.readout.value


class SpikingCell(brainstate.nn.Module):
    """Leaky integrate-and-fire neurons with an adaptive threshold, read out through a low-pass filter of spikes."""

    def __init__(self, inputs, width):
        super().__init__()
        self.width = width
        self.input = glorot(inputs, width)
        self.recurrent = glorot(width, width)
        self.leak = brainstate.ParamState(jnp.full(width, 2.0))
        self.readout = glorot(width, CLASSES)

    def init_state(self, batch_size=1):
        for name in ("v", "threshold", "spikes", "rate"):
            setattr(self, name, brainstate.HiddenState(jnp.zeros((batch_size, self.width))))

    def update(self, x):
        leak = jax.nn.sigmoid(etp.element_wise(self.leak.value))
        drive = 3.0 * etp.matmul(x, self.input.value) + etp.matmul(self.spikes.value, self.recurrent.value)
        v = leak * self.v.value * (1 - self.spikes.value) + drive
        s = spike(v - 0.5 - self.threshold.value)
        self.v.value, self.spikes.value = v, s
        self.threshold.value = 0.8 * self.threshold.value + 0.1 * s
        self.rate.value = 0.8 * self.rate.value + s
        return self.rate.value @ self.readout.value


CELLS = {"gated": GatedCell, "spiking": SpikingCell}
ALGORITHMS = ("d_rtrl", "pp_prop", "bptt")


@dataclass
class Result:
    """What one run measured."""

    algorithm: str
    accuracies: list[float]
    seconds_per_step: float
    memory: int
    total_seconds: float
    trust: str


def load(pixels, smoke, seed):
    """Training and test sequences ``(samples, steps, inputs)`` with labels; every pixel in [0, 1]."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    x = images.reshape(len(images), 64, 1) if pixels else images
    x_train, x_test, y_train, y_test = train_test_split(
        x, digits.target.astype(np.int32), test_size=360, stratify=digits.target, random_state=seed
    )
    return (x_train[:128], y_train[:128], x_test[:64], y_test[:64]) if smoke else (x_train, y_train, x_test, y_test)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_train_step(model, algorithm, optimizer, x0, options):
    """A function ``(x, y) -> (loss, accuracy)`` that updates the model once, and the learner if there is one.

    ``x`` is ``(T, B, inputs)``. The answer counts at the last step only.
    """
    batch = x0.shape[1]
    learner = None
    if algorithm == "bptt":
        brainstate.nn.init_all_states(model, batch_size=batch)
    else:
        learner = etp.compile(model, algorithm, x0[0], batch_size=batch, **options)
    weights = model.states(brainstate.ParamState)
    memory = brainstate.ShortTermState(optimizer.init({path: s.value for path, s in weights.items()}))
    first = {path: s.value for path, s in model.states(brainstate.HiddenState).items()}
    hidden = model.states(brainstate.HiddenState)

    def gradients(x, y):
        if learner is None:

            def loss_of_sequence():
                logits = brainstate.transform.for_loop(model.update, x)[-1]
                return cross_entropy(logits, y), logits

            return brainstate.transform.grad(loss_of_sequence, weights, has_aux=True, return_value=True)()

        def step(row):
            logits = learner(row)
            return cross_entropy(logits, y), logits

        at_the_end = jnp.arange(len(x)) == len(x) - 1
        gradient, losses, logits = learner.etrace_grad(
            x,
            step_fn=step,
            mask=at_the_end,
            weights=weights,
            has_aux=True,
            return_value=True,
            complete_sequence=True,
        )
        return gradient, losses[-1], logits[-1]

    def train_step(x, y):
        for path, state in hidden.items():
            state.value = first[path]
        gradient, loss, logits = gradients(x, y)
        values = {path: s.value for path, s in weights.items()}
        updates, memory.value = optimizer.update(dict(gradient), memory.value, values)
        for path, value in optax.apply_updates(values, updates).items():
            weights[path].value = value
        return loss, (logits.argmax(-1) == y).mean()

    return train_step, learner


def compile_step(train_step, x, y):
    """The step compiled once, as a function of the values of its states, with its peak memory in bytes."""
    stateful = brainstate.transform.StatefulFunction(train_step, return_only_write=False)
    stateful.make_jaxpr(x, y)
    states = stateful.get_states(x, y)
    values = [state.value for state in states]
    compiled = jax.jit(stateful.jaxpr_call).lower(values, x, y).compile()
    analysis = compiled.memory_analysis()
    memory = 0 if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    def call(x, y):
        new_values, out = compiled([state.value for state in states], x, y)
        for state, value in zip(states, new_values, strict=True):
            state.value = value
        return out

    return call, memory


def make_test(cell, width, x, y):
    """A function ``weights -> share of right answers``, on a twin of the model with the test batch."""
    twin = CELLS[cell](x.shape[-1], width)
    weights = twin.states(brainstate.ParamState)

    @brainstate.transform.jit
    def accuracy(values):
        brainstate.nn.init_all_states(twin, batch_size=len(y))
        for path, value in values.items():
            weights[path].value = value
        logits = brainstate.transform.for_loop(twin.update, jnp.swapaxes(x, 0, 1))[-1]
        return (logits.argmax(-1) == y).mean()

    return accuracy


def run(algorithm, args, data):
    """Train one model with one algorithm."""
    started = time.perf_counter()
    x_train, y_train, x_test, y_test = data
    brainstate.random.seed(args.seed)
    order = np.random.default_rng(args.seed)
    model = CELLS[args.cell](x_train.shape[-1], args.width)
    batches = len(x_train) // args.batch
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.cosine_decay_schedule(args.rate, max(args.epochs * batches, 1), alpha=0.05)),
    )
    x0 = jnp.zeros((x_train.shape[1], args.batch, x_train.shape[2]))
    options = {"decay_or_rank": args.decay} if algorithm == "pp_prop" else {}
    train_step, learner = make_train_step(model, algorithm, optimizer, x0, options)
    step, memory = compile_step(train_step, x0, jnp.zeros(args.batch, jnp.int32))
    accuracy = make_test(args.cell, args.width, x_test, y_test)

    accuracies, seconds = [], []
    bar = tqdm(range(args.epochs), desc=f"{algorithm:8s}", unit="epoch", disable=args.quiet)
    for _ in bar:
        picked = order.permutation(len(x_train))[: batches * args.batch].reshape(batches, args.batch)
        losses, hits = [], []
        for rows in picked:
            now = time.perf_counter()
            loss, hit = jax.block_until_ready(step(jnp.swapaxes(x_train[rows], 0, 1), jnp.asarray(y_train[rows])))
            seconds.append((time.perf_counter() - now) / x0.shape[0])
            losses.append(float(loss))
            hits.append(float(hit))
        accuracies.append(float(accuracy({path: s.value for path, s in model.states(brainstate.ParamState).items()})))
        bar.set_postfix(loss=f"{np.mean(losses):.3f}", train=f"{np.mean(hits):.1%}", test=f"{accuracies[-1]:.1%}")
    trust = "everything exact" if learner is None else str(learner.report)
    return Result(algorithm, accuracies, float(np.median(seconds)), memory, time.perf_counter() - started, trust)


def show(results, args):
    """Print the table and draw the learning curves."""
    print(f"\n{'algorithm':10s} {'test accuracy':>13s} {'µs per step':>12s} {'peak memory':>12s} {'seconds':>8s}")
    for r in results:
        print(
            f"{r.algorithm:10s} {r.accuracies[-1]:13.1%} {r.seconds_per_step * 1e6:12.0f} "
            f"{r.memory / 2**20:8.2f} MiB {r.total_seconds:8.1f}"
        )
    for r in results:
        print(f"\n{r.algorithm}: what each gradient contains\n{r.trust}")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for r in results:
        axes.plot(np.arange(1, len(r.accuracies) + 1), 100 * np.array(r.accuracies), label=r.algorithm)
    steps = "64 pixels" if args.pixels else "8 rows"
    axes.set(
        xlabel="epoch", ylabel="test accuracy (%)", title=f"digits read as {steps}, {args.cell} cell of {args.width}"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.output, dpi=150)
    print(f"\nlearning curves: {args.output}")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def parse(argv=None):
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cell", choices=sorted(CELLS), default="gated")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="d_rtrl")
    parser.add_argument("--compare", action="store_true", help="run every algorithm on the same model")
    parser.add_argument("--pixels", action="store_true", help="one pixel per step instead of one row")
    parser.add_argument("--epochs", type=int, default=None, help="default: 40")
    parser.add_argument("--width", type=int, default=64, help="hidden units (default: 64)")
    parser.add_argument("--batch", type=int, default=32, help="samples per update (default: 32)")
    parser.add_argument("--rate", type=float, default=0.005, help="learning rate of Adam (default: 0.005)")
    parser.add_argument("--decay", type=float, default=0.7, help="filter decay of pp_prop (default: 0.7)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("online_digits.png"), help="the picture")
    parser.add_argument("--smoke", action="store_true", help="a few seconds on a part of the data")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    args.epochs = args.epochs if args.epochs is not None else 1 if args.smoke else 40
    for name in ("epochs", "width", "batch", "rate"):
        if getattr(args, name) <= 0:
            parser.error(f"argument --{name}: must be positive, got {getattr(args, name)}")
    if not 0 <= args.decay < 1:
        parser.error(f"argument --decay: must lie in [0, 1), got {args.decay}")
    if args.batch > (128 if args.smoke else 1437):
        parser.error(f"argument --batch: there are {128 if args.smoke else 1437} training samples, got {args.batch}")
    if args.output.suffix != ".png" or not args.output.resolve().parent.is_dir():
        parser.error(f"argument --output: must be a .png file in an existing folder, got {args.output}")
    return args


def main(argv=None):
    args = parse(argv)
    data = load(args.pixels, args.smoke, args.seed)
    names = ALGORITHMS if args.compare else (args.algorithm,)
    show([run(name, args, data) for name in names], args)


if __name__ == "__main__":
    main()
