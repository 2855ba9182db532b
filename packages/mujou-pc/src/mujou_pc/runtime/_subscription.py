"""A subscription: every message of a port, for the host to take when it likes."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Subscription"]


class Subscription:
    """The messages a port sent since ``Run.subscribe``, oldest first. Iterating ends when the run ends.

    Nobody waits for a slow subscriber: beyond ``maxlen`` messages the oldest are dropped and counted in ``dropped``.
    """

    def __init__(
        self,
        *,
        maxlen: int | None,
        wait: Callable[[Callable[[], bool], float | None], bool],
        close: Callable[["Subscription"], None],
    ) -> None:
        self.dropped: int = 0
        self._messages: deque[Any] = deque()
        self._maxlen = maxlen
        self._lock = threading.Lock()
        self._wait = wait
        self._close = close

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        while self._wait(self._any, None):
            yield from self.drain()

    def get(self, timeout: float | None = None) -> Any:
        """The oldest message, waiting for one if there is none.

        Raises:
            TimeoutError: none came within ``timeout`` seconds, or the run ended.
            NetworkError: a node failed.
        """
        if not self._wait(self._any, timeout):
            raise TimeoutError(f"no message came within {timeout} s, or the run ended")
        with self._lock:
            return self._messages.popleft()

    def drain(self) -> list[Any]:
        """Every message there is, without waiting."""
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
        return messages

    def close(self) -> None:
        """Receive no more."""
        self._close(self)

    def put(self, value: Any) -> None:
        """Receive one message."""
        with self._lock:
            self._messages.append(value)
            if self._maxlen is not None and len(self._messages) > self._maxlen:
                self._messages.popleft()
                self.dropped += 1

    def _any(self) -> bool:
        return bool(self._messages)
