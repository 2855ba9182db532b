"""What does not fit is said at the call, with the shapes that met and the remedy."""

import brainstate
import jax.numpy as jnp
import pytest

import etp_algorithms as ea
from etp_ops import matmul

from .helpers import initialised
from .models import EXACT, IN, N, array, cell, inputs, simple


def compile_with(x, batch, factory=EXACT["leaky"]):
    ea.D_RTRL(initialised(factory, batch)).compile_graph(x)


@simple()
def dense_readout(self, x):
    """A plain product that takes its inputs as they are."""
    self.h.value = 0.5 * self.h.value + matmul(x, self.W.value) * jnp.ones((2, N))
    return self.h.value


@pytest.mark.parametrize(
    ("x", "batch", "factory", "words"),
    [
        pytest.param(inputs(batch=3)[0], 2, EXACT["leaky"], ["float64[3, 3]", "h float64[2, 4]"], id="another batch"),
        pytest.param(inputs(), 2, EXACT["leaky"], ["float64[6, 2, 4]", "float64[2, 4]"], id="a window as one step"),
        pytest.param(jnp.ones((2, IN + 1)), 2, EXACT["leaky"], ["float64[2, 4]"], id="another width"),
        pytest.param(inputs()[0], 1, EXACT["leaky"], ["float64[1, 4]", "init_state"], id="batch of one"),
        pytest.param(inputs()[0], None, EXACT["leaky"], ["float64[4]", "float64[2, 4]", "init_state"], id="no batch"),
        pytest.param(inputs(batch=3)[0], 3, dense_readout, ["float64[3, 3]", "h float64[3, 4]"], id="inside the step"),
    ],
)
def test_an_input_that_does_not_fit_the_states_is_refused_with_both_shapes(x, batch, factory, words):
    with pytest.raises(ea.CompilationError) as error:
        compile_with(x, batch, factory)
    for word in words:
        assert word in str(error.value)
    assert "batch" in str(error.value)


def test_the_error_of_the_model_itself_stays_the_cause():
    @simple()
    def model(self, x):
        raise ValueError("the model's own words")

    with pytest.raises(ea.CompilationError, match=r"Cell\.update fails .* the model's own words") as error:
        compile_with(inputs()[0], 2, model)
    assert isinstance(error.value.__cause__, ValueError)


def test_states_that_were_never_initialised_are_named():
    with pytest.raises(ea.CompilationError, match=r"states \(none\).*\n.*init_all_states"):
        ea.D_RTRL(EXACT["leaky"]()).compile_graph(inputs()[0])


class MadeTooEarly(brainstate.nn.Module):
    """Its state is made in ``__init__``, so no batch size reaches it."""

    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, IN, N))
        self.h = brainstate.HiddenState(jnp.zeros(N))

    def update(self, x):
        self.h.value = 0.5 * self.h.value + matmul(x, self.W.value)
        return self.h.value


def test_a_state_made_in_the_constructor_is_refused_with_the_place_to_make_it():
    with pytest.raises(ea.CompilationError, match=r"the state h from float64\[4\] to float64\[2, 4\].* init_state"):
        ea.compile(MadeTooEarly(), "d_rtrl", inputs()[0], batch_size=2)


def test_a_parameter_written_in_the_step_is_refused():
    @cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
    def model(self, x):
        self.h.value = 0.5 * self.h.value + matmul(x, self.W.value)
        self.W.value = 0.9 * self.W.value

    with pytest.raises(ea.CompilationError, match=r"writes the parameter W.*optimizer between steps"):
        compile_with(inputs()[0], 2, model)


@pytest.mark.parametrize("x", [inputs(batch=3)[0], inputs(batch=None)[0], inputs()[0].astype(jnp.float32)])
def test_another_shape_or_dtype_later_is_refused_with_the_one_compiled_for(x):
    learner = ea.D_RTRL(initialised(EXACT["leaky"], 2))
    learner.compile_graph(inputs()[0])
    with pytest.raises(ValueError, match=r"input 0 has shape .* compiled for .*compile_graph"):
        learner(x)
