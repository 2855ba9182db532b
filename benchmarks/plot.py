"""A plot of what ``gradients.py --out`` recorded.

python benchmarks/plot.py results.jsonl docs/_static/gradients.svg
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib.pyplot as plt

SHOWN = ("D_RTRL", "D_RTRL exit", "D_RTRL window 25", "D_RTRL exit stream", "pp_prop", "pp_prop exit")


def main(source, target):
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    families = list(dict.fromkeys(r["family"] for r in records))
    figure, axes = plt.subplots(1, len(families), figsize=(3.2 * len(families), 3.6), sharey=True, squeeze=False)
    for axis, family in zip(axes[0], families, strict=True):
        own = [r for r in records if r["family"] == family]
        base = statistics.median(next(r for r in own if r["case"] == "bptt")["seen"])
        bars = [r for case in SHOWN for r in own if r["case"] == case]
        names = [f"{r['case']}{'' if r['library'] == 'etp' else ' (peer)'}" for r in bars]
        heights = [statistics.median(r["seen"]) / base for r in bars]
        axis.barh(names, heights, color=["C0" if r["library"] == "etp" else "C7" for r in bars])
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_title(family)
        axis.set_xlabel("time, × backpropagation")
    axes[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
