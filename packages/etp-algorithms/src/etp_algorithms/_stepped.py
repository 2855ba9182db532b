"""A model that runs another step than its own ``update``, with the states and the names of the model it stands for."""

from collections.abc import Callable
from typing import Any

import brainstate

__all__ = ["SteppedModel", "stepped"]


class SteppedModel(brainstate.nn.Module):
    """What the compiler captures in place of a model.

    Args:
        model: whose states these are.
        step: what one step is; it reads and writes the model's states.
    """

    def __init__(self, model: brainstate.nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self._model, self._step = model, step

    def states(self, *filters: Any, **options: Any) -> Any:
        """The states of the model, by the model's own paths."""
        return self._model.states(*filters, **options)

    def update(self, *args: Any) -> Any:
        """One step."""
        return self._step(*args)


def stepped(model: brainstate.nn.Module, step: Callable[..., Any]) -> SteppedModel:
    """``model`` with another step; messages call it by the model's own name."""
    kind = type(type(model).__name__, (SteppedModel,), {"__qualname__": type(model).__qualname__})
    return kind(model, step)
