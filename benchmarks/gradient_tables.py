"""What was measured, as Markdown: the goals first, then times, memory and compiling, then what went wrong."""

import itertools

from gradient_goals import median_of, verdicts
from gradient_models import FAMILIES

__all__ = ["page"]

SEQUENCES = (
    ("D_RTRL", "etp"),
    ("D_RTRL exit", "etp"),
    ("D_RTRL window 25", "etp"),
    ("D_RTRL chunked", "etp"),
    ("pp_prop", "etp"),
    ("pp_prop exit", "etp"),
    ("D_RTRL", "braintrace"),
    ("D_RTRL rules", "braintrace"),
    ("D_RTRL vmap", "braintrace"),
    ("D_RTRL window 25", "braintrace"),
    ("pp_prop", "braintrace"),
)
STREAMS = (
    ("traffic", "etp"),
    ("D_RTRL stream", "etp"),
    ("D_RTRL exit stream", "etp"),
    ("pp_prop exit stream", "etp"),
    ("D_RTRL stream", "braintrace"),
    ("D_RTRL rules stream", "braintrace"),
    ("D_RTRL vmap stream", "braintrace"),
    ("pp_prop stream", "braintrace"),
)
COSTS = (
    ("bptt", "etp"),
    ("D_RTRL", "etp"),
    ("D_RTRL chunked", "etp"),
    ("D_RTRL exit stream", "etp"),
    ("pp_prop exit", "etp"),
    ("D_RTRL", "braintrace"),
    ("pp_prop", "braintrace"),
)


def page(head, cells):
    """The whole page."""
    cells = sorted(cells, key=lambda c: (c["steps"], FAMILIES.index(c["family"]), c["width"], c["batch"]))
    title = f"# Gradients beside backpropagation and another library, {max(cell['at'] for cell in cells)[:10]}"
    parts = [title, _conditions(head, cells), "## Goals", _goals(cells)]
    for steps in sorted({cell["steps"] for cell in cells}):
        own = [cell for cell in cells if cell["steps"] == steps]
        parts += [f"## A known sequence, T = {steps}", SEQUENCE_NOTE, _times(own)]
        if any(median_of(cell, "etp", "D_RTRL stream") for cell in own):
            parts += ["## One step per call", STREAM_NOTE, _streams(own)]
        parts += [f"## Memory and compiling, T = {steps}", COST_NOTE, _costs(own)]
    parts += [text for text in (_imports(head), _complaints(cells)) if text]
    return "\n\n".join(parts) + "\n"


SEQUENCE_NOTE = (
    "Multiples of the time of backpropagation through time, medians. One jitted call: reset, and the gradient of the "
    "mean squared error over the sequence. `*`: scaled from fewer steps, since the whole sequence would take too long."
)
STREAM_NOTE = (
    "µs per step, medians; one jitted call per step, states donated. `traffic` is one read and one write of arrays as "
    "large as the traces; `ratio` is the peer's default over ours with the signal at the exit, `best` its fastest mode."
)
COST_NOTE = "Peak MB of a call (arguments, results, temporary arrays) / seconds to trace and compile."


def _conditions(head, cells):
    machine, imports = head["machine"], head["imports"]
    versions = ", ".join(f"{name} {found.get('version') or ''}".strip() for name, found in imports.items())
    loads = [load for cell in cells for load in cell["load"]]
    days = sorted({cell["at"] for cell in cells})
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, float32; {versions}. Measured from "
        f"{days[0]} to {days[-1]}, load {min(loads):.1f} to {max(loads):.1f}. Every repetition goes through all cases "
        f"of a cell in turn; the data with every repetition is beside this table."
    )


def _goals(cells):
    head = ["goal", "at least", *FAMILIES, "met"]
    rows = []
    for goal, found in verdicts(cells, FAMILIES):
        met = [v.met for v in found if v is not None]
        summary = "–" if goal.at_least is None or not met else "yes" if all(met) else "no"
        partly = "" if all(v is not None for v in found) or summary == "–" else " (families missing)"
        bound = "–" if goal.at_least is None else f"{goal.at_least:.3g} ×"
        rows.append([goal.text, bound, *map(_verdict, found), summary + partly])
    note = "How many times longer the other takes: the worst cell of each family, at its n, B and T, of so many."
    return f"{note}\n\n{_table(head, rows)}"


def _verdict(verdict):
    if verdict is None:
        return "–"
    cell = verdict.cell
    word = {None: "", True: ", met", False: ", **not met**"}[verdict.met]
    return f"{verdict.ratio:.2f} ({cell['width']}, {cell['batch']}, {cell['steps']}; of {verdict.cells}{word})"


def _times(cells):
    shown = [(case, library) for case, library in SEQUENCES if any(_record(c, library, case) for c in cells)]
    rows = []
    for cell in cells:
        base = median_of(cell, "etp", "bptt")
        rows.append([*_size(cell), _micro(base), *(_multiple(cell, library, case, base) for case, library in shown)])
    return _table(["family", "n", "B", "BPTT µs/step", *map(_title, shown)], rows)


def _multiple(cell, library, case, base):
    seconds = median_of(cell, library, case)
    if seconds is None or base is None:
        return "–"
    return f"{seconds / base:.2f}" + ("\\*" if _record(cell, library, case).get("scaled") else "")


def _streams(cells):
    rows = []
    for cell in cells:
        times = {(case, library): median_of(cell, library, case) for case, library in STREAMS}
        ours, default = times["D_RTRL exit stream", "etp"], times["D_RTRL stream", "braintrace"]
        modes = [t for (case, library), t in times.items() if library != "etp" and case.startswith("D_RTRL") and t]
        ratios = [f"{a / ours:.1f}" if a and ours else "–" for a in (default, min(modes, default=None))]
        rows.append([*_size(cell), *map(_micro, times.values()), *ratios])
    return _table(["family", "n", "B", *map(_title, STREAMS), "ratio", "best"], rows)


def _costs(cells):
    shown = [(case, library) for case, library in COSTS if any(_record(c, library, case) for c in cells)]
    rows = []
    for cell in cells:
        found = [_record(cell, library, case) for case, library in shown]
        costs = [f"{r['peak_mb']:.1f} / {r['compile_s']:.1f}" if r and "peak_mb" in r else "–" for r in found]
        rows.append([*_size(cell), *costs])
    return _table(["family", "n", "B", *map(_title, shown)], rows)


def _imports(head):
    parts = [
        f"{name} {seconds:.1f} s"
        for found in head["imports"].values()
        for name, seconds in found.items()
        if _number(seconds)
    ]
    unique = dict.fromkeys(parts)
    return f"## Import\n\nA new process until the library is imported, the fastest of three: {', '.join(unique)}."


def _complaints(cells):
    rows = [
        [
            *_size(cell),
            f"{cell['steps']}",
            _title((r["case"], r["library"])),
            (r.get("error") or r["scaled"]).replace("|", "/"),
        ]
        for cell, r in itertools.chain.from_iterable(((c, r) for r in c["records"]) for c in cells)
        if "error" in r or "scaled" in r
    ]
    return "## Left out or scaled\n\n" + _table(["family", "n", "B", "T", "case", "why"], rows) if rows else ""


def _record(cell, library, case):
    return next((r for r in cell["records"] if (r["library"], r["case"]) == (library, case)), None)


def _title(shown):
    case, library = shown
    return case.replace("bptt", "BPTT") if library == "etp" else f"peer {case}"


def _size(cell):
    return [cell["family"], f"{cell['width']}", f"{cell['batch']}"]


def _micro(seconds):
    return "–" if seconds is None else f"{1e6 * seconds:.0f}" if seconds > 1e-5 else f"{1e6 * seconds:.1f}"


def _number(value):
    return isinstance(value, float)


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
