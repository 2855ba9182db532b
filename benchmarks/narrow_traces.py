"""What traces in 16 bits cost in precision: gradients of models in float64 against those with float64 traces.

    python benchmarks/narrow_traces.py --out benchmarks/results/2026-11-30-narrow.jsonl

A row per family, algorithm, dtype and length T, a column per path: single calls, windows of 5, and folded over the
sequence in pieces. A figure is the norm of the difference over the norm of the gradient. What the file holds is not
measured again; the table beside it, Markdown, is written anew. Folded at once, nothing is stored between steps that is
narrower than the model; UORO, RTRL and DNI take no ``trace_dtype``.
"""

import argparse
import json
import warnings
from pathlib import Path

import brainstate
import gradient_cases
import gradient_models
import jax
import jax.numpy as jnp

import etp

WINDOW = 5
PATHS = {
    "single calls": {"stream": True},
    f"windows of {WINDOW}": {"chunk": WINDOW},
    "folded in pieces": {"memory_limit": 100_000},
}
OPTIONS = {"D_RTRL": {}, "pp_prop": {"decay_or_rank": 0.9}, "SnAp": {"n": 1}}
FOLDING = ("D_RTRL", "pp_prop")
DTYPES = (jnp.bfloat16, jnp.float16)
LENGTHS = (10, 100, 1000)
FAMILIES = ("gru", "lif", "indrnn")
SIZE = {"width": 32, "batch": 2}


def measure(family, algorithm, steps):
    """A record per dtype."""
    paths = {name: path for name, path in PATHS.items() if "memory_limit" not in path or algorithm in FOLDING}
    wide = {name: gradient(family, algorithm, steps, None, **path) for name, path in paths.items()}
    for dtype in DTYPES:
        errors = {}
        for name, path in paths.items():
            found = gradient(family, algorithm, steps, dtype, **path)
            errors[name] = float(jnp.linalg.norm(found - wide[name]) / jnp.linalg.norm(wide[name]))
        label = jnp.dtype(dtype).name
        yield {"family": family, "algorithm": algorithm, "dtype": label, "steps": steps, **SIZE, "errors": errors}


def gradient(family, algorithm, steps, dtype, *, stream=False, chunk=None, memory_limit=None):
    """The gradient of a sequence as one vector."""
    xs, ys = (a.astype(jnp.float64) for a in gradient_models.data(SIZE["batch"], steps))
    model = gradient_models.make(etp, family, SIZE["width"], jnp.float64)
    given = {"trace_dtype": dtype, "memory_limit": memory_limit, **OPTIONS[algorithm]}
    learner = etp.compile(model, algorithm, xs[0], batch_size=SIZE["batch"], **given)

    def loss(x, y):
        if chunk:
            return jnp.mean((learner(etp.MultiStepData(x)) - y) ** 2, axis=(1, 2))
        return jnp.mean((learner(x) - y) ** 2)

    def at_once():
        return learner.etrace_grad(xs, ys, step_fn=loss, chunk_size=chunk)

    def one_by_one():
        step = brainstate.transform.grad(loss, learner.param_states)
        return jax.tree.map(lambda g: g.mean(0), brainstate.transform.for_loop(step, xs, ys))

    found = brainstate.transform.jit(one_by_one if stream else at_once)()
    return jnp.concatenate([g.ravel() for g in jax.tree.leaves(found)])


def table(records):
    """Markdown: the largest figure over the families, with the family it is of."""
    lines = [f"| algorithm | traces | T | {' | '.join(PATHS)} |", f"|---|---|---|{'---|' * len(PATHS)}"]
    for algorithm in OPTIONS:
        for dtype in (jnp.dtype(d).name for d in DTYPES):
            for steps in LENGTHS:
                own = [r for r in records if (r["algorithm"], r["dtype"], r["steps"]) == (algorithm, dtype, steps)]
                cells = " | ".join(_worst(own, path) for path in PATHS)
                lines.append(f"| {algorithm} | {dtype} | {steps} | {cells} |")
    return "\n".join(lines)


def _worst(records, path):
    found = [(r["errors"][path], r["family"]) for r in records if path in r["errors"]]
    return "{:.1e} ({})".format(*max(found)) if found else "–"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, help="a file that gets one JSON record per line")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    gradient_cases.use_kernels()
    path = Path(args.out)
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {tuple(r[key] for key in ("family", "algorithm", "steps")) for r in records}
    with brainstate.environ.context(precision=64), path.open("a") as out:
        for steps in LENGTHS:
            for family in FAMILIES:
                for algorithm in OPTIONS:
                    if (family, algorithm, steps) in known:
                        continue
                    for record in measure(family, algorithm, steps):
                        records.append(record)
                        out.write(json.dumps(record) + "\n")
                        out.flush()
    path.with_suffix(".md").write_text(f"{table(records)}\n")


if __name__ == "__main__":
    main()
