"""Dense layers: plain, with weights of fixed sign, with standardised weights.

Masks and reparametrisations are ordinary functions of the weight before the operator: nothing is retraced, and the
gradient of the stored weight is the exact pull-back.
"""

from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from etp_ops._dense import matmul
from etp_ops.nn._values import (
    KAIMING_NORMAL,
    ZERO,
    Initializer,
    Size,
    apply_mask,
    make_mask,
    make_value,
    matching_sizes,
)

__all__ = ["Linear", "ScaledWSLinear", "SignedWLinear"]


class Linear(brainstate.nn.Module):
    """A dense layer, ``y = x · (W ⊙ mask) + b``.

    Args:
        in_size: input size; only its last entry, ``I``, is contracted.
        out_size: output size; equal to ``in_size`` but for its last entry, ``O``.
        w_init: the weight, ``(I, O)``.
        b_init: the bias, ``(O,)``; None for none.
        w_mask: a factor of the weight, or None; the gradient of masked entries is exactly zero.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameters ``weight`` and, with a bias, ``bias``.

    Raises:
        ValueError: sizes do not match, or an array does not fit its shape.
    """

    w_mask: Any
    weight: Any

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        b_init: Initializer | None = ZERO,
        w_mask: Initializer | None = None,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = matching_sizes(in_size, out_size)
        shape = (self.in_size[-1], self.out_size[-1])
        self.w_mask = make_mask(w_mask, shape, within=shape)
        parameters = {"weight": make_value(w_init, shape, name="w_init")}
        if b_init is not None:
            parameters["bias"] = make_value(b_init, shape[1:], name="b_init")
        self.weight = param_type(parameters)

    def update(self, x: Any) -> Any:
        """``(..., I)`` to ``(..., O)``."""
        parameters = self.weight.value
        return matmul(x, apply_mask(parameters["weight"], self.w_mask), parameters.get("bias"))


class SignedWLinear(brainstate.nn.Module):
    """A dense layer whose weights keep their signs, ``y = x · (|W| ⊙ sign)``.

    Args:
        in_size: input size; only its last entry, ``I``, is contracted.
        out_size: output size; equal to ``in_size`` but for its last entry, ``O``.
        w_init: the weight, ``(I, O)``.
        w_sign: the signs, any shape that broadcasts to ``(I, O)``; None for all positive.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameter, ``W``.

    Raises:
        ValueError: sizes do not match, or an array does not fit its shape.
    """

    w_sign: Any
    weight: Any

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        w_sign: Initializer | None = None,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = matching_sizes(in_size, out_size)
        shape = (self.in_size[-1], self.out_size[-1])
        self.w_sign = make_mask(w_sign, shape, within=shape, name="w_sign")
        self.weight = param_type(make_value(w_init, shape, name="w_init"))

    def update(self, x: Any) -> Any:
        """``(..., I)`` to ``(..., O)``."""
        return matmul(x, apply_mask(u.math.abs(self.weight.value), self.w_sign))


class ScaledWSLinear(brainstate.nn.Module):
    """A dense layer with standardised weights, ``y = x · (Ŵ ⊙ mask) + b``.

    Every output has weights of mean zero and, times the gain ``g``, of norm one::

        Ŵ = (W − mean(W)) · g / √max(I · var(W), eps)        mean and variance over the inputs

    Args:
        in_size: input size; only its last entry, ``I``, is contracted.
        out_size: output size; equal to ``in_size`` but for its last entry, ``O``.
        w_init: the weight, ``(I, O)``.
        b_init: the bias, ``(O,)``; None for none.
        w_mask: a factor of the standardised weight, or None; a function is asked for ``(I, 1)``.
        ws_gain: whether there is a gain, ``(1, O)``, initially one.
        eps: smallest norm squared.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameters ``weight`` and, if there are, ``bias`` and ``gain``.

    Raises:
        ValueError: sizes do not match, or an array does not fit its shape.

    Source: Qiao et al. 2019, Weight standardization; Brock et al. 2021 for the scale.
    """

    w_mask: Any
    weight: Any

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        b_init: Initializer | None = ZERO,
        w_mask: Initializer | None = None,
        ws_gain: bool = True,
        eps: float = 1e-4,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = matching_sizes(in_size, out_size)
        shape = (self.in_size[-1], self.out_size[-1])
        self.w_mask = make_mask(w_mask, (shape[0], 1), within=shape)
        self.eps = eps
        parameters = {"weight": make_value(w_init, shape, name="w_init")}
        if b_init is not None:
            parameters["bias"] = make_value(b_init, shape[1:], name="b_init")
        if ws_gain:
            parameters["gain"] = jnp.ones((1, shape[1]), parameters["weight"].dtype)
        self.weight = param_type(parameters)

    def update(self, x: Any) -> Any:
        """``(..., I)`` to ``(..., O)``."""
        parameters = self.weight.value
        standardised = _standardise(parameters["weight"], self.eps) * parameters.get("gain", 1.0)
        return matmul(x, apply_mask(standardised, self.w_mask), parameters.get("bias"))


def _standardise(weight: Any, eps: float) -> Any:
    value, unit = u.split_mantissa_unit(weight)
    if not unit.is_unitless:
        raise ValueError(
            f"ScaledWSLinear takes weights without unit, since eps has none; got {unit}. Scale the output."
        )
    centred = value - value.mean(0, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.maximum((centred**2).sum(0, keepdims=True), eps))
