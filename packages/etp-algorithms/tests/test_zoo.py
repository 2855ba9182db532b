"""Every model of the zoo keeps the promise that the compiler makes for it."""

import pytest

from etp_algorithms import oracle

from .helpers import STEPS, compiled, facts, online, reference, trusts
from .models import DIAGONAL, EXACT, RELATIONS, inputs
from .spiking_models import SPIKING

pytestmark = pytest.mark.thorough

BATCHES = [pytest.param(2, id="batched"), pytest.param(None, id="unbatched")]
CASES = [
    pytest.param(2, 1, id="batched-1"),
    pytest.param(2, 3, id="batched-3"),
    pytest.param(None, 1, id="unbatched-1"),
]
ALL = {**EXACT, **{name: row[0] for name, row in DIAGONAL.items()}}


@pytest.mark.parametrize(("batch", "window"), CASES)
@pytest.mark.parametrize("name", EXACT)
def test_what_is_promised_exact_equals_backpropagation_through_time(name, batch, window):
    expected = reference(EXACT[name], batch)
    assert oracle.relative_deviation(online(EXACT[name], batch, window), expected) < 1e-13


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", SPIKING)
def test_spiking_models_of_one_to_five_states_are_exact(name, window):
    factory, states = SPIKING[name]
    assert oracle.relative_deviation(online(factory, 2, window), reference(factory, 2)) < 1e-13
    learner = compiled(factory, inputs()[0], 2)
    assert [group.num_state for group in learner.graph.hidden_groups] == [states]
    assert set(trusts(learner).values()) == {"exact"}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", EXACT)
def test_every_parameter_of_an_exact_model_is_reported_exact(name, batch):
    assert set(facts(EXACT[name], batch)[0].values()) == {"exact"}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", DIAGONAL)
def test_an_approximated_model_is_reported_as_its_row_says(name, batch):
    factory, expected = DIAGONAL[name]
    assert facts(factory, batch)[0] == expected


@pytest.mark.parametrize("name", ALL)
def test_a_model_has_the_relations_of_its_row(name):
    assert facts(ALL[name], 2)[1] == RELATIONS[name]


@pytest.mark.parametrize("name", ALL)
def test_without_batch_the_same_relations_are_found(name):
    assert [row[1:] for row in facts(ALL[name], None)[1]] == [row[1:] for row in RELATIONS[name]]


@pytest.mark.parametrize("name", DIAGONAL)
def test_an_approximated_model_is_exact_in_one_window(name):
    factory, _ = DIAGONAL[name]
    assert oracle.relative_deviation(online(factory, 2, STEPS), reference(factory, 2)) < 1e-13


@pytest.mark.parametrize("name", DIAGONAL)
def test_an_approximated_model_deviates_step_by_step_but_points_the_right_way(name):
    factory, _ = DIAGONAL[name]
    found, expected = online(factory, 2, 1), reference(factory, 2)
    oracle.assert_gradients_differ(found, expected, min_rel=1e-3)
    assert oracle.cosine_similarity(found, expected) > 0.9


@pytest.mark.parametrize("name", DIAGONAL)
def test_in_an_approximated_model_what_is_still_promised_exact_is_exact(name):
    factory, row = DIAGONAL[name]
    found, expected = online(factory, 2, 1), reference(factory, 2)
    kept = [path for path in expected if row[".".join(path)] == "exact"]
    oracle.assert_param_gradients_close(found, expected, atol=0.0, rtol=1e-12, keys=kept)


def test_longer_windows_bring_a_dense_recurrence_closer_to_backpropagation():
    factory, _ = DIAGONAL["dense_tanh"]
    expected = reference(factory, 2, steps=8)
    by_step, by_four = (oracle.relative_deviation(online(factory, 2, k, steps=8), expected) for k in (1, 4))
    assert 1e-3 < by_four < by_step < 0.5
