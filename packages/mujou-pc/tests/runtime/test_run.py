"""Runs in background threads. The timer is virtual, so that nothing here depends on the speed of the machine."""

import threading
import zlib

import pytest
import torch

from mujou_pc.runtime import (
    DictSpec,
    Group,
    IntSpec,
    NetworkError,
    Node,
    Port,
    StuckError,
    TensorSpec,
    VirtualTimer,
    run,
)

from .parts import HOOKS, PERIOD, Fault, Recorder, Stuck, row

PATIENCE = 20.0


def started(root, **settings):
    return run(root, timer=VirtualTimer(), **settings)


def go(threaded, seconds, *nodes):
    """Move the virtual timer, and wait until these nodes have seen it."""
    counts = [len(node.dts) for node in nodes]
    threaded.timer.advance(seconds)
    threaded.wait(lambda: all(len(n.dts) > c for n, c in zip(nodes, counts, strict=True)), PATIENCE)


def test_hooks_are_called_once_and_in_order():
    nodes = [Recorder(), Recorder()]
    with started(row(nodes)) as threaded:
        go(threaded, PERIOD, *nodes)
        threaded.pause()
        threaded.pause()
        threaded.resume()
        threaded.resume()
    for node in nodes:
        assert node.calls == ["on_start", "on_update", "on_pause", "on_resume", "on_stop"]
        assert node.dts == pytest.approx([PERIOD])


def test_a_late_node_gets_one_update_and_never_a_burst():
    node = Recorder()
    with started(node) as threaded:
        go(threaded, 100 * PERIOD, node)
        go(threaded, PERIOD, node)
    assert node.dts == pytest.approx([100 * PERIOD, PERIOD])


def test_the_host_writes_reads_waits_and_subscribes():
    nodes = [Recorder(), Recorder(), Recorder()]
    with started(row(nodes)) as threaded, threaded.subscribe(nodes[-1].next) as messages:
        first = threaded.write(nodes[0].prev, 10)
        second = threaded.write(nodes[0].prev, 20)
        assert second > first
        for _ in nodes:
            go(threaded, PERIOD, *nodes)
        threaded.wait(lambda: threaded.read(nodes[-1].next) == 23, PATIENCE)
        assert 23 in [messages.get(PATIENCE) for _ in nodes]


def test_iterating_a_subscription_ends_with_the_run():
    node = Recorder()
    threaded = started(node)
    messages = threaded.subscribe(node.next)
    go(threaded, PERIOD, node)
    threaded.stop()
    assert list(messages) == [1] or messages.drain() == [1]


def test_pausing_stops_updates_and_the_timer():
    node = Recorder()
    with started(node) as threaded:
        go(threaded, PERIOD, node)
        threaded.pause()
        threaded.timer.advance(50 * PERIOD)
        threaded.resume()
        go(threaded, PERIOD, node)
    assert node.dts == pytest.approx([PERIOD, PERIOD])


def test_stop_may_be_called_twice_and_after_it_nothing_runs():
    node = Recorder()
    threaded = started(node)
    go(threaded, PERIOD, node)
    threaded.stop()
    threaded.stop()
    threaded.timer.advance(10 * PERIOD)
    assert node.calls.count("on_stop") == 1
    assert node.calls[-1] == "on_stop"
    with pytest.raises(RuntimeError, match="has ended"):
        threaded.write(node.prev, 1)


def test_stop_may_be_called_from_inside_a_hook():
    class Stops(Recorder):
        def on_update(self, dt):
            super().on_update(dt)
            threaded.stop()

    nodes = [Stops(), Recorder()]
    threaded = started(row(nodes))
    threaded.timer.advance(PERIOD)
    threaded.wait(lambda: all("on_stop" in node.calls for node in nodes), PATIENCE)
    threaded.stop()
    assert [node.calls.count("on_stop") for node in nodes] == [1, 1]


@pytest.mark.parametrize("call", ["pause", "resume", "state_dict"])
def test_calls_that_would_wait_for_their_own_hook_are_refused(call):
    class Calls(Recorder):
        def on_update(self, dt):
            getattr(threaded, call)()

    node = Calls()
    threaded = started(node)
    threaded.timer.advance(PERIOD)
    with pytest.raises(NetworkError, match="inside a hook would wait for that hook"):
        threaded.wait(lambda: False, PATIENCE)


@pytest.mark.parametrize("hook", ["on_update", "on_stop"])
def test_a_node_that_is_stuck_is_named_and_every_other_one_has_stopped(hook):
    stuck, other = Stuck(hook=hook), Recorder()
    threaded = started(Group({"stuck": stuck, "other": other}), workers=2)
    threaded.timer.advance(PERIOD)
    if hook == "on_update":
        stuck.reached.wait(PATIENCE)
    with pytest.raises(StuckError, match=f"'stuck' in {hook}") as caught:
        threaded.stop(timeout=0.05)
    assert caught.value.nodes == {"stuck": hook}
    assert other.calls.count("on_stop") == 1
    stuck.let_go.set()
    threaded.stop(PATIENCE)
    assert (stuck.calls.count("on_stop"), other.calls.count("on_stop")) == (1, 1)
    assert stuck.calls[-1] == "on_stop"


# Failures.


def provoke(threaded, hook):
    threaded.timer.advance(PERIOD)
    if hook == "on_update":
        threaded.wait(lambda: False, PATIENCE)
    threaded.pause()
    threaded.resume()
    threaded.stop()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("also", [(), ("on_exception",)], ids=["", "and in on_exception"])
def test_a_hook_that_raises_reaches_the_host_with_node_hook_and_cause(hook, also):
    nodes = [Recorder(), Recorder(fails_in=[hook, *also]), Recorder()]
    with pytest.raises(NetworkError, match=rf"node 'n1' raised Fault in {hook}") as caught:
        provoke(started(row(nodes)), hook)
    assert (caught.value.node, caught.value.hook) == ("n1", hook)
    assert isinstance(caught.value.__cause__, Fault)
    threads = [t for t in threading.enumerate() if t.name.startswith("mujou-")]
    for thread in threads:
        thread.join(PATIENCE)
    assert [node.calls.count("on_stop") for node in nodes[::2]] == [1, 1]
    assert nodes[1].calls.count("on_exception") == (hook != "on_stop")
    if also and hook != "on_stop":
        assert "on_exception" in "".join(caught.value.__notes__) or not threads


@pytest.mark.parametrize("wait", ["wait", "read", "get", "iterate"])
def test_a_blocked_caller_wakes_when_a_node_fails(wait):
    class FailsLater(Recorder):
        def on_update(self, dt):
            if len(self.dts) == 3:
                raise Fault("later")
            self.dts.append(dt)

    node = FailsLater()
    threaded = started(node)
    blocked = threading.Event()
    caught = []

    def block():
        messages = threaded.subscribe(node.next)
        blocked.set()
        try:
            {
                "wait": lambda: threaded.wait(lambda: False),
                "read": lambda: threaded.read(node.next),
                "get": messages.get,
                "iterate": lambda: list(messages),
            }[wait]()
        except NetworkError as error:
            caught.append(error)

    host = threading.Thread(target=block, daemon=True)
    host.start()
    blocked.wait(PATIENCE)
    for _ in range(3):
        go(threaded, PERIOD, node)
    threaded.timer.advance(PERIOD)
    host.join(PATIENCE)
    assert not host.is_alive()
    assert [type(error.__cause__) for error in caught] == [Fault]


def test_after_a_failure_every_call_that_talks_to_the_network_says_so_but_stop_only_once():
    node = Recorder(fails_in=["on_update"])
    threaded = started(node)
    threaded.timer.advance(PERIOD)
    for call in (
        lambda: threaded.wait(lambda: False, PATIENCE),
        lambda: threaded.write(node.prev, 1),
        threaded.state_dict,
    ):
        with pytest.raises(NetworkError):
            call()
    threaded.stop()


def test_stop_says_what_no_other_call_has_said():
    node = Recorder(fails_in=["on_update"])
    threaded = started(node)
    threaded.timer.advance(PERIOD)
    while node.calls[-1:] != ["on_exception"]:
        pass
    with pytest.raises(NetworkError):
        threaded.stop()
    threaded.stop()


def test_the_exception_of_the_block_is_not_hidden_by_that_of_the_run():
    node = Recorder(fails_in=["on_stop"])
    with pytest.raises(KeyError), started(node):
        raise KeyError("of the block")


@pytest.mark.parametrize("hook", ["on_pause", "on_resume"])
def test_no_hook_follows_the_last_one_when_the_run_ends_under_a_pause(hook, monkeypatch):
    nodes = [Recorder(period=PERIOD), Recorder(period=PERIOD)]
    handle = run(row(nodes), timer=VirtualTimer(), workers=2)
    called = handle._lives.call_from_host

    def late(cell, name):
        if name == hook:
            handle.stop()  # another thread's stop comes between the decision to call and the call
        return called(cell, name)

    monkeypatch.setattr(handle._lives, "call_from_host", late)
    handle.pause()
    handle.resume()
    assert all(node.calls[-1] == "on_stop" for node in nodes)


def test_the_end_waits_for_a_hook_that_the_host_is_in():
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Recorder):
        def on_pause(self):
            super().on_pause()
            inside.set()
            assert go_on.wait(10)

    node = Slow(period=PERIOD)
    handle = run(node, timer=VirtualTimer(), workers=1)
    host = threading.Thread(target=handle.pause)
    host.start()
    assert inside.wait(10)
    other = threading.Thread(target=handle.stop)
    other.start()
    assert "on_stop" not in node.calls
    go_on.set()
    for thread in (host, other):
        thread.join(10)
    assert node.calls[-2:] == ["on_pause", "on_stop"]
    assert not node.overlapped


def test_a_node_cannot_be_in_two_runs_but_can_run_again():
    node = Recorder()
    with started(node), pytest.raises(RuntimeError, match="in another run"):
        started(node)
    with started(node) as again:
        go(again, PERIOD, node)
    assert node.calls.count("on_start") == node.calls.count("on_stop") == 2


# Threads.


def test_a_node_is_never_updated_by_two_workers_at_once():
    nodes = {f"n{i}": Recorder() for i in range(4)}
    with started(Group(nodes), workers=4) as threaded:
        for _ in range(200):
            threaded.timer.advance(PERIOD)
        threaded.wait(lambda: all(node.dts for node in nodes.values()), PATIENCE)
    assert not any(node.overlapped for node in nodes.values())


class Summed(Node):
    """Checks the sum of every message it reads."""

    def __init__(self):
        super().__init__(period=1e-4)
        self.prev = Port(receives=DictSpec({"data": TensorSpec((64,), torch.int64), "sum": IntSpec()}))
        self.read = 0
        self.torn = 0

    def on_update(self, dt):
        message, time = self.prev.latest()
        if time.ns:
            self.read += 1
            self.torn += zlib.crc32(bytes(message["data"].tolist())) != message["sum"]


def test_messages_under_four_writers_that_reuse_their_tensors_are_never_torn():
    node = Summed()
    with run(node, workers=1) as threaded:
        start = threading.Barrier(4)

        def write(writer):
            data = torch.zeros(64, dtype=torch.int64)
            start.wait()
            for k in range(300):
                data.random_(0, 256, generator=torch.Generator().manual_seed(1000 * writer + k))
                threaded.write(node.prev, {"data": data, "sum": zlib.crc32(bytes(data.tolist()))})

        writers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        seen = node.read
        threaded.wait(lambda: node.read > seen, PATIENCE)
    assert node.read > 10
    assert node.torn == 0


def test_no_two_writes_have_the_same_time():
    node = Recorder()
    with started(node) as threaded:
        times = []

        def write():
            times.extend(threaded.write(node.prev, 0) for _ in range(200))

        writers = [threading.Thread(target=write) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert len(set(times)) == 800


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_workers_times_intra_op_threads_stay_within_the_cores(workers, threads, monkeypatch):
    seen = set()

    class Asks(Recorder):
        def on_update(self, dt):
            seen.add(torch.get_num_threads())
            super().on_update(dt)

    monkeypatch.setattr("mujou_pc.runtime._run._cores", lambda: 8)
    nodes = {f"n{i}": Asks() for i in range(workers)}
    torch.set_num_threads(2)
    with started(Group(nodes), workers=workers) as threaded:
        go(threaded, PERIOD, *nodes.values())
        assert torch.get_num_threads() == 2  # the host keeps its own
    assert seen == {threads}


def test_nodes_that_share_no_path_do_not_wait_for_each_other():
    slow, fast = Stuck(), Recorder()
    with started(Group({"slow": slow, "fast": fast}), workers=2) as threaded:
        threaded.timer.advance(PERIOD)
        slow.reached.wait(PATIENCE)
        for _ in range(20):
            go(threaded, PERIOD, fast)
        slow.let_go.set()
    assert len(fast.dts) >= 20


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_than_one_worker_is_refused(workers):
    with pytest.raises(ValueError, match="at least 1"):
        run(Recorder(), workers=workers)


def test_a_port_that_the_host_cannot_use_is_named():
    a, b = Recorder(), Recorder()
    with started(row([a, b])) as threaded:
        with pytest.raises(
            ValueError, match=r"n1\.prev is not an open port of this run that receives; those are \['n0\.prev'\]"
        ):
            threaded.write(b.prev, 1)
        with pytest.raises(ValueError, match="that sends"):
            threaded.read(a.prev)


def test_in_real_time_nodes_update_about_once_in_each_period():
    node = Recorder(period=0.02)
    with run(node) as threaded:
        threaded.sleep(0.5)
        stats = threaded.stats()["node"]
    assert 5 <= stats.updates <= 26
    assert sum(node.dts) == pytest.approx(0.5, abs=0.3)
    assert 0 <= stats.lateness_p50 <= stats.lateness_p99 < 1.0
    assert stats.update_seconds > 0
