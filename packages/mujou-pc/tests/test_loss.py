"""Losses: one value for each sample, torch as the oracle."""

import pytest
import torch
from torch.nn import functional as F

import mujou_pc as pc


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_mse_is_averaged_over_every_axis_but_the_batch(shape):
    y_hat, y = torch.randn(shape), torch.randn(shape)
    losses = pc.loss.MSELoss()(y_hat, y)
    assert losses.shape == (4,)
    torch.testing.assert_close(losses.mean(), F.mse_loss(y_hat, y))


def test_mse_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match=r"\[4, 1\] and \[4\]"):
        pc.loss.MSELoss()(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)])
def test_cross_entropy_is_averaged_over_every_axis_but_the_batch(shape):
    logits = torch.randn(shape)
    y = torch.randint(0, 5, (shape[0], *shape[2:]))
    losses = pc.loss.CrossEntropyLoss()(logits, y)
    assert losses.shape == (4,)
    torch.testing.assert_close(losses.mean(), F.cross_entropy(logits, y))


def test_cross_entropy_takes_probabilities_too():
    logits, y = torch.randn(4, 5), torch.softmax(torch.randn(4, 5), 1)
    torch.testing.assert_close(pc.loss.CrossEntropyLoss()(logits, y).mean(), F.cross_entropy(logits, y))
