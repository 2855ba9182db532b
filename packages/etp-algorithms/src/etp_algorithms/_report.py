"""The report of a learner: what each parameter's gradient contains, and what it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from etp_algorithms._advice import REPORT_ATTRIBUTES
from etp_algorithms._compiler._diagnostics import Diagnostic
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._costs import bytes_of, relation_cost
from etp_algorithms._drawing import Drawing, Node, to_graphviz, to_mermaid
from etp_algorithms._engine import TraceAlgorithm
from etp_core.arguments import no_attribute

__all__ = ["ParameterReport", "RelationReport", "TrustReport", "bytes_of", "make_report", "relation_table"]


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
class RelationReport:
    """One use of a marked operator on parameters.

    Attributes:
        operator: the name of its primitive.
        place: the file and line of the model that use it.
        parameters: the names of the parameter arrays that its weights are made from.
        groups: the hidden groups that it is traced into; none for an operator without a trace.
        kernels: for every group what serves it: the package whose closed form does, as ``"etp_fastpath"``; ``"rules"``;
            or ``"derivative of the step"``, for algorithms that differentiate the whole step.
        traces: for every group what is stored: a trace ``"per weight"``, a ``"filter"`` over the data or the ``"last
            step"`` that stand for one, ``"two filters"`` of pp_prop, or what other algorithms keep.
        bytes_per_step: bytes of traces that a step reads and writes: twice their memory. A gradient at every step reads
            them once more; a folded sequence touches them once per fold.
        operations_per_step: multiply-adds of moving the traces by one step and of contracting them once. With ``P``
            present entries of the states' Jacobian, ``F`` states that the operator reaches in the same step, ``S``
            with a trace, ``|w|`` elements of the operands and a batch ``B``, a trace per weight takes
            ``B|w|(P + F + S)``, a filter over ``I`` data ``B(I + 1)(P + F) + B|w|S``, a last step of ``O`` outputs
            ``B(|w| + O)S``, two filters ``BI + BO(P + F + S) + B|w|``; None where no formula counts them.
    """

    operator: str
    place: str
    parameters: tuple[str, ...]
    groups: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    bytes_per_step: int = 0
    operations_per_step: int | None = 0


@dataclass(frozen=True, slots=True)
class TrustReport:
    """What an algorithm will do with a compiled model; print it, draw it, or read it as data.

    Attributes:
        algorithm: the algorithm's name.
        parameters: one row per parameter array.
        relations: the uses of marked operators.
        groups: the names of the hidden groups, the states of one joined by ``+``.
        trace_bytes: the memory of all traces.
        diagnostics: what the compiler noticed.
    """

    algorithm: str
    parameters: tuple[ParameterReport, ...]
    relations: tuple[RelationReport, ...]
    groups: tuple[str, ...]
    trace_bytes: int
    diagnostics: tuple[Diagnostic, ...]

    def __getitem__(self, name: str) -> ParameterReport:
        """The row of the parameter array called ``name``."""
        for row in self.parameters:
            if row.name == name:
                return row
        raise KeyError(f"no parameter {name!r}; there are {', '.join(row.name for row in self.parameters)}.")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, REPORT_ATTRIBUTES)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries, lists and strings."""
        rows = [{**asdict(row), "trust": row.trust.value} for row in self.parameters]
        return {
            "algorithm": self.algorithm,
            "trace_bytes": self.trace_bytes,
            "parameters": rows,
            "relations": [asdict(relation) for relation in self.relations],
            "groups": list(self.groups),
            "diagnostics": [{**asdict(d), "kind": d.kind.value} for d in self.diagnostics],
        }

    def to_mermaid(self) -> str:
        """The report as a Mermaid flowchart: parameters, coloured by trust, operators, and hidden groups.

        A dashed arrow leads from a parameter that is not exact to its operators. Paste the text into a fenced block
        ``mermaid``, which GitHub and Sphinx with ``sphinxcontrib-mermaid`` draw.
        """
        return to_mermaid(self._drawing())

    def to_graphviz(self) -> str:
        """The same in the DOT language of Graphviz: ``dot -Tsvg`` draws it."""
        return to_graphviz(self._drawing())

    def _drawing(self) -> Drawing:
        names = {row.name: f"p{n}" for n, row in enumerate(self.parameters)}
        groups = {name: f"g{n}" for n, name in enumerate(self.groups)}
        nodes = [
            Node(names[row.name], "parameter", (row.name, row.trust.value), row.trust.value) for row in self.parameters
        ]
        nodes += [Node(f"o{n}", "operator", (r.operator, r.place)) for n, r in enumerate(self.relations)]
        nodes += [Node(key, "group", (name,)) for name, key in groups.items()]
        into = [(names[name], f"o{n}") for n, r in enumerate(self.relations) for name in r.parameters]
        out = [(f"o{n}", groups[name]) for n, r in enumerate(self.relations) for name in r.groups]
        graded = {names[row.name]: row.trust for row in self.parameters}
        dashed = frozenset(edge for edge in into if graded[edge[0]] is not Trust.EXACT)
        return Drawing(nodes, (*into, *out), dashed)

    def __str__(self) -> str:
        head = ("parameter", "trust", "traced by", "into", "trace", "note")
        parts = [_table([head, *map(_cells, self.parameters)])]
        parts += ["", _table([_COSTS, *map(_cost_cells, self.relations)]), ""] if self.relations else []
        return "\n".join([*parts, f"{self.algorithm}: {_bytes(self.trace_bytes)} of traces", *self._notes()])

    def _notes(self) -> Iterator[str]:
        for diagnostic in self.diagnostics:
            yield f"{diagnostic.level}: {diagnostic}"

    def __rich__(self) -> Any:
        """The same as ``rich`` tables."""
        from rich.console import Group
        from rich.table import Table

        colours = {Trust.EXACT: "green", Trust.FACTORISED: "cyan", Trust.DIAGONAL: "yellow"}
        table = Table("parameter", "trust", "traced by", "into", "trace", "note", title=self.algorithm)
        for row in self.parameters:
            cells = _cells(row)
            colour = colours.get(row.trust, "red")
            table.add_row(cells[0], f"[{colour}]{cells[1]}[/]", *cells[2:])
        costs = Table(*_COSTS)
        for cells in map(_cost_cells, self.relations):
            costs.add_row(*cells)
        return Group(table, costs) if self.relations else table


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
        relations=tuple(_use(algorithm, graph, traces, operator) for operator in graph.operators),
        groups=tuple(group.name for group in graph.hidden_groups),
        trace_bytes=bytes_of(traces),
        diagnostics=diagnostics,
    )


def relation_table(report: TrustReport) -> str:
    """The uses of marked operators as a table."""
    head = ("operator", "parameters", "into", "place")
    rows = [(r.operator, ", ".join(r.parameters), ", ".join(r.groups) or "-", r.place) for r in report.relations]
    return _table([head, *rows])


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


def _use(algorithm: TraceAlgorithm, graph: TraceGraph, traces: Any, operator: HiddenParamOpRelation) -> RelationReport:
    cost = relation_cost(algorithm, graph, traces, operator)
    numbers = sorted({n for operand in operator.operands.values() for n in operand.parameters})
    return RelationReport(
        operator=operator.primitive.name,
        place=operator.equation.place,
        parameters=tuple(graph.step.parameters[n].name for n in numbers),
        groups=tuple(graph.hidden_groups[link.group].name for link in operator.links),
        kernels=cost.kernels,
        traces=cost.traces,
        bytes_per_step=cost.bytes_per_step,
        operations_per_step=cost.operations_per_step,
    )


def _unread(name: str) -> ParameterReport:
    return ParameterReport(name, Trust.UNUSED, (), (), 0, ("the step never reads it",))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows in columns, the first one underlined."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[-1]]).rstrip() for r in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _cells(row: ParameterReport) -> tuple[str, ...]:
    return (
        row.name,
        row.trust.value,
        ", ".join(row.operators) or "-",
        ", ".join(row.groups) or "-",
        _bytes(row.trace_bytes) if row.trace_bytes else "-",
        "; ".join(row.reasons),
    )


_COSTS = ("operator", "parameters", "served by", "trace", "read and written per step", "multiply-adds per step")


def _cost_cells(row: RelationReport) -> tuple[str, ...]:
    """What serves a relation, and what a step costs."""
    served, kept = (", ".join(dict.fromkeys(names)) or "-" for names in (row.kernels, row.traces))
    moved = _bytes(row.bytes_per_step) if row.bytes_per_step else "-"
    operations = f"{row.operations_per_step:,}" if row.operations_per_step else "-"
    return row.operator, ", ".join(row.parameters), served, kept, moved, operations


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
