"""A learner as a flat dictionary of arrays, and back."""

from collections.abc import Iterator, Mapping
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._calls import by_path
from etp_algorithms._compiler._capture import CapturedModel

__all__ = ["named_states", "read_arrays", "write_arrays"]

Named = Mapping[str, brainstate.State[Any]]


def named_states(model: brainstate.nn.Module, captured: CapturedModel) -> dict[str, brainstate.State[Any]]:
    """The states of a model, and others that its step uses, by their names."""
    states = {tuple(path): state for path, state in model.states().items()} | by_path(captured.others)
    return {".".join(["model", *map(str, path)]): state for path, state in states.items()}


def read_arrays(states: Named) -> dict[str, jax.Array]:
    """Every array of ``states``, by the name of its state and its place in it; random keys as unsigned integers."""
    return {name: _raw(leaf) for name, leaf in _leaves(states)}


def write_arrays(states: Named, arrays: Mapping[str, Any]) -> None:
    """Give ``states`` the values of :func:`read_arrays`, all of them or none.

    Raises:
        ValueError: an array is missing, not expected, or of another shape or dtype.
    """
    expected = dict(_leaves(states))
    if missing := sorted(expected.keys() - arrays.keys()):
        raise ValueError(
            f"the saved state lacks {', '.join(missing)}. Save and load with the same model and algorithm."
        )
    if unknown := sorted(arrays.keys() - expected.keys()):
        raise ValueError(
            f"the saved state has {', '.join(unknown)}, which this learner does not know. Save and load with the same "
            f"model and algorithm."
        )
    loaded = {name: _like(name, arrays[name], leaf) for name, leaf in expected.items()}
    for prefix, state in states.items():
        keyed, tree = jax.tree_util.tree_flatten_with_path(state.value)
        state.value = jax.tree.unflatten(tree, [loaded[_name(prefix, path)] for path, _ in keyed])


def _like(name: str, saved: Any, leaf: Any) -> jax.Array:
    """``saved`` as an array like ``leaf``, placed as it is."""
    raw, array = _raw(leaf), np.asarray(saved)
    if (array.shape, array.dtype) != (raw.shape, raw.dtype):
        raise ValueError(
            f"{name} was saved with shape {array.shape} and dtype {array.dtype.name}; this learner has {raw.shape} and "
            f"{raw.dtype.name}. Initialise and compile it as it was when it was saved, batch size and precision "
            f"included."
        )
    placed = jax.device_put(array, raw.sharding) if isinstance(raw, jax.Array) else jnp.asarray(array)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else placed


def _leaves(states: Named) -> Iterator[tuple[str, Any]]:
    for prefix, state in states.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.value)[0]:
            yield _name(prefix, path), leaf


def _name(prefix: str, path: tuple[Any, ...]) -> str:
    parts = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", None))) for key in path]
    return ".".join([prefix, *(str(part) for part in parts if part is not None)])


def _raw(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
