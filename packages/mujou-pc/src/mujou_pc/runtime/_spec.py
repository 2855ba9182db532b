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


class Misfit(Exception):
    """A value does not fit a spec. Whoever knows the port makes a ``SpecError`` of it.

    Args:
        text: what is taken, what was given and the remedy.
        path: the fields that lead to the value.
    """

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path


def freeze(spec: "Spec", value: Any, where: str) -> Any:
    """``spec.freeze(value)``, with the name of the port in the error.

    Raises:
        SpecError: ``value`` does not fit.
    """
    try:
        return spec.freeze(value)
    except Misfit as misfit:
        raise SpecError(f"{where}{misfit.path} {misfit.text}") from None


class Spec(ABC):
    """What a message is. Specs are values: equal specs fit together."""

    @abstractmethod
    def zero(self) -> Any:
        """What a port reads before anything was sent to it."""

    @abstractmethod
    def freeze(self, value: Any) -> Any:
        """``value`` as it travels: checked, detached from any graph, out of reach of later in-place writes.

        Raises:
            Misfit: ``value`` does not fit.
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

    def freeze(self, value: Any) -> Tensor:
        # A tensor that already travelled is read-only by contract, so passing it on needs no copy and, under the same
        # spec, no check. One that was written to in place after all is copied again.
        mark = getattr(value, "_travelled", None)
        if mark is not None and value._version == 0 and (mark is self or mark == self):
            return value
        if not isinstance(value, Tensor):
            raise Misfit(f"takes a tensor {self}, but got {type(value).__name__}: give torch.as_tensor(...)")
        if value.shape != self.shape or value.dtype != self.dtype or value.device != self.device:
            given = f"{value.dtype} {list(value.shape)} on {value.device}"
            raise Misfit(
                f"takes {self}, but got {given}: every message of a run has the shape, dtype and device of the spec; "
                "convert the tensor, pad the batch with mask False, or build a network for the other shape"
            )
        copy = _copy(value)
        copy._travelled = self  # type: ignore[attr-defined]
        return copy


def _copy(value: Tensor) -> Tensor:
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _copy(value)
    return value.detach().clone() if value.requires_grad else value.clone()


@dataclass(frozen=True, slots=True)
class _ScalarSpec(Spec):
    def zero(self) -> Any:
        return self._type()()

    def cast(self, value: Any) -> Any:
        return value

    def freeze(self, value: Any) -> Any:
        if type(value) is not self._type():
            wanted = self._type().__name__
            raise Misfit(f"takes {wanted}, but got {type(value).__name__} ({value!r}): convert it to {wanted}")
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
    """A ``Timestamp``; ``Timestamp(ns=0)`` before the first message."""

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

    def freeze(self, value: Any) -> Mapping[str, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Misfit(f"takes a dict {self}, but got {type(value).__name__}")
        frozen: dict[str, Any] = {}
        for name, spec in self.fields.items():
            given = value.get(name)
            if given is None:
                given = spec.missing()
            try:
                frozen[name] = spec.freeze(given)
            except Misfit as misfit:
                text = misfit.text if given is not None else f"({spec}) is missing"
                raise Misfit(text, f"[{name!r}]{misfit.path}") from None
        if not value.keys() <= frozen.keys():
            extra = sorted(value.keys() - frozen.keys())
            raise Misfit(f"takes the fields {list(frozen)}, but got also {extra}: leave them out")
        return MappingProxyType(frozen)
