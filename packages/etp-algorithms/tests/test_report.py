"""The report says what each gradient contains, as a table and as data."""

import html
import io
import json
import re

import brainstate
import jax
import jax.numpy as jnp
import pytest

import etp_algorithms as ea
from etp_ops import matmul

from .helpers import compiled
from .models import DIAGONAL, EXACT, IN, N, array, cell, inputs

XS = inputs(batch=2)


@cell(
    {"h": (N,), "k": (N,)},
    lambda: {"W": array(0, IN, N), "R": array(1, N, N), "P": array(2, IN, N), "o": array(3, N), "z": array(4, N)},
)
def of_every_trust(self, x):
    """``R`` exact, ``W`` diagonal, ``P`` window, ``o`` exact without a trace, ``z`` unused."""
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, self.W.value) + x @ self.P.value)
    self.k.value = 0.5 * self.k.value + matmul(self.h.value, self.R.value) + 0.0 * jax.lax.stop_gradient(self.z.value)
    return self.k.value * self.o.value


def report_of(factory=of_every_trust, **options):
    return compiled(factory, XS[0], 2, **options).report


GRADES = {"W": "diagonal", "R": "exact", "P": "window", "o": "exact", "z": "unused"}


@pytest.mark.parametrize(("name", "trust"), GRADES.items())
def test_a_parameter_is_found_by_its_name(name, trust):
    assert report_of()[name].trust == trust


def test_a_traced_parameter_is_factorised_under_pp_prop():
    report = report_of(algorithm=lambda m: ea.pp_prop(m, 0.9))
    assert {row.name: row.trust.value for row in report.parameters} == {**GRADES, "W": "factorised", "R": "factorised"}


def test_a_leaf_of_a_tree_is_found_by_its_dotted_path():
    assert report_of(EXACT["leaky_pytree"])["p.bias"].operators == ("etp_mm",)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(KeyError, match=r"no parameter .V.; there are .*W"):
        report_of()["V"]


def test_every_grade_below_exact_has_a_reason():
    assert all(row.reasons for row in report_of().parameters if row.trust is not ea.Trust.EXACT)


def test_a_row_counts_the_bytes_of_its_traces():
    # batch 2, float64, one state
    assert report_of(EXACT["leaky"], kernels="reference")["W"].trace_bytes == 8 * 2 * (IN * N + N)


def test_the_total_is_the_memory_of_all_traces():
    learner = compiled(EXACT["independent_groups"], XS[0], 2)
    assert learner.report.trace_bytes == sum(t.nbytes for t in jax.tree.leaves(learner.traces.value))


def test_a_trace_is_counted_once_per_group_it_reaches():
    report = report_of(EXACT["one_drive_two_groups"], kernels="reference")
    assert report["W"].trace_bytes == report.trace_bytes == 2 * 8 * 2 * IN * N


def test_narrow_traces_are_reported_narrow():
    reports = [report_of(EXACT["leaky"], trace_dtype=t, kernels="reference") for t in (jnp.float64, jnp.bfloat16)]
    wide, narrow = (report.trace_bytes for report in reports)
    assert wide == 4 * narrow


def test_a_row_names_operators_and_groups():
    row = report_of(EXACT["sliced_weight"])["W"]
    assert (row.operators, row.groups) == (("etp_mm", "etp_mm"), ("c+h",))


def test_the_printed_table_has_a_line_for_every_parameter():
    lines = str(report_of()).splitlines()
    assert lines[0].split() == ["parameter", "trust", "traced", "by", "into", "trace", "note"]
    assert [line.split()[:2] for line in lines[2:7]] == [[row.name, row.trust.value] for row in report_of().parameters]


def test_the_printed_table_ends_with_the_memory_and_the_findings():
    report = report_of(DIAGONAL["mean_of_state"][0], kernels="reference")
    *_, total, note = str(report).splitlines()
    assert total == "D_RTRL: 192 B of traces"
    assert note.startswith("warning: mixed_transition: h:")


def test_a_report_is_plain_data():
    data = json.loads(json.dumps(report_of(DIAGONAL["gru"][0]).to_dict()))
    assert data["algorithm"] == "D_RTRL"
    assert {row["name"]: row["trust"] for row in data["parameters"]} == DIAGONAL["gru"][1]
    assert [d["kind"] for d in data["diagnostics"]] == ["weight_behind_weight"]


def test_equal_models_have_equal_reports():
    assert report_of() == report_of()


def test_rich_prints_a_coloured_table():
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=200, record=True, file=io.StringIO())
    console.print(report_of())
    text = console.export_text()
    assert all(name in text for name in GRADES)
    assert "diagonal" in text


def test_a_parameter_that_the_step_never_reads_is_listed_as_unused():
    def with_a_spare():
        model = EXACT["leaky"]()
        model.spare = brainstate.ParamState({"weight": jnp.ones(3)})
        return model

    row = compiled(with_a_spare, XS[0], 2).report["spare.weight"]
    assert (row.trust.value, row.reasons) == ("unused", ("the step never reads it",))


# --- drawings ----------------------------------------------------------------------------------------------------

AWKWARD = 'a"b\\c<d>e#f;g[h](i){j}|k\nl`m& %é→'


def named_awkwardly():
    model = EXACT["leaky"]()
    model.more = brainstate.ParamState({AWKWARD: jnp.ones(3), "end": jnp.ones(3), "1. list": jnp.ones(3)})
    return model


DRAWN = {"every_trust": of_every_trust, "awkward_names": named_awkwardly, "two_groups": EXACT["one_drive_two_groups"]}


def parse_mermaid(text):
    """Nodes as ``{key: (lines, class)}``, edges and classes of a flowchart; a line it does not know is an error."""
    first, *lines = text.splitlines()
    assert first == "flowchart LR"
    nodes, edges, classes = {}, [], set()
    for line in lines:
        if found := re.fullmatch(r' +(\w+)(\[|\(\[|\[\[)"([^"]*)"(\]|\]\)|\]\])(?::::(\w+))?', line):
            key, start, label, end, trust = found.groups()
            assert (start, end) in {("[", "]"), ("([", "])"), ("[[", "]]")}
            assert key not in nodes
            assert re.fullmatch(r"(?:[\w .,+\-/]|#\d+;|<br/>)*", label, re.ASCII)
            lines_ = label.split("<br/>")
            nodes[key] = (tuple(html.unescape(re.sub(r"#(\d+);", r"&#\1;", part)) for part in lines_), trust)
        elif found := re.fullmatch(r" +(\w+) (-->|-\.->) (\w+)", line):
            edges.append((found[1], found[3], found[2] == "-.->"))
        else:
            classes.add(re.fullmatch(r" +classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#\w{6}", line)[1])
    assert {trust for _, trust in nodes.values() if trust} == classes
    assert {end for edge in edges for end in edge[:2]} <= nodes.keys()
    return nodes, edges


def parse_graphviz(text):
    """Nodes as ``{key: lines}`` and edges of a digraph, token by token."""
    pattern = r'\s+|"(?:\\.|[^"\\])*"|->|[{}\[\];=,]|\w+'
    tokens = [t for t in re.findall(pattern, text) if not t.isspace()]
    assert "".join(re.findall(pattern, text)) == text
    assert tokens[:3] == ["digraph", "trust", "{"]
    assert tokens[-1] == "}"
    statements = " ".join(tokens[3:-1]).split(" ;")  # no label of ours holds " ;"
    nodes, edges = {}, []
    for statement in map(str.strip, statements):
        if found := re.fullmatch(r'(\w+) \[ label = "((?:\\.|[^"\\])*)" , (.*) \]', statement, re.DOTALL):
            assert found[1] not in nodes
            parts = re.split(r"(?<!\\)(?:\\\\)*\\n", found[2])
            nodes[found[1]] = tuple(part.replace('\\"', '"').replace("\\\\", "\\") for part in parts)
        elif found := re.fullmatch(r"(\w+) -> (\w+)( \[ style = dashed \])?", statement):
            edges.append((found[1], found[2], bool(found[3])))
        else:
            assert statement in ("", "rankdir = LR")
    return nodes, edges


@pytest.mark.parametrize("name", DRAWN)
def test_a_mermaid_drawing_has_a_node_for_every_parameter_operator_and_group(name):
    report = report_of(DRAWN[name])
    nodes, edges = parse_mermaid(report.to_mermaid())
    wanted = [((row.name, row.trust.value), row.trust.value) for row in report.parameters]
    wanted += [((r.operator, r.place), None) for r in report.relations] + [((group,), None) for group in report.groups]
    assert sorted(map(str, nodes.values())) == sorted(map(str, wanted))
    assert len(edges) == sum(len(r.parameters) + len(r.groups) for r in report.relations)


@pytest.mark.parametrize("name", DRAWN)
def test_a_graphviz_drawing_has_the_nodes_and_edges_of_the_mermaid_drawing(name):
    report = report_of(DRAWN[name])
    nodes, edges = parse_mermaid(report.to_mermaid())
    dot_nodes, dot_edges = parse_graphviz(report.to_graphviz())
    assert dot_nodes == {key: tuple(line.replace("\n", " ") for line in lines) for key, (lines, _) in nodes.items()}
    assert dot_edges == edges


def test_a_drawing_leads_from_parameters_through_operators_to_groups():
    nodes, edges = parse_mermaid(report_of().to_mermaid())
    named = {(nodes[a][0][0], nodes[b][0][0], dashed) for a, b, dashed in edges}
    assert named == {("W", "etp_mm", True), ("etp_mm", "h", False), ("R", "etp_mm", False), ("etp_mm", "k", False)}


def test_a_readout_is_drawn_without_a_way_to_a_group():
    report = report_of(EXACT["marked_readout"])
    assert [(r.parameters, r.groups) for r in report.relations] == [(("W",), ("h",)), (("R",), ())]
