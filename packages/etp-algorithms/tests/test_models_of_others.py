"""Models that others wrote keep the compiler's promise too."""

import warnings

import brainstate
import pytest

from etp_algorithms import oracle

from .helpers import facts, online, reference

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    pytest.importorskip("brainpy.state", reason="brainpy is installed where it supports the Python in use")
    from .models_of_others import OTHERS, STEP

IN_WINDOWS = ["ALIF", "HH", "Izhikevich", "LIF, STP, weight, Alpha, LIF"]

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def time_step():
    with brainstate.environ.context(**STEP):
        yield


@pytest.mark.parametrize(("name", "window"), [*((name, 1) for name in OTHERS), *((name, 3) for name in IN_WINDOWS)])
def test_a_model_of_others_is_promised_exact_and_learns_as_by_backpropagation_through_time(name, window):
    assert oracle.relative_deviation(online(OTHERS[name], 2, window), reference(OTHERS[name], 2)) < 1e-7
    assert set(facts(OTHERS[name], 2)[0].values()) == {"exact"}
