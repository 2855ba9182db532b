"""How an algorithm calls the rules of a relation's primitive: defaults, lanes and batches in one place."""

from collections.abc import Mapping
from typing import Any

import jax

from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation

__all__ = ["contract", "instant", "propagate", "trace_shapes"]

Arrays = dict[str, jax.Array]


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
        pull = primitive.require_rule("xy_to_dw", "the trace")
        if not primitive.batched:
            return pull(x, df, weights, **static)
        # one sample at a time, each as a batch of one, so that the rule's sum over the batch is harmless
        return jax.vmap(lambda x, df: pull(x[None], df[None], weights, **static))(x, df)

    return jax.vmap(term)(df) if link.layout.lanes > 1 else term(df)


def propagate(relation: HiddenParamOpRelation, link: GroupLink, factor: jax.Array, trace: Arrays) -> Arrays:
    """The trace multiplied by ``factor``, which is laid out like ``y``."""
    rule = relation.primitive.require_rule("dt_to_t", "the trace")

    def product(factor: jax.Array, trace: Arrays) -> Arrays:
        return rule(factor, trace, **relation.static)

    return jax.vmap(product)(factor, trace) if link.layout.lanes > 1 else product(factor, trace)


def contract(
    relation: HiddenParamOpRelation, link: GroupLink, signal: jax.Array, trace: Arrays, weights: Arrays
) -> Arrays:
    """The gradient of the operands: ``signal``, laid out like ``y``, contracted with the trace."""
    solve = relation.primitive.rule("solve")

    def gradient(signal: jax.Array, trace: Arrays) -> Arrays:
        if solve is not None:
            return solve(signal, trace, weights, **relation.static)
        return propagate_and_sum(signal, trace)

    def propagate_and_sum(signal: jax.Array, trace: Arrays) -> Arrays:
        rule = relation.primitive.require_rule("dt_to_t", "the trace")
        return _sum_to(weights, rule(signal, trace, **relation.static), relation)

    if link.layout.lanes == 1:
        return gradient(signal, trace)
    return jax.tree.map(lambda g: g.sum(0), jax.vmap(gradient)(signal, trace))


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
