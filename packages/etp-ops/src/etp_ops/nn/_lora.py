"""The low-rank layer."""

from collections.abc import Callable, Sequence
from typing import Any

import brainstate

from etp_ops._lora import lora_matmul
from etp_ops.nn._values import Initializer, as_size, make_value

__all__ = ["LoRA"]

_LECUN_NORMAL = brainstate.nn.init.LecunNormal()


class LoRA(brainstate.nn.Module):
    """A low-rank layer, alone or added to another, ``y = x · lora_a · lora_b (+ base(x))``.

    Args:
        in_features: ``I``.
        lora_rank: ``r``.
        out_features: ``O``.
        base_module: a module, or any function, from ``(..., I)`` to ``(..., O)``; None for none.
        kernel_init: both factors, ``lora_a`` of shape ``(I, r)`` and ``lora_b`` of shape ``(r, O)``.
        param_type: class of the parameter state.
        in_size: the whole input size, ``(..., I)``; None for ``(I,)``.

    Attributes:
        weight: the parameters ``lora_a`` and ``lora_b``.

    Raises:
        TypeError: ``base_module`` cannot be called.
        ValueError: ``in_size`` does not end in ``in_features``, or an array does not fit its shape.

    Source: Hu et al. 2021, LoRA: low-rank adaptation of large language models.
    """

    in_features: int
    out_features: int
    weight: Any

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
        in_size: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if base_module is not None and not callable(base_module):
            raise TypeError(f"base_module must be a module or a function, got {type(base_module).__name__}.")
        self.in_size = as_size(in_features if in_size is None else in_size)
        if self.in_size[-1] != in_features:
            raise ValueError(f"in_size must end in in_features, {in_features}, got {in_size}.")
        self.out_size = (*self.in_size[:-1], out_features)
        self.in_features, self.out_features = in_features, out_features
        self.base_module = base_module
        shapes = {"lora_a": (in_features, lora_rank), "lora_b": (lora_rank, out_features)}
        self.weight = param_type({key: make_value(kernel_init, s, name="kernel_init") for key, s in shapes.items()})

    def update(self, x: Any) -> Any:
        """``(..., I)`` to ``(..., O)``."""
        # the operator calls the input-facing factor B
        y = lora_matmul(x, self.weight.value["lora_a"], self.weight.value["lora_b"])
        return y if self.base_module is None else y + self.base_module(x)
