"""One write-once registry, read-only views, both spellings of the trace rule."""

import inspect
import itertools

import jax.numpy as jnp
import pytest

import etp_core
from etp_core import FastPathRules, MissingRuleError, RegistrationError, get_fast_path_rules, register_primitive

_counter = itertools.count()


def new(**declaration):
    return register_primitive(f"registry_{next(_counter)}", lambda x, w, **_: x @ w, **declaration)


def rule(*_, **__):
    return {}


def other(*_, **__):
    return {}


def untyped(function):
    """The function without the type checks of the test run."""
    return inspect.unwrap(function)


KINDS = ["dt_to_t", "xy_to_dw", "init_drtrl", "init_pp", "instant", "solve", "window", "pp_input", "adjacency"]
PUBLIC = {"dt_to_t": "DT_TO_T", "xy_to_dw": "XY_TO_DW", "init_drtrl": "INIT_DRTRL", "init_pp": "INIT_PP"}


def test_a_name_is_given_once_and_the_error_names_both_places():
    first = new()
    with pytest.raises(RegistrationError, match=r"is taken: first .*test_registry\.py:\d+, again at .*replace=True"):
        register_primitive(first.name, lambda x, w: x @ w)


def test_replace_takes_the_name_over_and_drops_the_old_rules():
    first = new()
    first.register_dt_to_t(rule)
    second = register_primitive(first.name, lambda x, w: x @ w, replace=True)
    assert second in etp_core.ETP_PRIMITIVES
    assert first not in etp_core.ETP_PRIMITIVES
    assert first not in etp_core.ETP_RULES_DT_TO_T
    assert second.rule("dt_to_t") is None


def test_a_replaced_primitive_takes_no_more_rules():
    first = new()
    register_primitive(first.name, lambda x, w: x @ w, replace=True)
    with pytest.raises(RegistrationError, match="is not registered"):
        first.register_dt_to_t(rule)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_given_once_and_the_error_names_both_functions(kind):
    primitive = new()
    register = getattr(primitive, f"register_{kind}")
    assert register(rule) is rule
    with pytest.raises(RegistrationError, match=rf"already has a {kind} rule: rule .*now other .*replace=True"):
        register(other)
    register(other, replace=True)
    assert primitive.rule(kind) is other


@pytest.mark.parametrize("kind", KINDS)
def test_all_rules_can_be_given_in_one_call(kind):
    primitive = new()
    primitive.register_etp_rules(**{kind: rule})
    assert primitive.rule(kind) is rule
    with pytest.raises(RegistrationError, match=kind):
        primitive.register_etp_rules(**{kind: other})
    primitive.register_etp_rules(**{kind: other}, replace=True)
    assert primitive.rule(kind) is other


@pytest.mark.parametrize("kind", PUBLIC)
def test_every_public_registry_shows_its_rules(kind):
    primitive = new()
    view = getattr(etp_core, f"ETP_RULES_{PUBLIC[kind]}")
    assert primitive not in view
    assert view.get(primitive) is None
    getattr(primitive, f"register_{kind}")(rule)
    assert view[primitive] is rule
    assert primitive in set(view)
    assert (primitive, rule) in view.items()


@pytest.mark.parametrize("spelling", ["dt_to_t", "yw_to_w"])
def test_the_trace_rule_has_two_spellings(spelling):
    by_keyword, by_method = new(), new()
    by_keyword.register_etp_rules(**{spelling: rule})
    getattr(by_method, f"register_{spelling}")(rule)
    for primitive in (by_keyword, by_method):
        assert etp_core.ETP_RULES_DT_TO_T[primitive] is etp_core.ETP_RULES_YW_TO_W[primitive] is rule


def test_both_spellings_at_once_are_refused():
    with pytest.raises(TypeError, match="dt_to_t and yw_to_w are two names of one rule"):
        new().register_etp_rules(dt_to_t=rule, yw_to_w=rule)


VIEWS = ["ETP_PRIMITIVES", "BATCHED_PRIMITIVES", *(f"ETP_RULES_{name}" for name in PUBLIC.values())]


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_only(name):
    view, primitive = getattr(etp_core, name), new()
    for change in ("add", "discard", "clear", "update", "pop", "setdefault", "__setitem__", "__delitem__"):
        assert not hasattr(view, change)
    with pytest.raises(TypeError):
        view[primitive] = rule


def test_the_sets_tell_batched_primitives_from_the_others():
    plain, batched = new(), new(batched=True)
    assert {plain, batched} <= set(etp_core.ETP_PRIMITIVES)
    assert batched in etp_core.BATCHED_PRIMITIVES
    assert plain not in etp_core.BATCHED_PRIMITIVES
    assert len(etp_core.ETP_PRIMITIVES) == len(list(etp_core.ETP_PRIMITIVES))
    assert plain in etp_core.ETP_PRIMITIVES - etp_core.BATCHED_PRIMITIVES
    assert "matmul" not in etp_core.ETP_PRIMITIVES


def test_defaults_are_one_weight_data_first_and_a_tail_boundary():
    primitive = new()
    assert primitive.trainable_invars({}) == {"weight": 1}
    assert (primitive.x_invar_index, primitive.y_outvar_index) == (0, 0)
    assert primitive.gradient_enabled is primitive.batched is False
    assert primitive.batched_twin is None


def test_the_layout_may_depend_on_static_parameters():
    primitive = new(trainable_invars_fn=lambda s: {"weight": 1, "bias": 2} if s["has_bias"] else {"weight": 1})
    assert primitive.trainable_invars({"has_bias": True}) == {"weight": 1, "bias": 2}
    assert primitive.trainable_invars({"has_bias": False}) == {"weight": 1}


def test_a_missing_rule_names_primitive_rule_algorithm_and_remedy():
    primitive = new()
    with pytest.raises(
        MissingRuleError, match=rf"D_RTRL needs the solve rule .*'{primitive.name}'.*register_solve\(fn\)"
    ):
        primitive.require_rule("solve", "D_RTRL")
    primitive.register_solve(rule)
    assert primitive.require_rule("solve", "D_RTRL") is rule


@pytest.mark.parametrize(("plain", "twin"), [(True, True), (False, False), (True, False)])
def test_a_twin_joins_an_unbatched_primitive_to_a_batched_one(plain, twin):
    with pytest.raises(RegistrationError, match="joins an unbatched primitive to a batched one"):
        new(batched=plain).register_batched_twin(new(batched=twin))


def test_a_twin_is_given_once():
    primitive, twin = new(), new(batched=True)
    assert primitive.register_batched_twin(twin) is twin
    assert primitive.batched_twin is twin
    with pytest.raises(RegistrationError, match="already has a batched_twin"):
        primitive.register_batched_twin(new(batched=True))


def test_closed_form_kernels_are_found_by_primitive():
    primitive = new()
    kernels = FastPathRules(rule, rule, rule, lambda params: True)
    assert get_fast_path_rules(primitive) is None
    primitive.register_etp_rules(fast_path=kernels)
    assert get_fast_path_rules(primitive) is kernels
    with pytest.raises(RegistrationError, match="fast_path"):
        primitive.register_fast_path(kernels)


def test_closed_form_kernels_must_be_fast_path_rules():
    with pytest.raises(TypeError, match="must be a FastPathRules, got tuple"):
        untyped(etp_core.ETPPrimitive.register_fast_path)(new(), ())


@pytest.mark.parametrize(
    ("declaration", "error", "words"),
    [
        ({"impl_fn": 3}, TypeError, "impl_fn must be a function"),
        ({"y_outvar_index": 1}, RegistrationError, "y_outvar_index must be 0, got 1"),
        ({"x_invar_index": -1}, RegistrationError, "x_invar_index must be None or not negative, got -1"),
    ],
)
def test_an_impossible_declaration_is_refused(declaration, error, words):
    given = {"impl_fn": lambda x, w: x @ w, **declaration}
    with pytest.raises(Exception, match=words) as caught:
        untyped(register_primitive)(f"registry_{next(_counter)}", **given)
    assert caught.type is error


def test_a_primitive_without_rules_still_computes():
    assert new().bind(jnp.ones(3), jnp.ones((3, 2))).tolist() == [3.0, 3.0]
