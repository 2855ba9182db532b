"""Specs: what a port sends or receives, checked when ports are joined and when a message is sent."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mujou_pc.runtime._errors import SpecError
from mujou_pc.runtime._timer import Timestamp

__all__ = ["BoolSpec", "DictSpec", "FloatSpec", "IntSpec", "Spec", "TensorSpec", "TimestampSpec"]


class Spec(ABC):
    """What a message is. Specs are values: equal specs fit together."""

    @abstractmethod
    def zero(self) -> Any:
        """What a port reads before anything was sent to it."""

    @abstractmethod
    def freeze(self, value: Any, where: str) -> Any:
        """`value` as it travels: checked, detached from any graph, out of reach of later in-place writes.

        Args:
            value: the message.
            where: name of the port, and of the field in it, for the error.

        Raises:
            SpecError: `value` does not fit.
        """

    @abstractmethod
    def cast(self, value: Any) -> Any:
        """A saved message, moved to this spec's dtype and device."""

    def missing(self) -> Any:
        """What stands in for a field left out of a message; None when it may not be left out."""
        return None


@dataclass(frozen=True, slots=True)
class TensorSpec(Spec):
    """A tensor of one shape, dtype and device.

    Args:
        shape: every axis, the batch first.
        dtype: torch's default dtype at the time, unless given.
        device: where the tensor lives.
        fill: value of a field left out of a dict message; None: it may not be left out.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    device: torch.device | str = "cpu"
    fill: float | bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        # "cuda" and "cuda:0" are one device: only an allocation tells.
        object.__setattr__(self, "device", torch.empty(0, device=self.device).device)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} on {self.device}"

    def zero(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def missing(self) -> Tensor | None:
        return None if self.fill is None else torch.full(self.shape, self.fill, dtype=self.dtype, device=self.device)

    def cast(self, value: Tensor) -> Tensor:
        return value.to(device=self.device, dtype=self.dtype).clone()

    def freeze(self, value: Any, where: str) -> Tensor:
        if not isinstance(value, Tensor):
            raise SpecError(f"{where} takes a tensor {self}, but got {type(value).__name__}: give torch.as_tensor(...)")
        if value.shape != self.shape or value.dtype != self.dtype or value.device != self.device:
            given = f"{value.dtype} {list(value.shape)} on {value.device}"
            raise SpecError(
                f"{where} takes {self}, but got {given}: every message of a run has the shape, dtype and device of the "
                "spec; convert the tensor, pad the batch with mask False, or build a network for the other shape"
            )
        return _frozen(value)


# A tensor that already travelled is read-only by contract, so passing it on needs no copy. The mark is its version at
# the time: one that was written to in place after all is copied again.
def _frozen(value: Tensor) -> Tensor:
    if getattr(value, "_travelled", None) == _version(value):
        return value
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _frozen(value)
    copy = value.detach().clone() if value.requires_grad else value.clone()
    copy._travelled = copy._version  # type: ignore[attr-defined]
    return copy


def _version(value: Tensor) -> int:
    return -1 if value.is_inference() else value._version


@dataclass(frozen=True, slots=True)
class _ScalarSpec(Spec):
    def zero(self) -> Any:
        return self._type()()

    def cast(self, value: Any) -> Any:
        return value

    def freeze(self, value: Any, where: str) -> Any:
        if type(value) is not self._type():
            wanted = self._type().__name__
            raise SpecError(
                f"{where} takes {wanted}, but got {type(value).__name__} ({value!r}): convert it to {wanted}"
            )
        return value

    def __str__(self) -> str:
        return self._type().__name__

    def _type(self) -> Any:
        raise NotImplementedError


class IntSpec(_ScalarSpec):
    """A Python int."""

    def _type(self) -> Any:
        return int


class FloatSpec(_ScalarSpec):
    """A Python float."""

    def _type(self) -> Any:
        return float


class BoolSpec(_ScalarSpec):
    """A Python bool."""

    def _type(self) -> Any:
        return bool


class TimestampSpec(_ScalarSpec):
    """A `Timestamp`; `Timestamp(ns=0)` before the first message."""

    def _type(self) -> Any:
        return Timestamp

    def zero(self) -> Timestamp:
        return Timestamp(ns=0)


@dataclass(frozen=True, slots=True)
class DictSpec(Spec):
    """A message with named fields, which travels as a whole and is read as a read-only mapping.

    Args:
        fields: the spec of each field.
    """

    fields: Mapping[str, Spec]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {spec}" for name, spec in self.fields.items()) + "}"

    def zero(self) -> Mapping[str, Any]:
        return MappingProxyType({name: spec.zero() for name, spec in self.fields.items()})

    def cast(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        return MappingProxyType({name: spec.cast(value[name]) for name, spec in self.fields.items()})

    def freeze(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise SpecError(f"{where} takes a dict {self}, but got {type(value).__name__}")
        if not value.keys() <= self.fields.keys():
            extra = sorted(value.keys() - self.fields.keys())
            raise SpecError(f"{where} takes the fields {list(self.fields)}, but got also {extra}: leave them out")
        return MappingProxyType({name: _field(spec, value, name, where) for name, spec in self.fields.items()})


def _field(spec: Spec, value: Mapping[str, Any], name: str, where: str) -> Any:
    given = value.get(name)
    if given is None:
        given = spec.missing()
    if given is None:
        raise SpecError(f"{where} needs the field {name!r} ({spec}), which is missing")
    return spec.freeze(given, f"{where}[{name!r}]")
