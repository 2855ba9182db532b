"""Specs: what a port sends or receives, checked when ports are joined and when a message is sent."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

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


def freeze(spec: "Spec", value: Any, where: str, fresh: bool = False) -> Any:
    """``spec.freeze(value, fresh)``, with the name of the port in the error.

    Raises:
        SpecError: ``value`` does not fit.
    """
    try:
        return spec.freeze(value, fresh)
    except Misfit as misfit:
        raise SpecError(f"{where}{misfit.path} {misfit.text}") from None


class Spec(ABC):
    """What a message is. Specs are values: equal specs fit together."""

    @abstractmethod
    def zero(self) -> Any:
        """What a port reads before anything was sent to it."""

    @abstractmethod
    def freeze(self, value: Any, fresh: bool = False) -> Any:
        """``value`` as it travels: checked, detached from any graph, out of reach of later in-place writes.

        Args:
            value: the message.
            fresh: nobody else holds its tensors or their memory, so they travel without a copy.

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

    Raises:
        ValueError: an axis is negative.
        TypeError: ``shape`` is not a tuple of axes.

    Example:
        >>> print(TensorSpec((4, 8), torch.float64))
        torch.float64 [4, 8] on cpu
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    device: torch.device | str = "cpu"
    fill: float | bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        except TypeError as error:
            raise TypeError(f"shape must be a tuple of every axis, but got {self.shape!r}") from error
        if min(self.shape, default=0) < 0:
            raise ValueError(f"shape must name the length of every axis, at least 0, but got {self.shape}")
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

    def freeze(self, value: Any, fresh: bool = False) -> Tensor:
        # A tensor that already travelled is read-only by contract, so passing it on needs no copy and, under the same
        # spec, no check. One that was written to in place after all is copied again.
        mark = getattr(value, "_travelled", None)
        if mark is not None and value._version == 0 and (mark is self or mark == self):
            value._travelled = self  # so that the next one to pass it on need not compare
            return value
        if not isinstance(value, Tensor):
            raise Misfit(f"takes a tensor {self}, but got {type(value).__name__}: give torch.as_tensor(...)")
        if value.shape != self.shape or value.dtype != self.dtype or value.device != self.device:
            given = f"{value.dtype} {list(value.shape)} on {value.device}"
            raise Misfit(
                f"takes {self}, but got {given}: every message of a run has the shape, dtype and device of the spec; "
                "convert the tensor, pad the batch with mask False, or build a network for the other shape"
            )
        taken = fresh and mark is None and not value.requires_grad and not value.is_inference()
        own = value if taken else _copy(value)
        own._travelled = self  # type: ignore[attr-defined]
        return own


def _copy(value: Tensor) -> Tensor:
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _copy(value)
    return value.detach().clone() if value.requires_grad else value.clone()


@dataclass(frozen=True, slots=True)
class _ScalarSpec(Spec):
    kind: ClassVar[type] = object

    def zero(self) -> Any:
        return self.kind()

    def cast(self, value: Any) -> Any:
        return value

    def freeze(self, value: Any, fresh: bool = False) -> Any:
        if type(value) is not self.kind:
            wanted = self.kind.__name__
            raise Misfit(f"takes {wanted}, but got {type(value).__name__} ({value!r}): convert it to {wanted}")
        return value

    def __str__(self) -> str:
        return self.kind.__name__


class IntSpec(_ScalarSpec):
    """A Python int."""

    kind = int


class FloatSpec(_ScalarSpec):
    """A Python float."""

    kind = float


class BoolSpec(_ScalarSpec):
    """A Python bool."""

    kind = bool


class TimestampSpec(_ScalarSpec):
    """A ``Timestamp``; ``Timestamp(ns=0)`` before the first message."""

    kind = Timestamp

    def zero(self) -> Timestamp:
        return Timestamp(ns=0)


@dataclass(frozen=True, slots=True)
class DictSpec(Spec):
    """A message with named fields, which travels as a whole and is read as a read-only mapping.

    Args:
        fields: the spec of each field.

    Example:
        >>> print(DictSpec({"h": TensorSpec((4, 8), torch.float32), "time": TimestampSpec()}))
        {h: torch.float32 [4, 8] on cpu, time: Timestamp}
    """

    fields: Mapping[str, Spec]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {spec}" for name, spec in self.fields.items()) + "}"

    def zero(self) -> Mapping[str, Any]:
        return MappingProxyType({name: spec.zero() for name, spec in self.fields.items()})

    def cast(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        return MappingProxyType({name: spec.cast(value[name]) for name, spec in self.fields.items()})

    def freeze(self, value: Any, fresh: bool = False) -> Mapping[str, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Misfit(f"takes a dict {self}, but got {type(value).__name__}")
        frozen: dict[str, Any] = {}
        name = ""
        try:
            for name, spec in self.fields.items():
                given = value[name]
                if getattr(given, "_travelled", None) is spec and given._version == 0:  # passed on, as most are
                    frozen[name] = given
                else:
                    frozen[name] = spec.freeze(given, fresh)
        except KeyError:
            if name in value:
                raise
            return self.freeze(self._completed(value), fresh)
        except Misfit as misfit:
            if value[name] is None:
                return self.freeze({name: given for name, given in value.items() if given is not None}, fresh)
            raise Misfit(misfit.text, f"[{name!r}]{misfit.path}") from None
        return MappingProxyType(frozen if len(value) == len(frozen) else self._completed(value))

    def _completed(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """``value`` and the fields that it may leave out."""
        if extra := sorted(value.keys() - self.fields.keys()):
            raise Misfit(f"takes the fields {list(self.fields)}, but got also {extra}: leave them out")
        filled = {name: spec.missing() for name, spec in self.fields.items() if name not in value}
        for name, filling in filled.items():
            if filling is None:
                raise Misfit(f"({self.fields[name]}) is missing", f"[{name!r}]")
        return {**value, **filled}
