"""The write-once registry of primitives and rules, and its read-only public views."""

import threading
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from etp_core._errors import RegistrationError
from etp_core._rules import RULES, Rule

if TYPE_CHECKING:
    from etp_core._primitive import ETPPrimitive

__all__ = [
    "BATCHED_PRIMITIVES",
    "ETP_PRIMITIVES",
    "ETP_RULES_DT_TO_T",
    "ETP_RULES_INIT_DRTRL",
    "ETP_RULES_INIT_PP",
    "ETP_RULES_XY_TO_DW",
    "ETP_RULES_YW_TO_W",
    "add_primitive",
    "add_rule",
    "find_rule",
]

_lock = threading.Lock()
_primitives: dict[str, "ETPPrimitive"] = {}
_rules: dict[str, dict["ETPPrimitive", Rule]] = {name: {} for name in (*RULES, "fast_path", "batched_twin")}


class _RuleView(Mapping["ETPPrimitive", Any]):
    """The registered rules of one kind, primitive by primitive; read-only."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, primitive: "ETPPrimitive") -> Any:
        return _rules[self._kind][primitive]

    def __iter__(self) -> Iterator["ETPPrimitive"]:
        return iter(tuple(_rules[self._kind]))

    def __len__(self) -> int:
        return len(_rules[self._kind])

    def __repr__(self) -> str:
        return f"<{self._kind} rules of {sorted(p.name for p in self)}>"


class _PrimitiveView(Set["ETPPrimitive"]):
    """The registered primitives, or the batched ones among them; read-only."""

    def __init__(self, *, batched_only: bool) -> None:
        self._batched_only = batched_only

    def _members(self) -> list[Any]:
        return [p for p in tuple(_primitives.values()) if p.batched or not self._batched_only]

    @classmethod
    def _from_iterable(cls, it: Any) -> Any:
        return set(it)

    def __contains__(self, primitive: object) -> bool:
        return primitive in self._members()

    def __iter__(self) -> Iterator["ETPPrimitive"]:
        return iter(self._members())

    def __len__(self) -> int:
        return len(self._members())

    def __repr__(self) -> str:
        return f"<primitives {sorted(p.name for p in self)}>"


ETP_PRIMITIVES: Set["ETPPrimitive"] = _PrimitiveView(batched_only=False)
"""Every registered primitive."""
BATCHED_PRIMITIVES: Set["ETPPrimitive"] = _PrimitiveView(batched_only=True)
"""The primitives whose ``x`` and ``y`` carry a leading batch axis."""
ETP_RULES_DT_TO_T: Mapping["ETPPrimitive", Rule] = _RuleView("dt_to_t")
"""The trace rules; ``ETP_RULES_YW_TO_W`` is the same view under the rule's older name."""
ETP_RULES_YW_TO_W = ETP_RULES_DT_TO_T
ETP_RULES_XY_TO_DW: Mapping["ETPPrimitive", Rule] = _RuleView("xy_to_dw")
"""The pull-back rules."""
ETP_RULES_INIT_DRTRL: Mapping["ETPPrimitive", Rule] = _RuleView("init_drtrl")
"""The initialisers of parameter-shaped traces."""
ETP_RULES_INIT_PP: Mapping["ETPPrimitive", Rule] = _RuleView("init_pp")
"""The initialisers of output-shaped traces."""


def add_primitive(primitive: "ETPPrimitive", *, replace: bool) -> None:
    """Enter ``primitive`` under its name; a name is given once unless ``replace`` is set."""
    with _lock:
        old = _primitives.get(primitive.name)
        if old is not None and not replace:
            raise RegistrationError(
                f"the primitive name {primitive.name!r} is taken: first registered at {old.defined_at}, again at "
                f"{primitive.defined_at}. Choose another name, or pass replace=True to mean it."
            )
        if old is not None:
            for table in _rules.values():
                table.pop(old, None)
        _primitives[primitive.name] = primitive


def add_rule(kind: str, primitive: "ETPPrimitive", rule: Any, *, replace: bool) -> None:
    """Enter ``rule`` as the rule of ``kind`` for ``primitive``; a rule is given once unless ``replace`` is set."""
    with _lock:
        if _primitives.get(primitive.name) is not primitive:
            raise RegistrationError(
                f"{primitive.name!r} is not registered (it was replaced, or made without register_primitive); "
                f"make it with etp_core.register_primitive before giving it rules."
            )
        old = _rules[kind].get(primitive)
        if old is not None and not replace:
            raise RegistrationError(
                f"{primitive.name} already has a {kind} rule: {_where(old)}, now {_where(rule)}. "
                f"Pass replace=True to mean it."
            )
        _rules[kind][primitive] = rule


def find_rule(kind: str, primitive: Any) -> Any | None:
    """The rule of ``kind`` that ``primitive`` has, or None."""
    return _rules[kind].get(primitive)


def _where(rule: Any) -> str:
    code = getattr(rule, "__code__", None)
    name = getattr(rule, "__qualname__", repr(rule))
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name
