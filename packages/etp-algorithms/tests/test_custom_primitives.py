"""A primitive of the user's own: the tutorials' scaled product, end to end, and what its author can get wrong."""

import functools
import itertools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import oracle
from etp_core import MissingRuleError, register_primitive
from etp_ops import lora_matmul, matmul

from .helpers import compiled, gradient_of, initialised, largest_error, relation_set, trusts
from .models import EXACT, IN, Cell, N, array, cell, inputs, simple

XS = inputs(batch=2)
_numbers = itertools.count()


def scaled_impl(*args, scale=1.0, has_bias=False, weight_fn=None, bias_fn=None):
    x, w = args[0], args[1]
    y = scale * (x @ (w if weight_fn is None else weight_fn(w)))
    return y + (args[2] if bias_fn is None else bias_fn(args[2])) if has_bias else y


def dt_to_t(hidden_dim, trace, *, scale=1.0, has_bias=False, weight_fn=None, bias_fn=None):
    out = {"weight": trace["weight"] * jnp.expand_dims(hidden_dim, -2)}
    return {**out, "bias": trace["bias"] * hidden_dim} if has_bias else out


def xy_to_dw(x, hidden_dim, weights, **static):
    def forward(w):
        return scaled_impl(x, w["weight"], w.get("bias"), **static)

    return jax.vjp(forward, weights)[1](hidden_dim)[0]


def init_drtrl(x_var, y_var, weight_vars, num_hidden_state):
    lead = x_var.aval.shape[:-1]
    return {key: jnp.zeros((*lead, *v.aval.shape, num_hidden_state)) for key, v in weight_vars.items()}


def init_pp(x_var, y_var, weight_vars, num_hidden_state):
    return jnp.zeros((*y_var.aval.shape, num_hidden_state), dtype=y_var.aval.dtype)


RULES = {"dt_to_t": dt_to_t, "xy_to_dw": xy_to_dw, "init_drtrl": init_drtrl, "init_pp": init_pp}


def trainable(params):
    return {"weight": 1, "bias": 2} if params.get("has_bias") else {"weight": 1}


def new_primitive(impl=scaled_impl, without=(), layout=trainable, **rules):
    """A fresh primitive of the tutorials' kind, with some rules replaced or left out."""
    options = {} if layout is None else {"trainable_invars_fn": layout, "x_invar_index": 0}
    primitive = register_primitive(f"scaled_for_tests_{next(_numbers)}", impl, batched=True, **options)
    primitive.register_etp_rules(**{k: v for k, v in {**RULES, **rules}.items() if k not in without})
    return primitive


@functools.cache
def scaled():
    return new_primitive()


def leaky_with(primitive, **static):
    """h ← tanh(0.7 h + primitive(x, W, b))."""

    def step(self, x):
        operands = (self.W.value, self.b.value) if static.get("has_bias") else (self.W.value,)
        self.h.value = jnp.tanh(0.7 * self.h.value + primitive.bind(x, *operands, **static))
        return self.h.value

    params = {"W": array(0, IN, N), **({"b": array(1, N)} if static.get("has_bias") else {})}
    return lambda: Cell(step, params, {"h": (N,)})


STATICS = {
    "plain": {"scale": 1.5, "has_bias": False},
    "bias": {"scale": 2.0, "has_bias": True},
    "weight_fn": {"scale": 1.5, "has_bias": False, "weight_fn": jnp.tanh},
    "both hooks": {"scale": 1.5, "has_bias": True, "weight_fn": jnp.tanh, "bias_fn": jnp.sin},
}


def deviation(factory, window, algorithm=ea.D_RTRL):
    expected = oracle.bptt_param_gradients(factory, XS, batch_size=2)
    found = oracle.chunked_online_param_gradients(factory, XS, algo_factory=algorithm, chunk_size=window, batch_size=2)
    return oracle.relative_deviation(found, expected)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("static", STATICS.values(), ids=STATICS)
def test_a_primitive_as_the_tutorials_write_it_learns_exactly_through_windows(static, window):
    assert deviation(leaky_with(scaled(), **static), window) < 1e-13


@pytest.mark.parametrize("static", STATICS.values(), ids=STATICS)
def test_its_parameters_are_found_and_promised_exact(static):
    learner = compiled(leaky_with(scaled(), **static), XS[0], 2)
    assert relation_set(learner) == [(scaled().name, "W,b" if static["has_bias"] else "W", "h")]
    assert set(trusts(learner).values()) == {"exact"}


def test_it_runs_factorised_too():
    factory = leaky_with(scaled(), **STATICS["both hooks"])
    assert 0 < deviation(factory, 1, algorithm=lambda m: ea.pp_prop(m, 0.9)) < 1.0


def test_the_recurrence_of_the_tutorial_equals_backpropagation_in_one_window():
    def step(self, x):
        xh = jnp.concatenate([x.reshape(1, -1), self.h.value], axis=-1)
        self.h.value = jnp.tanh(scaled().bind(xh, self.W.value, scale=1.5, has_bias=False, weight_fn=jnp.tanh))
        return self.h.value

    def factory():
        return Cell(step, {"W": array(0, 2 + N, N)}, {"h": (N,)})

    xs = array(1, 6, 2)
    bptt = oracle.bptt_param_gradients(factory, xs)
    online = oracle.online_param_gradients(
        factory, xs, algo_factory=lambda m: ea.D_RTRL(m, vjp_method="multi-step")
    )  # fmt: skip
    oracle.assert_param_gradients_close(online, bptt, atol=1e-12)


class TinyRNN(brainstate.nn.Module):
    """The model of the tutorial: a marked recurrent weight, a plain input weight."""

    def __init__(self, in_dim=4, hid_dim=6):
        super().__init__()
        self.in_dim, self.hid_dim = in_dim, hid_dim
        self.W_rec = brainstate.ParamState(0.1 * brainstate.random.normal(size=(hid_dim, hid_dim)))
        self.W_in = brainstate.ParamState(0.1 * brainstate.random.normal(size=(in_dim, hid_dim)))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size or 1, self.hid_dim)))

    def update(self, x):
        self.h.value = jax.nn.tanh(x @ self.W_in.value + matmul(self.h.value, self.W_rec.value))
        return self.h.value


def test_the_compiled_relations_of_the_tutorial_can_be_listed():
    alg = ea.compile(TinyRNN(), ea.D_RTRL, jnp.zeros((2, 4)), batch_size=2)
    (relation,) = alg.graph.hidden_param_op_relations
    assert relation.primitive.name == "etp_mm"
    assert list(relation.trainable_vars) == ["weight"]


@pytest.mark.parametrize(
    ("rule", "wrong"),
    {
        "dt_to_t": lambda d, trace, **_: {"weight": trace["weight"] * d[..., None, :] * 1.5},
        "xy_to_dw": lambda x, d, w, **_: {"weight": 1.1 * x[:, :, None] * d[:, None, :]},
    }.items(),
)
def test_a_wrong_rule_is_caught_by_windows_shorter_than_the_sequence(rule, wrong):
    if rule == "xy_to_dw":
        wrong_rule = wrong
        wrong = lambda x, d, w, **s: {"weight": wrong_rule(x, d, w)["weight"].sum(0)}  # noqa: E731
    factory = leaky_with(new_primitive(**{rule: wrong}), scale=1.0, has_bias=False)
    assert deviation(factory, 1, algorithm=lambda m: ea.D_RTRL(m, kernels="reference")) > 1e-3


def test_a_wrong_trace_rule_escapes_a_window_over_the_whole_sequence():
    """Why traces are judged through shorter windows."""
    wrong = new_primitive(dt_to_t=lambda d, trace, **_: {"weight": trace["weight"] * d[..., None, :] * 1.5})
    assert deviation(leaky_with(wrong, scale=1.0, has_bias=False), 6) < 1e-13


@pytest.mark.parametrize("rule", ["dt_to_t", "xy_to_dw", "init_drtrl"])
def test_a_rule_that_d_rtrl_misses_is_named_with_primitive_and_algorithm(rule):
    primitive = new_primitive(without=[rule])
    learner = ea.D_RTRL(initialised(leaky_with(primitive, scale=1.0, has_bias=False), 2))
    with pytest.raises(MissingRuleError, match=rf"D_RTRL needs the {rule} rule of the primitive '{primitive.name}'"):
        learner.compile_graph(XS[0])


@pytest.mark.parametrize("rule", ["xy_to_dw", "init_pp"])
def test_a_rule_that_pp_prop_misses_is_named_with_primitive_and_algorithm(rule):
    primitive = new_primitive(without=[rule])
    learner = ea.pp_prop(initialised(leaky_with(primitive, scale=1.0, has_bias=False), 2), 0.9)
    with pytest.raises(MissingRuleError, match=rf"pp_prop needs the {rule} rule of the primitive '{primitive.name}'"):
        learner.compile_graph(XS[0])


@pytest.mark.parametrize("rule", ["dt_to_t", "init_drtrl"])
def test_pp_prop_does_not_ask_for_the_rules_of_d_rtrl(rule):
    primitive = new_primitive(without=[rule])
    factory = leaky_with(primitive, scale=1.0, has_bias=False)
    assert compiled(factory, XS[0], 2, algorithm=lambda m: ea.pp_prop(m, 0.9)).is_compiled


def test_a_primitive_without_a_layout_trains_its_second_operand():
    primitive = register_primitive(
        f"scaled_for_tests_{next(_numbers)}", scaled_impl, batched=True, x_invar_index=0
    )  # fmt: skip
    primitive.register_etp_rules(**RULES)
    assert deviation(leaky_with(primitive, scale=1.5, has_bias=False), 1) < 1e-13


def test_an_init_rule_with_other_keys_than_the_weights_is_refused_by_name():
    primitive = new_primitive(init_drtrl=lambda x, y, w, s: {"kernel": jnp.zeros((2, IN, N, s))})
    with pytest.raises(TypeError, match=rf"{primitive.name}: init_drtrl must return a dict with the keys \['weight'\]"):
        compiled(leaky_with(primitive, scale=1.0, has_bias=False), XS[0], 2)


@simple()
def weight_of_data(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value * jnp.tanh(x.sum()))
    return self.h.value


@simple()
def weight_of_state(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value * self.h.value.mean())
    return self.h.value


@pytest.mark.parametrize("factory", [weight_of_data, weight_of_state], ids=["data", "state"])
def test_a_weight_that_depends_on_data_or_state_is_reported_and_learned_within_the_window(factory):
    learner = ea.D_RTRL(initialised(factory, 2))
    with pytest.warns(ea.CompilationWarning, match="not_a_parameter.*no trainable operand is a function of parameters"):
        learner.compile_graph(XS[0])
    assert trusts(learner) == {"W": "window"}


def test_a_weight_that_depends_on_data_gets_its_exact_gradient_within_the_window():
    learner = compiled(weight_of_data, XS[0], 2)
    found, _ = gradient_of(learner, lambda: jnp.sum(learner(XS[0]) ** 2))
    model = initialised(weight_of_data, 2)
    expected = brainstate.transform.grad(lambda: jnp.sum(model.update(XS[0]) ** 2), grad_states={("W",): model.W})()
    np.testing.assert_allclose(found["W"], expected["W",], rtol=1e-13)


@simple()
def bias_of_data(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value, jnp.tanh(x.sum(0)[:1]) * jnp.ones(N))
    return self.h.value


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("factory", [EXACT["bias_from_data"], bias_of_data], ids=["constant", "data"])
def test_beside_a_bias_that_is_no_parameter_the_weight_learns_exactly(factory, window):
    assert deviation(factory, window) < 1e-13


@simple()
def operators_under_vmap(self, x):
    y = jax.vmap(lambda a: matmul(jnp.tanh(a), self.W.value))(x)
    self.h.value = jnp.tanh(0.7 * self.h.value + y)
    return self.h.value


def test_an_unbatched_operator_under_vmap_becomes_its_batched_twin():
    learner = compiled(operators_under_vmap, XS[0], 2)
    assert relation_set(learner) == [("etp_mm", "W", "h")]


@pytest.mark.parametrize("window", [1, 3])
def test_an_operator_under_vmap_learns_exactly(window):
    assert deviation(operators_under_vmap, window) < 1e-13


@simple()
def deeply_wrapped(self, x):
    inner = jax.jit(jax.checkpoint(lambda x, w: jax.jit(lambda x, w: matmul(x, w))(jnp.sin(x), w)))
    self.h.value = jax.jit(lambda h, y: jnp.tanh(0.7 * h + y))(self.h.value, inner(x, self.W.value))
    return self.h.value


@pytest.mark.parametrize("window", [1, 3])
def test_an_operator_inside_jit_and_checkpoint_at_any_depth_learns_exactly(window):
    assert deviation(deeply_wrapped, window) < 1e-13


def test_gradients_are_those_of_the_built_in_operator():
    expected = oracle.chunked_online_param_gradients(
        lambda: Cell(lambda s, x: built_in(s, x), {"W": array(0, IN, N), "b": array(1, N)}, {"h": (N,)}),
        XS,
        algo_factory=ea.D_RTRL,
        chunk_size=1,
        batch_size=2,
    )
    found = oracle.chunked_online_param_gradients(
        leaky_with(scaled(), scale=1.0, has_bias=True), XS, algo_factory=ea.D_RTRL, chunk_size=1, batch_size=2
    )
    assert largest_error(found, expected) < 1e-13


def built_in(self, x):
    self.h.value = jnp.tanh(0.7 * self.h.value + matmul(x, self.W.value, self.b.value))
    return self.h.value


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("frozen", ["A", "B"])
def test_a_low_rank_product_with_a_factor_that_is_no_parameter_is_learned_within_a_window_and_says_so(frozen, kernels):
    xs = inputs(batch=2)

    def half_frozen():
        model = cell({"h": (N,)}, lambda: {"A": array(0, 2, N), "B": array(1, IN, 2)})(low_rank)()
        setattr(model, frozen, brainstate.LongTermState(getattr(model, frozen).value))
        return model

    def low_rank(self, x):
        self.h.value = 0.5 * self.h.value + lora_matmul(x, self.B.value, self.A.value)
        return self.h.value

    learner = compiled(half_frozen, xs[0], 2, kernels=kernels)
    (row,) = learner.report.parameters
    assert (row.trust.value, learner.graph.hidden_param_op_relations) == ("window", ())
    assert f"operand lora_{frozen.lower()}" in row.reasons[0]
    found = learner.etrace_grad(xs[:1], step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")
    expected = oracle.bptt_param_gradients(half_frozen, xs[:1], batch_size=2)
    assert oracle.relative_deviation(found, expected) < 1e-13
