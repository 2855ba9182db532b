"""What the compiler noticed, as data."""

import warnings
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CompilationError", "CompilationWarning", "Diagnostic", "DiagnosticKind", "warn_about"]


class CompilationError(ValueError):
    """The model cannot be compiled for online learning; the message names place and remedy."""

    __module__ = "etp_algorithms"  # the name to import it by, as a traceback shows it


class CompilationWarning(UserWarning):
    """The model compiles, but a parameter is learned less exactly than its author may expect."""

    __module__ = "etp_algorithms"


class DiagnosticKind(StrEnum):
    """The classes of findings."""

    MIXED_TRANSITION = "mixed_transition"
    """A hidden state depends on other positions through a plain operation; that path is cut."""
    MIXED_TAIL = "mixed_tail"
    """An operator's output reaches several positions of a hidden state through a plain operation."""
    NO_REVERSE_DERIVATIVE = "no_reverse_derivative"
    """A hidden state or an operator's output runs through a loop without fixed length; that path is cut."""
    WEIGHT_BEHIND_WEIGHT = "weight_behind_weight"
    """A marked weight reaches a hidden state only through another marked weight."""
    NOT_A_PARAMETER = "not_a_parameter"
    """A marked operand is no function of parameters alone."""
    UNREACHABLE_STATE = "unreachable_state"
    """The step uses a state that is not part of the model."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: what, how serious, about which value, where.

    Attributes:
        kind: the class of the finding.
        level: ``info`` or ``warning``.
        path: dotted path of the parameter or hidden state concerned.
        place: ``file:line (function)`` of the equation concerned.
        message: a sentence that names the consequence and the remedy.
    """

    kind: DiagnosticKind
    level: str
    path: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path}: {self.message} [{self.place}]"


def warn_about(diagnostics: tuple[Diagnostic, ...], *, stacklevel: int) -> None:
    """Send every finding of level ``warning`` to :mod:`warnings`."""
    for diagnostic in diagnostics:
        if diagnostic.level == "warning":
            warnings.warn(str(diagnostic), CompilationWarning, stacklevel=stacklevel + 1)
