"""Sparse products: ``y = x · with_data(weight_fn(data)) (+ bias_fn(b))``.

Primitives ``etp_sp_mm`` (``x`` of shape ``(B, I)``) and ``etp_sp_mv`` (``x`` of shape ``(I,)``). The entry
``p`` of the structure joins input ``row(p)`` to output ``col(p)``, so with ``v = weight_fn(data)``

    y[.., o] = Σ_{p: col(p) = o} x[.., row(p)] v[p]
    ε_v[.., p] ← D[.., col(p)] ε_v[.., p] + x[.., row(p)] Df[.., col(p)],    ε_b ← D ε_b + Df.

Products are gathers and scatters in plain JAX and run everywhere; nothing of size ``I · O`` is ever made.
Memory: ``B · nnz`` numbers per hidden state.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import bias_operands, fold_leading, split_data, split_weight
from etp_ops._rules import Arrays, init_parameter_shaped, init_pp, pull_back, solve_bias, trainable

__all__ = ["Structure", "etp_sp_mm_p", "etp_sp_mv_p", "sparse_matmul"]


def sparse_matmul(
    x: Any, weight: Any, *, sparse_mat: Any, bias: Any = None, weight_fn: Hook = None, bias_fn: Hook = None
) -> Any:
    """``x · sparse_mat.with_data(weight_fn(weight)) (+ bias_fn(bias))``, with ``weight`` and ``bias`` marked.

    Args:
        x: data of shape ``(I,)`` or ``(..., I)``; leading axes beyond one are folded into one batch axis and
            unfolded after. Integers and booleans (spikes) are fine.
        weight: one number per stored entry, in the order of ``sparse_mat.data``, or a single one for all.
        sparse_mat: the structure ``(I, O)``: a CSR or CSC of brainevent or a CSR, CSC or COO of brainunit. Its data
            are not used; equal structures share a compilation.
        bias: shape ``(O,)``, or None; any scale of the unit of the product.
        weight_fn: shape-preserving function of the weight's mantissa.
        bias_fn: shape-preserving function of the bias's mantissa.

    Returns:
        Shape ``(..., O)``; the unit is the product of the units of ``x`` and ``weight``.

    Raises:
        ValueError: a rank or a shape does not fit, an index is out of range or traced, or a hook changes a shape.
        TypeError: ``sparse_mat`` is none of these, a weight is not real and floating point, the bias has another
            dimension, or a hook is not a hashable function.

    Example:
        >>> import brainunit as u
        >>> import jax.numpy as jnp
        >>> from etp_ops import sparse_matmul
        >>> eye = u.sparse.COO((jnp.ones(3), jnp.arange(3), jnp.arange(3)), shape=(3, 3))
        >>> sparse_matmul(jnp.ones(3), jnp.arange(3.0), sparse_mat=eye).tolist()
        [0.0, 1.0, 2.0]
    """
    structure = sparse_mat if isinstance(sparse_mat, Structure) else _structure(sparse_mat)
    x, x_unit = split_data(x, operator="sparse_matmul")
    weight, weight_unit = split_weight(weight, weight_fn, operator="sparse_matmul")
    if x.ndim == 0 or x.shape[-1] != structure.shape[0]:
        raise ValueError(
            f"sparse_matmul takes x of shape (..., I) and a structure (I, O) = {structure.shape}; got {x.shape}."
        )
    if weight.shape != structure.rows.shape:
        if weight.size != 1:
            raise ValueError(
                f"sparse_matmul takes one weight per stored entry, shape {structure.rows.shape}, or a single one for "
                f"all; got {weight.shape}. For a dense weight use matmul."
            )
        weight = jnp.broadcast_to(apply_hook(weight_fn, weight).reshape(1), structure.rows.shape)
        weight_fn = None
    unit = unit_product(x_unit, weight_unit)
    biases = bias_operands(bias, bias_fn, unit, structure.shape[1:], operator="sparse_matmul")
    primitive = etp_sp_mv_p if x.ndim == 1 else etp_sp_mm_p
    x, unfold = fold_leading(x, 1)
    static = {"sparse_mat": structure, "has_bias": bool(biases), "weight_fn": weight_fn, "bias_fn": bias_fn}
    return unfold(primitive.bind(x, weight, *biases, **static), unit)


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """Where the entries of a sparse matrix stand; hashable, equal to every structure of the same content.

    Attributes:
        rows: the row of each stored entry.
        cols: the column of each stored entry.
        shape: rows and columns of the matrix.
    """

    rows: np.ndarray
    cols: np.ndarray
    shape: tuple[int, int]

    def _content(self) -> tuple[Any, ...]:
        return self.shape, self.rows.tobytes(), self.cols.tobytes()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self._content() == other._content())

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return f"Structure({self.shape[0]}x{self.shape[1]}, {self.rows.size} entries)"


def _structure(matrix: Any) -> Structure:
    kind = next((c.__name__ for c in type(matrix).__mro__ if c.__name__ in ("CSR", "CSC", "COO")), None)
    if kind is None:
        raise TypeError(
            f"sparse_matmul takes a CSR, CSC or COO of brainunit.sparse or a CSR or CSC of brainevent as sparse_mat, "
            f"got {type(matrix).__name__}; convert it, for example brainunit.sparse.CSR.fromdense(matrix)."
        )
    if kind == "COO":
        rows, cols = (_concrete(index) for index in (matrix.row, matrix.col))
    else:
        inner, ends = (_concrete(index) for index in (matrix.indices, matrix.indptr))
        outer = np.repeat(np.arange(ends.size - 1, dtype=np.int32), np.diff(ends))
        rows, cols = (outer, inner) if kind == "CSR" else (inner, outer)
    shape = (int(matrix.shape[0]), int(matrix.shape[1]))
    for index, size, axis in ((rows, shape[0], "row"), (cols, shape[1], "column")):
        if index.size and not 0 <= index.min() <= index.max() < size:
            raise ValueError(
                f"sparse_matmul: a {axis} index of sparse_mat is outside 0 to {size - 1} (found {index.min()} to "
                f"{index.max()}); remove padding entries."
            )
    return Structure(rows, cols, shape)


def _concrete(index: Any) -> np.ndarray:
    if isinstance(index, Tracer):
        raise ValueError(
            "sparse_matmul: the indices of sparse_mat are being traced; build the structure outside jit, grad and "
            "scan, and let the function close over it."
        )
    return np.asarray(index, np.int32)


def _impl(
    x: jax.Array,
    weight: jax.Array,
    bias: Any = None,
    *,
    sparse_mat: Structure,
    has_bias: bool = False,
    weight_fn: Hook = None,
    bias_fn: Hook = None,
) -> jax.Array:
    products = x[..., sparse_mat.rows] * apply_hook(weight_fn, weight)
    zeros = jnp.zeros((*x.shape[:-1], sparse_mat.shape[1]), products.dtype)
    y = zeros.at[..., sparse_mat.cols].add(products)
    return y + apply_hook(bias_fn, bias) if has_bias else y


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, *, sparse_mat: Structure, **_: Any) -> Arrays:
    scaled = {"weight": trace["weight"] * hidden_dim[..., sparse_mat.cols]}
    return {**scaled, "bias": trace["bias"] * hidden_dim} if "bias" in trace else scaled


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, *, sparse_mat: Structure, **_: Any) -> Arrays:
    term = {"weight": x[..., sparse_mat.rows] * df[..., sparse_mat.cols]}
    return {**term, "bias": df} if "bias" in weights else term


def _window(x_seq: jax.Array, df_seq: jax.Array, weights: Arrays, *, sparse_mat: Structure, **_: Any) -> Arrays:
    term = {"weight": (x_seq[..., sparse_mat.rows] * df_seq[..., sparse_mat.cols]).sum(0)}
    return {**term, "bias": df_seq.sum(0)} if "bias" in weights else term


def _solve(
    signal: jax.Array,
    trace: Arrays,
    weights: Arrays,
    *,
    sparse_mat: Structure,
    weight_fn: Hook = None,
    bias_fn: Hook = None,
    **_: Any,
) -> Arrays:
    total = (signal[..., sparse_mat.cols] * trace["weight"]).sum(tuple(range(signal.ndim - 1)))
    gradient = {"weight": pull_hook(weight_fn, weights["weight"], total)}
    return {**gradient, **solve_bias(signal, trace, weights, bias_fn)}


def _adjacency(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], *, sparse_mat: Structure, **static: Any
) -> np.ndarray:
    pattern = np.zeros((y_shape[0], x_shape[0]), bool)
    pattern[sparse_mat.cols, sparse_mat.rows] = True
    return pattern


etp_sp_mm_p: ETPPrimitive = register_primitive(
    "etp_sp_mm", _impl, batched=True, trainable_invars_fn=trainable("weight")
)
etp_sp_mv_p: ETPPrimitive = register_primitive("etp_sp_mv", _impl, trainable_invars_fn=trainable("weight"))
etp_sp_mv_p.register_batched_twin(etp_sp_mm_p)
for _primitive in (etp_sp_mm_p, etp_sp_mv_p):
    _primitive.register_etp_rules(
        dt_to_t=_dt_to_t,
        xy_to_dw=pull_back(_impl, "weight"),
        init_drtrl=init_parameter_shaped(data_axes=1),
        init_pp=init_pp,
        instant=_instant,
        solve=_solve,
        window=_window,
        adjacency=_adjacency,
    )
