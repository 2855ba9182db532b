"""Timers, and what they do to a run."""

import pytest

from mujou_pc import testing
from mujou_pc.runtime import RealTimer, Timestamp, VirtualTimer, run

from .parts import PERIOD, Recorder


@pytest.mark.parametrize("kind", [RealTimer, VirtualTimer])
def test_a_timer_starts_after_zero_stands_still_while_paused_and_goes_on_from_there(kind):
    timer = kind()
    assert timer.now() > Timestamp(ns=0)
    timer.pause()
    timer.pause()
    moment = timer.now()
    if kind is VirtualTimer:
        timer.advance(8 * 3600.0)
    assert timer.now() == moment
    timer.resume()
    assert 0 <= timer.now() - moment < 1.0
    timer.set(Timestamp(ns=7_000_000_000))
    assert 0 <= timer.now() - Timestamp(ns=7_000_000_000) < 1.0


def test_a_virtual_timer_does_not_go_back():
    with pytest.raises(ValueError, match="does not go back"):
        VirtualTimer().advance(-1.0)


def test_after_a_pause_of_8_hours_the_next_dt_is_an_ordinary_one():
    node = Recorder()
    hand = testing.run(node)
    hand.sleep(2.5 * PERIOD)
    hand.pause()
    hand.timer.advance(8 * 3600.0)
    hand.resume()
    hand.sleep(10 * PERIOD)
    assert node.dts == pytest.approx([PERIOD] * 12)


def test_a_timer_drives_one_run_at_a_time():
    timer = VirtualTimer()
    with run(Recorder(), timer=timer, workers=1), pytest.raises(RuntimeError, match="another run"):
        run(Recorder(), timer=timer)
    run(Recorder(), timer=timer).stop()


def test_the_difference_of_two_timestamps_is_in_seconds():
    assert Timestamp(ns=2_500_000_000) - Timestamp(ns=1_000_000_000) == 1.5
