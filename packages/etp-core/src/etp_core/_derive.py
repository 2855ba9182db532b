"""The JAX rules of a primitive, derived from its implementation."""

import functools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from etp_core._errors import RelationLostWarning

if TYPE_CHECKING:
    from etp_core._primitive import ETPPrimitive

__all__ = ["install"]


def install(primitive: "ETPPrimitive") -> None:
    """Give ``primitive`` evaluation, abstract evaluation, lowering, JVP, transpose and batching."""
    impl = primitive.impl_fn
    primitive.def_impl(impl)
    primitive.def_abstract_eval(functools.partial(_abstract_eval, impl))
    mlir.register_lowering(primitive, mlir.lower_fun(impl, multiple_results=False))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, impl)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, impl)
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)


def _abstract_eval(impl: Any, *avals: Any, **static: Any) -> jax.core.ShapedArray:
    operands = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    out = jax.eval_shape(functools.partial(impl, **static), *operands)
    return jax.core.ShapedArray(out.shape, out.dtype)


def _jvp(impl: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...], **static: Any) -> tuple[Any, Any]:
    # the operator dissolves into ordinary ones here: only the undifferentiated step is compiled for traces
    return jax.jvp(functools.partial(impl, **static), primals, tuple(map(ad.instantiate_zeros, tangents)))


def _transpose(impl: Any, cotangent: Any, *operands: Any, **static: Any) -> list[Any]:
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    avals = [
        jax.ShapeDtypeStruct(o.aval.shape, o.aval.dtype)
        for o, is_linear in zip(operands, linear, strict=True)
        if is_linear
    ]

    def of_linear(*values: Any) -> Any:
        rest = iter(values)
        return impl(*(next(rest) if is_linear else o for o, is_linear in zip(operands, linear, strict=True)), **static)

    if type(cotangent) is ad.Zero:
        return [ad.Zero(o.aval) if is_linear else None for o, is_linear in zip(operands, linear, strict=True)]
    pulled = iter(jax.linear_transpose(of_linear, *avals)(cotangent))
    return [next(pulled) if is_linear else None for is_linear in linear]


def _batch(primitive: "ETPPrimitive", args: tuple[Any, ...], axes: tuple[Any, ...], **static: Any) -> tuple[Any, int]:
    """Keep the operator visible where only its data is mapped; dissolve it, with a warning, elsewhere."""
    x_index = primitive.x_invar_index
    mapped = [i for i, axis in enumerate(axes) if axis is not None]
    if x_index is not None and mapped == [x_index]:
        x = jnp.moveaxis(args[x_index], axes[x_index], 0)
        before, after = args[:x_index], args[x_index + 1 :]
        if primitive.batched_twin is not None:
            return primitive.batched_twin.bind(*before, x, *after, **static), 0
        if primitive.batched and x.ndim > 1:
            folded = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            y = primitive.bind(*before, folded, *after, **static)
            return y.reshape(*x.shape[:2], *y.shape[1:]), 0
    warnings.warn(
        f"vmap maps a weight of {primitive.name}, or data it cannot take batched: the operator dissolves into "
        f"plain JAX and the weight is invisible to the trace compiler. Map over the data only (in_axes=None for "
        f"weights), or batch the operand yourself.",
        RelationLostWarning,
        stacklevel=2,
    )
    return jax.vmap(functools.partial(primitive.impl_fn, **static), in_axes=axes)(*args), 0
