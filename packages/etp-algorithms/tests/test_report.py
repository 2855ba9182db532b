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
    assert "served by" in text


def test_a_parameter_that_the_step_never_reads_is_listed_as_unused():
    def with_a_spare():
        model = EXACT["leaky"]()
        model.spare = brainstate.ParamState({"weight": jnp.ones(3)})
        return model

    row = compiled(with_a_spare, XS[0], 2).report["spare.weight"]
    assert (row.trust.value, row.reasons) == ("unused", ("the step never reads it",))


# --- what a step costs -------------------------------------------------------------------------------------------

ONE = IN * N + N  # elements of a dense weight and its bias


@cell({"h": (N,)}, lambda: {"W": array(0, IN + N, N), "b": array(1, N)})
def dense_recurrence(self, x):
    """Nothing recurs but through the operator."""
    self.h.value = jnp.tanh(matmul(jnp.concatenate([x, self.h.value], -1), self.W.value, self.b.value))
    return self.h.value


@cell({"i": (N,), "v": (N,)}, lambda: {"W": array(0, IN, N), "b": array(1, N)})
def synapse_and_membrane(self, x):
    """``i`` by itself; ``v`` by both, and in the same step by ``i``."""
    self.i.value = 0.6 * self.i.value + matmul(x, self.W.value, self.b.value)
    self.v.value = jnp.tanh(0.7 * self.v.value + self.i.value)
    return self.v.value


# elements of the trace of one sample and state, P + F + S
COSTS = {
    "leaky": (EXACT["leaky"], ONE, 1 + 1 + 1),
    "dense_recurrence": (dense_recurrence, (IN + N) * N + N, 0 + 1 + 1),
    "synapse_and_membrane": (synapse_and_membrane, ONE, 3 + 2 + 2),
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("batch", [2, 5])
def test_a_relation_states_its_bytes_and_operations_per_step(name, batch):
    factory, elements, terms = COSTS[name]
    (relation,) = compiled(factory, inputs(batch=batch)[0], batch, kernels="reference").report.relations
    states = 2 if name == "synapse_and_membrane" else 1
    assert (relation.kernels, relation.traces) == (("rules",), ("per weight",))
    assert relation.bytes_per_step == 2 * 8 * batch * elements * states
    assert relation.operations_per_step == batch * elements * terms


def test_the_operations_of_one_state_are_those_of_the_arithmetic():
    # ε ← D ε + Df ⊗ x: two multiplications of every element; ⟨s, ε⟩: one
    report = report_of(EXACT["leaky"], kernels="reference")
    assert report.relations[0].operations_per_step == 3 * 2 * ONE


def test_two_filters_cost_their_width_and_one_product():
    (relation,) = report_of(EXACT["leaky"], algorithm=lambda m: ea.pp_prop(m, 0.9)).relations
    assert (relation.kernels, relation.traces) == (("rules",), ("two filters",))
    assert relation.bytes_per_step == 2 * 8 * 2 * (IN + N)
    assert relation.operations_per_step == 2 * (IN + N * (1 + 1 + 1) + ONE)


def test_a_filter_over_the_traces_doubles_the_states_and_meets_the_signal_alone():
    plain, filtered = (
        report_of(
            EXACT["leaky"], algorithm=lambda m, k=k: ea.EProp(m, kappa_filter_decay=k, kernels="reference")
        ).relations[0]
        for k in (0.0, 0.5)
    )
    assert plain.operations_per_step == 2 * ONE * (1 + 1 + 1)
    assert filtered.operations_per_step == 2 * ONE * (3 + 2 + 1)


@pytest.mark.parametrize(("algorithm", "served"), [(ea.UORO, "derivative of the step"), (ea.SnAp, "rules")])
def test_other_algorithms_say_what_serves_them_and_leave_the_operations_open(algorithm, served):
    (relation,) = report_of(EXACT["leaky"], algorithm=algorithm).relations
    assert relation.kernels == (served,)
    assert relation.operations_per_step is None
    assert relation.bytes_per_step >= 2 * 8 * ONE


def test_an_operator_without_a_trace_costs_nothing():
    first, *_, last = report_of(EXACT["marked_readout"]).relations
    assert (last.groups, last.kernels, last.bytes_per_step, last.operations_per_step) == ((), (), 0, 0)
    assert first.operations_per_step > 0


def test_costs_are_in_the_printed_table_and_in_the_data():
    report = report_of(EXACT["leaky"], kernels="reference")
    assert f"{6 * ONE:,}" in str(report)
    assert ("served by" in str(report), "rules" in str(report)) == (True, True)
    (relation,) = json.loads(json.dumps(report.to_dict()))["relations"]
    assert (relation["kernels"], relation["operations_per_step"]) == (["rules"], 6 * ONE)


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
