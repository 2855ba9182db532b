"""The sparse layer."""

from typing import Any

import brainstate
import brainunit as u
import jax

from etp_ops._sparse import sparse_matmul
from etp_ops.nn._values import Initializer, Size, as_size, make_value

__all__ = ["SparseLinear"]


class SparseLinear(brainstate.nn.Module):
    """A sparse layer, ``y = x · S + b``, where the stored entries of ``S`` are learned.

    Args:
        spar_mat: a CSR, CSC or COO of brainunit, or a CSR or CSC of brainevent, of shape ``(I, O)``; its data are the
            initial weights.
        b_init: the bias, ``(O,)``; None for none.
        in_size: ``I``, as a check; it is known from ``spar_mat``.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameters ``weight``, one number per stored entry, and, with a bias, ``bias``.

    Raises:
        TypeError: ``spar_mat`` is none of these.
        ValueError: ``in_size`` is not ``I``, or an array does not fit its shape.
    """

    weight: Any

    def __init__(
        self,
        spar_mat: Any,
        b_init: Initializer | None = None,
        in_size: Size | None = None,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.spar_mat = spar_mat
        data = u.math.asarray(getattr(spar_mat, "data", 0.0))
        sample = jax.ShapeDtypeStruct(tuple(getattr(spar_mat, "shape", (1,)))[:1], data.dtype)
        jax.eval_shape(lambda x: sparse_matmul(x, data, sparse_mat=spar_mat), sample)  # refuses what it cannot take
        self.in_size, self.out_size = as_size(spar_mat.shape[0]), as_size(spar_mat.shape[1])
        if in_size is not None and as_size(in_size) != self.in_size:
            raise ValueError(f"in_size must be the number of rows of spar_mat, {self.in_size[0]}, got {in_size}.")
        parameters = {"weight": data}
        if b_init is not None:
            parameters["bias"] = make_value(b_init, self.out_size, name="b_init")
        self.weight = param_type(parameters)

    def update(self, x: Any) -> Any:
        """``(..., I)`` to ``(..., O)``."""
        parameters = self.weight.value
        return sparse_matmul(x, parameters["weight"], sparse_mat=self.spar_mat, bias=parameters.get("bias"))
