"""Timings of one update with pytest-benchmark: the bare torch computation, and a node stepped by hand."""

import pytest
import torch
from torch import nn

import mujou_pc as pc

from . import measure


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_bare_update(benchmark):
    module = nn.Sequential(nn.Linear(measure.WIDTH, measure.WIDTH), nn.Tanh())
    benchmark(measure.bare_update, module, *(torch.randn(measure.BATCH, measure.WIDTH) for _ in range(4)))


def test_update_by_hand(benchmark):
    source, (layer,), network = measure.make_layers(1)
    run = pc.testing.run(network)
    x = torch.randn(measure.BATCH, measure.WIDTH)
    run.write(source.prev, {"x": x, "y": x})
    run.step()
    benchmark(run.step, [layer])
