"""What a node costs over the bare torch computation it makes, and what the runtime delivers."""

import math
import os
import time
from statistics import median

import torch
from torch import nn

import mujou_pc as pc
from mujou_pc.runtime import Group, Node, TensorSpec

BATCH, WIDTH = 32, 128
PERIOD = 0.01
TAU = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)


def make_layers(count, *, width=WIDTH, tau=TAU):
    """An Input that feeds this many Layers side by side, and a network of them."""
    spec = TensorSpec((BATCH, width))
    source = pc.Input(spec, spec, period=tau.period)
    settings = {"tau": tau, "optimizer": pc.optim.SGD(tau=1.0), "learn_interval": math.inf}
    layers = [
        pc.Layer(nn.Sequential(nn.Linear(width, width), nn.Tanh()), source.spec, **settings) for _ in range(count)
    ]
    network = pc.runtime.Network(
        {"source": source, **{f"layer{i}": layer for i, layer in enumerate(layers)}},
        connect=[(source.next, layer.prev) for layer in layers],
        ports={"prev": source.prev},
    )
    return source, layers, network


def bare_update(module, h_in, r, lam, g):
    """The tensor operations of one update and nothing else: forward, one VJP, relaxation."""
    h = h_in.detach().requires_grad_()
    mu = module(h)
    (g_in,) = torch.autograd.grad(mu, h, (r + lam).neg())
    force = torch.add(lam, g).add_(r, alpha=2.0)
    r.sub_(force, alpha=0.5)
    lam.add_(r, alpha=1.0)
    return mu.detach(), g_in


def microseconds(*functions, repeats=400, rounds=9):
    """For each function the least mean time of a call over the rounds, which take turns: CPU time of the process.

    CPU time, because on a machine that others use the wall clock measures them too.
    """
    best = [math.inf] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            began = time.process_time()
            for _ in range(repeats):
                function()
            best[i] = min(best[i], (time.process_time() - began) / repeats * 1e6)
    return best


def overhead():
    """Microseconds of one update: bare, by hand, and in a thread that never rests."""
    torch.set_num_threads(1)
    source, (layer,), network = make_layers(1)
    h_in, r, lam, g = (torch.randn(BATCH, WIDTH) for _ in range(4))
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    hand = pc.testing.run(network)
    hand.write(source.prev, {"x": h_in, "y": h_in})
    hand.step()
    bare, by_hand = microseconds(lambda: bare_update(module, h_in, r, lam, g), lambda: hand.step([layer]))
    hand.stop()
    threaded = min(microseconds_threaded() for _ in range(5))
    return {"bare": bare, "by hand": by_hand, "threaded": threaded}


def microseconds_threaded(seconds=1.0):
    """One Layer, always late, so that the worker goes from one update straight to the next."""
    fast = pc.TimeConstants(h=2e-6, lam=1e-6, r=2e-6)
    layer = pc.Layer(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        pc.msg.activity_spec(TensorSpec((BATCH, WIDTH)), TensorSpec((BATCH, WIDTH))),
        tau=fast,
        optimizer=pc.optim.SGD(tau=1.0),
        learn_interval=math.inf,
    )
    network = pc.runtime.Network({"layer": layer}, ports={"prev": layer.prev})
    with one_thread_each(network) as run:
        run.sleep(0.2)
        before, began = run.stats()["layer"].updates, time.process_time()
        run.sleep(seconds)
        updates, took = run.stats()["layer"].updates - before, time.process_time() - began
    return took / updates * 1e6


def one_thread_each(network, workers=None):
    """A run whose workers have one intra-op thread each: as many workers as there are cores."""
    return pc.run(network, workers=workers or len(os.sched_getaffinity(0)))


def throughput(nodes, *, seconds=2.0):
    """Updates in a second, of all the nodes together, none of which ever rests."""
    fast = pc.TimeConstants(h=2e-6, lam=1e-6, r=2e-6)
    _, _, network = make_layers(nodes, tau=fast)
    with one_thread_each(network) as run:
        run.sleep(0.3)
        before, began = total_updates(run), time.perf_counter()
        run.sleep(seconds)
        return (total_updates(run) - before) / (time.perf_counter() - began)


def total_updates(run):
    return sum(stats.updates for path, stats in run.stats().items() if path != "source")


def lateness(*, nodes=4, load=0.5, seconds=3.0):
    """Median and 99th percentile of the lateness in microseconds, when updates fill this share of one core."""
    cost = microseconds_threaded() / 1e6
    period = nodes * cost / load
    tau = pc.TimeConstants(h=2 * period, lam=period, r=2 * period)
    _, _, network = make_layers(nodes, tau=tau)
    with one_thread_each(network) as run:
        run.sleep(seconds)
        stats = [stats for path, stats in run.stats().items() if path != "source"]
    return median(s.lateness_p50 for s in stats) * 1e6, max(s.lateness_p99 for s in stats) * 1e6, period * 1e6


class Busy(Node):
    """Multiplies matrices, which needs a core and not the interpreter."""

    def __init__(self):
        super().__init__(period=1e-6)
        self.a = torch.randn(400, 400)

    def on_update(self, dt):
        self.a @ self.a


def parallel_speedup(seconds=2.0):
    """Updates of two independent nodes with two workers, over those with one."""
    rates = []
    for workers in (1, 2):
        torch.set_num_threads(1)
        group = Group({"a": Busy(), "b": Busy()})
        with pc.run(group, workers=workers) as run:
            began = time.perf_counter()
            run.sleep(seconds)
            rates.append(sum(s.updates for s in run.stats().values()) / (time.perf_counter() - began))
    return rates[1] / rates[0]
