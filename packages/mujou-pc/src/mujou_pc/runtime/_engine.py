"""What every engine promises: the part of a run that decides who updates next."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["Engine"]


@runtime_checkable
class Engine(Protocol):
    """How the nodes of a run come to update. A run talks to its engine through this alone."""

    def start(self) -> None:
        """Start the nodes."""
        ...

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Block the host until the condition holds (True), or the timeout came or the run ended (False)."""
        ...

    def sleep(self, until_ns: int) -> None:
        """Block the host until the timer reads this moment or the run ended."""
        ...

    def hold(self) -> None:
        """Let the updates in progress finish and begin no other, until ``release``. Calls nest."""
        ...

    def release(self) -> None:
        """Take back one ``hold``."""
        ...

    def reschedule(self) -> None:
        """Read the due times of all nodes anew. Only while held."""
        ...

    def notify(self) -> None:
        """Let waiting hosts look at their conditions again."""
        ...

    def stop(self, timeout: float) -> None:
        """End the run: see ``Run.stop``."""
        ...

    @property
    def ended(self) -> bool:
        """Whether every node has ended."""
        ...
