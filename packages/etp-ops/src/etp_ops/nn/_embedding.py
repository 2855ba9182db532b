"""The embedding layer."""

import math
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np

from etp_ops._embedding import embedding
from etp_ops.nn._values import Initializer, Size, as_size, make_value

__all__ = ["Embedding"]

_LECUN_UNIFORM = brainstate.nn.init.LecunUniform()


class Embedding(brainstate.nn.Module):
    """A table of vectors, ``y = T[index]``.

    Args:
        num_embeddings: ``N``, the number of rows.
        embedding_size: ``D``, the shape of a row.
        embedding_init: the table, ``(N, *D)``.
        padding_idx: a row that starts at zero and has a gradient of exactly zero, or None.
        max_norm: refused: it rewrites the table in the forward pass, and a parameter is fixed within a step.
        norm_type: belongs to ``max_norm``; refused.
        scale_grad_by_freq: refused: the counts are those of a batch, and a gradient adds over steps.
        freeze: whether the table is constant: it is not marked, costs no trace, and its gradient is zero.
        name: name of the module.
        param_type: class of the parameter state.

    Attributes:
        weight: the parameter, ``T``.

    Raises:
        NotImplementedError: an option is refused.
        ValueError: ``padding_idx`` is no row, ``num_embeddings`` is not positive, or an array does not fit its shape.
    """

    embedding_size: Any
    weight: Any

    def __init__(
        self,
        num_embeddings: int,
        embedding_size: Size,
        embedding_init: Initializer = _LECUN_UNIFORM,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        freeze: bool = False,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        _refuse(max_norm, norm_type, scale_grad_by_freq)
        if num_embeddings < 1:
            raise ValueError(f"num_embeddings must be positive, got {num_embeddings}.")
        if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be within 0 to {num_embeddings - 1}, got {padding_idx}.")
        self.num_embeddings = num_embeddings
        self.out_size = as_size(embedding_size)
        self.embedding_size = self.out_size
        self.padding_idx = padding_idx
        self.freeze = freeze
        table = make_value(embedding_init, (num_embeddings, *self.out_size), name="embedding_init")
        self.weight = param_type(table if padding_idx is None else table.at[padding_idx].set(0 * table[padding_idx]))

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        freeze: bool = True,
        name: str | None = None,
        param_type: type[brainstate.State[Any]] = brainstate.ParamState,
    ) -> "Embedding":
        """An embedding with a given table ``(N, *D)``, frozen by default.

        Args:
            embeddings: the table; a padding row keeps its values.
            padding_idx: as for the class.
            max_norm: as for the class.
            norm_type: as for the class.
            scale_grad_by_freq: as for the class.
            freeze: as for the class, but True by default.
            name: as for the class.
            param_type: as for the class.

        Raises:
            ValueError: the table has less than two axes.
        """
        table = u.math.asarray(embeddings)
        if table.ndim < 2:
            raise ValueError(f"embeddings must have the shape (N, *D), got {table.shape}.")
        made = cls(
            table.shape[0],
            table.shape[1:],
            table,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            freeze,
            name=name,
            param_type=param_type,
        )
        made.weight.value = table
        return made

    def update(self, indices: Any) -> Any:
        """Integers of shape ``(...)`` to ``(..., *D)``."""
        table = self.weight.value
        if self.padding_idx is not None:
            padding = np.arange(self.num_embeddings).reshape(-1, *[1] * (table.ndim - 1)) == self.padding_idx
            table = u.math.where(padding, jax.lax.stop_gradient(table), table)
        if self.freeze:
            return jax.lax.stop_gradient(table)[jnp.asarray(indices)]
        rows = embedding(indices, table.reshape(self.num_embeddings, math.prod(self.out_size)))
        return rows.reshape(*jnp.shape(indices), *self.out_size)


def _refuse(max_norm: float | None, norm_type: float, scale_grad_by_freq: bool) -> None:
    if max_norm is not None or norm_type != 2.0:
        raise NotImplementedError(
            "Embedding: max_norm and norm_type would rewrite the table during a step, in which parameters are fixed; "
            "leave them out and project weight.value after each update of the optimizer."
        )
    if scale_grad_by_freq:
        raise NotImplementedError(
            "Embedding: scale_grad_by_freq divides by counts of one batch, while an online gradient adds over steps; "
            "leave it out and scale the gradient before the optimizer."
        )
