"""How an algorithm calls the rules of an operator's primitive: defaults, lanes and batches in one place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._guarded import zero_from_zero
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation
from etp_core import FastPathRules, get_fast_path_rules

__all__ = [
    "closed_form",
    "contract",
    "input_key",
    "instant",
    "propagate",
    "pull_pairs",
    "pull_sequence",
    "pull_step",
    "trace_shapes",
    "window",
]

Arrays = dict[str, jax.Array]
_USER = "an online learner"


def closed_form(relation: HiddenParamOpRelation) -> FastPathRules | None:
    """The registered closed form of an operator, if it is right for it: a sum over weights times data, plus a bias."""
    kernel = get_fast_path_rules(relation.primitive)
    return kernel if kernel is not None and kernel.applicable(relation.static) else None


def input_key(graph: TraceGraph, relation: HiddenParamOpRelation) -> str:
    """The name of an input filter; relations that read one value in one way share it."""
    for other in graph.hidden_param_op_relations:
        if other.x is relation.x and other.primitive.rule("pp_input") is relation.primitive.rule("pp_input"):
            return f"{other.index}:{other.primitive.name}"
    raise AssertionError("a relation is always among its graph's relations")


def trace_shapes(relation: HiddenParamOpRelation, link: GroupLink, algorithm: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The trace of one state of one relation, as ``init_drtrl`` says, without the state axis; lanes first."""
    init = relation.primitive.require_rule("init_drtrl", algorithm)
    operands = relation.trainable_vars
    made = jax.eval_shape(lambda: init(relation.x, relation.y, operands, len(link.fed)))
    if not isinstance(made, dict) or made.keys() != operands.keys():
        raise TypeError(
            f"{relation.primitive.name}: init_drtrl must return a dict with the keys {sorted(operands)}, got "
            f"{sorted(made) if isinstance(made, dict) else type(made).__name__}."
        )
    lanes = (link.layout.lanes,) if link.layout.lanes > 1 else ()
    return {key: jax.ShapeDtypeStruct((*lanes, *leaf.shape[:-1]), leaf.dtype) for key, leaf in made.items()}


def instant(relation: HiddenParamOpRelation, link: GroupLink, x: Any, df: jax.Array, weights: Arrays) -> Arrays:
    """The newest term of the trace, ``Df ⊗ ∂y/∂w``."""
    primitive, static = relation.primitive, relation.static
    rule = primitive.rule("instant")

    def term(df: jax.Array) -> Arrays:
        if rule is not None:
            return rule(x, df, weights, **static)
        pull = primitive.require_rule("xy_to_dw", _USER)
        if not primitive.batched:
            return pull(x, df, weights, **static)
        # one sample at a time, each as a batch of one, so that the rule's sum over the batch is harmless
        return jax.vmap(lambda x, df: pull(x[None], df[None], weights, **static))(x, df)

    return _null_safe(relation, df, _over_lanes(term, link)(df))


def window(relation: HiddenParamOpRelation, link: GroupLink, xs: Any, dfs: jax.Array, weights: Arrays) -> Arrays:
    """The sum of the newest terms of several steps, time leading."""
    primitive, static = relation.primitive, relation.static
    rule = primitive.rule("window")
    if rule is not None:
        if link.layout.lanes == 1:
            return _null_safe(relation, dfs, rule(xs, dfs, weights, **static))
        return _null_safe(relation, dfs, jax.vmap(lambda df: rule(xs, df, weights, **static), in_axes=1)(dfs))
    zero = jax.eval_shape(lambda: instant(relation, link, None if xs is None else xs[0], dfs[0], weights))

    def add(total: Arrays, now: tuple[Any, jax.Array]) -> tuple[Arrays, None]:
        return jax.tree.map(jnp.add, total, instant(relation, link, *now, weights)), None

    start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), zero)
    return jax.lax.scan(add, start, (xs, dfs))[0]


def propagate(relation: HiddenParamOpRelation, link: GroupLink, factor: jax.Array, trace: Arrays) -> Arrays:
    """The trace multiplied by ``factor``, which is laid out like ``y``."""
    rule = relation.primitive.require_rule("dt_to_t", _USER)
    return _over_lanes(lambda factor, trace: rule(factor, trace, **relation.static), link)(factor, trace)


def contract(
    relation: HiddenParamOpRelation, link: GroupLink, signal: jax.Array, trace: Arrays, weights: Arrays
) -> Arrays:
    """The gradient of the operands: ``signal``, laid out like ``y``, contracted with the trace."""
    solve = relation.primitive.rule("solve")

    def gradient(signal: jax.Array, trace: Arrays) -> Arrays:
        if solve is not None:
            return solve(signal, trace, weights, **relation.static)
        rule = relation.primitive.require_rule("dt_to_t", _USER)
        return _sum_to(weights, rule(signal, trace, **relation.static), relation)

    solved = _null_safe(relation, trace, _over_lanes(gradient, link)(signal, trace))
    return jax.tree.map(lambda g: g.sum(0), solved) if link.layout.lanes > 1 else solved


def pull_step(operator: HiddenParamOpRelation, x: Any, cotangent: jax.Array, weights: Arrays) -> Arrays:
    """The gradient of the operands for one cotangent of ``y``."""
    rule = operator.primitive.require_rule("xy_to_dw", _USER)
    return _null_safe(operator, cotangent, rule(x, cotangent, weights, **operator.static))


def pull_pairs(operator: HiddenParamOpRelation, pairs: Sequence[tuple[Any, jax.Array]], weights: Arrays) -> Arrays:
    """The gradient of the operands for pairs of data and a cotangent of ``y``, summed over them; zero for none."""
    if not pairs:
        return jax.tree.map(jnp.zeros_like, weights)
    if len(pairs) == 1:
        return pull_step(operator, *pairs[0], weights)
    xs = None if operator.x is None else jnp.stack([x.astype(pairs[-1][0].dtype) for x, _ in pairs])
    return pull_sequence(operator, xs, jnp.stack([g for _, g in pairs]), weights)


def pull_sequence(operator: HiddenParamOpRelation, xs: Any, cotangents: jax.Array, weights: Arrays) -> Arrays:
    """The gradient of the operands for cotangents of ``y`` at several steps, time leading, summed over them."""
    return _null_safe(operator, cotangents, _pull_sequence(operator, xs, cotangents, weights))


def _pull_sequence(operator: HiddenParamOpRelation, xs: Any, cotangents: jax.Array, weights: Arrays) -> Arrays:
    primitive, static = operator.primitive, operator.static
    if primitive.x_invar_index is None:
        return primitive.require_rule("xy_to_dw", _USER)(None, cotangents.sum(0), weights, **static)
    batched = primitive if primitive.batched else primitive.batched_twin
    if batched is not None:  # time and batch are one batch
        if primitive.batched:
            xs, cotangents = _fold_time(xs), _fold_time(cotangents)
        return batched.require_rule("xy_to_dw", _USER)(xs, cotangents, weights, **static)
    pull = primitive.require_rule("xy_to_dw", _USER)
    return jax.tree.map(lambda g: g.sum(0), jax.vmap(lambda x, g: pull(x, g, weights, **static))(xs, cotangents))


def _null_safe(relation: HiddenParamOpRelation, given: Any, made: Arrays) -> Arrays:
    """``made``, linear in ``given``; in a branch that is dead a weight at a bad point must not make NaN of zero."""
    return zero_from_zero(given, made) if relation.guarded else made


def _fold_time(array: jax.Array) -> jax.Array:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _over_lanes(fn: Callable[..., Arrays], link: GroupLink) -> Callable[..., Arrays]:
    return jax.vmap(fn) if link.layout.lanes > 1 else fn


def _sum_to(weights: Mapping[str, jax.Array], gradient: Arrays, relation: HiddenParamOpRelation) -> Arrays:
    """Sum the leading (batch) axes that the weights do not have."""
    summed = {}
    for key, weight in weights.items():
        extra = gradient[key].ndim - weight.ndim
        summed[key] = gradient[key].sum(tuple(range(extra))) if extra > 0 else gradient[key]
        if summed[key].shape != weight.shape:
            raise ValueError(
                f"{relation.primitive.name}: dt_to_t leaves a gradient of shape {gradient[key].shape} for {key!r} of "
                f"shape {weight.shape}; a trace that is not parameter-shaped needs a solve rule (register_solve)."
            )
    return summed
