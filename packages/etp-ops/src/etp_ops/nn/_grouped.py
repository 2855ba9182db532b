"""The grouped dense layer."""

from typing import Any

import brainstate
import brainunit as u

from etp_ops._grouped import grouped_matmul
from etp_ops.nn._values import KAIMING_NORMAL, ZERO, Initializer, make_value

__all__ = ["GroupedLinear"]


class GroupedLinear(brainstate.nn.Module):
    """One dense layer per group, ``y[g] = x[g] · W[g] + b[g]``.

    Args:
        num_groups: ``G``.
        in_features: ``I``, inputs per group.
        out_features: ``O``, outputs per group.
        w_init: the weight, ``(G, I, O)``; a function is asked for ``(I, O)`` once per group, so that every group is
            initialised as a dense layer is.
        b_init: the bias, ``(G, O)``; None for none.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameters ``weight`` and, with a bias, ``bias``.

    Raises:
        ValueError: an array does not fit its shape.
    """

    weight: Any

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        w_init: Initializer = KAIMING_NORMAL,
        b_init: Initializer | None = ZERO,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = (num_groups, in_features), (num_groups, out_features)
        shape = (in_features, out_features)
        if callable(w_init):
            weight = u.math.stack([make_value(w_init, shape, name="w_init") for _ in range(num_groups)])
        else:
            weight = make_value(w_init, (num_groups, *shape), name="w_init")
        parameters = {"weight": weight}
        if b_init is not None:
            parameters["bias"] = make_value(b_init, self.out_size, name="b_init")
        self.weight = param_type(parameters)

    def update(self, x: Any) -> Any:
        """``(..., G, I)`` to ``(..., G, O)``."""
        parameters = self.weight.value
        return grouped_matmul(x, parameters["weight"], parameters.get("bias"))
