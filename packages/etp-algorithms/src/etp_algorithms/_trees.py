"""Sums over pytrees."""

from typing import Any

import jax

__all__ = ["add_trees"]


def add_trees(*trees: Any) -> Any:
    """The sum of pytrees of one structure."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)
