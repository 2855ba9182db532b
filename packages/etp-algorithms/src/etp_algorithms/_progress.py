"""How far a driver has come, while its loop runs on the device."""

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["Progress", "read_progress", "report_step"]

Progress = Callable[[int, int], None]
"""Called with the steps that are done and the steps there are."""
_CALLS = 100


def read_progress(progress: bool | str | Progress | None) -> Progress | None:
    """The function that ``progress`` stands for: True is a bar of tqdm, a string its title.

    Raises:
        ImportError: tqdm is asked for and is not installed.
        TypeError: neither a boolean, a string nor a function.
    """
    if progress is None or progress is False:
        return None
    if progress is True or isinstance(progress, str):
        return _Bar(None if progress is True else progress)
    if not callable(progress):
        raise TypeError(
            f"progress must be a boolean, a title or a function of (done, total), got {type(progress).__name__}."
        )
    return progress


def report_step(progress: Progress | None, done: jax.Array | None, total: int) -> None:
    """Report from inside a loop that the steps up to ``done`` (of a window: all of them) are done."""
    if progress is None or done is None:
        return
    last, window = (done, 1) if done.ndim == 0 else (done[-1], done.shape[0])
    every = max(1, -(-total // _CALLS))

    def call(done: Any) -> None:
        progress(int(done), total)

    due = (last // every > (last - window) // every) | (last == total)
    jax.lax.cond(due, lambda n: jax.debug.callback(call, n), lambda n: None, last)


class _Bar:
    """One tqdm bar per run."""

    def __init__(self, title: str | None) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise ImportError(
                "progress=True and a title need tqdm: install etp-algorithms[progress], or pass a function of "
                "(done, total)."
            ) from None
        self._make, self._title = tqdm, title
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._make(total=total, desc=self._title, unit="step")
        self._bar.update(max(done - self._bar.n, 0))
        if done >= total:
            self._bar.close()
            self._bar = None
