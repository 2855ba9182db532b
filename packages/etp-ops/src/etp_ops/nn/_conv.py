"""Convolutional layers, in one to three spatial dimensions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import brainstate
import jax

from etp_ops._conv import conv
from etp_ops.nn._values import XAVIER_NORMAL, Initializer, apply_mask, as_size, make_mask, make_value

__all__ = ["Conv1d", "Conv2d", "Conv3d"]

Padding = str | int | Sequence[int] | Sequence[Sequence[int]]


class _Conv(brainstate.nn.Module):
    """What the three have in common; documented at :class:`Conv1d`."""

    channel_first: bool
    channels_last: bool
    in_channels: Any
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    padding: Any
    dimension_numbers: Any
    kernel_shape: Any
    w_mask: Any
    weight: Any

    num_spatial_dims: ClassVar[int]

    def __init__(
        self,
        in_size: Sequence[int],
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = "SAME",
        lhs_dilation: int | Sequence[int] = 1,
        rhs_dilation: int | Sequence[int] = 1,
        groups: int = 1,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = None,
        w_mask: Initializer | None = None,
        channel_first: bool = False,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        space = self.num_spatial_dims
        if len(in_size) != space + 1:
            raise ValueError(f"in_size must have {space + 1} entries, space and channels, got {tuple(in_size)}.")
        self.in_size = as_size(in_size)
        self.channel_first, self.channels_last = channel_first, not channel_first
        self.in_channels = self.in_size[0 if channel_first else -1]
        self.out_channels = out_channels
        self.kernel_size = _per_axis(kernel_size, space, "kernel_size")
        self.stride = _per_axis(stride, space, "stride")
        self.lhs_dilation = _per_axis(lhs_dilation, space, "lhs_dilation")
        self.rhs_dilation = _per_axis(rhs_dilation, space, "rhs_dilation")
        self.padding = _padding(padding, space)
        self.groups = groups
        if groups < 1 or self.in_channels % groups or out_channels % groups:
            raise ValueError(f"groups must divide the channels, {self.in_channels} and {out_channels}, got {groups}.")
        self.dimension_numbers = _dimension_numbers(space, channel_first)
        self.kernel_shape = (*self.kernel_size, self.in_channels // groups, out_channels)
        self.w_mask = make_mask(w_mask, self.kernel_shape, within=self.kernel_shape)
        parameters = {"weight": make_value(w_init, self.kernel_shape, name="w_init")}
        if b_init is not None:
            shape = (1, out_channels, *[1] * space) if channel_first else (*[1] * space, out_channels)
            parameters["bias"] = make_value(b_init, shape, name="b_init")
        self.weight = param_type(parameters)
        sample = jax.ShapeDtypeStruct((1, *self.in_size), parameters["weight"].dtype)
        self.out_size = jax.eval_shape(self._convolve, sample, parameters).shape[1:]

    def update(self, x: Any) -> Any:
        """``(..., *in_size)`` to ``(..., *out_size)``."""
        if x.shape[-len(self.in_size) :] != self.in_size:
            raise ValueError(
                f"the input must have the shape (..., *in_size) with in_size {self.in_size}, got {x.shape}."
            )
        return self._convolve(x, self.weight.value)

    def _convolve(self, x: Any, parameters: Any) -> Any:
        return conv(
            x,
            apply_mask(parameters["weight"], self.w_mask),
            parameters.get("bias"),
            strides=self.stride,
            padding=self.padding,
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            feature_group_count=self.groups,
            dimension_numbers=self.dimension_numbers,
        )


class Conv1d(_Conv):
    """A convolution in one dimension, ``y = conv(x, K ⊙ mask) + b``.

    Args:
        in_size: ``(*space, C)``, or ``(C, *space)`` with ``channel_first``; no batch axis.
        out_channels: ``O``.
        kernel_size: one number, or one per spatial axis; so are the stride and both dilations.
        stride: step of the window.
        padding: ``"SAME"``, ``"VALID"``, a number, one number per spatial axis, or one pair (before, after) for all or
            per axis; a tuple of two numbers is such a pair in one dimension.
        lhs_dilation: dilation of the data.
        rhs_dilation: dilation of the kernel.
        groups: groups of channels.
        w_init: the kernel, ``(*kernel_size, C / groups, O)``.
        b_init: the bias, ``(1, ..., O)``, or ``(1, O, 1, ...)`` with ``channel_first``; None for none.
        w_mask: a factor of the kernel, or None; the gradient of masked entries is exactly zero.
        channel_first: whether channels come before space.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameters ``weight`` and, with a bias, ``bias``.

    Raises:
        ValueError: a size, a count or a padding does not fit, or an array does not fit its shape.
    """

    num_spatial_dims = 1


class Conv2d(_Conv):
    """A convolution in two dimensions, ``y = conv(x, K ⊙ mask) + b``; arguments as those of :class:`Conv1d`."""

    num_spatial_dims = 2


class Conv3d(_Conv):
    """A convolution in three dimensions, ``y = conv(x, K ⊙ mask) + b``; arguments as those of :class:`Conv1d`."""

    num_spatial_dims = 3


def _dimension_numbers(space: int, channel_first: bool) -> jax.lax.ConvDimensionNumbers:
    axes = tuple(range(space))
    image = (0, 1, *(a + 2 for a in axes)) if channel_first else (0, space + 1, *(a + 1 for a in axes))
    return jax.lax.ConvDimensionNumbers(lhs_spec=image, rhs_spec=(space + 1, space, *axes), out_spec=image)


def _per_axis(value: int | Sequence[int], space: int, name: str) -> tuple[int, ...]:
    values = (value,) * space if isinstance(value, int) else tuple(value)
    values = values * space if len(values) == 1 else values
    if len(values) != space:
        raise ValueError(f"{name} must be one number or one per spatial axis ({space}), got {value}.")
    return values


def _padding(padding: Padding, space: int) -> str | tuple[tuple[int, int], ...]:
    error = ValueError(
        f"padding must be 'SAME', 'VALID', a number, one number per spatial axis ({space}), or one pair for all or per "
        f"axis; got {padding!r}."
    )
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise error
        return padding
    if isinstance(padding, int):
        return ((padding, padding),) * space
    entries: list[tuple[int, ...]] = [(p,) if isinstance(p, int) else tuple(p) for p in padding]
    if space == 1 and len(entries) == 2 and all(isinstance(p, int) for p in padding):
        return ((entries[0][0], entries[1][0]),)
    if entries and all(len(p) == 1 for p in entries):
        pairs = tuple((p[0], p[0]) for p in entries)
    elif entries and all(len(p) == 2 for p in entries):
        pairs = tuple((p[0], p[1]) for p in entries) * (space if len(entries) == 1 else 1)
    else:
        raise error
    if len(pairs) != space:
        raise error
    return pairs
