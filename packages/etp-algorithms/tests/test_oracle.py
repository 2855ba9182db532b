"""The oracles agree with each other, and their guards raise when a comparison would prove nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_ops import matmul

from .helpers import STEPS, largest_error, online, reference
from .models import DIAGONAL, EXACT, IN, N, array, cell, inputs

SMOOTH = ["leaky_pytree", "indrnn", "two_states_same_step", "plain_readout", "width_one_gate", "conditional"]
A, B = {("W",): jnp.ones((2, 2))}, {("W",): jnp.full((2, 2), 1.001)}


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "unread": array(1, N), "dead": array(2, N)})
def with_unused_parameters(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) + 0.0 * jax.lax.stop_gradient(self.dead.value)
    return self.h.value


@pytest.mark.parametrize("name", [*SMOOTH, "gru", "lstm"])
def test_backpropagation_through_time_agrees_with_finite_differences(name):
    factory = EXACT.get(name) or DIAGONAL[name][0]
    xs = inputs(batch=2)
    differences = oracle.finite_difference_param_gradients(factory, xs, eps=1e-5, batch_size=2)
    oracle.assert_param_gradients_close(differences, reference(factory, 2), atol=0.0, rtol=1e-7)


def test_finite_differences_leave_the_parameters_as_they_were():
    first, second = (
        oracle.finite_difference_param_gradients(EXACT["leaky"], inputs(steps=2), eps=1e-5, batch_size=2)
        for _ in range(2)
    )
    assert largest_error(first, second) == 0.0


@pytest.mark.parametrize("name", DIAGONAL)
def test_one_window_over_the_whole_sequence_is_backpropagation(name):
    factory = DIAGONAL[name][0]
    found = online(factory, 2, STEPS)
    oracle.assert_param_gradients_close(found, reference(factory, 2), atol=0.0, rtol=1e-13)


def test_online_param_gradients_is_the_whole_sequence_in_one_window():
    factory = EXACT["leaky"]
    found = oracle.online_param_gradients(factory, inputs(batch=2), algo_factory=ea.D_RTRL, batch_size=2)
    assert largest_error(found, reference(factory, 2)) < 1e-14


def test_online_param_gradients_takes_a_learner_with_vjp_method():
    factory = EXACT["leaky"]
    found = oracle.online_param_gradients(
        factory, inputs(batch=2), algo_factory=lambda m: ea.D_RTRL(m, vjp_method="multi-step"), batch_size=2
    )
    assert largest_error(found, reference(factory, 2)) < 1e-14


def test_windows_of_one_step_serve_a_single_step_learner():
    factory = EXACT["leaky"]
    found = oracle.chunked_online_param_gradients(
        factory,
        inputs(batch=2),
        algo_factory=lambda m: ea.D_RTRL(m, vjp_method="single-step"),
        chunk_size=1,
        batch_size=2,
    )
    assert largest_error(found, reference(factory, 2)) < 1e-14


def test_longer_windows_are_refused_for_a_single_step_learner():
    with pytest.raises(ValueError, match="single-step"):
        oracle.chunked_online_param_gradients(
            EXACT["leaky"],
            inputs(batch=2),
            algo_factory=lambda m: ea.D_RTRL(m, vjp_method="single-step"),
            chunk_size=2,
            batch_size=2,
        )


@pytest.mark.parametrize("which", ["bptt", "online", "differences"])
def test_a_parameter_that_the_step_does_not_use_has_gradient_zero(which):
    xs = inputs(steps=2, batch=2)
    found = {
        "bptt": lambda: oracle.bptt_param_gradients(with_unused_parameters, xs, batch_size=2),
        "online": lambda: oracle.chunked_online_param_gradients(
            with_unused_parameters, xs, algo_factory=ea.D_RTRL, chunk_size=1, batch_size=2
        ),
        "differences": lambda: oracle.finite_difference_param_gradients(with_unused_parameters, xs, batch_size=2),
    }[which]()
    assert sorted(found) == [("W",), ("dead",), ("unread",)]
    assert float(jnp.abs(found["unread",]).max()) == 0.0
    assert float(jnp.abs(found["dead",]).max()) == 0.0


def test_another_loss_is_taken_from_loss_fn():
    found = oracle.bptt_param_gradients(EXACT["leaky"], inputs(steps=1), loss_fn=jnp.sum, batch_size=2)
    np.testing.assert_allclose(found["b",], 2.0, atol=1e-15)


def test_a_dead_parameter_is_named():
    with pytest.raises(AssertionError, match=r"gradient of unread has norm 0"):
        oracle.assert_model_is_live(
            cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "unread": array(1, N)})(
                lambda self, x: matmul(x, self.W.value) + self.h.value
            ),
            inputs(steps=2),
            batch_size=2,
        )


def test_a_live_model_passes():
    oracle.assert_model_is_live(EXACT["leaky"], inputs(steps=2), batch_size=2)


def test_liveness_is_judged_against_min_norm():
    with pytest.raises(AssertionError, match="not alive"):
        oracle.assert_model_is_live(EXACT["leaky"], inputs(steps=2), batch_size=2, min_norm=1e6)


def test_equal_gradients_fail_the_control_that_they_differ():
    with pytest.raises(AssertionError, match="agree to 0"):
        oracle.assert_gradients_differ(A, A)


def test_different_gradients_pass_the_control():
    oracle.assert_gradients_differ(A, B)


def test_gradients_of_different_parameters_are_not_compared():
    with pytest.raises(AssertionError, match="different parameters"):
        oracle.assert_param_gradients_close(A, {**A, ("b",): jnp.ones(2)})


def test_chosen_keys_are_compared_alone():
    oracle.assert_param_gradients_close(A, {**A, ("b",): jnp.ones(2)}, keys=[("W",)])


def test_a_chosen_key_that_is_missing_is_an_error():
    with pytest.raises(KeyError):
        oracle.assert_param_gradients_close(A, A, keys=[("b",)])


def test_gradients_that_differ_are_reported_with_parameter_and_size():
    with pytest.raises(AssertionError, match=r"gradients of W differ by 0\.001"):
        oracle.assert_param_gradients_close(B, A, atol=1e-4)


def test_gradients_of_other_shapes_are_not_compared_by_broadcasting():
    with pytest.raises(AssertionError, match="shape"):
        oracle.assert_param_gradients_close({("W",): jnp.ones(2)}, A)


def test_a_gradient_that_is_not_finite_never_passes():
    with pytest.raises(AssertionError):
        oracle.assert_param_gradients_close({("W",): jnp.full((2, 2), jnp.nan)}, A)


def test_a_deviation_is_relative_to_the_expected_norm():
    assert oracle.relative_deviation(B, A) == pytest.approx(1e-3, rel=1e-6)


def test_the_cosine_of_a_scaled_gradient_is_one():
    assert oracle.cosine_similarity(B, A) == pytest.approx(1.0)


def test_the_norm_runs_over_all_leaves():
    assert oracle.gradient_norm({("W",): {"a": jnp.array([3.0]), "b": jnp.array([4.0])}}) == pytest.approx(5.0)
