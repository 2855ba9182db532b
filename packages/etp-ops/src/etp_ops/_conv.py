"""Convolutions: ``y = conv(x, kernel_fn(K)) (+ bias_fn(b))``, all of ``lax.conv_general_dilated``.

The primitive ``etp_conv`` takes data and gives results as batch, channel, space; :func:`conv` brings other
layouts to that form and back, and turns batch groups into feature groups. The kernel keeps its layout.

A kernel entry acts at every position ``s``, and hidden states move on per position, so the trace keeps
the positions: each output channel ``o`` at each position has one number for each of the taps ``u`` (input
channel and kernel offset) that feed it. With ``P[b, u, s]`` the patches of ``x`` and ``V = kernel_fn(K)``,

    ε_V[b, o, s, u] ← D[b, o, s] ε_V[b, o, s, u] + P[b, u, s] Df[b, o, s],    ∂L/∂V[o, u] = Σ_{b,s} signal ε_V
    ε_b[b, o, s]    ← D[b, o, s] ε_b[b, o, s] + Df[b, o, s],                  ∂L/∂b[o] = Σ_{b,s} signal ε_b

Memory: ``B · size(K) · positions`` numbers per hidden state.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import join_unit, unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import bias_operands, split_data, split_weight
from etp_ops._rules import Arrays, init_pp, pull_back, trainable

__all__ = ["conv", "etp_conv_p"]


def conv(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    lhs_dilation: int | Sequence[int] | None = None,
    rhs_dilation: int | Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    dimension_numbers: Any = None,
    kernel_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """``lax.conv_general_dilated(x, kernel_fn(kernel)) (+ bias_fn(bias))``, with kernel and bias marked.

    Args:
        x: data in the layout of ``dimension_numbers``, with or without its batch axis; further leading axes are
            folded into the batch axis where that comes first. Integers and booleans (spikes) are fine.
        kernel: in the layout of ``dimension_numbers``; one to three spatial axes.
        bias: one number per output channel, as a vector or as an array that broadcasts along the channel axis of
            the result, or None; any scale of the unit of the product.
        strides: one number, or one per spatial axis; so are both dilations.
        padding: ``"SAME"``, ``"VALID"``, ``"SAME_LOWER"``, or a pair (before, after) per spatial axis.
        lhs_dilation: dilation of the data (transposed convolution), None for none.
        rhs_dilation: dilation of the kernel, None for none.
        feature_group_count: groups of channels, as in ``lax.conv_general_dilated``.
        batch_group_count: groups of samples, as in ``lax.conv_general_dilated``.
        dimension_numbers: None (batch, channel, space; kernel out, in, space), three strings such as
            ``("NHWC", "HWIO", "NHWC")``, or a ``lax.ConvDimensionNumbers``.
        kernel_fn: shape-preserving function of the kernel's mantissa.
        bias_fn: shape-preserving function of the bias's mantissa, as a vector.

    Returns:
        The layout of ``dimension_numbers``; the unit is the product of the units of ``x`` and ``kernel``.

    Raises:
        ValueError: a rank, a shape or a setting does not fit, or a hook changes a shape.
        TypeError: a weight is not real and floating point, the bias has another dimension, or a hook is not a
            hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import conv
        >>> conv(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 3)), padding="VALID").tolist()
        [[[3.0, 3.0]]]
    """
    x, x_unit = split_data(x, operator="conv")
    kernel, kernel_unit = split_weight(kernel, kernel_fn, operator="conv", name="kernel")
    unit = unit_product(x_unit, kernel_unit)
    layout = _layout(x, kernel, dimension_numbers)
    data, lead = _canonical(x, kernel.ndim, layout)
    data, groups = _without_batch_groups(data, kernel, layout, feature_group_count, batch_group_count, lead=len(lead))
    _check_channels(data, kernel, layout, groups)
    space = kernel.ndim - 2
    static = {
        "strides": _per_axis(strides, space, "strides"),
        "padding": padding.upper() if isinstance(padding, str) else tuple((int(a), int(b)) for a, b in padding),
        "lhs_dilation": _per_axis(1 if lhs_dilation is None else lhs_dilation, space, "lhs_dilation"),
        "rhs_dilation": _per_axis(1 if rhs_dilation is None else rhs_dilation, space, "rhs_dilation"),
        "feature_group_count": groups,
        "batch_group_count": 1,
        "dimension_numbers": _numbers(layout.rhs_spec),
    }
    channels = kernel.shape[layout.rhs_spec[0]]
    biases = bias_operands(_bias_vector(bias, channels, layout), bias_fn, unit, (channels,), operator="conv")
    y = etp_conv_p.bind(data, kernel, *biases, has_bias=bool(biases), kernel_fn=kernel_fn, bias_fn=bias_fn, **static)
    return join_unit(_restored(y, x, lead, kernel.ndim, layout), unit)


# layouts: the primitive sees batch, channel, space


def _layout(x: jax.Array, kernel: jax.Array, numbers: Any) -> lax.ConvDimensionNumbers:
    rank = kernel.ndim
    if rank not in (3, 4, 5) or x.ndim < rank - 1:
        raise ValueError(
            f"conv takes a kernel with one to three spatial axes and data of the same rank (one less without a batch "
            f"axis); got x {x.shape} and kernel {kernel.shape}. Without spatial axes use matmul."
        )
    return lax.conv_dimension_numbers((1,) * rank, kernel.shape, numbers)


def _canonical(x: jax.Array, rank: int, layout: lax.ConvDimensionNumbers) -> tuple[jax.Array, tuple[int, ...]]:
    """``x`` as batch, channel, space, and its axes before the layout's."""
    lead = x.shape[: max(0, x.ndim - rank)]
    if x.ndim == rank - 1:
        x = jnp.expand_dims(x, layout.lhs_spec[0])
    elif lead:
        if layout.lhs_spec[0] != 0 or layout.out_spec[0] != 0:
            raise ValueError(
                f"conv folds leading axes into the batch axis only where that comes first in data and result; "
                f"got x {x.shape} for a kernel of rank {rank}. Move the batch axis to the front or use vmap."
            )
        x = x.reshape(math.prod(x.shape[: len(lead) + 1]), *x.shape[len(lead) + 1 :])
    return jnp.transpose(x, layout.lhs_spec), lead


def _restored(
    y: jax.Array, x: jax.Array, lead: tuple[int, ...], rank: int, layout: lax.ConvDimensionNumbers
) -> jax.Array:
    """The result in the layout of the caller."""
    y = jnp.transpose(y, _inverse(layout.out_spec))
    if x.ndim == rank - 1:
        return y.squeeze(layout.out_spec[0])
    return y.reshape(*lead, y.shape[0] // math.prod(lead), *y.shape[1:]) if lead else y


def _without_batch_groups(
    x: jax.Array, kernel: jax.Array, layout: lax.ConvDimensionNumbers, features: int, batches: int, *, lead: int
) -> tuple[jax.Array, int]:
    """The same convolution with groups of channels only: samples of different groups become channels."""
    if min(features, batches) < 1 or (features > 1 and batches > 1):
        raise ValueError(
            f"conv takes positive group counts, one of them 1; got feature_group_count={features} and "
            f"batch_group_count={batches}."
        )
    if batches == 1:
        return x, features
    channels = kernel.shape[layout.rhs_spec[0]]
    if lead or x.shape[0] % batches or channels % batches:
        raise ValueError(
            f"conv: batch_group_count={batches} must divide the batch, {x.shape[0]}, and the output channels, "
            f"{channels}, and takes no further leading axes."
        )
    grouped = jnp.moveaxis(x.reshape(batches, x.shape[0] // batches, *x.shape[1:]), 0, 1)
    return grouped.reshape(grouped.shape[0], batches * x.shape[1], *x.shape[2:]), batches


def _check_channels(x: jax.Array, kernel: jax.Array, layout: lax.ConvDimensionNumbers, groups: int) -> None:
    outputs, inputs = (kernel.shape[axis] for axis in layout.rhs_spec[:2])
    if x.shape[1] != inputs * groups or outputs % groups:
        raise ValueError(
            f"conv: data with {x.shape[1]} channels does not fit a kernel {kernel.shape} with {inputs} input and "
            f"{outputs} output channels in {groups} group(s): input channels times groups must be the channels of the "
            f"data, and groups must divide the output channels. Check dimension_numbers."
        )


def _per_axis(value: int | Sequence[int], space: int, name: str) -> tuple[int, ...]:
    values = (int(value),) * space if isinstance(value, (int, np.integer)) else tuple(int(v) for v in value)
    if len(values) != space or min(values) < 1:
        raise ValueError(f"conv: {name} takes a positive number or one per spatial axis ({space}), got {value}.")
    return values


def _bias_vector(bias: Any, channels: int, layout: lax.ConvDimensionNumbers) -> Any:
    """A bias that broadcasts along the channel axis of the result, as a vector."""
    rank, axis = len(layout.out_spec), layout.out_spec[1]
    shape = tuple(channels if i == axis else 1 for i in range(rank))
    # a bias has no batch axis, or one of size 1
    without_batch = tuple(size for i, size in enumerate(shape) if i != layout.out_spec[0])
    return bias.reshape(channels) if getattr(bias, "shape", None) in (shape, without_batch) else bias


def _inverse(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=axes.__getitem__)


def _numbers(rhs_spec: Sequence[int]) -> lax.ConvDimensionNumbers:
    straight = tuple(range(len(rhs_spec)))
    return lax.ConvDimensionNumbers(straight, tuple(rhs_spec), straight)


# the primitive


def _impl(
    x: jax.Array,
    kernel: jax.Array,
    bias: Any = None,
    *,
    strides: tuple[int, ...],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    dimension_numbers: Any = None,
    has_bias: bool = False,
    kernel_fn: Hook = None,
    bias_fn: Hook = None,
) -> jax.Array:
    numbers = lax.conv_dimension_numbers(x.shape, kernel.shape, dimension_numbers)
    if numbers != _numbers(numbers.rhs_spec) or batch_group_count != 1:
        raise ValueError("etp_conv takes batch, channel, space and no batch groups; call etp_ops.conv instead.")
    kernel = apply_hook(kernel_fn, kernel)
    dtype = jnp.result_type(x, kernel)
    y = lax.conv_general_dilated(
        x.astype(dtype),
        kernel.astype(dtype),
        strides,
        padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=numbers,
        feature_group_count=feature_group_count,
    )
    return y + apply_hook(bias_fn, bias).reshape(-1, *[1] * (y.ndim - 2)) if has_bias else y


def _rhs_spec(kernel: jax.Array, numbers: Any) -> tuple[int, ...]:
    return tuple(lax.conv_dimension_numbers((1,) * kernel.ndim, kernel.shape, numbers).rhs_spec)


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, **_: Any) -> Arrays:
    scaled = {"weight": trace["weight"] * hidden_dim[..., None]}
    return {**scaled, "bias": trace["bias"] * hidden_dim} if "bias" in trace else scaled


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    groups, space = static.get("feature_group_count", 1), df.shape[2:]
    patches = _patches(x.astype(df.dtype), weights["weight"], **static)
    patches = jnp.moveaxis(patches.reshape(x.shape[0], groups, 1, -1, *space), 3, -1)  # batch, group, 1, space, tap
    by_group = df.reshape(df.shape[0], groups, df.shape[1] // groups, *space, 1)
    term = {"weight": (patches * by_group).reshape(*df.shape, -1)}
    return {**term, "bias": df} if "bias" in weights else term


def _patches(
    x: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, ...],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    **_: Any,
) -> jax.Array:
    """What each kernel entry sees: batch, input channel times kernel offset, space."""
    window = [kernel.shape[axis] for axis in _rhs_spec(kernel, dimension_numbers)[2:]]
    return lax.conv_general_dilated_patches(
        x, window, strides, padding, lhs_dilation, rhs_dilation, precision=lax.Precision.HIGHEST
    )


def _solve(
    signal: jax.Array,
    trace: Arrays,
    weights: Arrays,
    *,
    dimension_numbers: Any = None,
    kernel_fn: Hook = None,
    bias_fn: Hook = None,
    **_: Any,
) -> Arrays:
    kernel = weights["weight"]
    spec = _rhs_spec(kernel, dimension_numbers)
    everywhere = (0, *range(2, signal.ndim))
    total = (signal[..., None] * trace["weight"]).sum(everywhere)
    total = jnp.transpose(total.reshape([kernel.shape[axis] for axis in spec]), _inverse(spec))
    gradient = {"weight": pull_hook(kernel_fn, kernel, total)}
    if "bias" in weights:
        gradient["bias"] = pull_hook(bias_fn, weights["bias"], (signal * trace["bias"]).sum(everywhere))
    return gradient


def _init_drtrl(x_var: Any, y_var: Any, weight_vars: Mapping[str, Any], num_hidden_state: int) -> Arrays:
    y = y_var.aval
    taps = math.prod(weight_vars["weight"].aval.shape) // y.shape[1]
    traces = {"weight": jnp.zeros((*y.shape, taps, num_hidden_state), y.dtype)}
    return {**traces, "bias": jnp.zeros((*y.shape, num_hidden_state), y.dtype)} if "bias" in weight_vars else traces


etp_conv_p: ETPPrimitive = register_primitive("etp_conv", _impl, batched=True, trainable_invars_fn=trainable("weight"))
etp_conv_p.register_etp_rules(
    dt_to_t=_dt_to_t,
    xy_to_dw=pull_back(_impl, "weight"),
    init_drtrl=_init_drtrl,
    init_pp=init_pp,
    instant=_instant,
    solve=_solve,
)
