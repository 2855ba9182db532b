"""What traces in bfloat16 cost in precision: gradients over a sequence against those with float32 traces.

    python benchmarks/narrow_traces.py

A row per family and algorithm, a column per path: one step at a time, windows of 25, and folded over the sequence in
pieces. A figure is the norm of the difference over the norm of the gradient; the table is Markdown.
"""

import argparse
import warnings

import brainstate
import gradient_cases
import gradient_models
import jax
import jax.numpy as jnp

import etp

PATHS = {
    "steps": {"memory_limit": 1},
    "windows of 25": {"chunk": 25},
    "folded in pieces": {"memory_limit": 400_000},
}


def gradient(family, algorithm, dtype, sizes, *, chunk=None, memory_limit=None):
    width, batch, steps = sizes
    xs, ys = gradient_models.data(batch, steps)
    model = gradient_models.make(etp, family, width)
    options = {"decay_or_rank": 0.9} if algorithm == "pp_prop" else {}
    given = {"trace_dtype": dtype, "memory_limit": memory_limit, **options}
    learner = etp.compile(model, algorithm, xs[0], batch_size=batch, **given)

    def loss(x, y):
        if chunk:
            return jnp.mean((learner(etp.MultiStepData(x)) - y) ** 2, axis=(1, 2))
        return jnp.mean((learner(x) - y) ** 2)

    found = brainstate.transform.jit(lambda: learner.etrace_grad(xs, ys, step_fn=loss, chunk_size=chunk))()
    return jnp.concatenate([g.ravel() for g in jax.tree.leaves(found)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    gradient_cases.use_kernels()
    sizes = (args.width, args.batch, args.steps)
    print(f"| family | algorithm | {' | '.join(PATHS)} |\n|---|---|{'---|' * len(PATHS)}")
    for family in gradient_models.FAMILIES:
        for algorithm in ("D_RTRL", "pp_prop"):
            cells = []
            for options in PATHS.values():
                wide, narrow = (gradient(family, algorithm, d, sizes, **options) for d in (None, jnp.bfloat16))
                cells.append(f"{float(jnp.linalg.norm(narrow - wide) / jnp.linalg.norm(wide)):.1e}")
            print(f"| {family} | {algorithm} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
