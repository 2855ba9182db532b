"""Measures everything side by side in one go and prints a dated table: python report.py [--write]."""

import argparse
import datetime
import os
import platform
from pathlib import Path

import learning
import measure
import torch

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="also write the table to results/")
    arguments = parser.parse_args()
    today = datetime.date.today().isoformat()
    text = "\n".join([*heading(today), *updates(), *rates(), *accuracies()]) + "\n"
    print(text)
    if arguments.write:
        (RESULTS / f"{today}.md").write_text(text)


def heading(today):
    load = os.getloadavg()[0]
    return [
        f"# {today}",
        "",
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {load:.1f} when it began (other work on the "
        f"same machine), Python {platform.python_version()}, torch {torch.__version__}.",
        "",
    ]


def updates():
    runs = [measure.overhead() for _ in range(3)]
    least = {name: min(run[name] for run in runs) for name in runs[0]}
    rows = [f"| {name} | {us:.0f} | {us - least['bare']:.0f} |" for name, us in least.items()]
    return [
        "## One update of a Layer (128 to 128, batch 32), CPU microseconds",
        "",
        "| | update | over bare torch |",
        "|---|---|---|",
        *rows,
        "",
    ]


def rates():
    p50, p99, period = measure.lateness()
    return [
        "## What a run delivers",
        "",
        "| | |",
        "|---|---|",
        *(
            f"| updates per second, {n} nodes (per second of CPU time) | {wall:.0f} ({cpu:.0f}) |"
            for n, (wall, cpu) in ((n, measure.throughput(n)) for n in (1, 8, 64))
        ),
        f"| updates of two independent nodes over those of one | {measure.parallel_speedup():.2f} times |",
        f"| lateness at 50 % load of one core (period {period:.0f} µs), median | {p50:.0f} µs |",
        f"| the same, 99th percentile | {p99:.0f} µs |",
        "",
    ]


def accuracies():
    cells = {
        "Digits, 64-128-128-10, batch 32, 15 epochs": (learning.digits(), (64, 128, 128, 10), 32, 15),
        "MNIST-sized synthetic, 784-512-512-10, batch 64, 3 epochs": (
            learning.mnist_sized(),
            (784, 512, 512, 10),
            64,
            3,
        ),
    }
    lines = []
    for title, cell in cells.items():
        rows = learning.compare(*cell)
        reference = rows[-1][2]
        lines += [f"## {title}", "", "| | test | CPU s/epoch | times torch | module evaluations per sample |"]
        lines += ["|---|---|---|---|---|"]
        lines += [f"| {n} | {a:.1%} | {s:.3f} | {s / reference:.1f} | {e} |" for n, a, s, e in rows] + [""]
    return lines


if __name__ == "__main__":
    main()
