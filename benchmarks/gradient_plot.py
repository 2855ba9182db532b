"""Two pictures per family: what gradients cost beside backpropagation at one size, and the peer's step over ours."""

from gradient_goals import PEER_STREAMS, median_of

__all__ = ["draw"]

SIZE = (256, 16, 100)
SHOWN = (
    ("D_RTRL", "etp"),
    ("D_RTRL exit", "etp"),
    ("D_RTRL window 25", "etp"),
    ("D_RTRL exit stream", "etp"),
    ("pp_prop exit", "etp"),
    ("D_RTRL", "braintrace"),
    ("D_RTRL stream", "braintrace"),
    ("pp_prop", "braintrace"),
)
BOUNDS = ((12.0, "default", "C7"), (4.0, "best mode", "C3"))


def draw(cells, families, target):
    """Write the figure."""
    import matplotlib.pyplot as plt  # a table alone needs none

    shown = [family for family in families if any(cell["family"] == family for cell in cells)]
    figure, axes = plt.subplots(2, len(shown), figsize=(3.2 * len(shown), 6.6), sharey="row", squeeze=False)
    for (above, below), family in zip(axes.T, shown, strict=True):
        own = [cell for cell in cells if cell["family"] == family]
        _costs(above, own)
        _ratios(below, own)
        above.set_title(family)
    axes[0][0].invert_yaxis()
    axes[1][0].set_ylabel("peer's streaming step, × ours")
    axes[1][0].legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(target)
    plt.close(figure)


def _costs(axis, cells):
    cell = next((c for c in cells if (c["width"], c["batch"], c["steps"]) == SIZE), None)
    names = [case if library == "etp" else f"{case} (peer)" for case, library in SHOWN]
    base = None if cell is None else median_of(cell, "etp", "bptt")
    seconds = [None if base is None else median_of(cell, library, case) for case, library in SHOWN]
    heights = [0.0 if s is None or base is None else s / base for s in seconds]
    axis.barh(names, heights, color=["C0" if library == "etp" else "C7" for _, library in SHOWN])
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("time, × backpropagation\nn = {}, B = {}, T = {}".format(*SIZE))


def _ratios(axis, cells):
    found = []
    for cell in sorted(cells, key=lambda c: (c["width"], c["batch"])):
        ours = median_of(cell, "etp", "D_RTRL exit stream")
        theirs = [median_of(cell, "braintrace", case) for case in PEER_STREAMS]
        modes = [seconds for seconds in theirs if seconds is not None]
        if ours and theirs[0] and modes:
            found.append((f"{cell['width']}, {cell['batch']}", theirs[0] / ours, min(modes) / ours))
    names = [name for name, _, _ in found]
    for n, (bound, label, colour) in enumerate(BOUNDS):
        axis.plot(names, [values[n] for _, *values in found], "o", color=colour, label=label)
        axis.axhline(bound, color=colour, linewidth=0.8, linestyle="--")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_yscale("log")
    axis.set_xlabel("n, B")
    axis.tick_params(axis="x", rotation=60)
