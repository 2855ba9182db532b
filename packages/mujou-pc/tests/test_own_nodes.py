"""Nodes of one's own, from the same parts: two inputs merged, one activity read by two."""

import copy
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mujou_pc as pc
from mujou_pc.runtime import Network, TensorSpec

from .helpers import PERIOD, SLOW_SGD, USUAL, dense

SETTINGS = {"tau": USUAL, "optimizer": SLOW_SGD, "learn_interval": math.inf}


class Merge(pc.runtime.Node):
    """The prediction is of two activities side by side."""

    def __init__(self, module, left, right, *, tau, optimizer, learn_interval):
        super().__init__(period=tau.period)
        self.split = left.fields["h"].shape[1], right.fields["h"].shape[1]
        batch = left.fields["h"].shape[0]
        self.left = pc.runtime.Port(receives=left, sends=pc.msg.gradient_spec(left.fields["h"]))
        self.right = pc.runtime.Port(receives=right, sends=pc.msg.gradient_spec(right.fields["h"]))
        mu = TensorSpec((batch, module(torch.zeros(batch, sum(self.split))).shape[1]))
        self.spec = pc.msg.activity_spec(mu, left.fields["y"])
        self.next = pc.runtime.MultiPort(receives=pc.msg.gradient_spec(mu), sends=self.spec)
        self.module, self.tau = module, tau
        self.clock = pc.clock.LearnClock.of(tau, learn_interval=learn_interval)
        self.r = self.register_state("r", mu.zero())
        self.lam = self.register_state("lam", mu.zero())
        self.relaxer = pc.relax.Euler().bind(self.r)
        self.optimizer = optimizer.bind(tuple(module.parameters()))

    def on_update(self, dt):
        left, right = self.left.read(), self.right.read()
        tick = self.clock.tick(dt, left["time"], self.timer.now())
        if tick.new:
            self.r[left["reset"]] = 0
            self.lam[left["reset"]] = 0
            self.relaxer.reset_(left["reset"])
        both = torch.cat([left["h"], right["h"]], 1)
        mu, g_in, _ = pc.functional.vjp(self.module, both, lambda mu: self.r + self.lam)
        for port, g in zip((self.left, self.right), g_in.split(self.split, 1), strict=True):
            port.send(g)
        g = sum(self.next.read())
        pc.functional.relax_(self.r, self.lam, g, dt=tick.dt, tau=self.tau, relaxer=self.relaxer)
        self.next.send({**left, "h": mu})


def diamond():
    """x goes through a stem to two branches of different depth, which are merged again."""
    x, y = TensorSpec((4, 5)), TensorSpec((4,), torch.int64)
    nodes = {"input": pc.Input(x, y, period=PERIOD)}
    nodes["stem"] = pc.Layer(dense(5, 6), nodes["input"].spec, **SETTINGS)
    nodes["short"] = pc.Layer(dense(6, 3), nodes["stem"].spec, **SETTINGS)
    nodes["long0"] = pc.Layer(dense(6, 7), nodes["stem"].spec, **SETTINGS)
    nodes["long1"] = pc.Layer(dense(7, 4), nodes["long0"].spec, **SETTINGS)
    nodes["merge"] = Merge(dense(7, 5), nodes["short"].spec, nodes["long1"].spec, **SETTINGS)
    nodes["output"] = pc.Output(nn.Linear(5, 3), nodes["merge"].spec, loss=pc.loss.CrossEntropyLoss(), **SETTINGS)
    n = nodes
    joins = [
        (n["input"].next, n["stem"].prev),
        (n["stem"].next, n["short"].prev),
        (n["stem"].next, n["long0"].prev),
        (n["long0"].next, n["long1"].prev),
        (n["short"].next, n["merge"].left),
        (n["long1"].next, n["merge"].right),
        (n["merge"].next, n["output"].prev),
    ]
    return nodes, Network(nodes, connect=joins, ports={"prev": n["input"].prev, "next": n["output"].next})


def credit_of(nodes, x, y):
    m = {name: copy.deepcopy(node.module) for name, node in nodes.items() if name != "input"}
    h = {"stem": m["stem"](x)}
    h["short"], h["long0"] = m["short"](h["stem"]), m["long0"](h["stem"])
    h["long1"] = m["long1"](h["long0"])
    h["merge"] = m["merge"](torch.cat([h["short"], h["long1"]], 1))
    loss = F.cross_entropy(m["output"](h["merge"]), y, reduction="sum")
    return dict(zip(h, (-g for g in torch.autograd.grad(loss, list(h.values()))), strict=True))


def test_a_network_that_branches_and_merges_equals_backpropagation():
    nodes, network = diamond()
    run = pc.testing.run(network)
    x, y = torch.randn(4, 5), torch.randint(0, 3, (4,))
    pc.show(run, {"x": x, "y": y}, seconds=30 * PERIOD)
    for name, wanted in credit_of(nodes, x, y).items():
        torch.testing.assert_close(nodes[name].r + nodes[name].lam, wanted, rtol=1e-9, atol=1e-14)


def test_the_state_of_a_node_of_ones_own_is_found_by_its_attributes():
    nodes, _ = diamond()
    assert set(nodes["merge"].state_dict()) == {"module", "clock", "r", "lam", "relaxer", "optimizer"}


EXAMPLE = Path(__file__).parents[3] / "examples" / "pc_merge.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not beside the installed package")
def test_the_merge_node_of_the_example_equals_backpropagation():
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    spec = importlib.util.spec_from_file_location("pc_merge", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.credit_error(torch.float64) < 1e-9
