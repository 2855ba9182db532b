"""Accuracy against seconds: a chain stepped by hand and torch's backpropagation, on the same samples."""

import copy
import itertools
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

PERIOD = 0.001
RATE = 1e-3
PERIODS = 4  # of each batch: what the credit takes through two Layers


def digits():
    """1 437 training and 360 test images of scikit-learn."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=360, random_state=0, stratify=y)
    return [torch.tensor(t, dtype=torch.float32) / 16 for t in (x_train, x_test)], [
        torch.tensor(t) for t in (y_train, y_test)
    ]


def mnist_sized(n_train=8192, n_test=2048):
    """Synthetic images of 784 pixels in ten classes: three noisy prototypes each, so that no line parts them."""
    draw = torch.Generator().manual_seed(0)
    prototypes = torch.randn(30, 784, generator=draw)
    kind = torch.randint(0, 30, (n_train + n_test,), generator=draw)
    x = torch.sigmoid(0.6 * prototypes[kind] + 2.0 * torch.randn(len(kind), 784, generator=draw))
    y = kind % 10
    return x.split([n_train, n_test]), y.split([n_train, n_test])


def make_modules(widths):
    *hidden, last = itertools.pairwise(widths)
    return [*(nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in hidden), nn.Linear(*last)]


def accuracy(modules, x, y):
    with torch.no_grad():
        return float((nn.Sequential(*modules)(x).argmax(1) == y).double().mean())


def compare(data, widths, batch, epochs):
    """Rows (name, test accuracy, CPU seconds for an epoch, evaluations of a module for a sample)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (x, x_test), (y, y_test) = data
    batches = [rows for _ in range(epochs) for rows in torch.randperm(len(x)).split(batch) if len(rows) == batch]
    ours = make_modules(widths)
    theirs = copy.deepcopy(ours)
    rows = []
    for name, modules, learn, evaluations in (
        ("mujou-pc, by hand", ours, by_hand, PERIODS),
        ("torch backpropagation", theirs, by_backpropagation, 1),
    ):
        began = time.process_time()
        learn(modules, x, y, batches)
        seconds = (time.process_time() - began) / epochs
        rows.append((name, accuracy(modules, x_test, y_test), seconds, evaluations))
    return rows


def by_hand(modules, x, y, batches):
    learn_interval = PERIODS * PERIOD
    chain = pc.Chain(
        modules,
        x=TensorSpec((len(batches[0]), x.shape[1])),
        y=TensorSpec((len(batches[0]),), torch.int64),
        loss=pc.loss.CrossEntropyLoss(),
        tau=pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD),
        optimizer=pc.optim.AdamW(
            tau=learn_interval / RATE,
            tau_m=-learn_interval / math.log(0.9),
            tau_v=-learn_interval / math.log(0.999),
        ),
        learn_interval=learn_interval,
    )
    forward = [chain.input, *chain.layers, chain.output]
    back = [chain.output, *reversed(chain.layers)]
    with pc.testing.run(chain) as run:
        for rows in batches:
            run.write(chain.prev, {"x": x[rows], "y": y[rows]})
            run.step(forward)
            for _ in range(PERIODS - 1):
                run.step(back)


def by_backpropagation(modules, x, y, batches):
    model = nn.Sequential(*modules)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for rows in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
