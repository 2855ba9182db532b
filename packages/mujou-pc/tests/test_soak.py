"""Ten minutes of learning in real time: nothing grows, nothing is lost."""

import gc
import itertools
import time

import pytest
import torch

import mujou_pc as pc

from .helpers import make_chain, make_sample, parameters

SECONDS = 600
WINDOWS = 10


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.soak
def test_ten_minutes_of_learning_keep_memory_tensors_and_time():
    tau = pc.TimeConstants(h=0.008, lam=0.004, r=0.008)
    chain = make_chain(4, tau=tau, learn_interval=0.05, optimizer=pc.optim.AdamW(tau=10.0, tau_m=0.5, tau_v=10.0))
    samples = [make_sample(chain) for _ in range(16)]
    memory, tensors, updates = [], [], []
    with pc.run(chain) as run:
        begin = time.monotonic()
        for window in range(WINDOWS):
            while time.monotonic() - begin < SECONDS * (window + 1) / WINDOWS:
                sample = samples[run.timer.now().ns % len(samples)]
                prediction = pc.show(run, sample, seconds=0.06)
                assert torch.isfinite(prediction["y_hat"]).all()
            run.pause()
            tensors.append(live_tensors())
            memory.append(resident_bytes())
            updates.append(min(stats.updates for stats in run.stats().values()))
            run.resume()
    assert all(torch.isfinite(p).all() for p in parameters(chain))
    assert max(tensors) - min(tensors) <= 2, tensors  # a mask may or may not be shared between two messages
    assert memory[-1] - memory[1] < 8 * 2**20, memory
    assert all(b > a for a, b in itertools.pairwise(updates)), updates
