"""The time of a run: one timer, which can be paused, and a virtual one that moves when told."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RealTimer", "Timer", "Timestamp", "VirtualTimer", "nanoseconds"]

START_NS = 1_000_000_000
"""Timers start at one second, so that ``Timestamp(ns=0)`` always means: before anything was written."""


@dataclass(frozen=True, order=True, slots=True)
class Timestamp:
    """A moment on the timer of a run.

    Args:
        ns: whole nanoseconds; 0 is before the first write.

    Example:
        >>> Timestamp(ns=1_500_000_000) - Timestamp(ns=1_000_000_000)
        0.5
    """

    ns: int

    def __sub__(self, other: "Timestamp") -> float:
        """The seconds from ``other`` to this moment."""
        return (self.ns - other.ns) / 1e9


def nanoseconds(seconds: float) -> int:
    """A length of time in seconds, as whole nanoseconds."""
    return round(seconds * 1e9)


class Timer(ABC):
    """What every part of a run reads the time from."""

    def __init__(self) -> None:
        self._listener: Callable[[], None] | None = None

    @abstractmethod
    def now(self) -> Timestamp:
        """The present moment."""

    @abstractmethod
    def pause(self) -> None:
        """Stand still until ``resume``. Pausing twice is pausing once."""

    @abstractmethod
    def resume(self) -> None:
        """Move on from the moment of the pause."""

    @property
    @abstractmethod
    def paused(self) -> bool:
        """Whether the timer stands still."""

    @abstractmethod
    def set(self, moment: Timestamp) -> None:
        """Go to ``moment``, as when a saved run is loaded."""

    @abstractmethod
    def wall_seconds_until(self, ns: int) -> float | None:
        """Wall-clock seconds until the timer reads ``ns``; None when it stands still."""

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call ``listener`` whenever the timer jumps, pauses or resumes; None ends it.

        Raises:
            RuntimeError: another run listens.
        """
        if listener is not None and self._listener is not None:
            raise RuntimeError("this timer drives another run: give each run a timer of its own")
        self._listener = listener

    def _changed(self) -> None:
        if self._listener is not None:
            self._listener()


class RealTimer(Timer):
    """The monotonic clock of the machine, without the pauses."""

    def __init__(self) -> None:
        super().__init__()
        # Offset to the monotonic clock, and moment of the pause: one tuple, so that a reader sees both or neither.
        self._state: tuple[int, int | None] = (START_NS - time.monotonic_ns(), None)
        self._lock = threading.Lock()

    def now(self) -> Timestamp:
        offset, paused_at = self._state
        return Timestamp(time.monotonic_ns() + offset if paused_at is None else paused_at)

    def pause(self) -> None:
        with self._lock:
            if not self.paused:
                self._state = (self._state[0], self.now().ns)
        self._changed()

    def resume(self) -> None:
        with self._lock:
            if self._state[1] is not None:
                self._state = (self._state[1] - time.monotonic_ns(), None)
        self._changed()

    @property
    def paused(self) -> bool:
        return self._state[1] is not None

    def set(self, moment: Timestamp) -> None:
        with self._lock:
            self._state = (moment.ns - time.monotonic_ns(), moment.ns if self.paused else None)
        self._changed()

    def wall_seconds_until(self, ns: int) -> float | None:
        return None if self.paused else max(0, ns - self.now().ns) / 1e9


class VirtualTimer(Timer):
    """A timer that moves only by ``advance``: the same program gives the same run.

    Example:
        >>> timer = VirtualTimer()
        >>> timer.advance(0.5)
        >>> timer.now()
        Timestamp(ns=1500000000)
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = Timestamp(START_NS)
        self._paused = False

    def now(self) -> Timestamp:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (at least 0); a paused timer stays where it is."""
        if seconds < 0:
            raise ValueError(f"a timer does not go back: advance({seconds}); give 0 or more seconds")
        self.advance_to(self._now.ns + nanoseconds(seconds))

    def advance_to(self, ns: int) -> None:
        """Move on to ``ns`` nanoseconds, unless the timer is there already or is paused."""
        if not self._paused and ns > self._now.ns:
            self._now = Timestamp(ns)
        self._changed()

    def pause(self) -> None:
        self._paused = True
        self._changed()

    def resume(self) -> None:
        self._paused = False
        self._changed()

    @property
    def paused(self) -> bool:
        return self._paused

    def set(self, moment: Timestamp) -> None:
        self._now = moment
        self._changed()

    def wall_seconds_until(self, ns: int) -> float | None:
        return None
