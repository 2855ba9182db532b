"""Stepping by hand: what is due, in which order, with which dt."""

import threading

import pytest

from mujou_pc import testing
from mujou_pc.runtime import Group

from .parts import PERIOD, Fault, Recorder, row


def test_each_node_updates_in_its_own_period_the_one_due_first_before_others():
    order = []

    class Named(Recorder):
        def __init__(self, name, period):
            super().__init__(period=period)
            self.name = name

        def on_update(self, dt):
            order.append((self.name, round((self.timer.now().ns - 1_000_000_000) / 1e6)))

    hand = testing.run(Group({"slow": Named("slow", 0.025), "fast": Named("fast", 0.010)}))
    hand.sleep(0.050)
    assert order == [("fast", 10), ("fast", 20), ("slow", 25), ("fast", 30), ("fast", 40), ("slow", 50), ("fast", 50)]


def test_a_late_node_gets_one_update_with_a_longer_dt_and_keeps_its_phase():
    node = Recorder()
    hand = testing.run(node)
    hand.step(dt=3.5 * PERIOD)
    assert node.dts == pytest.approx([3.5 * PERIOD])
    hand.sleep(2 * PERIOD)
    assert node.dts == pytest.approx([3.5 * PERIOD, 0.5 * PERIOD, PERIOD])
    assert hand.stats()["node"].skipped == 2
    assert hand.stats()["node"].updates == 3
    assert hand.stats()["node"].lateness_p99 == pytest.approx(2.5 * PERIOD)


def test_nodes_are_stepped_in_the_order_given():
    a, b = Recorder(), Recorder()
    hand = testing.run(row([a, b]))
    hand.write(a.prev, 1)
    hand.step([b, a])
    assert b.prev.read() == 2
    assert hand.read(b.next) == 1  # b came first, and read zero


def test_a_node_stepped_twice_at_one_moment_sees_no_time_pass():
    node = Recorder()
    testing.run(node).step([node, node])
    assert node.dts == pytest.approx([PERIOD, 0.0])


def test_read_steps_until_the_first_message_came():
    a, b = Recorder(), Recorder(period=0.05)
    hand = testing.run(row([a, b]))
    assert hand.read(b.next) == 2
    assert hand.timer.now().ns == 1_050_000_000


def test_wait_steps_until_the_condition_holds_or_the_timeout_came():
    node = Recorder()
    hand = testing.run(node)
    hand.wait(lambda: len(node.dts) == 7)
    assert len(node.dts) == 7
    with pytest.raises(TimeoutError, match=r"did not hold within 0\.1 s"):
        hand.wait(lambda: False, timeout=0.1)
    assert len(node.dts) == 17


def test_a_paused_run_steps_no_node():
    hand = testing.run(Recorder())
    hand.pause()
    with pytest.raises(RuntimeError, match="paused"):
        hand.step()
    with pytest.raises(RuntimeError, match="paused"):
        hand.sleep(1.0)


def test_threads_of_the_host_that_step_at_once_take_turns():
    nodes = [Recorder(), Recorder()]
    hand = testing.run(row(nodes))

    def step():
        for _ in range(100):
            hand.step()
            hand.sleep(PERIOD)

    threads = [threading.Thread(target=step) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(node.overlapped for node in nodes)
    assert hand.stats()["n0"].updates >= 300


def test_a_step_of_a_node_of_another_run_is_refused():
    with pytest.raises(ValueError, match=r"not a node of this run; those are \['node'\]"):
        testing.run(Recorder()).step([Recorder()])


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_to_sleep_for_no_length_of_time_is_refused(seconds):
    with pytest.raises(ValueError, match="finite seconds"):
        testing.run(Recorder()).sleep(seconds)


def test_two_equal_programs_give_equal_runs():
    logs = []
    for _ in range(2):
        a, b = Recorder(period=0.007), Recorder(period=0.011)
        hand = testing.run(row([a, b]))
        with hand.subscribe(b.next) as messages:
            for k in range(20):
                hand.write(a.prev, k)
                hand.sleep(0.013)
            logs.append(messages.drain())
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


def test_a_keyboard_interrupt_reaches_the_host_as_itself():
    class Interrupted(Recorder):
        def on_update(self, dt):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        testing.run(Interrupted()).step()


def test_a_subscription_keeps_the_newest_messages_and_counts_those_it_dropped():
    node = Recorder()
    hand = testing.run(node)
    with hand.subscribe(node.next, maxlen=3) as messages:
        for k in range(5):
            hand.write(node.prev, k)
            hand.step()
        assert messages.dropped == 2
        assert [messages.get(), *messages.drain()] == [3, 4, 5]
    hand.step()
    assert messages.drain() == []
    with pytest.raises(TimeoutError):
        messages.get(timeout=0.05)


def test_a_failure_by_hand_stops_every_other_node_and_names_the_failed_one():
    a, b = Recorder(), Recorder(fails_in=["on_update"])
    hand = testing.run(row([a, b]))
    with pytest.raises(RuntimeError, match="'n1' raised Fault in on_update") as caught:
        hand.step()
    assert isinstance(caught.value.__cause__, Fault)
    assert a.calls.count("on_stop") == 1
    assert b.calls[-1] == "on_exception"
