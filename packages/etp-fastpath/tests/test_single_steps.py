"""What the program of one step per call does with the traces, read from the program that XLA makes of it."""

import re

import brainstate
import jax
import jax.numpy as jnp
import pytest

import etp_core
import etp_ops
from etp_algorithms import D_RTRL

ROWS, COLUMNS = 48, 32
TRACE = f"f64[4,{ROWS},{COLUMNS}]"
WEIGHT = f"f64[{ROWS},{COLUMNS}]"


class Leaky(brainstate.nn.Module):
    """A leak that depends on the state, so that the whole trace is kept and the Jacobian takes work to make."""

    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(jnp.ones((ROWS, COLUMNS)) / ROWS)

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, COLUMNS)))

    def update(self, x):
        h = self.h.value
        self.h.value = jnp.tanh(jnp.exp(-(h**2)) * h + jnp.sin(etp_ops.matmul(x, self.W.value)))
        return self.h.value


def program(signal, factory=Leaky):
    """The lines of the entry computation of one step, its states donated."""
    etp_core.load_plugins()
    model, x = factory(), jnp.ones((1, 4, ROWS))
    brainstate.nn.init_all_states(model, batch_size=4)
    learner = D_RTRL(model, signal=signal)
    learner.compile_graph(x[0])
    stateful = brainstate.transform.StatefulFunction(
        lambda x: learner.etrace_grad(x, step_fn=lambda x: jnp.sum(learner(x) ** 2)), return_only_write=False
    )
    stateful.make_jaxpr(x)
    values = tuple(state.value for state in stateful.get_states(x))
    text = jax.jit(stateful.jaxpr_call, donate_argnums=0).lower(values, x).compile().as_text()
    lines = text[text.index("\nENTRY") :].splitlines()
    return [line for line in lines if " parameter(" not in line and "ROOT" not in line]


def makers(lines, shape):
    """The operations that make arrays of this shape, as ``operation(operands``."""
    return [m[1] for line in lines if (m := re.search(r"= " + re.escape(shape) + r"\{[\d,]*\} ([\w\-]+\([^)]*)", line))]


barriers = pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="XLA forgets barriers before it fuses: it keeps a copy, and fuses factors"
)


@pytest.mark.parametrize("signal", [pytest.param("entry", marks=barriers), "exit"])
def test_the_traces_move_in_one_pass_in_place(signal):
    (moved,) = makers(program(signal), TRACE)
    assert moved.startswith("fusion(")  # and no copy


@barriers
@pytest.mark.parametrize("signal", ["entry", "exit"])
def test_what_the_traces_move_by_is_made_before_and_not_for_every_element(signal):
    (moved,) = makers(program(signal), TRACE)
    assert len(moved.split(",")) == 4  # the trace, its factor, the data and what drives it


@pytest.mark.parametrize(("signal", "products"), [("entry", 1), ("exit", 0)])
def test_at_the_exit_what_the_step_writes_is_contracted_where_it_was_written(signal, products):
    made = makers(program(signal), WEIGHT)
    assert sum(maker.startswith("dot(") for maker in made) == products


class Forgetting(Leaky):
    """A recurrence through the marked operator alone: the last step's two factors stand for the trace."""

    def update(self, x):
        inputs = jnp.concatenate([x[:, COLUMNS:], self.h.value], -1)
        self.h.value = jnp.tanh(etp_ops.matmul(inputs, self.W.value))
        return self.h.value


@pytest.mark.parametrize("signal", ["entry", "exit"])
def test_a_trace_of_two_factors_and_the_step_itself_take_one_product(signal):
    made = makers(program(signal, Forgetting), WEIGHT)
    assert sum(maker.startswith("dot(") for maker in made) == 1
