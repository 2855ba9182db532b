"""1 000 seeded schedules of start, write, pause, resume, save, failure and stop."""

import functools
import random
import time

import pytest

from mujou_pc import testing
from mujou_pc.runtime import NetworkError, VirtualTimer, run

from .parts import PERIOD, Fault, Recorder, row

BATCHES = 10


class Fragile(Recorder):
    """Fails at its nth hook."""

    def __init__(self, *, period, fails_at):
        super().__init__(period=period)
        self.fails_at = fails_at

    def _call(self, hook):
        super()._call(hook)
        if len(self.calls) == self.fails_at:
            raise Fault(hook)


def make(dice):
    nodes = [
        Fragile(period=dice.choice([0.5, 1, 1.7]) * PERIOD, fails_at=dice.choice([None] * 9 + [dice.randrange(1, 30)]))
        for _ in range(dice.randrange(1, 5))
    ]
    return nodes, row(nodes)


def act(dice, handle, nodes, move):
    action = dice.choice(["move"] * 5 + ["write", "pause", "resume", "save", "load", "stats", "stop"])
    if action == "move":
        move(dice.choice([0.0, 0.3, 1.0, 1.0, 2.5, 40.0]) * PERIOD)
    elif action == "write":
        handle.write(nodes[0].prev, dice.randrange(100))
    elif action == "save":
        handle.saved = handle.state_dict()
    elif action == "load" and hasattr(handle, "saved"):
        handle.load_state_dict(handle.saved)
    elif action == "stats":
        handle.stats()
    elif action in ("pause", "resume", "stop"):
        getattr(handle, action)()
    return action == "stop"


def sleep_unless_paused(hand, seconds):
    if not hand._paused:
        hand.sleep(seconds)


def check_lives(nodes, failed):
    for node in nodes:
        calls = node.calls
        ends = calls.count("on_stop") + calls.count("on_exception")
        assert ends == 1 or (failed and ends <= 2), calls
        assert calls[-1] in ("on_stop", "on_exception")
        assert "on_update" not in calls[calls.index(calls[-1]) :]
        assert calls.count("on_start") <= 1
        assert calls[:1] in (["on_start"], ["on_stop"])
        assert 0 <= calls.count("on_pause") - calls.count("on_resume") <= 1
        assert not node.overlapped
        assert all(dt >= 0 for dt in node.dts)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_by_hand_every_schedule_ends_each_node_once_and_updates_none_after(batch):
    for seed in range(batch * 100, batch * 100 + 100):
        dice = random.Random(seed)
        nodes, network = make(dice)
        failed = False
        try:
            with testing.run(network) as hand:
                for _ in range(dice.randrange(1, 40)):
                    if act(dice, hand, nodes, functools.partial(sleep_unless_paused, hand)):
                        break
        except NetworkError:
            failed = True
        check_lives(nodes, failed)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_with_threads_every_schedule_ends_each_node_once_and_updates_none_after(batch):
    for seed in range(batch * 100, batch * 100 + 100):
        dice = random.Random(seed)
        nodes, network = make(dice)
        failed, timer = False, VirtualTimer()
        try:
            threaded = run(network, timer=timer, workers=dice.choice([1, 2, 3]))
            for _ in range(dice.randrange(1, 40)):
                if act(dice, threaded, nodes, timer.advance):
                    break
            threaded.stop(20.0)
        except NetworkError:
            failed = True
            threaded_ended(nodes)
        check_lives(nodes, failed)


def threaded_ended(nodes):
    last = time.monotonic() + 20.0
    while not all(node.calls[-1:] in (["on_stop"], ["on_exception"]) for node in nodes):
        assert time.monotonic() < last, [node.calls for node in nodes]


@pytest.mark.parametrize("seed", range(20))
def test_without_pauses_the_dts_of_a_node_add_up_to_the_time_that_passed(seed):
    dice = random.Random(seed)
    node = Recorder(period=dice.uniform(0.3, 2) * PERIOD)
    hand = testing.run(node)
    start = hand.timer.now()
    for _ in range(200):
        hand.step(dt=dice.choice([0.0, 0.2, 1.0, 3.0]) * PERIOD)
    assert sum(node.dts) == pytest.approx(hand.timer.now() - start)
    assert hand.stats()["node"].updates == 200
