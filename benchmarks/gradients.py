"""Whole-sequence gradients beside backpropagation through time, and beside another library.

    python benchmarks/gradients.py --width 256 --batch 16 --steps 100
    python benchmarks/gradients.py --peer PEER_ENVIRONMENT/bin/python

Every row is one jitted call: reset, gradient of the mean squared error over the sequence. Libraries take turns in
processes of their own, ``--rounds`` times; a figure is the median over all repetitions, compiled before, blocked
until ready. ``peer`` is braintrace, installed in an environment of its own. The table is Markdown.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

CASES = ("bptt", "D_RTRL", "D_RTRL window 25", "D_RTRL stream", "pp_prop")
PEER_CASES = ("D_RTRL", "D_RTRL stream", "pp_prop")


def work(config):
    """Compile and time every case of one library; print one JSON line each."""
    import warnings

    warnings.simplefilter("ignore")
    started = time.perf_counter()
    library = importlib.import_module(config["library"])
    getattr(library, "compile")  # noqa: B009  a lazy namespace loads here
    import_seconds = time.perf_counter() - started
    for case in config["cases"]:
        record = measure(library, case, config)
        print(json.dumps({"case": case, "import_s": import_seconds, **record}), flush=True)


def measure(library, case, config):
    import brainstate
    import gradient_models
    import jax
    import jax.numpy as jnp

    batch, steps = config["batch"], config["steps"]
    xs, ys = gradient_models.data(batch, steps)
    model = gradient_models.make(library, config["family"], config["width"])
    algorithm, _, mode = case.partition(" ")
    stream, chunk = mode == "stream", 25 if mode == "window 25" else None
    started = time.perf_counter()
    if algorithm == "bptt":
        brainstate.nn.init_all_states(model, batch_size=batch)
    else:
        options = {"decay_or_rank": 0.9} if algorithm == "pp_prop" else {}
        if chunk and config["library"] != "etp":
            options["vjp_method"] = "multi-step"
        learner = library.compile(model, algorithm, xs[0], batch_size=batch, **options)

    def step_loss(x, y):
        if chunk:
            return jnp.mean((learner(library.MultiStepData(x)) - y) ** 2, axis=(1, 2))
        return jnp.mean((learner(x) - y) ** 2)

    def sequence(xs, ys):
        brainstate.nn.reset_all_states(model, batch_size=batch)
        if algorithm == "bptt":
            weights = model.states(brainstate.ParamState)

            def loss():
                return brainstate.transform.for_loop(lambda x, y: jnp.mean((model(x) - y) ** 2), xs, ys).mean()

            return brainstate.transform.grad(loss, weights)()
        learner.reset_state(batch)
        return learner.etrace_grad(xs, ys, step_fn=step_loss, chunk_size=chunk)

    def one_step(x, y):
        return brainstate.transform.grad(step_loss, learner.param_states)(x, y)

    fn, args = (one_step, (xs[0], ys[0])) if stream else (sequence, (xs, ys))
    stateful = brainstate.transform.StatefulFunction(fn, return_only_write=False)
    stateful.make_jaxpr(*args)
    values = tuple(jax.tree.map(jnp.copy, state.value) for state in stateful.get_states(*args))
    # a stream hands its states from call to call, so they may be updated in place
    jitted = jax.jit(stateful.jaxpr_call, donate_argnums=(0,) if stream else ())
    compiled = jitted.lower(values, *args).compile()
    compile_seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    times = []
    for _ in range(config["repeat"] + 1):
        now = time.perf_counter()
        if stream:
            for _ in range(steps):
                values, out = compiled(values, *args)
        else:
            out = compiled(values, *args)
        jax.block_until_ready((values, out))
        times.append((time.perf_counter() - now) / steps)
    return {
        "times": times[1:],
        "compile_s": compile_seconds,
        "temp_mb": memory.temp_size_in_bytes / 1e6,
    }


def run(python, config):
    """One worker process."""
    command = [python, __file__, "--worker", json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    if done.returncode:
        raise SystemExit(f"{config['library']} {config['family']}: {done.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compare(args, family):
    """Medians of every case of every library, which take turns."""
    common = {"family": family, "width": args.width, "batch": args.batch, "steps": args.steps, "repeat": args.repeat}
    libraries = [(sys.executable, "etp", CASES)]
    if args.peer:
        libraries.append((args.peer, "braintrace", PEER_CASES))
    found = {}
    for _ in range(args.rounds):
        for python, library, cases in libraries:
            for record in run(python, {**common, "library": library, "cases": cases}):
                row = found.setdefault((library, record["case"]), {"times": [], **record, "seen": []})
                row["seen"] += record["times"]
    return {key: {**row, "us": 1e6 * statistics.median(row["seen"])} for key, row in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--families", default="rnn,gru,lif,indrnn")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", help="the Python of an environment with braintrace and brainstate")
    args = parser.parse_args()
    if args.worker:
        work(json.loads(args.worker))
        return
    print(f"n = {args.width}, B = {args.batch}, T = {args.steps}; µs per step, and multiples of BPTT\n")
    print("| family | library | case | µs/step | × BPTT | compile s | temporary MB |\n|---|---|---|---|---|---|---|")
    for family in args.families.split(","):
        rows = compare(args, family)
        bptt = rows["etp", "bptt"]["us"]
        for (library, case), row in rows.items():
            cells = (family, library, case, f"{row['us']:.0f}", f"{row['us'] / bptt:.2f}", f"{row['compile_s']:.2f}")
            print(f"| {' | '.join(cells)} | {row['temp_mb']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
