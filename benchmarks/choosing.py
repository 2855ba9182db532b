"""What each algorithm learns, and at what cost: accuracy, time and memory on three tasks.

    python benchmarks/choosing.py --out benchmarks/results/2026-11-30-choosing.json

Every algorithm trains the same model on the same samples with the same optimizer, over several seeds; truncated
backpropagation and backpropagation through time stand beside them. All programs of a task are compiled first and
timed in turns, blocked until ready; a figure is the median of the rounds after the first. ``cosine`` compares the
gradient of one batch, before any training, with that of backpropagation through time.

``sequence`` is one update from a whole sequence, ``stream`` one gradient after the other with the trace rolled at every
step, both in one compiled program and over the steps of a sequence. ``traces`` is what the learner's report says of its
state; ``sequence`` and ``stream`` memory is what XLA allocates beside arguments and results, recorded steps among it.
A row whose training would take more than ``--limit`` seconds a seed is timed and not trained.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import brainstate
import choosing_tasks
import jax
import jax.numpy as jnp
import numpy as np
import optax

import etp

ROWS: dict[str, tuple[str | None, Callable[[Any], dict[str, Any]]]] = {
    "bptt": (None, lambda task: {}),
    "truncated": ("dni", lambda task: {}),
    "dni": ("dni", lambda task: {}),
    "d_rtrl": ("d_rtrl", lambda task: {}),
    "d_rtrl, windows": ("d_rtrl", lambda task: {}),
    "pp_prop": ("pp_prop", lambda task: {"decay_or_rank": task.decay}),
    "eprop": ("eprop", lambda task: {}),
    "eprop, random feedback": ("eprop", lambda task: {"feedback": "random", "random_feedback_key": 0}),
    "ostl_feedforward": ("ostl_feedforward", lambda task: {}),
    "ostl_recurrent": ("ostl_recurrent", lambda task: {}),
    "snap": ("snap", lambda task: {"n": 2}),
    "uoro": ("uoro", lambda task: {}),
    "ottt": ("ottt", lambda task: {"leak": task.decay}),
    "three_factor": ("three_factor", lambda task: {}),
    "rtrl": ("rtrl", lambda task: {}),
}
"""A name in ``etp.ALGORITHMS``, and options that may depend on the task. DNI that has learned nothing is truncated
backpropagation."""

WINDOWED = ("truncated", "dni", "d_rtrl, windows")
SMOKE = {
    "digits": ("bptt", "dni", "d_rtrl", "three_factor"),
    "delayed match": ("bptt", "d_rtrl"),
    "vowels": ("bptt", "pp_prop"),
}


class Program:
    """A function that moves brainstate states, compiled once."""

    def __init__(self, function, *example):
        stateful = brainstate.transform.StatefulFunction(function, return_only_write=False)
        stateful.make_jaxpr(*example)
        self.states = stateful.get_states(*example)
        values = [state.value for state in self.states]
        self.compiled = jax.jit(stateful.jaxpr_call).lower(values, *example).compile()
        self.temporary_bytes = self.compiled.memory_analysis().temp_size_in_bytes

    def __call__(self, *arguments):
        values, out = self.compiled([state.value for state in self.states], *arguments)
        for state, value in zip(self.states, values, strict=True):
            state.value = value
        return out

    def seconds(self, *arguments):
        started = time.perf_counter()
        out = self(*arguments)
        jax.block_until_ready([out, *(state.value for state in self.states)])
        return time.perf_counter() - started


@dataclass
class Trainer:
    """One algorithm on one task: an update from a batch, the same gradients as a stream, and what they cost."""

    task: choosing_tasks.Task
    row: str
    model: brainstate.nn.Module
    learner: etp.Learner | None
    memory: brainstate.State
    optimizer: optax.GradientTransformation
    update: Program
    stream: Program | None

    @property
    def weights(self):
        return self.model.states(brainstate.ParamState)

    def start(self, seed):
        """Weights of this seed, a new optimizer and a learner that knows nothing."""
        for path, state in self.task.model(seed).states(brainstate.ParamState).items():
            self.weights[path].value = state.value
        self.memory.value = self.optimizer.init({path: state.value for path, state in self.weights.items()})
        if self.row == "dni":  # what it has learned outlives sequences
            self.learner.traces.value = jax.tree.map(jnp.zeros_like, self.learner.traces.value)

    def slope(self, example):
        """The gradient of one batch before any training, as one vector."""
        self.start(0)
        return np.concatenate([np.ravel(g) for g in jax.tree.leaves(self.update(*example))])

    def train(self, seed, updates):
        """The accuracy after so many batches."""
        self.start(seed)
        for n, (x, y) in enumerate(self.task.draw(np.random.default_rng(seed), updates)):
            if self.row == "dni" and n % max(updates // 5, 1) == 0:
                zero(self.model)
                etp.train_synthetic_gradient(
                    self.learner,
                    jnp.asarray(x[: len(x) // self.task.window * self.task.window]),
                    chunk_size=self.task.window,
                    loss_fn=lambda out, y=y: choosing_tasks.loss(out, y),
                    epochs=5,
                )
            self.update(jnp.asarray(x), jnp.asarray(y))
        return accuracy(self.task, self.model)


def prepare(task, row):
    """Compile what a row needs."""
    model, (name, options) = task.model(0), ROWS[row]
    x, y = (jnp.asarray(a) for a in next(task.draw(np.random.default_rng(0), 1)))
    batch, learner = len(y), None
    if name is None:
        brainstate.nn.init_all_states(model, batch_size=batch)
    else:
        learner = etp.compile(model, name, x[0], batch_size=batch, **options(task))
    weights = model.states(brainstate.ParamState)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.005))
    memory = brainstate.ShortTermState(optimizer.init({path: s.value for path, s in weights.items()}))
    gradient = backpropagation(model, weights) if learner is None else online(learner, task, row, weights)

    def update(x, y):
        zero(model)
        values = {path: state.value for path, state in weights.items()}
        found = gradient(x, y)
        steps, memory.value = optimizer.update(found, memory.value, values)
        for path, value in optax.apply_updates(values, steps).items():
            weights[path].value = value
        return found

    streamed = None
    if learner is not None and row not in WINDOWED:
        streamed = Program(stream(learner, weights), x, y)
    return Trainer(task, row, model, learner, memory, optimizer, Program(update, x, y), streamed)


def zero(model):
    """A new sequence."""
    for state in model.states(brainstate.HiddenState).values():
        state.value = jnp.zeros_like(state.value)


def backpropagation(model, weights):
    def gradient(x, y):
        def total():
            return brainstate.transform.for_loop(lambda now: choosing_tasks.loss(model.update(now), y), x).sum()

        return dict(brainstate.transform.grad(total, weights)())

    return gradient


def online(learner, task, row, weights):
    window = task.window if row in WINDOWED else None
    modulated = learner.algorithm.signal.modulated

    def gradient(x, y):
        def step(now, reward=None):
            if window:
                logits, weight = learner(etp.MultiStepData(now))
                return jax.vmap(lambda *out: choosing_tasks.loss(out, y))(logits, weight)
            return choosing_tasks.loss(learner(now) if reward is None else learner(now, modulator=-reward), y)

        answers = learner.evaluate(x, step_fn=lambda now: learner(now, modulator=0.0)) if modulated else None
        rewards = () if answers is None else (reward(*answers, y),)
        options = {"weights": weights, "chunk_size": window, "reduction": "sum", "complete_sequence": True}
        return dict(learner.etrace_grad(x, *rewards, step_fn=step, **options))

    return gradient


def reward(logits, weights, y):
    """How much better than the batch each sample's answer is, at the steps that count: ``(T, B)``."""
    hits = (logits.argmax(-1) == y).astype(logits.dtype)
    return weights * (hits - hits.mean(1, keepdims=True)) / len(y)


def stream(learner, weights):
    """The gradients of single calls, one after the other; the trace is rolled at every step."""
    extra = {"modulator": jnp.ones(())} if learner.algorithm.signal.modulated else {}

    def run(x, y):
        zero(learner.model)
        learner.reset_state()

        def one(total, now):
            found = brainstate.transform.grad(lambda: choosing_tasks.loss(learner(now, **extra), y), weights)()
            return jax.tree.map(jnp.add, total, dict(found)), None

        zeros = {path: jnp.zeros_like(state.value) for path, state in weights.items()}
        return brainstate.transform.scan(one, zeros, x)[0]

    return run


def accuracy(task, model):
    """The share of right answers on the test data, by a twin of the model."""
    x, y = (jnp.asarray(a) for a in task.test)
    twin = task.model(0)
    for path, state in twin.states(brainstate.ParamState).items():
        state.value = model.states(brainstate.ParamState)[path].value

    @brainstate.transform.jit
    def share():
        brainstate.nn.init_all_states(twin, batch_size=len(y))
        return choosing_tasks.right(*brainstate.transform.for_loop(twin.update, x), y).mean()

    return float(share())


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def measure(task, names, seeds, rounds, limit):
    """One record per row: costs of all first, in turns, then the training of each."""
    trainers = [prepare(task, name) for name in names]
    example = tuple(jnp.asarray(a) for a in next(task.draw(np.random.default_rng(0), 1)))
    slopes = {trainer.row: trainer.slope(example) for trainer in trainers}
    seen: dict[str, dict[str, list[float]]] = {t.row: {"sequence": [], "stream": []} for t in trainers}
    for n in range(rounds + 1):
        for trainer in trainers:
            times = seen[trainer.row]
            if n > 2 and times["sequence"][-1] > 1.0:
                continue  # a second at a time does not need many rounds
            for kind, program in (("sequence", trainer.update), ("stream", trainer.stream)):
                if program is not None:
                    times[kind].append(program.seconds(*example))
    for trainer in trainers:
        times = {kind: statistics.median(found[1:]) for kind, found in seen[trainer.row].items() if found[1:]}
        trains = times["sequence"] * task.updates < limit
        found = [trainer.train(seed, task.updates) for seed in range(seeds)] if trains else []
        report = None if trainer.learner is None else trainer.learner.report
        yield {
            "task": task.name,
            "algorithm": trainer.row,
            **task.facts,
            "samples": task.updates * task.facts["batch"],
            "accuracies": found,
            "cosine": cosine(slopes[trainer.row], slopes["bptt"]) if "bptt" in slopes else None,
            "seconds_per_step": {kind: value / task.facts["steps"] for kind, value in times.items()},
            "trace_bytes": 0 if report is None else report.trace_bytes,
            "temporary_bytes": {
                kind: program.temporary_bytes
                for kind, program in (("sequence", trainer.update), ("stream", trainer.stream))
                if program is not None
            },
            "trust": {} if report is None else {row.name: row.trust.value for row in report.parameters},
            "seconds_of_training": times["sequence"] * task.updates,
        }


def line(record, base):
    """A record on one line."""
    found, seconds = record["accuracies"], record["seconds_per_step"]
    shown = f"{100 * np.mean(found):5.1f} ± {100 * np.std(found):4.1f}" if found else f"{'-':>12}"
    ratios = [f"{seconds[kind] / base:8.2f}" if kind in seconds else f"{'-':>8}" for kind in ("sequence", "stream")]
    angle = f"{record['cosine']:7.4f}" if record["cosine"] is not None else f"{'-':>7}"
    memory = [record["trace_bytes"], *(record["temporary_bytes"].get(k, 0) for k in ("sequence", "stream"))]
    return (
        f"{record['task']:14} {record['algorithm']:23} {shown} % {angle} {' '.join(ratios)} "
        + " ".join(f"{m / 1024:9.1f}" for m in memory)
        + f" KiB {record['seconds_of_training']:6.1f} s"
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=tuple(choosing_tasks.TASKS), default=list(choosing_tasks.TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=tuple(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, help="batches of training; default: those of the task")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of every program")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds that one seed of a row may train")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--smoke", action="store_true", help="a few seconds: some rows of each task, tiny")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", etp.CompilationWarning)
    if args.smoke:
        args.seeds, args.rounds = 1, 1
    started, records = time.perf_counter(), []
    for name in args.tasks:
        task = choosing_tasks.TASKS[name](args.smoke)
        if args.updates:
            task = replace(task, updates=args.updates)
        names = [row for row in args.algorithms if not args.smoke or row in SMOKE[name]]
        base = None
        for record in measure(task, names, args.seeds, args.rounds, args.limit):
            base = base or record["seconds_per_step"]["sequence"]
            records.append(record)
            print(line(record, base), flush=True)
    facts = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "seeds": args.seeds,
        "seconds": round(time.perf_counter() - started),
        "load": round(os.getloadavg()[0], 1),
    }
    print(facts)
    if args.out:
        args.out.write_text(json.dumps({**facts, "rows": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
