"""The speeds, and what they do to one node."""

import math

import numpy as np
import pytest
import torch

import mujou_pc as pc
from mujou_pc.functional import relax_

from .helpers import USUAL, backpropagation, deltas, largest_error, make_chain, make_sample


def node(tau, dt, g, updates):
    """One node under a force that does not change: (r, lam) after each update."""
    r, lam = torch.zeros(1), torch.zeros(1)
    relaxer = pc.relax.Euler().bind(r)
    for _ in range(updates):
        relax_(r, lam, torch.tensor([g]), dt=dt, tau=tau, relaxer=relaxer)
        yield float(r), float(lam)


def gain(tau, dt):
    """The largest gain from an oscillating g to delta that one node has, over all frequencies."""
    s, q, k = dt / tau.h, dt / tau.lam, 1 + tau.h / tau.r
    update = np.array([[1 - s * k, -s], [q * (1 - s * k), 1 - q * s]])
    force = np.array([-s, -q * s])
    z = np.exp(1j * np.linspace(1e-3, math.pi, 2000))
    response = [np.array([1, 1]) @ np.linalg.solve(w * np.eye(2) - update, force) for w in z]
    return float(np.abs(response).max())


def test_with_the_usual_values_the_error_is_minus_g_from_the_first_update_on():
    for n, (r, lam) in enumerate(node(USUAL, USUAL.period, g=0.7, updates=20), start=1):
        assert r == pytest.approx(-0.7 * 2.0**-n, abs=1e-15)
        assert lam == pytest.approx(-0.7 * (1 - 2.0**-n), abs=1e-15)
        assert r + lam == pytest.approx(-0.7, abs=1e-15)


@pytest.mark.parametrize(("factor", "wanted"), [(1.0, 1.0), (0.25, 1.02), (1.05, 1.19), (1.1, 1.43)])
def test_a_node_overshoots_when_it_steps_longer_than_its_period(factor, wanted):
    assert gain(USUAL, factor * USUAL.period) == pytest.approx(wanted, abs=0.01)


def test_a_short_dual_passes_the_period_limit_with_a_gain_of_two():
    tau = pc.TimeConstants(h=1.0, lam=0.25, r=1.0)
    assert tau.period <= tau.max_dt
    assert gain(tau, tau.period) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("s_k", [0.5, 1.0, 1.9, 2.1])
@pytest.mark.parametrize("q", [0.1, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("k", [1.0, 2.0])
def test_one_node_is_stable_exactly_within_the_two_limits(s_k, q, k):
    s = s_k / k
    stable = 0 < s * k < 2 and s * (2 * k + q) < 4
    update = np.array([[1 - s * k, -s], [q * (1 - s * k), 1 - q * s]])
    assert (np.abs(np.linalg.eigvals(update)).max() < 1) == stable


@pytest.mark.parametrize("lam", [0.5, 0.4])
def test_time_constants_that_do_not_settle_are_warned_of_with_the_eigenvalue(lam):
    with pytest.warns(UserWarning, match=r"eigenvalue -1"):
        pc.TimeConstants(h=1.0, lam=lam, r=math.inf)


@pytest.mark.parametrize(
    ("h", "lam", "r"),
    [(1.0, 0.5, 1.0), (1.0, 1.0, math.inf), (1.0, math.inf, math.inf), (1.0, math.inf, 1.0), (1.0, 0.25, 1.0)],
)
def test_time_constants_that_settle_are_not_warned_of(h, lam, r):
    tau = pc.TimeConstants(h=h, lam=lam, r=r)
    *_, (last, _) = node(tau, tau.period, g=1.0, updates=400)
    *_, (after, _) = node(tau, tau.period, g=1.0, updates=401)
    assert last == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize("values", [{"h": 0.0}, {"h": math.inf}, {"lam": 0.0}, {"lam": -1.0}, {"r": math.nan}])
def test_time_constants_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match="above 0"):
        pc.TimeConstants(**({"h": 1.0, "lam": 0.5, "r": 1.0} | values))


def test_the_default_period_and_the_longest_dt_follow_from_the_time_constants():
    assert pc.TimeConstants(h=1.0, lam=0.5, r=1.0).period == 0.5
    assert pc.TimeConstants(h=1.0, lam=2.0, r=math.inf).period == 1.0
    assert pc.TimeConstants(h=1.0, lam=0.2, r=1.0).max_dt == 0.4


def test_every_time_constant_has_to_be_named():
    with pytest.raises(TypeError):
        pc.TimeConstants(h=1.0, lam=0.5)  # type: ignore[call-arg]


def after_rest(tau, depth=3, sweeps=300):
    chain = make_chain(depth, tau=tau)
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    run.write(chain.prev, sample)
    for _ in range(sweeps):
        run.step()
    return chain, backpropagation(chain.modules, sample)[0]


def test_without_dual_and_decay_the_deviation_itself_settles_at_the_credit():
    chain, credit = after_rest(pc.TimeConstants(h=0.02, lam=math.inf, r=math.inf))
    assert largest_error([layer.r for layer in chain.layers], credit) < 1e-12
    assert all(float(layer.lam.abs().max()) == 0 for layer in chain.layers)


def test_with_decay_but_no_dual_the_credit_halves_at_every_node():
    chain, credit = after_rest(pc.TimeConstants(h=0.02, lam=math.inf, r=0.02))
    wanted = [c / 2 ** (len(credit) - i) for i, c in enumerate(credit)]
    assert largest_error(deltas(chain), wanted) < 1e-12


def test_without_decay_a_longer_dual_still_brings_the_credit_to_rest():
    chain, credit = after_rest(pc.TimeConstants(h=0.02, lam=0.02, r=math.inf))
    assert largest_error([layer.lam for layer in chain.layers], credit) < 1e-9
