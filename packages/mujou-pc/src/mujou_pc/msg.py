"""The messages that flow between the nodes, and their specs.

Every message is a dict. The target, mask, reset and time ride with the activity, so that whatever
the delay a prediction meets the target of its own sample.
"""

from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from mujou_pc.runtime import DictSpec, TensorSpec, Timestamp, TimestampSpec

__all__ = [
    "Activity",
    "Prediction",
    "Sample",
    "activity_spec",
    "gradient_spec",
    "prediction_spec",
    "sample_spec",
]


class Sample(TypedDict):
    """A batch of B samples, from the host to ``Input.prev``.

    A port holds the latest write only: a ``reset`` that no node has read when the next sample is
    written is lost with it.
    """

    x: Tensor
    """What is shown, (B, ...)."""
    y: Tensor
    """The targets, (B, ...); those of rows whose mask is False are not looked at."""
    mask: NotRequired[Tensor]
    """Whether each row has a target: bool (B,), all True when left out."""
    reset: NotRequired[Tensor]
    """Whether each row starts anew, unlike the next frame of a stream: bool (B,), all True when
    left out."""


class Activity(TypedDict):
    """What a node sends forward."""

    h: Tensor
    """The prediction mu of the node that sends it (x, from Input), (B, ...)."""
    y: Tensor
    mask: Tensor
    reset: Tensor
    time: Timestamp
    """When the host wrote the sample; ``Timestamp(ns=0)`` before the first."""


class Prediction(TypedDict):
    """What ``Output.next`` sends to the host."""

    y_hat: Tensor
    """The output of the last module, (B, ...)."""
    y: Tensor
    mask: Tensor
    time: Timestamp
    """When the host wrote the sample that this predicts."""


def sample_spec(x: TensorSpec, y: TensorSpec) -> DictSpec:
    """The spec of a ``Sample``.

    Args:
        x: of the input, the batch first.
        y: of the target, with the same batch.

    Example:
        >>> list(sample_spec(TensorSpec((4, 8)), TensorSpec((4,), torch.int64)).fields)
        ['x', 'y', 'mask', 'reset']
    """
    flags = _flags(x, y, fill=True)
    return DictSpec({"x": x, "y": y, "mask": flags, "reset": flags})


def activity_spec(h: TensorSpec, y: TensorSpec) -> DictSpec:
    """The spec of an ``Activity``.

    Args:
        h: of the activity, the batch first.
        y: of the target, with the same batch.

    Example:
        >>> list(activity_spec(TensorSpec((4, 8)), TensorSpec((4,), torch.int64)).fields)
        ['h', 'y', 'mask', 'reset', 'time']
    """
    flags = _flags(h, y)
    return DictSpec({"h": h, "y": y, "mask": flags, "reset": flags, "time": TimestampSpec()})


def prediction_spec(y_hat: TensorSpec, y: TensorSpec) -> DictSpec:
    """The spec of a ``Prediction``.

    Args:
        y_hat: of the output of the last module, the batch first.
        y: of the target, with the same batch.

    Example:
        >>> list(prediction_spec(TensorSpec((4, 3)), TensorSpec((4,), torch.int64)).fields)
        ['y_hat', 'y', 'mask', 'time']
    """
    return DictSpec({"y_hat": y_hat, "y": y, "mask": _flags(y_hat, y), "time": TimestampSpec()})


def gradient_spec(h: TensorSpec) -> TensorSpec:
    """The spec of the ``g_in`` that answers an activity: its shape, and a dtype that has gradients.

    Args:
        h: of the activity.

    Example:
        >>> gradient_spec(TensorSpec((4, 2), torch.int64)).dtype
        torch.float32
    """
    dtype = h.dtype if h.dtype.is_floating_point else torch.get_default_dtype()
    return TensorSpec(h.shape, dtype, h.device)


def _flags(h: TensorSpec, y: TensorSpec, fill: bool | None = None) -> TensorSpec:
    if not h.shape or not y.shape or h.shape[0] != y.shape[0]:
        raise ValueError(f"the activity {h} and the target {y} must have the same batch as their first axis")
    return TensorSpec(h.shape[:1], torch.bool, h.device, fill=fill)
