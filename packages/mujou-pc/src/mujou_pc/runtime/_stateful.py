"""State: what is kept when a run is saved, as nested dicts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["State", "Stateful", "check_same_keys", "clone_state", "flat_keys"]

State = dict[str, Any]
"""Strings to tensors, numbers, strings, ``Timestamp``s or further such dicts."""


class Stateful(ABC):
    """Something with state of its own: as an attribute of a node, it is part of the node's state."""

    @abstractmethod
    def state_dict(self) -> State:
        """The state, by name. Tensors may be the live ones."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over ``state``, writing into the tensors that are there."""


def attribute_state(value: Any) -> State | None:
    """The state of a node's attribute; None when it has none."""
    if isinstance(value, nn.Module | Stateful):
        return dict(value.state_dict())
    return None


def clone_state(state: Any) -> Any:
    """A copy of ``state`` that later updates do not change."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {name: clone_state(value) for name, value in state.items()}
    return state


def flat_keys(state: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every leaf of ``state`` by its path ``a/b/c``, with the shape of a tensor or the type of another value."""
    leaves: dict[str, str] = {}
    for name, value in state.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            leaves |= flat_keys(value, f"{path}/")
        else:
            leaves[path] = str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
    return leaves


def check_same_keys(own: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    """Refuse a state of another shape before anything is changed.

    Raises:
        ValueError: the leaves differ; names those missing, unexpected and of another shape.
    """
    own_leaves, given_leaves = flat_keys(own), flat_keys(given)
    if own_leaves == given_leaves:
        return
    both = own_leaves.keys() & given_leaves.keys()
    differing = {
        "missing": sorted(own_leaves.keys() - given_leaves.keys()),
        "unexpected": sorted(given_leaves.keys() - own_leaves.keys()),
        "of another shape": sorted(
            f"{key} (here {own_leaves[key]}, given {given_leaves[key]})"
            for key in both
            if own_leaves[key] != given_leaves[key]
        ),
    }
    told = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in differing.items() if keys)
    raise ValueError(f"the state given is not one of {what}: {told}. Build the same network as the one that was saved.")
