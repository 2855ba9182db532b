"""Kernel providers: found through the entry-point group ``etp_core.kernels``, loaded once, on first need."""

import threading
import warnings
from importlib.metadata import EntryPoint, entry_points

from etp_core._errors import PluginWarning

__all__ = ["GROUP", "load_plugins"]

GROUP = "etp_core.kernels"
_lock = threading.RLock()
_loaded: list[str] = []
_done = threading.Event()


def load_plugins() -> tuple[str, ...]:
    """Load every installed kernel provider once.

    A provider is an entry point of the group ``etp_core.kernels`` that names a function without arguments;
    it registers its kernels with :meth:`ETPPrimitive.register_fast_path`. A provider that fails is skipped
    with a :class:`PluginWarning` that names its distribution; everything still works by the rules.

    Returns:
        The names of the providers that are loaded.
    """
    with _lock:
        if not _done.is_set():
            _done.set()  # before the loop: a provider that looks up kernels must not load itself again
            for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
                if _load(entry):
                    _loaded.append(entry.name)
        return tuple(_loaded)


def _load(entry: EntryPoint) -> bool:
    try:
        entry.load()()
    except Exception as error:  # a provider is foreign code: whatever it raises must not stop the user
        source = entry.dist.name if entry.dist is not None else "an unknown distribution"
        warnings.warn(
            f"kernel provider {entry.name!r} of {source} could not be loaded and is skipped "
            f"({type(error).__name__}: {error}); the rules are used instead.",
            PluginWarning,
            stacklevel=4,
        )
        return False
    return True
