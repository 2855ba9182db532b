"""Losses: one value for each sample."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional as F

__all__ = ["CrossEntropyLoss", "Loss", "MSELoss"]


@runtime_checkable
class Loss(Protocol):
    """Any function from predictions and targets to one loss for each sample.

    Return the shape (B,). The nodes sum over the batch, and divide the gradient by B where they learn.
    """

    def __call__(self, y_hat: Tensor, y: Tensor, /) -> Tensor:
        """The losses (B,) of the predictions (B, ...) against the targets (B, ...)."""
        ...


@dataclass(frozen=True, slots=True)
class MSELoss:
    """The squared error, averaged over every axis but the batch (as torch.nn.MSELoss does).

    Example:
        >>> import torch
        >>> MSELoss()(torch.ones(2, 3), torch.zeros(2, 3))
        tensor([1., 1.])
    """

    def __call__(self, y_hat: Tensor, y: Tensor, /) -> Tensor:
        """The losses (B,) of predictions and targets of one shape (B, ...).

        Raises:
            ValueError: the shapes differ.
        """
        if y_hat.shape != y.shape:
            raise ValueError(
                f"MSELoss takes predictions and targets of one shape, but got {list(y_hat.shape)} "
                f"and {list(y.shape)}: reshape the target, or the output of the last module"
            )
        return (y_hat - y).square().flatten(1).mean(1) if y.dim() > 1 else (y_hat - y).square()


@dataclass(frozen=True, slots=True)
class CrossEntropyLoss:
    """The cross entropy of logits (B, C, ...), averaged over every axis but the batch.

    Targets are class numbers (B, ...) of dtype int64, or probabilities in the shape of the logits.

    Example:
        >>> import torch
        >>> CrossEntropyLoss()(torch.zeros(2, 3), torch.tensor([0, 2]))
        tensor([1.0986, 1.0986])
    """

    def __call__(self, y_hat: Tensor, y: Tensor, /) -> Tensor:
        """The losses (B,) of logits against targets."""
        losses = F.cross_entropy(y_hat, y, reduction="none")
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
