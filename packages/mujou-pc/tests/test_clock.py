"""When a node learns, and by how many seconds."""

import math

import pytest

import mujou_pc as pc
from mujou_pc.clock import LearnClock
from mujou_pc.runtime import Timestamp

from .helpers import PERIOD, USUAL


def clock_of(learn_interval):
    return LearnClock.of(USUAL, learn_interval=learn_interval)


def tick_at(clock, ms, *, written_ms, dt=PERIOD):
    return clock.tick(dt, Timestamp(round(written_ms * 1e6)), Timestamp(round(ms * 1e6)))


def learning_times(clock, times_ms, written_ms=1000.0):
    return [ms for ms in times_ms if tick_at(clock, ms, written_ms=written_ms).learn]


def test_a_node_learns_in_the_first_update_at_or_after_each_multiple_of_the_interval():
    times = [1000.0 + 7 * k for k in range(1, 20)]
    assert learning_times(clock_of(0.030), times) == [1035, 1063, 1091, 1126]


def test_the_update_that_first_sees_a_sample_does_not_learn_but_the_next_one_does():
    clock = clock_of(0.030)
    assert not tick_at(clock, 1050, written_ms=1000).learn
    assert tick_at(clock, 1051, written_ms=1000).learn


def test_several_deadlines_that_passed_in_one_gap_are_one_learning_step():
    clock = clock_of(0.030)
    tick_at(clock, 1001, written_ms=1000)
    assert learning_times(clock, [1100, 1101, 1119, 1120, 1121]) == [1100, 1120]


def test_without_an_interval_every_update_learns_the_first_of_a_sample_included():
    clock = clock_of(None)
    assert [tick_at(clock, ms, written_ms=1000).learn for ms in (1001, 1002, 1003)] == [True] * 3
    assert tick_at(clock, 1004, written_ms=1003.5).learn


def test_with_an_infinite_interval_no_update_learns():
    assert learning_times(clock_of(math.inf), range(1001, 1200)) == []


@pytest.mark.parametrize("learn_interval", [None, 0.001, math.inf])
def test_nothing_learns_before_the_first_write(learn_interval):
    assert learning_times(clock_of(learn_interval), range(1000, 1050), written_ms=0) == []


def test_elapsed_sums_the_capped_seconds_since_the_node_learned_this_update_included():
    clock = clock_of(0.030)
    for ms in (1001, 1011, 1021):
        assert not tick_at(clock, ms, written_ms=1000).learn
    tick = tick_at(clock, 1031, written_ms=1000, dt=7.0)
    assert (tick.learn, tick.dt) == (True, PERIOD)
    assert tick.elapsed == pytest.approx(4 * PERIOD)
    assert tick_at(clock, 1041, written_ms=1000, dt=0.002).elapsed == pytest.approx(0.002)


def test_seconds_summed_up_before_the_input_changed_are_dropped():
    clock = clock_of(0.030)
    for ms in (1001, 1011, 1021):
        tick_at(clock, ms, written_ms=1000)
    tick = tick_at(clock, 1031, written_ms=1030)
    assert (tick.new, tick.learn) == (True, False)
    assert tick.elapsed == pytest.approx(PERIOD)


def test_an_input_is_new_when_the_time_of_its_write_differs():
    clock = clock_of(0.030)
    assert not tick_at(clock, 990, written_ms=0).new
    assert [tick_at(clock, 1001 + k, written_ms=1000).new for k in range(2)] == [True, False]


def test_nodes_at_different_depths_learn_at_the_same_time():
    early, late = clock_of(0.050), clock_of(0.050)
    assert learning_times(early, range(1001, 1120, 3)) == learning_times(late, range(1031, 1120, 3)) == [1052, 1100]


def test_a_clock_goes_on_from_its_saved_state():
    one, other = clock_of(0.030), clock_of(0.030)
    for ms in (1001, 1013, 1027):
        tick_at(one, ms, written_ms=1000)
    other.load_state_dict(one.state_dict())
    assert [tick_at(one, ms, written_ms=1000) for ms in (1032, 1040)] == [
        tick_at(other, ms, written_ms=1000) for ms in (1032, 1040)
    ]


def test_a_period_longer_than_the_cap_is_refused():
    with pytest.raises(ValueError, match=r"period=0.011 s is longer than tau.max_dt=0.01 s"):
        LearnClock.of(USUAL, period=0.011, learn_interval=None)
    with pytest.raises(ValueError, match="longer than"):
        LearnClock.of(pc.TimeConstants(h=1.0, lam=0.2, r=1.0), learn_interval=None)


@pytest.mark.parametrize("learn_interval", [0.0, -1.0, math.nan])
def test_an_interval_out_of_range_is_refused(learn_interval):
    with pytest.raises(ValueError, match=r"None learns in every update and math.inf in none"):
        clock_of(learn_interval)
