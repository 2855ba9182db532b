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
NEVER_RESTS = pc.TimeConstants(h=2e-6, lam=1e-6, r=2e-6)
TAU = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)


def make_layers(count, *, width=WIDTH, tau=TAU):
    """An Input that feeds this many Layers side by side, and a network of them."""
    spec = TensorSpec((BATCH, width))
    source = pc.Input(spec, spec, period=max(tau.period, PERIOD))  # one that never rests would keep Python's lock
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


def overhead(rounds=12, repeats=300):
    """Microseconds of one update: bare, by hand, and in a thread that never rests.

    The three take turns, and the least of the rounds counts. It is CPU time, because on a machine that others use the
    wall clock measures them too.
    """
    torch.set_num_threads(1)
    source, (layer,), network = make_layers(1)
    h_in, r, lam, g = (torch.randn(BATCH, WIDTH) for _ in range(4))
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    hand = pc.testing.run(network)
    hand.write(source.prev, {"x": h_in, "y": h_in})
    hand.step()
    threaded = run_of_a_lone_layer()
    best = {}
    for _ in range(rounds):
        threaded.pause()
        taken = {
            "bare": microseconds(lambda: bare_update(module, h_in, r, lam, g), repeats),
            "by hand": microseconds(lambda: hand.step([layer]), repeats),
        }
        threaded.resume()
        taken["threaded"] = microseconds_of_run(threaded, 0.2)
        best = {name: min(us, best.get(name, us)) for name, us in taken.items()}
    threaded.stop()
    hand.stop()
    return best


def microseconds(function, repeats):
    began = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - began) / repeats * 1e6


def microseconds_of_run(run, seconds):
    before, began = total_updates(run), time.process_time()
    run.sleep(seconds)
    return (time.process_time() - began) / (total_updates(run) - before) * 1e6


def run_of_a_lone_layer():
    """One Layer that is always late, so that its worker goes from one update straight to the next."""
    layer = pc.Layer(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        pc.msg.activity_spec(TensorSpec((BATCH, WIDTH)), TensorSpec((BATCH, WIDTH))),
        tau=NEVER_RESTS,
        optimizer=pc.optim.SGD(tau=1.0),
        learn_interval=math.inf,
    )
    run = one_thread_each(pc.runtime.Network({"layer": layer}, ports={"prev": layer.prev}))
    h, every = torch.randn(BATCH, WIDTH), torch.ones(BATCH, dtype=torch.bool)
    time = run.timer.now()
    run.write(layer.prev, {"h": h, "y": h, "mask": every, "reset": every, "time": time})
    return run


def one_thread_each(network, workers=None):
    """A run whose workers have one intra-op thread each: as many workers as there are cores."""
    return pc.run(network, workers=workers or len(os.sched_getaffinity(0)))


def throughput(nodes, *, seconds=1.0, rounds=3):
    """Updates in a second, of all the nodes together, none of which ever rests: of the wall clock, and of CPU time.

    Medians of the rounds. On a machine that others use, only the second says something of the program.
    """
    source, _, network = make_layers(nodes, tau=NEVER_RESTS)
    with one_thread_each(network) as run:
        x = torch.randn(BATCH, WIDTH)
        run.write(source.prev, {"x": x, "y": x})
        run.sleep(0.3)
        rates = [rate_of_run(run, seconds) for _ in range(rounds)]
    return tuple(median(rate) for rate in zip(*rates, strict=True))


def rate_of_run(run, seconds):
    before, wall, cpu = total_updates(run), time.perf_counter(), time.process_time()
    run.sleep(seconds)
    updates = total_updates(run) - before
    return updates / (time.perf_counter() - wall), updates / (time.process_time() - cpu)


def total_updates(run):
    return sum(stats.updates for path, stats in run.stats().items() if path != "source")


def lateness(*, nodes=4, load=0.5, seconds=2.0, rounds=3):
    """Median and 99th percentile of the lateness in microseconds, when updates fill this share of one core.

    Medians of the rounds, with the period.
    """
    with run_of_a_lone_layer() as run:
        cost = microseconds_of_run(run, 1.0) / 1e6
    period = nodes * cost / load
    tau = pc.TimeConstants(h=2 * period, lam=period, r=2 * period)
    found = [lateness_of_run(nodes, tau, seconds) for _ in range(rounds)]
    return *(median(round_) * 1e6 for round_ in zip(*found, strict=True)), period * 1e6


def lateness_of_run(nodes, tau, seconds):
    source, _, network = make_layers(nodes, tau=tau)
    with one_thread_each(network) as run:
        x = torch.randn(BATCH, WIDTH)
        run.write(source.prev, {"x": x, "y": x})
        run.sleep(seconds)
        stats = [stats for path, stats in run.stats().items() if path != "source"]
    return median(s.lateness_p50 for s in stats), max(s.lateness_p99 for s in stats)


class Busy(Node):
    """Multiplies matrices, which needs a core and not the interpreter."""

    def __init__(self):
        super().__init__(period=1e-6)
        self.a = torch.randn(400, 400)

    def on_update(self, dt):
        self.a @ self.a


def parallel_speedup(seconds=2.0):
    """Updates of two independent nodes over those of one, with a worker for each core."""
    rates = []
    for names in ("a", "ab"):
        with one_thread_each(Group({name: Busy() for name in names})) as run:
            began = time.perf_counter()
            run.sleep(seconds)
            rates.append(total_updates(run) / (time.perf_counter() - began))
    return rates[1] / rates[0]
