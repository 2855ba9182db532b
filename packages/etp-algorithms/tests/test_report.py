"""The report says what each gradient contains, as a table and as data."""

import io
import json

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
    assert report_of(EXACT["leaky"])["W"].trace_bytes == 8 * 2 * (IN * N + N)


def test_the_total_is_the_memory_of_all_traces():
    learner = compiled(EXACT["independent_groups"], XS[0], 2)
    assert learner.report.trace_bytes == sum(t.nbytes for t in jax.tree.leaves(learner.traces.value))


def test_a_trace_is_counted_once_per_group_it_reaches():
    report = report_of(EXACT["one_drive_two_groups"])
    assert report["W"].trace_bytes == report.trace_bytes == 2 * 8 * 2 * IN * N


def test_narrow_traces_are_reported_narrow():
    wide, narrow = (report_of(EXACT["leaky"], trace_dtype=t).trace_bytes for t in (jnp.float64, jnp.bfloat16))
    assert wide == 4 * narrow


def test_a_row_names_operators_and_groups():
    row = report_of(EXACT["sliced_weight"])["W"]
    assert (row.operators, row.groups) == (("etp_mm", "etp_mm"), ("c+h",))


def test_the_printed_table_has_a_line_for_every_parameter():
    lines = str(report_of()).splitlines()
    assert lines[0].split() == ["parameter", "trust", "traced", "by", "into", "trace", "note"]
    assert [line.split()[:2] for line in lines[2:7]] == [[row.name, row.trust.value] for row in report_of().parameters]


def test_the_printed_table_ends_with_the_memory_and_the_findings():
    report = report_of(DIAGONAL["mean_of_state"][0])
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
