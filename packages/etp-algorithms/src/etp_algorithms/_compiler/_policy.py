"""How far the compiler goes to follow marked operators through control flow."""

from dataclasses import dataclass, fields

from etp_algorithms._advice import CONTROL_FLOW
from etp_core.arguments import advised

__all__ = ["ControlFlowPolicy"]


@advised(CONTROL_FLOW)
@dataclass(frozen=True, slots=True)
class ControlFlowPolicy:
    """Limits of the pass that lays control flow with marked operators out flat.

    Control flow without marked operators stays what it is, whatever its length.

    Attributes:
        scan_unroll_limit: the longest scan that is unrolled, so that recurrence through weights within it is in the
            traces; 0 unrolls none. A longer one stays a loop, whatever its length: its operators are taken out for all
            iterations at once, and recurrence through weights within it is cut, as from step to step.
        nesting_limit: the deepest nesting of branches and loops, with operators or without, that is followed.
        equation_limit: the largest number of equations that one step may grow to.

    Raises:
        TypeError: a limit is not an integer.
        ValueError: a limit is negative.
    """

    scan_unroll_limit: int = 16
    nesting_limit: int = 32
    equation_limit: int = 50_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field.name} must be an int, got {value!r}.")
            if value < 0:
                raise ValueError(f"{field.name} must not be negative, got {value}.")
