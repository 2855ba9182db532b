"""The report of a learner: what each parameter's gradient contains, and what it costs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax

from etp_algorithms._compiler._diagnostics import Diagnostic
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import TraceAlgorithm

__all__ = ["ParameterReport", "TrustReport", "bytes_of", "make_report"]


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """One parameter array.

    Attributes:
        name: its dotted path.
        trust: the grade.
        operators: the marked operators that trace it.
        groups: the hidden groups it is traced into.
        trace_bytes: the memory of those operators' traces, which a bias shares with its weight; the input filters of
            pp_prop, which operators share, count in the total only.
        reasons: what lowers the grade, or why it needs no trace.
    """

    name: str
    trust: Trust
    operators: tuple[str, ...]
    groups: tuple[str, ...]
    trace_bytes: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrustReport:
    """What an algorithm will do with a compiled model; print it, or read it as data.

    Attributes:
        algorithm: the algorithm's name.
        parameters: one row per parameter array.
        trace_bytes: the memory of all traces.
        diagnostics: what the compiler noticed.
    """

    algorithm: str
    parameters: tuple[ParameterReport, ...]
    trace_bytes: int
    diagnostics: tuple[Diagnostic, ...]

    def __getitem__(self, name: str) -> ParameterReport:
        """The row of the parameter array called ``name``."""
        for row in self.parameters:
            if row.name == name:
                return row
        raise KeyError(f"no parameter {name!r}; there are {', '.join(row.name for row in self.parameters)}.")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries, lists and strings."""
        rows = [{**asdict(row), "trust": row.trust.value} for row in self.parameters]
        found = [{**asdict(d), "kind": d.kind.value} for d in self.diagnostics]
        return {"algorithm": self.algorithm, "trace_bytes": self.trace_bytes, "parameters": rows, "diagnostics": found}

    def __str__(self) -> str:
        head = ("parameter", "trust", "traced by", "into", "trace", "note")
        rows = [head, *map(_cells, self.parameters)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        lines = ["  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[-1]]).rstrip() for r in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, f"{self.algorithm}: {_bytes(self.trace_bytes)} of traces", *self._notes()])

    def _notes(self) -> Iterator[str]:
        for diagnostic in self.diagnostics:
            yield f"{diagnostic.level}: {diagnostic}"

    def __rich__(self) -> Any:
        """The same as a ``rich`` table."""
        from rich.table import Table

        colours = {Trust.EXACT: "green", Trust.FACTORISED: "cyan", Trust.DIAGONAL: "yellow"}
        table = Table("parameter", "trust", "traced by", "into", "trace", "note", title=self.algorithm)
        for row in self.parameters:
            cells = _cells(row)
            colour = colours.get(row.trust, "red")
            table.add_row(cells[0], f"[{colour}]{cells[1]}[/]", *cells[2:])
        return table


def make_report(
    algorithm: TraceAlgorithm,
    graph: TraceGraph,
    traces: Any,
    diagnostics: tuple[Diagnostic, ...],
    unused: tuple[tuple[Any, ...], ...] = (),
) -> TrustReport:
    """The report of one algorithm on one graph, with the memory of ``traces``; ``unused`` are parameters it lacks."""
    return TrustReport(
        algorithm=algorithm.name,
        parameters=(
            *(_row(algorithm, graph, traces, verdict) for verdict in graph.trust),
            *(_unread(".".join(map(str, path))) for path in unused),
        ),
        trace_bytes=bytes_of(traces),
        diagnostics=diagnostics,
    )


def bytes_of(tree: Any) -> int:
    """The memory of all arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _row(algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> ParameterReport:
    relations = [graph.hidden_param_op_relations[n] for n in verdict.relations]
    links = [link for relation in relations for link in relation.links]
    judged = algorithm.judge(graph, verdict)
    return ParameterReport(
        name=verdict.name,
        trust=judged.trust,
        operators=tuple(relation.primitive.name for relation in relations),
        groups=tuple(dict.fromkeys(graph.hidden_groups[link.group].name for link in links)),
        trace_bytes=algorithm.bytes_for(graph, traces, verdict),
        reasons=judged.reasons,
    )


def _unread(name: str) -> ParameterReport:
    return ParameterReport(name, Trust.UNUSED, (), (), 0, ("the step never reads it",))


def _cells(row: ParameterReport) -> tuple[str, ...]:
    return (
        row.name,
        row.trust.value,
        ", ".join(row.operators) or "-",
        ", ".join(row.groups) or "-",
        _bytes(row.trace_bytes) if row.trace_bytes else "-",
        "; ".join(row.reasons),
    )


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
