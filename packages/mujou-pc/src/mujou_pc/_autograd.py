"""Gradients straight from torch's engine.

Before ``torch.autograd.grad`` comes to the engine it compares two shapes symbolically: 18 µs in each call, more than
all else that an update of a small node costs over its tensor operations, and an import of a second before the first.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["gradients"]

# Not documented, but what torch.autograd.grad and backward themselves call, alike in torch 2.8 to 2.15.
ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)


def gradients(output: Tensor, inputs: tuple[Tensor, ...], grad_output: Tensor) -> tuple[Tensor | None, ...]:
    """What ``torch.autograd.grad`` gives, None for an input that the output does not depend on.

    Raises:
        ValueError: ``grad_output`` has another shape than ``output``.
    """
    if grad_output.shape != output.shape:
        raise ValueError(
            f"the error must have the shape of the prediction, {list(output.shape)}, but has {list(grad_output.shape)}"
        )
    if ENGINE is None:
        return torch.autograd.grad(output, inputs, grad_output, allow_unused=True)
    keep_graph, create_graph, allow_unused = False, False, True
    return ENGINE.run_backward(
        (output,), (grad_output,), keep_graph, create_graph, inputs, allow_unused, accumulate_grad=False
    )
