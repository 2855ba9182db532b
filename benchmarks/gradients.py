"""Gradients online beside backpropagation through time, and beside another library.

    python benchmarks/gradients.py --peer PEER_ENVIRONMENT/bin/python --minutes 25
    python benchmarks/gradients.py --families rnn --width 256 --batch 16 --steps 100 --out one.jsonl
    python benchmarks/gradients.py --render benchmarks/results/2026-11-30-gradients.jsonl

The whole grid is 72 cells (four families, three widths, three batches, two lengths), those that the goals name first.
Each cell is saved as soon as it is measured, one line of JSON in ``benchmarks/results/DATE-gradients.jsonl``; the next
call goes on where the time was over, and a case that fails is recorded and left. At the end, or with ``--render``
alone, the tables beside it are written anew (and a plot with ``--plot``): goals and whether they are met, times,
memory, compiling, imports.

``peer`` is braintrace, installed in an environment of its own. Each library works in a process of its own; a figure is
the median over repetitions, compiled before, blocked until ready.
"""

import argparse
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--render", metavar="FILE", help="only write the tables of what FILE holds")
    parser.add_argument("--plot", metavar="FILE", help="draw them as well, with matplotlib")
    parser.add_argument("--families", help="a comma-separated choice, as the options below; default: all")
    parser.add_argument("--width")
    parser.add_argument("--batch")
    parser.add_argument("--steps")
    parser.add_argument(
        "--cases", help="a choice of cases beside bptt; give --out as well, since a cell is measured once"
    )
    parser.add_argument("--minutes", type=float, default=25.0, help="no cell is begun that would end later")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument(
        "--limit", type=float, default=2.0, help="seconds of one call; longer ones of the peer are scaled"
    )
    parser.add_argument("--peer", help="the Python of an environment with braintrace and brainstate")
    parser.add_argument("--fresh", action="store_true", help="forget what the file holds, and measure anew")
    parser.add_argument("--out", default=str(RESULTS / f"{time.strftime('%Y-%m-%d')}-gradients.jsonl"))
    args = parser.parse_args()
    if args.serve:
        from workers import serve

        serve(args.serve)
    elif args.render:
        render(Path(args.render), args.plot)
    else:
        measure(args)


def measure(args):
    import gradient_grid as grid
    from gradient_models import FAMILIES
    from workers import Worker

    python_of = {"etp": sys.executable, **({"braintrace": args.peer} if args.peer else {})}
    workers = [Worker(python, library) for library, python in python_of.items()]
    cells = grid.ordered_cells(
        chosen(args.families, FAMILIES, str),
        chosen(args.width, grid.WIDTHS, int),
        chosen(args.batch, grid.BATCHES, int),
        chosen(args.steps, grid.LENGTHS, int),
    )
    if args.fresh:
        Path(args.out).unlink(missing_ok=True)
    only = None if args.cases is None else args.cases.split(",")
    options = {"minutes": args.minutes, "repeat": args.repeat, "limit_s": args.limit, "only": only}
    try:
        left = grid.run_grid(workers, cells, Path(args.out), **options)
    finally:
        for worker in workers:
            worker.close()
    print(f"{left} of {len(cells)} cells are left" + ("; run the same command again." if left else "."))
    render(Path(args.out), args.plot)


def render(source, plot):
    from gradient_grid import load
    from gradient_models import FAMILIES
    from gradient_plot import draw
    from gradient_tables import page

    head, cells = load(source)
    if not cells:
        sys.exit(f"{source} holds no cell yet; give more --minutes.")
    target = source.with_suffix(".md")
    target.write_text(page(head, cells))
    print(f"wrote {target}")
    if plot:
        draw(cells, FAMILIES, plot)
        print(f"wrote {plot}")


def chosen(text, every, convert):
    return every if text is None else tuple(map(convert, text.split(",")))


if __name__ == "__main__":
    main()
