"""Optimizers as flows in time; torch's are the oracle where steps are equal."""

import math

import pytest
import torch

import mujou_pc as pc
from mujou_pc.optim import SGD, AdamW, BoundOptimizer, Optimizer

ADAMW = AdamW(tau=2.0, tau_m=0.1, tau_v=5.0)
OPTIMIZERS = [SGD(tau=2.0), ADAMW]
every_optimizer = pytest.mark.parametrize("setting", OPTIMIZERS, ids=lambda s: type(s).__name__)


def weights(*shapes, dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes or ((3, 2), (3,))]


def gradients(params, seed):
    torch.manual_seed(seed)
    return [torch.randn_like(p) for p in params]


@every_optimizer
def test_a_step_of_no_time_changes_neither_weights_nor_state(setting):
    params = weights()
    bound = setting.bind(params)
    before = [p.clone() for p in params]
    bound.step_(gradients(params, 0), 0.0)
    assert all(torch.equal(*pair) for pair in zip(params, before, strict=True))
    assert str(bound.state_dict()) == str(setting.bind(params).state_dict())


@every_optimizer
def test_a_tiny_first_step_is_finite(setting):
    params = weights(dtype=torch.float32)
    setting.bind(params).step_(gradients(params, 0), 1e-12)
    assert all(torch.isfinite(p).all() for p in params)


@every_optimizer
def test_a_step_keeps_the_identity_and_the_storage_of_the_weights(setting):
    params = weights()
    places = [(id(p), p.data_ptr()) for p in params]
    setting.bind(params).step_(gradients(params, 0), 0.1)
    assert [(id(p), p.data_ptr()) for p in params] == places
    assert all(p.grad is None and p.requires_grad for p in params)


@every_optimizer
def test_each_node_gets_a_state_of_its_own(setting):
    one, other = weights(), weights()
    first, second = setting.bind(one), setting.bind(other)
    first.step_(gradients(one, 0), 0.1)
    assert str(second.state_dict()) == str(setting.bind(other).state_dict())


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_saved_state_follows_the_dtype_of_the_weights_and_goes_on(setting, dtype):
    params = weights()
    bound = setting.bind(params)
    bound.step_(gradients(params, 0), 0.1)
    others = [torch.nn.Parameter(p.detach().to(dtype)) for p in params]
    loaded = setting.bind(others)
    loaded.load_state_dict(bound.state_dict())
    bound.step_(gradients(params, 2), 0.3)
    loaded.step_([g.to(dtype) for g in gradients(params, 2)], 0.3)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(q, p.to(dtype))


def test_sgd_moves_by_the_seconds_and_not_by_the_steps():
    once, often = weights(), weights()
    grads = gradients(once, 0)
    SGD(tau=2.0).bind(once).step_(grads, 1.0)
    bound = SGD(tau=2.0).bind(often)
    for _ in range(4):
        bound.step_(grads, 0.25)
    for p, q, start, g in zip(once, often, weights(), grads, strict=True):
        torch.testing.assert_close(p, start - 0.5 * g)
        torch.testing.assert_close(q, p)


@pytest.mark.parametrize("elapsed", [0.02, 0.05, 0.3])
def test_with_equal_steps_adamw_is_that_of_torch(elapsed):
    ours, theirs = weights(), weights()
    bound = ADAMW.bind(ours)
    betas = (math.exp(-elapsed / ADAMW.tau_m), math.exp(-elapsed / ADAMW.tau_v))
    oracle = torch.optim.AdamW(theirs, lr=elapsed / ADAMW.tau, betas=betas, eps=1e-8, weight_decay=1e-2)
    for step in range(50):
        grads = gradients(ours, step)
        bound.step_(grads, elapsed)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g
        oracle.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("steps", [[0.1], [0.05, 0.05], [0.01] * 10, [0.02, 0.07, 0.01]], ids=str)
def test_the_mass_depends_on_the_seconds_and_not_on_the_steps(steps):
    params = weights()
    bound = ADAMW.bind(params)
    for elapsed in steps:
        bound.step_(gradients(params, 0), elapsed)
    assert bound.state_dict()["c_m"] == pytest.approx(0.632, abs=1e-3)
    assert bound.state_dict()["c_m"] == pytest.approx(1 - math.exp(-1), abs=1e-14)


@pytest.mark.parametrize("steps", [[0.1], [0.05, 0.05], [1e-6, 3.0, 0.02]], ids=str)
def test_with_a_constant_gradient_the_corrected_moment_is_the_gradient_from_the_first_step(steps):
    params = weights()
    bound = ADAMW.bind(params)
    grads = gradients(params, 0)
    for elapsed in steps:
        bound.step_(grads, elapsed)
        state = bound.state_dict()
        for i, g in enumerate(grads):
            torch.testing.assert_close(state["m"][str(i)] / state["c_m"], g)
            torch.testing.assert_close(state["v"][str(i)] / state["c_v"], g * g)


def test_adamw_counts_no_steps():
    state = ADAMW.bind(weights()).state_dict()
    assert set(state) == {"m", "v", "c_m", "c_v"}


def test_a_weight_whose_gradient_has_been_zero_stays_finite():
    params = weights()
    bound = AdamW(tau=2.0, tau_m=0.1, tau_v=5.0, weight_decay=0.0).bind(params)
    bound.step_([torch.zeros_like(p) for p in params], 0.1)
    assert all(torch.equal(*pair) for pair in zip(params, weights(), strict=True))


def test_the_anchors_of_torchs_betas_at_32_ms():
    assert -0.032 / math.log(0.9) == pytest.approx(0.30, abs=0.01)
    assert -0.032 / math.log(0.999) == pytest.approx(32, abs=0.1)


@pytest.mark.parametrize(
    "values", [{"tau": 0.0}, {"tau": math.inf}, {"tau_m": -1.0}, {"tau_v": math.nan}, {"eps": 0.0}]
)
def test_settings_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match="finite and above 0"):
        AdamW(**({"tau": 1.0, "tau_m": 1.0, "tau_v": 1.0} | values))
    if "tau" in values:
        with pytest.raises(ValueError, match=r"learn_interval=math.inf"):
            SGD(**values)


def test_a_negative_weight_decay_is_refused():
    with pytest.raises(ValueError, match="weight_decay"):
        AdamW(tau=1.0, tau_m=1.0, tau_v=1.0, weight_decay=-0.1)


@pytest.mark.parametrize("left_out", ["step_", "state_dict", "load_state_dict"])
def test_a_bound_optimizer_that_leaves_a_method_out_cannot_be_made(left_out):
    methods = {name: lambda self, *args: {} for name in ("step_", "state_dict", "load_state_dict") if name != left_out}
    with pytest.raises(TypeError, match=left_out):
        type("Bound", (BoundOptimizer,), methods)()


def test_a_setting_without_bind_cannot_be_made():
    with pytest.raises(TypeError, match="bind"):
        type("Setting", (Optimizer,), {})()


def test_settings_are_frozen_values():
    assert SGD(tau=1.0) == SGD(tau=1.0)
    with pytest.raises(AttributeError):
        pc.optim.SGD(tau=1.0).tau = 2.0  # type: ignore[misc]
