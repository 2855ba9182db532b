"""Checks of the JAX rules of a primitive: what ``register_primitive`` derives, or an author overrides."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_core._check_subject import Subject
from etp_core._errors import RelationLostWarning
from etp_core._primitive import ETPPrimitive

__all__ = ["check_jax_rules"]


def check_jax_rules(subject: Subject) -> None:
    """Hold evaluation, differentiation, transposition and batching against the implementation."""
    for check in (_check_evaluation, _check_derivatives, _check_transpose, _check_vmap, _check_relation_under_vmap):
        check(subject)


def _check_evaluation(subject: Subject) -> None:
    operands = subject.operands
    subject.same("eval", "impl(*operands)", subject.bind(*operands), subject.y)
    shape = jax.eval_shape(subject.bind, *operands)
    if (shape.shape, shape.dtype) != (subject.y.shape, subject.y.dtype):
        subject.fail("abstract_eval", f"{subject.y.dtype}{subject.y.shape}, got {shape.dtype}{shape.shape}")
    subject.same("jit", "impl(*operands)", jax.jit(subject.bind)(*operands), subject.y)


def _check_derivatives(subject: Subject) -> None:
    operands, cotangent = subject.operands, subject.draw(subject.y)
    tangents = tuple(_tangent(subject, operand) for operand in operands)
    expected = jax.jvp(subject.impl, operands, tangents)
    subject.same("jvp", "jax.jvp(impl)", jax.jvp(subject.bind, operands, tangents), expected)
    pulled = jax.vjp(subject.impl, *operands)[1](cotangent)
    subject.same("vjp", "jax.vjp(impl)", jax.vjp(subject.bind, *operands)[1](cotangent), pulled)
    under_jit = jax.vjp(jax.jit(subject.bind), *operands)[1](cotangent)
    subject.same("vjp", "jax.vjp(impl) under jit", under_jit, pulled)


def _tangent(subject: Subject, operand: jax.Array) -> Any:
    if jnp.issubdtype(operand.dtype, jnp.inexact):
        return subject.draw(operand)
    return np.zeros(operand.shape, jax.dtypes.float0)


def _check_transpose(subject: Subject) -> None:
    for index, operand in enumerate(subject.operands):
        if jnp.issubdtype(operand.dtype, jnp.inexact) and _is_linear(subject, index):
            cotangent = subject.draw(subject.y)
            transpose = _transpose(_of_operand(subject.impl, subject.operands, index), operand)
            try:
                expected = transpose(cotangent)
            except Exception:  # impl uses an operation that JAX cannot transpose: nothing to derive from
                continue
            try:
                got = _transpose(_of_operand(subject.bind, subject.operands, index), operand)(cotangent)
            except Exception as error:
                subject.fail("transpose", f"a rule for operand {index}; {type(error).__name__}: {error}", cause=error)
            subject.same("transpose", f"jax.linear_transpose(impl) in operand {index}", got, expected)


def _of_operand(fn: Callable[..., Any], operands: Sequence[Any], index: int) -> Callable[[Any], Any]:
    return lambda value: fn(*operands[:index], value, *operands[index + 1 :])


def _transpose(fn: Callable[[Any], Any], operand: jax.Array) -> Callable[[Any], Any]:
    return lambda cotangent: jax.linear_transpose(fn, operand)(cotangent)


def _is_linear(subject: Subject, index: int) -> bool:
    fn, operand = _of_operand(subject.impl, subject.operands, index), subject.operands[index]
    a, b = subject.draw(operand), subject.draw(operand)
    gap = np.abs(np.asarray(fn(2 * a + b) - (2 * fn(a) + fn(b)), np.complex128))
    return bool(gap.max(initial=0.0) <= 1e-3 * max(1.0, float(jnp.abs(subject.y).max(initial=0.0))))


def _check_vmap(subject: Subject) -> None:
    for pattern in itertools.product((None, 0), repeat=len(subject.operands)):
        if any(axis is not None for axis in pattern):
            _check_pattern(subject, pattern)
    _check_pattern(subject, tuple(operand.ndim for operand in subject.operands))


def _check_pattern(subject: Subject, axes: tuple[int | None, ...]) -> None:
    mapped = [_stacked(subject, operand, axis) for operand, axis in zip(subject.operands, axes, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelationLostWarning)
        got = jax.vmap(subject.bind, in_axes=axes)(*mapped)
    expected = jax.vmap(subject.impl, in_axes=axes)(*mapped)
    hint = " (a batched primitive must not mix rows)" if subject.primitive.batched else ""
    subject.same("vmap", f"jax.vmap(impl, in_axes={axes}){hint}", got, expected)


def _stacked(subject: Subject, operand: jax.Array, axis: int | None) -> jax.Array:
    """Three different versions of ``operand`` along a new axis."""
    if axis is None:
        return operand
    versions = [operand, operand[::-1] if operand.ndim else operand, operand]
    if jnp.issubdtype(operand.dtype, jnp.inexact):
        versions[2] = subject.draw(operand)
    return jnp.stack(versions, axis)


def _check_relation_under_vmap(subject: Subject) -> None:
    """A map over the data alone keeps a marked operator where it can, and otherwise says that it is lost."""
    primitive, index = subject.primitive, subject.primitive.x_invar_index
    if index is None:
        return
    axes = tuple(0 if i == index else None for i in range(len(subject.operands)))
    mapped = [_stacked(subject, operand, axis) for operand, axis in zip(subject.operands, axes, strict=True)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eqns = jax.make_jaxpr(jax.vmap(subject.bind, in_axes=axes))(*mapped).eqns
    said = any(issubclass(w.category, RelationLostWarning) for w in caught)
    if not said and not any(isinstance(eqn.primitive, ETPPrimitive) for eqn in eqns):
        subject.fail("vmap", "a marked operator in the mapped program, or a RelationLostWarning; got neither")
    if said and (primitive.batched or primitive.batched_twin is not None):
        subject.fail("vmap", "the batched operator in the program of a map over data alone, got plain JAX operations")
