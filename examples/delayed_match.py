"""Remember a sign for hundreds of noisy steps and say whether the sign at the end is the same.

The answer depends on an input that lies further back than a window of truncated backpropagation reaches: its
gradient holds nothing of the first sign, however long it trains. An eligibility trace carries the sign's influence
along, at a cost per step that does not grow with the delay. The gates start closed, so what to keep must be learned.

    python examples/delayed_match.py --delay 300
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
from tqdm import tqdm

import etp

LEARNERS = {"D_RTRL": etp.D_RTRL, "truncated": etp.DNI}  # DNI that has learned nothing is truncated backpropagation


class Memory(brainstate.nn.Module):
    """Gated leaky units: a gate decides what is written, a learned leak how long it stays; a small read-out network."""

    def __init__(self, width, key):
        super().__init__()
        self.width = width
        keys = jax.random.split(key, 4)
        self.write = brainstate.ParamState(jax.random.normal(keys[0], (3, width)))
        self.gate = brainstate.ParamState(jnp.zeros((3, width)))
        self.gate_bias = brainstate.ParamState(jnp.full(width, -6.0))
        self.leak = brainstate.ParamState(jnp.linspace(3.0, 8.0, width))  # time constants of 20 to 3000 steps
        self.inner = brainstate.ParamState(jax.random.normal(keys[2], (width + 3, 32)) / np.sqrt(width + 3))
        self.outer = brainstate.ParamState(jax.random.normal(keys[3], (32, 1)) / np.sqrt(32))

    def init_state(self, batch_size=1, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.width)))

    def update(self, x):
        leak = jax.nn.sigmoid(etp.element_wise(self.leak.value))
        gate = jax.nn.sigmoid(etp.matmul(x, self.gate.value, self.gate_bias.value))
        self.h.value = leak * self.h.value + gate * jnp.tanh(etp.matmul(x, self.write.value))
        seen = jnp.concatenate([self.h.value, x], axis=-1)
        return (jnp.tanh(seen @ self.inner.value) @ self.outer.value)[:, 0]


def draw(rng, delay, batch):
    """Inputs ``(delay, batch, 3)``: the sign, the flag that one is shown, noise; and whether both signs agree."""
    signs = rng.choice([-1.0, 1.0], (2, batch))
    x = np.zeros((delay, batch, 3), np.float32)
    x[..., 2] = rng.normal(size=(delay, batch))
    for step, sign in zip((0, -1), signs, strict=True):
        x[step, :, 0], x[step, :, 1] = sign, 1.0
    return jnp.asarray(x), jnp.asarray(signs[0] == signs[1], jnp.float32)


def run(name, args):
    """The share of right answers after every update, and the seconds of the training."""
    model = Memory(args.width, jax.random.key(args.seed))
    learner = etp.compile(model, LEARNERS[name], jnp.zeros((args.batch, 3)), batch_size=args.batch)
    weights, optimizer = learner.param_states, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(args.rate))
    memory = brainstate.ShortTermState(optimizer.init({path: s.value for path, s in weights.items()}))
    at_the_end = jnp.arange(args.delay) == args.delay - 1
    window = args.window if name == "truncated" else None

    @brainstate.transform.jit
    def update(x, y):
        brainstate.nn.init_all_states(model, batch_size=args.batch)

        def loss(frames):
            logits = learner(etp.MultiStepData(frames) if window else frames)
            return optax.sigmoid_binary_cross_entropy(logits, y).mean(-1), (logits > 0) == y

        gradient, right = learner.etrace_grad(
            x, step_fn=loss, mask=at_the_end, chunk_size=window, has_aux=True, complete_sequence=True
        )
        values = {path: s.value for path, s in weights.items()}
        updates, memory.value = optimizer.update(dict(gradient), memory.value, values)
        for path, value in optax.apply_updates(values, updates).items():
            weights[path].value = value
        return right.reshape(args.delay, -1)[-1].mean()

    rng, accuracies, started = np.random.default_rng(args.seed), [], time.perf_counter()
    bar = tqdm(range(args.updates), desc=f"{name:10s}", disable=args.quiet)
    for n in bar:
        accuracies.append(float(update(*draw(rng, args.delay, args.batch))))
        if n % 20 == 19:
            bar.set_postfix(right=f"{np.mean(accuracies[-20:]):.1%}")
    return np.array(accuracies), time.perf_counter() - started


def show(results, args):
    """Print the table and draw the learning curves."""
    print(f"\n{'learner':10s} {'right, last 50 updates':>22s} {'seconds':>8s}")
    for name, (accuracies, seconds) in results.items():
        print(f"{name:10s} {accuracies[-50:].mean():22.1%} {seconds:8.1f}")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, (accuracies, _) in results.items():
        smooth = np.convolve(accuracies, np.ones(20) / 20, mode="valid") if len(accuracies) >= 20 else accuracies
        label = f"backpropagation through {args.window} steps" if name == "truncated" else name
        axes.plot(100 * smooth, label=label)
    axes.set(xlabel="update", ylabel="right answers (%)", title=f"same or different, {args.delay} steps apart")
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
    parser.add_argument("--delay", type=int, default=None, help="steps of a sequence (default: 200)")
    parser.add_argument("--window", type=int, default=20, help="steps of truncated backpropagation (default: 20)")
    parser.add_argument("--updates", type=int, default=None, help="default: 500")
    parser.add_argument("--width", type=int, default=48, help="memory units (default: 48)")
    parser.add_argument("--batch", type=int, default=64, help="sequences per update (default: 64)")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate of Adam (default: 0.01)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("delayed_match.png"), help="the picture")
    parser.add_argument("--smoke", action="store_true", help="a few seconds")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    args.delay = args.delay if args.delay is not None else 40 if args.smoke else 200
    args.updates = args.updates if args.updates is not None else 5 if args.smoke else 500
    for name in ("delay", "window", "updates", "width", "batch", "rate"):
        if getattr(args, name) <= 0:
            parser.error(f"argument --{name}: must be positive, got {getattr(args, name)}")
    if args.delay % args.window:
        parser.error(f"argument --window: must divide the delay of {args.delay}, got {args.window}")
    show({name: run(name, args) for name in LEARNERS}, args)


if __name__ == "__main__":
    main()
