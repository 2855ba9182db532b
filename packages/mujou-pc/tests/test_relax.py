"""Relaxers: one contract for all, over a table."""

from dataclasses import dataclass

import pytest
import torch

import mujou_pc as pc
from mujou_pc.functional import relax_
from mujou_pc.relax import BoundRelaxer, Euler, Relaxer

from .helpers import USUAL, backpropagation, deltas, largest_error, make_chain, make_sample


@dataclass(frozen=True)
class HeavyBall(Relaxer):
    """A relaxer of one's own: the force is averaged over tau seconds before it moves r."""

    tau: float

    def bind(self, r):
        return BoundHeavyBall(self.tau, torch.zeros_like(r))


class BoundHeavyBall(BoundRelaxer):
    def __init__(self, tau, velocity):
        self.tau = tau
        self.velocity = velocity

    def step_(self, r, force, dt, tau_h):
        self.velocity.lerp_(force, dt / (self.tau + dt))
        r.sub_(self.velocity, alpha=dt / tau_h)

    def reset_(self, samples):
        self.velocity[samples] = 0

    def state_dict(self):
        return {"velocity": self.velocity}

    def load_state_dict(self, state):
        self.velocity.copy_(state["velocity"])


RELAXERS = [Euler(), HeavyBall(tau=0.002)]
every_relaxer = pytest.mark.parametrize("relaxer", RELAXERS, ids=lambda r: type(r).__name__)


@every_relaxer
def test_a_relaxer_comes_to_rest_where_the_dual_is_the_credit(relaxer):
    chain = make_chain(2, relaxer=relaxer, tau=pc.TimeConstants(h=0.02, lam=0.02, r=0.02))
    run = pc.testing.run(chain)
    sample = make_sample(chain)
    run.write(chain.prev, sample)
    for _ in range(400):
        run.step()
    credit, _ = backpropagation(chain.modules, sample)
    assert largest_error([layer.lam for layer in chain.layers], credit) < 1e-9
    assert max(float(layer.r.abs().max()) for layer in chain.layers) < 1e-12


@every_relaxer
def test_a_new_sample_resets_the_rows_that_start_anew_and_no_others(relaxer):
    chain = make_chain(1, relaxer=relaxer)
    run = pc.testing.run(chain)
    first = make_sample(chain)
    run.write(chain.prev, first)
    for _ in range(3):
        run.step()
    layer = chain.layers[0]
    before = layer.lam.clone()
    anew = torch.tensor([True, False, True, False])
    run.write(chain.prev, first | {"reset": anew})
    run.step([chain.input, layer], dt=0.0)  # sees the write, and moves nothing
    assert float(layer.lam[anew].abs().max()) == float(layer.r[anew].abs().max()) == 0
    assert torch.equal(layer.lam[~anew], before[~anew])
    velocity = layer.relaxer.state_dict().get("velocity")
    if velocity is not None:
        assert float(velocity[anew].abs().max()) == 0
        assert float(velocity[~anew].abs().max()) > 0


@every_relaxer
def test_the_state_of_a_relaxer_is_part_of_its_node_and_is_loaded_in_place(relaxer):
    chain = make_chain(1, relaxer=relaxer)
    run = pc.testing.run(chain)
    run.write(chain.prev, make_sample(chain))
    for _ in range(3):
        run.step()
    state = run.state_dict()
    other = make_chain(1, relaxer=relaxer)
    pc.testing.run(other).load_state_dict(state)
    assert str(other.layers[0].relaxer.state_dict()) == str(chain.layers[0].relaxer.state_dict())


def test_euler_has_no_state():
    bound = Euler().bind(torch.zeros(2, 3))
    assert bound.state_dict() == {}


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2, 2)])
def test_one_step_moves_the_deviation_first_and_then_the_dual_with_it(shape):
    r, lam, g = torch.randn(shape), torch.randn(shape), torch.randn(shape)
    dt, tau = 0.003, pc.TimeConstants(h=0.02, lam=0.015, r=0.05)
    wanted_r = r - dt / 0.02 * ((1 + 0.02 / 0.05) * r + lam + g)
    wanted_lam = lam + dt / 0.015 * wanted_r
    relax_(r, lam, g, dt=dt, tau=tau, relaxer=Euler().bind(r))
    torch.testing.assert_close(r, wanted_r)
    torch.testing.assert_close(lam, wanted_lam)


def test_a_step_of_no_time_changes_nothing():
    r, lam = torch.randn(3), torch.randn(3)
    before = (r.clone(), lam.clone())
    relax_(r, lam, torch.full((3,), torch.inf), dt=0.0, tau=USUAL, relaxer=Euler().bind(r))
    assert torch.equal(r, before[0])
    assert torch.equal(lam, before[1])


@pytest.mark.parametrize("left_out", ["step_", "reset_", "state_dict", "load_state_dict"])
def test_a_bound_relaxer_that_leaves_a_method_out_cannot_be_made(left_out):
    names = ("step_", "reset_", "state_dict", "load_state_dict")
    methods = {name: lambda self, *args: {} for name in names if name != left_out}
    with pytest.raises(TypeError, match=left_out):
        type("Bound", (BoundRelaxer,), methods)()


def test_deltas_follow_the_force_of_a_relaxer_with_memory_less_fast():
    fast, slow = make_chain(1), make_chain(1, relaxer=HeavyBall(tau=0.02))
    for chain in (fast, slow):
        run = pc.testing.run(chain)
        torch.manual_seed(5)
        run.write(chain.prev, make_sample(chain))
        run.step()
        run.step()
    assert float(deltas(slow)[0].norm()) < float(deltas(fast)[0].norm())
