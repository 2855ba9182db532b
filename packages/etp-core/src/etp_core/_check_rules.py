"""Checks of the rules that learning needs: pull-back, trace algebra, initialisers, closed-form kernels.

With ``g, f`` shaped like ``y`` and ``w`` the raw weights, the rules of a primitive hold together by

    xy_to_dw(x, g)           = (∂y/∂w)ᵀ g
    dt_to_t(g, instant(x, f)) = instant(x, g·f)
    solve(g, instant(x, f))   = xy_to_dw(x, g·f)

and every rule is linear in the trace and in ``f``.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_core._check_subject import Subject
from etp_core._primitive import get_fast_path_rules
from etp_core._rules import RULES

__all__ = ["check_etp_rules"]

Arrays = dict[str, Any]


def check_etp_rules(subject: Subject) -> None:
    """Hold every registered rule against the implementation and against the other rules."""
    for kind in RULES.values():
        if kind.required:
            subject.primitive.require_rule(kind.name, "check_primitive")
    checks = (_check_xy_to_dw, _check_pp_input, _check_init_pp, _check_init_drtrl, _check_instant, _check_dt_to_t)
    for check in (*checks, _check_window, _check_solve, _check_adjacency, _check_fast_path):
        check(subject)


# the pull-back


def _check_xy_to_dw(subject: Subject) -> None:
    g = subject.draw(subject.y)
    got = subject.call("xy_to_dw", subject.x, g, subject.weights)
    subject.same("xy_to_dw", "the pull-back jax.vjp(impl)(g)", got, _pulled(subject, subject.x, g))
    claim = "per sample, the pull-back jax.vjp(impl)(g)"
    subject.same("xy_to_dw", claim, _per_sample(subject, g), _per_sample_pulled(subject, g))


def _pulled(subject: Subject, x: Any, g: jax.Array) -> Arrays:
    return jax.vjp(lambda weights: subject.of_weights(weights, x), subject.weights)[1](g)[0]


def _per_sample_pulled(subject: Subject, g: jax.Array) -> Arrays:
    if not subject.primitive.batched:
        return _pulled(subject, subject.x, g)
    return jax.vmap(lambda x, g: _pulled(subject, x[None], g[None]))(subject.x, g)


def _per_sample(subject: Subject, g: jax.Array) -> Arrays:
    """``xy_to_dw`` without its sum over the batch: what ``instant`` is by default."""
    if not subject.primitive.batched:
        return subject.call("xy_to_dw", subject.x, g, subject.weights)
    return jax.vmap(lambda x, g: subject.call("xy_to_dw", x[None], g[None], subject.weights))(subject.x, g)


def _check_pp_input(subject: Subject) -> None:
    if subject.primitive.rule("pp_input") is None:
        return
    view = subject.call("pp_input", subject.x, subject.weights)
    if not jnp.issubdtype(view.dtype, jnp.inexact):
        subject.fail("pp_input", f"a floating-point view of x, got {view.dtype}")
    g = subject.draw(subject.y)
    got = subject.call("xy_to_dw", view, g, subject.weights)
    subject.same("pp_input", "xy_to_dw(pp_input(x), g) = xy_to_dw(x, g)", got, _pulled(subject, subject.x, g))


def _check_adjacency(subject: Subject) -> None:
    data, batched = subject.x, subject.primitive.batched
    if subject.primitive.rule("adjacency") is None or data is None or not jnp.issubdtype(data.dtype, jnp.inexact):
        return
    x, y = (data[:1], subject.y[:1]) if batched else (data, subject.y)
    shapes = [a.shape[1:] if batched else a.shape for a in (x, y)]
    got = np.asarray(subject.call("adjacency", *shapes))
    if got.shape != (y.size, x.size) or got.dtype != bool:
        subject.fail("adjacency", f"booleans of shape {(y.size, x.size)}, got {got.dtype} of shape {got.shape}")
    jacobian = jax.jacobian(lambda x: subject.of_weights(subject.weights, x))(x).reshape(y.size, x.size)
    missed = np.argwhere((np.asarray(jacobian) != 0) & ~got)
    if missed.size:
        subject.fail("adjacency", f"True at {missed[0].tolist()}, where y depends on x ({len(missed)} entries differ)")


# the initialisers


def _variable(value: Any) -> Any:
    return None if value is None else SimpleNamespace(aval=jax.typeof(value))


def _initial(subject: Subject, rule: str, states: int) -> Any:
    weights = {name: _variable(value) for name, value in subject.weights.items()}
    return subject.call(rule, _variable(subject.x), _variable(subject.y), weights, states)


def _check_init_pp(subject: Subject) -> None:
    for states in (1, 2):
        trace = _initial(subject, "init_pp", states)
        _check_zeros(subject, "init_pp", "the trace", trace, (*subject.y.shape, states))


def _check_init_drtrl(subject: Subject) -> None:
    terms = jax.eval_shape(lambda f: _instant(subject, f), subject.y)
    by = "instant" if subject.primitive.rule("instant") is not None else "xy_to_dw per sample"
    for states in (1, 2):
        traces = _initial(subject, "init_drtrl", states)
        if not isinstance(traces, dict) or set(traces) != set(subject.trainable):
            got = sorted(traces) if isinstance(traces, dict) else type(traces).__name__
            subject.fail("init_drtrl", f"one trace for each of {sorted(subject.trainable)}, got {got}")
        if set(terms) != set(traces):
            subject.fail("instant", f"one term for each of {sorted(traces)}, got {sorted(terms)}")
        for name, trace in traces.items():
            what = f"{name!r}, shaped like {by} with the {states} hidden states last,"
            _check_zeros(subject, "init_drtrl", what, trace, (*terms[name].shape, states))


def _check_zeros(subject: Subject, rule: str, what: str, trace: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(trace, "shape") or trace.shape != shape:
        subject.fail(rule, f"{what} of shape {shape}, got {getattr(trace, 'shape', type(trace).__name__)}")
    if jnp.promote_types(trace.dtype, subject.y.dtype) != trace.dtype:
        subject.fail(rule, f"{what} of a dtype that holds y's {subject.y.dtype}, got {trace.dtype}")
    if bool((trace != 0).any()):
        subject.fail(rule, f"{what} to be zero, got {float(jnp.abs(trace).max())} in it")


# the trace algebra


def _instant(subject: Subject, f: jax.Array) -> Arrays:
    if subject.primitive.rule("instant") is None:
        return _per_sample(subject, f)
    return subject.call("instant", subject.x, f, subject.weights)


def _solve(subject: Subject, g: jax.Array, trace: Arrays) -> Arrays:
    if subject.primitive.rule("solve") is not None:
        return subject.call("solve", g, trace, subject.weights)
    scaled = subject.call("dt_to_t", g, trace)
    return {
        name: scaled[name].sum(tuple(range(scaled[name].ndim - weight.ndim)))
        for name, weight in subject.weights.items()
    }


def _check_instant(subject: Subject) -> None:
    if subject.primitive.rule("instant") is None:
        return
    a, b = subject.draw(subject.y), subject.draw(subject.y)
    expected = jax.tree.map(lambda p, q: 2 * p + q, _instant(subject, a), _instant(subject, b))
    subject.same("instant", "linearity in df", _instant(subject, 2 * a + b), expected)


def _check_dt_to_t(subject: Subject) -> None:
    g, f = subject.draw(subject.y), subject.draw(subject.y)
    first, second = (jax.tree.map(subject.draw, _instant(subject, f)) for _ in range(2))
    mixed = subject.call("dt_to_t", g, jax.tree.map(lambda p, q: 2 * p + q, first, second))
    parts = [subject.call("dt_to_t", g, trace) for trace in (first, second)]
    subject.same_form("dt_to_t", "a trace like the one given", parts[0], first)
    subject.same("dt_to_t", "linearity in the trace", mixed, jax.tree.map(lambda p, q: 2 * p + q, *parts))
    name = "instant" if subject.primitive.rule("instant") is not None else "xy_to_dw"
    claim = f"dt_to_t(g, {name}(x, f)) = {name}(x, g·f), nothing but the factor,"
    got = subject.call("dt_to_t", g, _instant(subject, f))
    subject.same("dt_to_t", claim, got, _instant(subject, g * f))


def _check_window(subject: Subject) -> None:
    if subject.primitive.rule("window") is None:
        return
    steps = jnp.stack([subject.draw(subject.y) for _ in range(3)])
    xs = None if subject.x is None else jnp.stack([subject.x] * 3)
    terms = [_instant(subject, f) for f in steps]
    expected = jax.tree.map(lambda *parts: jnp.stack(parts).sum(0), *terms)
    subject.same("window", "the sum of instant over time", subject.call("window", xs, steps, subject.weights), expected)


def _check_solve(subject: Subject) -> None:
    g, f = subject.draw(subject.y), subject.draw(subject.y)
    given = [rule for rule in ("instant", "solve") if subject.primitive.rule(rule) is not None]
    rule = " and ".join(given) or "dt_to_t"
    solved = _solve(subject, g, _instant(subject, f))
    subject.same(rule, "solve(g, instant(x, f)) = xy_to_dw(x, g·f)", solved, _pulled(subject, subject.x, g * f))


# the closed-form kernels, on two states of which one factor is structurally zero


def _check_fast_path(subject: Subject) -> None:
    fast = get_fast_path_rules(subject.primitive)
    if fast is None:
        return
    if fast.applicable(dict(subject.static)) is not True:
        return
    f, signals = ([subject.draw(subject.y) for _ in range(2)] for _ in range(2))
    terms = tuple(_instant(subject, part) for part in f)
    got = fast.instant(subject.x, tuple(f), "bias" in subject.trainable)
    subject.same("fast_path.instant", "instant(x, f) per state", got, terms)
    a, b, c = (subject.draw(subject.y) for _ in range(3))
    factors = ((a, None), (b, c))
    rolled = fast.recurrent(factors, terms)
    second = jax.tree.map(jnp.add, subject.call("dt_to_t", b, terms[0]), subject.call("dt_to_t", c, terms[1]))
    expected = (subject.call("dt_to_t", a, terms[0]), second)
    subject.same("fast_path.recurrent", "the sum of dt_to_t over states", rolled, expected)
    solved = fast.solve(tuple(signals), terms, fold_batch=subject.primitive.batched)
    parts = [_solve(subject, s, term) for s, term in zip(signals, terms, strict=True)]
    subject.same("fast_path.solve", "the sum of solve over states", solved, jax.tree.map(jnp.add, *parts))
