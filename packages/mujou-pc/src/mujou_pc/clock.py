"""When a node learns."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mujou_pc._time_constants import TimeConstants
from mujou_pc.runtime import State, Stateful, Timestamp

__all__ = ["LearnClock", "Tick"]


class Tick(NamedTuple):
    """What one update may do.

    Args:
        dt: seconds to relax by, capped at ``max_dt``.
        new: whether the input is another sample than in the update before.
        learn: whether to move the weights in this update.
        elapsed: seconds to move them by: the capped dt's since the node last learned.

    Example:
        >>> Tick(dt=0.01, new=True, learn=False, elapsed=0.01).new
        True
    """

    dt: float
    new: bool
    learn: bool
    elapsed: float


class LearnClock(Stateful):
    """Decides when a node learns, from the time at which the host wrote the input.

    With a positive ``learn_interval`` the node learns in the first update at or after the write plus
    each whole multiple of it, but never in the update that first sees the sample, whose error
    still belongs to the one before. Of several multiples that passed in one gap only one is learned.
    With None it learns in every update, with ``math.inf`` in none; before the first write in none.

    Args:
        max_dt: the longest dt one update counts, in seconds.
        learn_interval: seconds between two learning updates, None or ``math.inf``.

    Raises:
        ValueError: ``learn_interval`` is not above a nanosecond.

    Example:
        >>> clock = LearnClock(max_dt=0.01, learn_interval=0.03)
        >>> written = Timestamp(ns=1_000_000_000)
        >>> [clock.tick(0.01, written, Timestamp(written.ns + k * 10_000_000)).learn for k in range(1, 7)]
        [False, False, True, False, False, True]
    """

    def __init__(self, *, max_dt: float, learn_interval: float | None) -> None:
        if learn_interval is not None and not learn_interval >= 1e-9:
            raise ValueError(
                f"learn_interval must be at least 1e-9 seconds, but got {learn_interval}; None "
                "learns in every update and math.inf in none"
            )
        self._max_dt = max_dt
        self._learn_interval = learn_interval
        self._time = Timestamp(ns=0)
        self._deadline_ns = 0
        self._elapsed = 0.0

    @classmethod
    def of(
        cls,
        tau: TimeConstants,
        *,
        period: float | None = None,
        learn_interval: float | None,
    ) -> "LearnClock":
        """The clock of a node with these time constants.

        Args:
            tau: the time constants.
            period: seconds between the node's updates; ``tau.period`` by default.
            learn_interval: seconds between two learning updates, None (every update) or
                ``math.inf`` (none).

        Raises:
            ValueError: ``period`` is longer than ``tau.max_dt``.
        """
        period = tau.period if period is None else period
        if period > tau.max_dt:
            raise ValueError(
                f"period={period:g} s is longer than tau.max_dt={tau.max_dt:g} s, the longest step "
                "that does not overshoot: give a shorter period, or longer time constants"
            )
        return cls(max_dt=tau.max_dt, learn_interval=learn_interval)

    def tick(self, dt: float, time: Timestamp, now: Timestamp) -> Tick:
        """Count one update.

        Args:
            dt: seconds since the update before.
            time: the ``time`` of the activity that was read.
            now: the present moment.
        """
        dt = min(dt, self._max_dt)
        new = time is not self._time and time != self._time
        if new:
            self._time = time
            self._elapsed = 0.0
            self._deadline_ns = self._deadline_after(time)
        self._elapsed += dt
        learns = self._learns(new, now)
        tick = Tick(dt, new, learns, self._elapsed)
        if learns:
            self._elapsed = 0.0
            self._deadline_ns = self._deadline_after(now)
        return tick

    def state_dict(self) -> State:
        """The time of the input last seen, the next deadline and the seconds summed up."""
        return {
            "time": self._time,
            "deadline_ns": self._deadline_ns,
            "elapsed": self._elapsed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._time = state["time"]
        self._deadline_ns = state["deadline_ns"]
        self._elapsed = state["elapsed"]

    def _learns(self, new: bool, now: Timestamp) -> bool:
        if self._time.ns == 0 or self._learn_interval == math.inf:
            return False
        return self._learn_interval is None or (not new and now.ns >= self._deadline_ns)

    def _deadline_after(self, moment: Timestamp) -> int:
        """The first whole multiple of the interval after the write that lies behind ``moment``."""
        if self._learn_interval is None or self._learn_interval == math.inf:
            return 0
        interval_ns = round(self._learn_interval * 1e9)
        return self._time.ns + (moment.ns - self._time.ns) // interval_ns * interval_ns + interval_ns
