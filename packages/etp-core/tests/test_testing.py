"""``check_primitive`` accepts right primitives and names the rule that is wrong."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad, batching

from etp_core import FastPathRules, MissingRuleError, RuleCheckError, register_primitive
from etp_core.testing import check_primitive

RNG = np.random.default_rng(7)
X, W, B = (jnp.asarray(RNG.normal(size=shape)) for shape in ((4, 3), (3, 5), (5,)))
_counter = itertools.count()


# the custom primitive of the tutorial: y = scale · x W (+ b), hooks optional


def impl(*args, scale=1.0, has_bias=False, weight_fn=None):
    x, w = args[0], args[1]
    y = scale * (x @ (w if weight_fn is None else weight_fn(w)))
    return y + args[2] if has_bias else y


def trainable(params):
    return {"weight": 1, "bias": 2} if params.get("has_bias", False) else {"weight": 1}


def dt_to_t(hidden_dim, trace, **_):
    out = {"weight": trace["weight"] * jnp.expand_dims(hidden_dim, axis=-2)}
    if "bias" in trace:
        out["bias"] = trace["bias"] * hidden_dim
    return out


def tutorial_dt_to_t(hidden_dim, trace, *, scale=1.0, has_bias=False):
    out = {"weight": trace["weight"] * jnp.expand_dims(hidden_dim, axis=-2) * scale}
    if has_bias:
        out["bias"] = trace["bias"] * hidden_dim
    return out


def xy_to_dw(x, hidden_dim, weights, **static):
    def forward(w):
        return impl(x, *(w[name] for name in ("weight", "bias") if name in w), **static)

    return jax.vjp(forward, weights)[1](hidden_dim)[0]


def init_drtrl(x_var, y_var, weight_vars, num_hidden_state):
    batch = x_var.aval.shape[0]
    return {name: jnp.zeros((batch, *var.aval.shape, num_hidden_state)) for name, var in weight_vars.items()}


def init_pp(x_var, y_var, weight_vars, num_hidden_state):
    return jnp.zeros((*y_var.aval.shape, num_hidden_state), dtype=y_var.aval.dtype)


def instant(x, df, weights, *, scale=1.0, **_):
    term = {"weight": scale * x[..., None] * df[..., None, :]}
    return {**term, "bias": df} if "bias" in weights else term


def window(x_seq, df_seq, weights, **static):
    terms = [instant(x, df, weights, **static) for x, df in zip(x_seq, df_seq, strict=True)]
    return jax.tree.map(lambda *leaves: sum(leaves), *terms)


def solve(signal, trace, weights, **_):
    return {name: dt_to_t(signal, trace)[name].sum(0) for name in weights}


RIGHT = {"dt_to_t": dt_to_t, "xy_to_dw": xy_to_dw, "init_drtrl": init_drtrl, "init_pp": init_pp}


def make(impl=impl, *, batched=True, trainable_invars_fn=trainable, **rules):
    primitive = register_primitive(
        f"planted_{next(_counter)}", impl, batched=batched, trainable_invars_fn=trainable_invars_fn
    )
    primitive.register_etp_rules(**{**RIGHT, **rules})
    return primitive


def check(primitive, *, scale=2.0):
    check_primitive(primitive, X, W, B, scale=scale, has_bias=True)


def test_the_right_primitive_passes_with_and_without_optional_rules():
    check(make())
    check(make(instant=instant))
    check(make(instant=instant, solve=solve, window=window))


def test_the_primitive_of_the_tutorial_passes_as_written_at_scale_one():
    primitive = make(dt_to_t=tutorial_dt_to_t)
    check_primitive(primitive, X, W)
    check_primitive(primitive, X, W, B, scale=1.0, has_bias=True)


def test_a_trace_rule_that_applies_the_scale_a_second_time_is_rejected():
    with pytest.raises(RuleCheckError, match=r"planted_\d+: dt_to_t .*nothing but the factor.*\['weight'\]"):
        check(make(dt_to_t=tutorial_dt_to_t), scale=2.0)


def test_a_hook_inside_the_impl_needs_no_change_of_the_rules():
    check_primitive(make(), X, W, scale=1.5, has_bias=False, weight_fn=jnp.tanh)


@pytest.mark.parametrize("rule", ["dt_to_t", "xy_to_dw", "init_drtrl", "init_pp"])
def test_a_required_rule_that_is_missing_is_named(rule):
    primitive = register_primitive(f"planted_{next(_counter)}", impl, batched=True, trainable_invars_fn=trainable)
    primitive.register_etp_rules(**{kind: function for kind, function in RIGHT.items() if kind != rule})
    with pytest.raises(MissingRuleError, match=f"check_primitive needs the {rule} rule of the primitive 'planted_"):
        check(primitive)


def scaled(rule, factor=2.0):
    @functools.wraps(rule)
    def wrong(*args, **static):
        return jax.tree.map(lambda leaf: factor * leaf, rule(*args, **static))

    return wrong


def without_bias(rule):
    return lambda *args, **static: {"weight": rule(*args, **static)["weight"]}


def on_the_input_axis(hidden_dim, trace, **_):
    factor = jnp.resize(hidden_dim, trace["weight"].shape[:-1])
    return {"weight": trace["weight"] * factor[..., None], "bias": trace["bias"] * hidden_dim}


def transposed(x, hidden_dim, weights, **static):
    right = xy_to_dw(x, hidden_dim, weights, **static)
    return {**right, "weight": right["weight"].T}


def without_batch(x_var, y_var, weight_vars, num_hidden_state):
    return {name: jnp.zeros((*var.aval.shape, num_hidden_state)) for name, var in weight_vars.items()}


def state_axis_first(x_var, y_var, weight_vars, num_hidden_state):
    return jnp.zeros((num_hidden_state, *y_var.aval.shape))


WRONG_RULES = {
    "dt_to_t": [
        (scaled(dt_to_t), "nothing but the factor"),
        (on_the_input_axis, "nothing but the factor"),
        (lambda g, trace, **_: trace, "nothing but the factor"),
        (lambda g, trace, **_: jax.tree.map(lambda t: t + 1, dt_to_t(g, trace)), "linearity in the trace"),
        (without_bias(dt_to_t), r"entries \['bias', 'weight'\], got \['weight'\]"),
        (lambda g, trace, **_: solve(g, trace, trace), "a trace like the one given"),
        (lambda *_, **__: 1 / 0, "raised ZeroDivisionError"),
    ],
    "xy_to_dw": [
        (scaled(xy_to_dw), "the pull-back"),
        (transposed, r"shape \(3, 5\), got shape \(5, 3\)"),
        (without_bias(xy_to_dw), r"got \['weight'\]"),
        (lambda *a, **s: jax.tree.map(lambda t: t.astype("float32"), xy_to_dw(*a, **s)), "float64, got float32"),
    ],
    "init_drtrl": [
        (without_batch, r"shape \(4, 3, 5, 1\), got \(3, 5, 1\)"),
        (lambda *a: jax.tree.map(lambda t: t + 1, init_drtrl(*a)), "to be zero"),
        (without_bias(init_drtrl), r"one trace for each of \['bias', 'weight'\], got \['weight'\]"),
        (lambda *a: jax.tree.map(lambda t: t.astype("bfloat16"), init_drtrl(*a)), "holds y's float64, got bfloat16"),
        (lambda *a: jnp.zeros(3), "got Array"),
    ],
    "init_pp": [
        (state_axis_first, r"shape \(4, 5, 1\), got \(1, 4, 5\)"),
        (lambda *a: init_pp(*a).astype("float32"), "holds y's float64, got float32"),
    ],
    "instant": [(scaled(instant), "xy_to_dw"), (lambda x, df, w, **s: instant(x, df**2, w, **s), "linearity in df")],
    "window": [(lambda x, df, w, **s: instant(x[0], df[0], w, **s), "the sum of instant over time")],
    "solve": [(scaled(solve), "xy_to_dw"), (lambda g, trace, w, **_: dt_to_t(g, trace), "of shape")],
}
CASES = [
    pytest.param(kind, rule, words, id=f"{kind}-{number}")
    for kind, rules in WRONG_RULES.items()
    for number, (rule, words) in enumerate(rules)
]


@pytest.mark.parametrize(("kind", "rule", "words"), CASES)
def test_a_planted_wrong_rule_is_named_with_what_was_expected(kind, rule, words):
    with pytest.raises(RuleCheckError, match=rf"planted_\d+: [a-z_ ]*{kind}.* expected (.|\n)*{words}"):
        check(make(**{kind: rule}))


def test_instant_and_solve_that_fit_each_other_but_not_the_impl_are_named_together():
    with pytest.raises(RuleCheckError, match="instant and solve: expected"):
        check(make(instant=instant, solve=scaled(solve)))


# wrong declarations and wrong JAX rules


def test_rows_that_interact_in_a_batched_primitive_are_found():
    def centred(x, w, b, **static):
        return impl(x - x.mean(0), w, b, **static)

    with pytest.raises(RuleCheckError, match=r"vmap: .*must not mix rows"):
        check(make(centred))


def test_a_primitive_declared_batched_without_a_batch_axis_is_found():
    with pytest.raises(RuleCheckError, match=r"batched: expected one leading batch axis"):
        check_primitive(make(), X[0], W)


def test_a_trainable_operand_out_of_range_is_found():
    with pytest.raises(RuleCheckError, match=r"trainable_invars_fn: .*got operand 7"):
        check(make(trainable_invars_fn=lambda static: {"weight": 7}))


def test_the_data_operand_cannot_be_trainable():
    with pytest.raises(RuleCheckError, match=r"trainable_invars_fn: .*got operand 0"):
        check(make(trainable_invars_fn=lambda static: {"weight": 0}))


def test_an_impl_with_two_outputs_is_found():
    with pytest.raises(RuleCheckError, match="impl_fn: expected one array, got tuple"):
        check(make(lambda x, w, b, **static: (x @ w, b)))


def test_an_impl_with_integer_output_is_found():
    with pytest.raises(RuleCheckError, match="impl_fn: expected a floating-point result, got int"):
        check(make(lambda x, w, b, **static: (x @ w).astype(int)))


def test_a_wrong_jvp_is_found(monkeypatch):
    primitive = make()
    right = ad.primitive_jvps[primitive]

    def wrong(primals, tangents, **static):
        y, tangent = right(primals, tangents, **static)
        return y, 2 * tangent

    monkeypatch.setitem(ad.primitive_jvps, primitive, wrong)
    with pytest.raises(RuleCheckError, match=r"jvp: expected jax\.jvp\(impl\)"):
        check(primitive)


@pytest.mark.parametrize("factor", [2.0, None])
def test_a_wrong_or_missing_transpose_is_found(monkeypatch, factor):
    primitive = make()
    right = ad.primitive_transposes[primitive]

    def wrong(cotangent, *operands, **static):
        if factor is None:
            raise NotImplementedError("no transpose")
        return [None if g is None else factor * g for g in right(cotangent, *operands, **static)]

    monkeypatch.setitem(ad.primitive_transposes, primitive, wrong)
    with pytest.raises(RuleCheckError, match="transpose: expected"):
        check_primitive(primitive, X, W)


def test_a_wrong_batching_rule_is_found():
    primitive = make()

    def wrong(args, axes, **static):
        return jax.vmap(functools.partial(impl, **static), in_axes=axes)(*args)[::-1], 0

    batching.primitive_batchers[primitive] = wrong
    with pytest.raises(RuleCheckError, match=r"vmap: expected jax\.vmap\(impl"):
        check(primitive)


def test_a_batching_rule_that_loses_the_operator_silently_is_found():
    primitive = make()

    def silent(args, axes, **static):
        return jax.vmap(functools.partial(impl, **static), in_axes=axes)(*args), 0

    batching.primitive_batchers[primitive] = silent
    with pytest.raises(RuleCheckError, match="vmap: expected a marked operator in the mapped program"):
        check(primitive)


def test_a_twin_that_computes_something_else_is_found():
    primitive = make(batched=False, init_drtrl=without_batch)
    primitive.register_batched_twin(make(lambda x, w, **static: 3 * impl(x, w, **static)))
    with pytest.raises(RuleCheckError, match=r"vmap: expected jax\.vmap\(impl"):
        check_primitive(primitive, X[0], W)


# closed-form kernels


def fast(**wrong):
    def recurrent(factors, traces):
        def row(factors):
            parts = [dt_to_t(d, t) for d, t in zip(factors, traces, strict=True) if d is not None]
            return jax.tree.map(lambda *leaves: sum(leaves), *parts)

        return tuple(map(row, factors))

    def fast_solve(signals, traces, *, fold_batch=False):
        parts = [solve(s, t, t) for s, t in zip(signals, traces, strict=True)]
        return jax.tree.map(jnp.add, *parts)

    kernels = {
        "instant": lambda x, df, has_bias: tuple(instant(x, f, ["weight", "bias"], scale=2.0) for f in df),
        "recurrent": recurrent,
        "solve": fast_solve,
        "applicable": lambda params: True,
    }
    return FastPathRules(**{**kernels, **wrong})


def test_right_closed_form_kernels_pass():
    check(make(fast_path=fast()))


@pytest.mark.parametrize("kernel", ["instant", "recurrent", "solve"])
def test_a_wrong_closed_form_kernel_is_named(kernel):
    with pytest.raises(RuleCheckError, match=rf"fast_path\.{kernel}: expected"):
        check(make(fast_path=fast(**{kernel: scaled(getattr(fast(), kernel))})))


def test_kernels_that_do_not_apply_are_not_held_against_the_rules():
    check(make(fast_path=fast(instant=None, applicable=lambda params: False)))


# which elements depend on which


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (np.ones((5, 3), bool), None),
        (np.zeros((5, 3), bool), r"adjacency.*True at \[0, 0\], where y depends on x \(15 entries differ\)"),
        (np.ones((3, 5), bool), r"adjacency.*shape \(5, 3\), got bool of shape \(3, 5\)"),
        (np.ones((5, 3)), r"adjacency.*booleans of shape \(5, 3\), got float64"),
    ],
)
def test_adjacency_must_cover_every_dependence_of_one_sample(pattern, message):
    primitive = make(adjacency=lambda x_shape, y_shape, **_: pattern)
    if message is None:
        check_primitive(primitive, X, W, B, scale=2.0, has_bias=True)
        return
    with pytest.raises(RuleCheckError, match=message):
        check_primitive(primitive, X, W, B, scale=2.0, has_bias=True)


# data of other kinds


def test_integer_data_has_float0_derivatives_and_the_pull_back_of_floats():
    check_primitive(make(), jnp.asarray(RNG.integers(0, 2, (4, 3))), W, B, scale=2.0, has_bias=True)


def test_pp_input_must_give_the_same_pull_back():
    def lookup(index, table, **_):
        return table[index]

    def pull(x, g, weights, **_):
        if jnp.issubdtype(x.dtype, jnp.integer):
            x = jax.nn.one_hot(x, weights["weight"].shape[0], dtype=g.dtype)
        return {"weight": x.T @ g}

    def view(x, weights, *, shift, **_):
        return jax.nn.one_hot(x + shift, weights["weight"].shape[0], dtype=weights["weight"].dtype)

    index = jnp.array([0, 2, 1, 2])
    for shift in (0, 1):
        primitive = make(
            lambda index, table, **_: table[index],
            trainable_invars_fn=lambda static: {"weight": 1},
            xy_to_dw=pull,
            pp_input=functools.partial(view, shift=shift),
        )
        if shift == 0:
            check_primitive(primitive, index, W)
        else:
            with pytest.raises(RuleCheckError, match=r"pp_input.*xy_to_dw\(pp_input\(x\), g\)"):
                check_primitive(primitive, index, W)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex128"])
def test_every_inexact_dtype_has_its_tolerance(dtype):
    def typed(x_var, y_var, weight_vars, num_hidden_state):
        traces = init_drtrl(x_var, y_var, weight_vars, num_hidden_state)
        return {name: trace.astype(y_var.aval.dtype) for name, trace in traces.items()}

    operands = [operand.astype(dtype) for operand in (X, W, B)]
    check_primitive(make(init_drtrl=typed), *operands, scale=2.0, has_bias=True)
