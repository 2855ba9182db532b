"""Gradients online beside backpropagation through time, and beside another library.

    python benchmarks/gradients.py --width 256 --batch 16 --steps 100
    python benchmarks/gradients.py --peer PEER_ENVIRONMENT/bin/python --out results.jsonl

Each library works in a process of its own, and the processes take turns case by case, so that whatever else the
machine does falls on all of them alike. A figure is the median over repetitions, with the fastest in brackets;
compiled before, blocked until ready. A sequence is one jitted call: reset, gradient of the mean squared error.
``traffic`` is one read and one write of arrays as large as the traces. ``peer`` is braintrace, installed in an
environment of its own.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CASES = (
    "bptt",
    "traffic",
    "D_RTRL",
    "D_RTRL exit",
    "D_RTRL chunked",
    "D_RTRL window 25",
    "D_RTRL stream",
    "D_RTRL exit stream",
    "pp_prop",
    "pp_prop exit",
)
PEER_CASES = ("D_RTRL", "D_RTRL stream", "D_RTRL vmap stream", "pp_prop")


def serve(library_name):
    """Answer one JSON request per line: build a case, or run one that is built."""
    answers, sys.stdout = sys.stdout, sys.stderr
    started = time.perf_counter()
    importlib.import_module("brainstate")
    base = time.perf_counter() - started
    library = importlib.import_module(library_name)
    getattr(library, "compile")  # noqa: B009  a lazy namespace loads here
    imported = time.perf_counter() - started - base
    import gradient_cases

    if library_name == "etp":
        gradient_cases.use_kernels()
    built = {}
    for line in sys.stdin:
        request = json.loads(line)
        case = request["case"]
        if request["do"] == "build":
            try:
                found = gradient_cases.build_case(library, case, request["size"])
                built[case] = found if request["time"] else None
                answer = {"compile_s": found.compile_s, "temporary_mb": found.temporary_mb, "import_s": imported}
            except Exception as error:  # the other library may refuse a case; the comparison goes on without it
                answer = {"error": f"{type(error).__name__}: {error}"}
        else:
            answer = {"seconds": built[case].run()}
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """A process that holds one library."""

    def __init__(self, python, library):
        command = [python, str(Path(__file__).resolve()), "--serve", library]
        self.library, self.cases = library, CASES if library == "etp" else PEER_CASES
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        paths = dict(os.environ) if library == "etp" else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.process = subprocess.Popen(command, **pipes, text=True, env=paths)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(python_of, size, repeat, only):
    """One record per library and case; every repetition goes through all of them."""
    workers = [Worker(python, library) for library, python in python_of.items()]
    records = []
    for worker in workers:
        for case in worker.cases:
            if only and case not in only and case != "bptt":
                continue
            found = worker.ask(do="build", case=case, size=size, time=repeat > 0)
            if "error" in found:
                print(f"{worker.library}: {case} is left out, {found['error'][:200]}", file=sys.stderr)
            else:
                records.append((worker, {"library": worker.library, "case": case, **size, **found, "seen": []}))
    for _ in range(repeat):
        for worker, record in records:
            record["seen"].append(worker.ask(do="run", case=record["case"])["seconds"])
    for worker in workers:
        worker.close()
    return [record for _, record in records]


def rows(records):
    """Markdown, one line per record."""
    base = next(r for r in records if r["case"] == "bptt")["seen"] or [0.0]
    for r in records:
        seen = r["seen"] or [0.0]
        now, fastest = statistics.median(seen), min(seen)
        cells = (
            r["family"],
            f"{r['width']}",
            f"{r['batch']}",
            f"{r['steps']}",
            "ours" if r["library"] == "etp" else "peer",
            r["case"],
            f"{1e6 * now:.0f} ({1e6 * fastest:.0f})",
            ratio(now, statistics.median(base)) + f" ({ratio(fastest, min(base))})",
            f"{r['compile_s']:.2f}",
            f"{r['temporary_mb']:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def ratio(seconds, base):
    return f"{seconds / base:.2f}" if base else "-"


HEAD = (
    "| family | n | B | T | library | case | µs/step (fastest) | × BPTT (fastest) | compile s | temporary MB |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--families", default="rnn,gru,lif,indrnn")
    parser.add_argument("--width", default="256")
    parser.add_argument("--batch", default="16")
    parser.add_argument("--steps", default="100")
    parser.add_argument("--cases", help="a comma-separated choice of cases; default: all")
    parser.add_argument("--repeat", type=int, default=7, help="0: compile only")
    parser.add_argument("--peer", help="the Python of an environment with braintrace and brainstate")
    parser.add_argument("--out", help="a file that gets one JSON record per line")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    python_of = {"etp": sys.executable, **({"braintrace": args.peer} if args.peer else {})}
    only = None if args.cases is None else args.cases.split(",")
    print(HEAD)
    sizes = [
        {"family": family, "width": int(width), "batch": int(batch), "steps": int(steps)}
        for steps in args.steps.split(",")
        for width in args.width.split(",")
        for batch in args.batch.split(",")
        for family in args.families.split(",")
    ]
    for size in sizes:
        records = compare(python_of, size, args.repeat, only)
        for line in rows(records):
            print(line, flush=True)
        if args.out:
            with Path(args.out).open("a") as out:
                for record in records:
                    out.write(json.dumps({**record, "load": os.getloadavg()[0]}) + "\n")
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
