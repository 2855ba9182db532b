"""The speeds of a node's deviation and dual, in seconds."""

import math
import warnings
from dataclasses import dataclass

__all__ = ["TimeConstants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeConstants:
    """The time constants of one node's relaxation, in seconds of the run's timer.

    The usual values go together: ``r = h`` and ``lam = h / 2``. One update of the default period then
    moves the error ``delta = r + lam`` to ``-g`` exactly.

    Args:
        h: of the deviation r along the force on it; finite.
        lam: of the dual, which sums up r; ``math.inf`` keeps it at 0.
        r: of the decay of r to 0; ``math.inf`` for no decay.

    Raises:
        ValueError: one is not above 0, or ``h`` is not finite.

    Warns:
        UserWarning: a node alone does not settle at the default period.

    Example:
        >>> tau = TimeConstants(h=0.02, lam=0.01, r=0.02)
        >>> tau.period, tau.max_dt
        (0.01, 0.01)
    """

    h: float
    lam: float
    r: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.h) and self.h > 0):
            raise ValueError(f"tau.h must be finite and above 0 seconds, but got {self.h}")
        for name, value in (("lam", self.lam), ("r", self.r)):
            if not value > 0:
                raise ValueError(f"tau.{name} must be above 0 seconds (math.inf to switch it off), but got {value}")
        eigenvalue = self._eigenvalue()
        if abs(eigenvalue) >= 1 - 1e-9:
            warnings.warn(
                f"with {self} a node does not settle: at the default period {self.period:g} s one "
                f"update multiplies its state by the eigenvalue {eigenvalue:.4g}; use lam = h / 2 "
                "with r = h, or a longer lam",
                stacklevel=3,
            )

    @property
    def period(self) -> float:
        """The default interval between a node's updates, ``h / (1 + h / r)``, in seconds."""
        return self.h / (1 + self.h / self.r)

    @property
    def max_dt(self) -> float:
        """The longest dt that one update counts, ``min(period, 2 * lam)``, in seconds."""
        return min(self.period, 2 * self.lam)

    # With s = dt/h, q = dt/lam and k = 1 + h/r, one update without g is
    #     r'   = (1 - sk) r - s lam
    #     lam' = q (1 - sk) r + (1 - qs) lam.
    # The default period makes sk = 1, so the eigenvalues are 0 and 1 - qs. A lam of infinity never
    # moves, and leaves the 0.
    def _eigenvalue(self) -> float:
        return 0.0 if math.isinf(self.lam) else 1 - self.period**2 / (self.h * self.lam)
