"""Specs: what fits, what does not, and how a message travels."""

import pytest
import torch

from mujou_pc.runtime import (
    BoolSpec,
    DictSpec,
    FloatSpec,
    IntSpec,
    SpecError,
    TensorSpec,
    Timestamp,
    TimestampSpec,
)
from mujou_pc.runtime._spec import Misfit, freeze

SPEC = TensorSpec((2, 3), torch.float64)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.zeros(3, 2), r"\[2, 3\].*\[3, 2\]"),
        (torch.zeros(2, 3, dtype=torch.float32), "torch.float64.*torch.float32"),
        (torch.zeros(2, 3, device="meta"), "cpu.*meta"),
        ([[0.0] * 3] * 2, "list"),
    ],
    ids=["shape", "dtype", "device", "type"],
)
def test_a_tensor_that_does_not_fit_is_refused_with_both_named(value, named):
    with pytest.raises(Misfit, match=rf"takes.*{named}"):
        SPEC.freeze(value)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [(IntSpec(), 3, 3.0), (FloatSpec(), 3.0, 3), (BoolSpec(), True, 1), (TimestampSpec(), Timestamp(5), 5)],
)
def test_scalars_are_of_exactly_their_type(spec, good, bad):
    assert spec.freeze(good) == good
    with pytest.raises(Misfit, match="convert it"):
        spec.freeze(bad)


@pytest.mark.parametrize(
    ("spec", "zero"),
    [(IntSpec(), 0), (FloatSpec(), 0.0), (BoolSpec(), False), (TimestampSpec(), Timestamp(ns=0))],
)
def test_before_the_first_message_a_port_reads_zero(spec, zero):
    assert spec.zero() == zero
    assert DictSpec({"a": spec}).zero() == {"a": zero}


def test_a_sent_tensor_is_detached_and_out_of_reach_of_in_place_writes():
    value = torch.ones(2, 3, requires_grad=True) * 1
    sent = SPEC.freeze(value)
    with torch.no_grad():
        value.zero_()
    assert torch.equal(sent, torch.ones(2, 3))
    assert sent.grad_fn is None
    assert not sent.requires_grad


def test_a_tensor_passed_on_is_not_copied_again_unless_it_was_written_to():
    sent = SPEC.freeze(torch.ones(2, 3))
    assert SPEC.freeze(sent) is sent
    sent.add_(1)
    again = SPEC.freeze(sent)
    sent.add_(1)
    assert torch.equal(again, torch.full((2, 3), 2.0))


def test_a_fresh_tensor_travels_without_a_copy():
    value = torch.ones(2, 3)
    assert SPEC.freeze(value, fresh=True) is value
    assert DictSpec({"a": SPEC}).freeze({"a": value}, fresh=True)["a"] is value


@pytest.mark.parametrize("case", ["of a graph", "of inference mode", "travelled and written to"])
def test_a_fresh_tensor_that_could_not_travel_as_it_is_is_copied(case):
    with torch.inference_mode(case == "of inference mode"):
        value = torch.ones(2, 3).requires_grad_(case == "of a graph")
    if case == "travelled and written to":
        value = SPEC.freeze(value).add_(1)
    sent = SPEC.freeze(value, fresh=True)
    assert sent is not value
    assert [sent.requires_grad, sent.is_inference()] == [False, False]
    assert torch.equal(sent, value)


def test_a_tensor_of_inference_mode_can_be_differentiated_after_it_was_sent():
    with torch.inference_mode():
        sent = SPEC.freeze(torch.ones(2, 3))
    (grad,) = torch.autograd.grad((sent.requires_grad_() ** 2).sum(), sent)
    assert torch.equal(grad, torch.full((2, 3), 2.0))


def test_a_message_is_read_only():
    message = DictSpec({"a": IntSpec()}).freeze({"a": 1})
    with pytest.raises(TypeError):
        message["a"] = 2


def test_fields_too_many_and_too_few_are_refused_by_name():
    spec = DictSpec({"a": IntSpec(), "b": IntSpec()})
    with pytest.raises(Misfit, match=r"also \['c'\]"):
        spec.freeze({"a": 1, "b": 2, "c": 3})
    with pytest.raises(Misfit, match=r"also \['c'\]"):
        spec.freeze({"a": 1, "c": 3})
    with pytest.raises(Misfit, match="is missing"):
        spec.freeze({"a": 1})
    with pytest.raises(Misfit, match="takes int"):
        spec.freeze({"a": 1, "b": "2"})
    with pytest.raises(Misfit, match="takes a dict"):
        spec.freeze(3)


def test_a_field_with_a_fill_may_be_left_out():
    spec = DictSpec({"mask": TensorSpec((2,), torch.bool, fill=True)})
    assert bool(spec.freeze({})["mask"].all())
    assert bool(spec.freeze({"mask": None})["mask"].all())
    assert not bool(spec.zero()["mask"].any())


def test_a_shape_that_does_not_name_every_axis_is_refused():
    with pytest.raises(ValueError, match="shape must"):
        TensorSpec((-1, 3))


def test_specs_are_values():
    assert TensorSpec((2,), torch.float32) == TensorSpec((2,), torch.float32, "cpu")
    assert TensorSpec((2,), torch.float32) != TensorSpec((3,), torch.float32)
    assert DictSpec({"a": IntSpec()}) == DictSpec({"a": IntSpec()})
    assert IntSpec() != FloatSpec()


def test_the_dtype_is_torchs_default_unless_given():
    assert TensorSpec((2,)).dtype == torch.float64


def test_the_error_of_a_message_names_the_port_and_the_field():
    spec = DictSpec({"a": DictSpec({"b": IntSpec()})})
    with pytest.raises(SpecError, match=r"^x\.next\['a'\]\['b'\] takes int, but got str"):
        freeze(spec, {"a": {"b": "2"}}, "x.next")
    with pytest.raises(SpecError, match=r"^x\.next\['a'\]\['b'\] \(int\) is missing"):
        freeze(spec, {"a": {}}, "x.next")
