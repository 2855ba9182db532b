"""Chains to test with, and backpropagation as their oracle."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

PERIOD = 0.01
USUAL = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)
SLOW_SGD = pc.optim.SGD(tau=10.0)


def dense(n_in, n_out, activation=nn.Tanh):
    return nn.Sequential(nn.Linear(n_in, n_out), activation())


def make_chain(
    depth=3,
    *,
    batch=4,
    width=6,
    classes=3,
    activation=nn.Tanh,
    learn_interval=math.inf,
    optimizer=SLOW_SGD,
    tau=USUAL,
    modules=None,
    **settings,
):
    modules = modules or [*(dense(width, width, activation) for _ in range(depth)), nn.Linear(width, classes)]
    return pc.Chain(
        modules,
        x=TensorSpec((batch, width)),
        y=TensorSpec((batch,), torch.int64),
        loss=pc.loss.CrossEntropyLoss(),
        tau=tau,
        optimizer=optimizer,
        learn_interval=learn_interval,
        **settings,
    )


def make_sample(chain, **fields):
    x, y = (chain.input.prev.receives.fields[name] for name in "xy")
    given = {
        "x": torch.randn(x.shape, dtype=x.dtype),
        "y": torch.randint(0, 3, y.shape) if y.dtype == torch.int64 else torch.randn(y.shape, dtype=y.dtype),
    }
    return given | fields


def backpropagation(modules, sample, loss=F.cross_entropy):
    """Credit -dl/dh of every layer and gradient of every weight, of the loss summed over the batch."""
    modules = copy.deepcopy(list(modules))
    activities, h = [], sample["x"]
    for module in modules[:-1]:
        h = module(h)
        h.retain_grad()
        activities.append(h)
    loss(modules[-1](h), sample["y"], reduction="sum").backward()
    weights = [[p.grad for p in module.parameters()] for module in modules]
    return [-h.grad for h in activities], weights


def deltas(chain):
    return [layer.r + layer.lam for layer in chain.layers]


def largest_error(found, wanted):
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))


def parameters(chain):
    return [p for module in chain.modules for p in module.parameters()]
