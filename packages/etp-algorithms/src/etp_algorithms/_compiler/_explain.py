"""Errors of a model's own step, told with the shapes that met."""

import contextlib
from collections.abc import Generator, Iterable
from typing import Any

import jax

from etp_algorithms._compiler._diagnostics import CompilationError

__all__ = ["describe", "explain_step"]


def describe(value: Any) -> str:
    """The arrays of a pytree as ``float32[2, 3]``, in its structure."""
    return str(jax.tree.map(lambda v: _Shape(v), value))


class _Shape:
    def __init__(self, leaf: Any) -> None:
        shaped = hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))
        kind = jax.numpy.result_type(leaf).name if shaped else type(leaf).__name__
        self._text = f"{kind}{list(jax.numpy.shape(leaf))}" if shaped else kind

    def __repr__(self) -> str:
        return self._text


@contextlib.contextmanager
def explain_step(name: str, *, inputs: Any, states: Iterable[tuple[str, Any]]) -> Generator[None, None, None]:
    """Turn what tracing a step raises into an error that names inputs and states.

    Raises:
        CompilationError: the body raised; what it raised is the cause.
    """
    try:
        yield
    except CompilationError:
        raise
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        shown = ", ".join(f"{path} {describe(value)}" for path, value in states)
        raise CompilationError(
            f"{name} fails on one step with the inputs {describe(inputs)} and the states {shown or '(none)'}: "
            f"{str(error).strip()}\n"
            f"Give inputs of one step (MultiStepData for a window) whose rank and batch are those of the states; "
            f"initialise the states (brainstate.nn.init_all_states(model, batch_size=...)) as the inputs are batched."
        ) from error
