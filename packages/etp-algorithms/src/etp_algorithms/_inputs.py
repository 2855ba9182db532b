"""How many steps one argument of a learner carries."""

from dataclasses import dataclass
from typing import Any

import jax

__all__ = ["MultiStepData", "SingleStepData", "split_arguments"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SingleStepData:
    """Data of one step, used again at every step of a window. A plain array means the same.

    Attributes:
        data: any pytree of arrays.
    """

    data: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class MultiStepData:
    """Data of a window of steps.

    Attributes:
        data: any pytree of arrays whose leading axis is time.
    """

    data: Any


def split_arguments(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[bool, ...] | None]:
    """The arguments without markers, and for each array whether its leading axis is time.

    Returns:
        The bare arguments, and a flag per array; None in place of the flags where nothing is stacked.

    Raises:
        ValueError: stacked arrays disagree on the number of steps, or carry none.
    """
    flags: list[bool] = []
    lengths: dict[int, None] = {}

    def bare(node: Any) -> Any:
        stacked = isinstance(node, MultiStepData)
        data = node.data if isinstance(node, (SingleStepData, MultiStepData)) else node
        for leaf in jax.tree.leaves(data):
            flags.append(stacked)
            if stacked:
                if not jax.numpy.shape(leaf):
                    raise ValueError("MultiStepData takes arrays whose leading axis is time; got a scalar.")
                lengths[jax.numpy.shape(leaf)[0]] = None
        return data

    plain = jax.tree.map(bare, args, is_leaf=lambda n: isinstance(n, (SingleStepData, MultiStepData)))
    if len(lengths) > 1:
        raise ValueError(f"all MultiStepData of one call must have the same number of steps; got {sorted(lengths)}.")
    if 0 in lengths:
        raise ValueError("MultiStepData holds no step; give at least one.")
    return plain, tuple(flags) if lengths else None
