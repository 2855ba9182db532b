"""Showing samples to a run."""

import pytest
import torch
from torch import nn

import mujou_pc as pc

from .helpers import PERIOD, make_chain, make_sample


def test_show_gives_the_prediction_from_before_learning():
    chain = make_chain(2, learn_interval=5 * PERIOD, optimizer=pc.optim.SGD(tau=0.02))
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    before = nn.Sequential(*chain.modules)(sample["x"]).detach()
    prediction = pc.show(run, sample, seconds=20 * PERIOD)
    torch.testing.assert_close(prediction["y_hat"], before)
    assert torch.equal(prediction["y"], sample["y"])
    after = run.read(chain.next)["y_hat"]
    assert float((after - before).abs().max()) > 1e-2


def test_show_lets_the_run_go_on_for_the_seconds_given():
    chain = make_chain(1)
    run = pc.testing.run(chain)
    start = run.timer.now()
    pc.show(run, make_sample(chain), seconds=0.123)
    assert run.timer.now() - start == pytest.approx(0.123)


def test_show_waits_for_a_prediction_that_takes_longer_than_the_seconds_given():
    chain = make_chain(8)
    run = pc.testing.run(chain)
    for node in reversed([chain.input, *chain.layers, chain.output]):
        run.step([node], dt=0.1 * PERIOD)  # the later a node, the earlier it is due: one hop in each period
    prediction = pc.show(run, make_sample(chain), seconds=PERIOD)
    assert prediction["time"].ns > 0


def test_samples_shown_again_and_again_are_learned():
    chain = make_chain(2, learn_interval=6 * PERIOD, optimizer=pc.optim.AdamW(tau=2.0, tau_m=0.3, tau_v=3.0))
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    losses = []
    for _ in range(150):
        prediction = pc.show(run, sample, seconds=6 * PERIOD)
        losses.append(float(pc.loss.CrossEntropyLoss()(prediction["y_hat"], sample["y"]).mean()))
    assert losses[-1] < 0.1 * losses[0]


def test_show_says_when_no_prediction_came():
    chain = make_chain(1)
    run = pc.testing.run(chain)
    run.pause()
    with pytest.raises(RuntimeError, match="paused"):
        pc.show(run, make_sample(chain), seconds=1.0)
