"""Contractions of data with one weight: ``y = einsum(equation, x, V)``, ``V = weight_fn(W)``.

The primitive ``etp_einsum`` takes equations whose output letters, apart from the batch letter ``b``, all
occur in the weight. Then every entry of ``V`` meets every hidden position at most once, and the trace has
the shape of the weight; with ``w`` and ``y`` standing for the letters of weight and output,

    ε[b w] ← D[y] ε[b w] + Σ x[..] Df[y],    ∂L/∂V[w] = Σ_b signal[y] ε[b w].

A letter that data and output share and the weight lacks (``t`` in ``btk,kn->btn``) is a second batch axis:
each of its positions sees the whole weight, and one weight-shaped trace for all would sum where a product
is due. :func:`einsum` therefore folds such letters into the batch axis. Memory: ``B · size(W)`` numbers per
hidden state, ``B`` with the folded letters.
"""

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from etp_core import ETPPrimitive, register_primitive
from etp_core.units import join_unit, unit_product
from etp_ops._hooks import Hook, apply_hook, pull_hook
from etp_ops._operands import split_data, split_weight
from etp_ops._rules import Arrays, init_pp, pull_back, trainable

__all__ = ["einsum", "etp_einsum_p"]


def einsum(equation: str, x: Any, weight: Any, *, weight_fn: Hook = None) -> Any:
    """``jnp.einsum(equation, x, weight_fn(weight))``, with ``weight`` marked for online learning.

    Args:
        equation: two operands and an explicit output, such as ``"bi,io->bo"``: lower-case letters, none twice in
            one term; the batch letter comes first in ``x`` and in the output and not in the weight.
        x: data; leading axes beyond the equation's are folded into the batch axis and unfolded after. Integers
            and booleans (spikes) are fine.
        weight: as the equation says.
        weight_fn: shape-preserving function of the weight's mantissa.

    Returns:
        The output of the equation, after the leading axes; the unit is the product of the units.

    Raises:
        ValueError: the equation is not of this form or does not fit the shapes, or the hook changes a shape.
        TypeError: the weight is not real and floating point, or the hook is not a hashable function.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_ops import einsum
        >>> einsum("btk,kn->btn", jnp.ones((1, 2, 3)), jnp.ones((3, 4))).shape
        (1, 2, 4)
    """
    spec = _parse(equation)
    x, x_unit = split_data(x, operator="einsum")
    weight, weight_unit = split_weight(weight, weight_fn, operator="einsum")
    _check_shapes(spec, x, weight)
    lead = x.shape[: x.ndim - len(spec.x) + 1]  # the batch axis and what precedes it
    shared = tuple(x.shape[x.ndim - len(spec.x) + spec.x.index(letter)] for letter in spec.shared)
    folded, data = _fold(spec, x.reshape(math.prod(lead), *x.shape[len(lead) :]))
    y = etp_einsum_p.bind(data, weight, equation=folded, weight_fn=weight_fn)
    y = y.reshape(*lead, *shared, *y.shape[1:])
    got = [*range(len(lead) - 1), spec.batch, *spec.shared, *(c for c in spec.y[1:] if c not in spec.shared)]
    wanted = [*range(len(lead) - 1), *spec.y]
    return join_unit(jnp.transpose(y, [got.index(axis) for axis in wanted]), unit_product(x_unit, weight_unit))


@dataclass(frozen=True, slots=True)
class _Equation:
    x: str
    weight: str
    y: str

    @property
    def batch(self) -> str:
        return self.x[0]

    @property
    def shared(self) -> str:
        """The letters of data and output that the weight lacks, without the batch letter."""
        return "".join(c for c in self.y[1:] if c not in self.weight)

    @property
    def trace(self) -> str:
        return self.batch + self.weight


@functools.cache
def _parse(equation: str) -> _Equation:
    form = re.fullmatch(r"([a-z]+),([a-z]*)->([a-z]+)", equation.replace(" ", ""))
    if form is None:
        raise ValueError(
            f"einsum takes an equation like 'bi,io->bo' (two operands, an explicit output, lower-case letters, "
            f"no ellipsis), got {equation!r}."
        )
    spec = _Equation(*form.groups())
    for term in (spec.x, spec.weight, spec.y):
        if len(set(term)) != len(term):
            raise ValueError(f"einsum: a letter stands twice in {term!r} of {equation!r}; take the diagonal first.")
    if spec.y[0] != spec.batch or spec.batch in spec.weight:
        raise ValueError(
            f"einsum: the batch letter must come first in x and in the output and not occur in the weight, got "
            f"{equation!r}. Transpose the operand, or use matmul for data without a batch axis."
        )
    for letters, where in ((spec.y, spec.x + spec.weight), (spec.weight, spec.x + spec.y)):
        unknown = sorted(set(letters) - set(where))
        if unknown:
            raise ValueError(
                f"einsum: {', '.join(unknown)} of {equation!r} occurs in only one term; an output letter must occur in "
                f"an operand, and a weight letter in x or in the output. Sum the weight over it first."
            )
    return spec


def _check_shapes(spec: _Equation, x: jax.Array, weight: jax.Array) -> None:
    text = f"{spec.x},{spec.weight}->{spec.y}"
    if x.ndim < len(spec.x) or weight.ndim != len(spec.weight):
        raise ValueError(
            f"einsum {text!r} takes x with {len(spec.x)} axes (or more, in front) and a weight with "
            f"{len(spec.weight)}; got x {x.shape} and weight {weight.shape}."
        )
    sizes = dict(zip(spec.weight, weight.shape, strict=True))
    for letter, size in zip(spec.x, x.shape[x.ndim - len(spec.x) :], strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ValueError(
                f"einsum {text!r}: {letter} is {size} in x {x.shape} and {sizes[letter]} in the weight {weight.shape}; "
                f"sizes must agree."
            )


def _fold(spec: _Equation, x: jax.Array) -> tuple[str, jax.Array]:
    """The equation and the data with the shared letters folded into the batch axis."""
    if not spec.shared:
        return f"{spec.x},{spec.weight}->{spec.y}", x
    rest = "".join(c for c in spec.x[1:] if c not in spec.shared)
    x = jnp.transpose(x, [spec.x.index(c) for c in spec.batch + spec.shared + rest])
    batch = math.prod(x.shape[: 1 + len(spec.shared)])
    out = spec.batch + "".join(c for c in spec.y[1:] if c not in spec.shared)
    return f"{spec.batch}{rest},{spec.weight}->{out}", x.reshape(batch, *x.shape[1 + len(spec.shared) :])


def _impl(x: jax.Array, weight: jax.Array, *, equation: str, weight_fn: Hook = None) -> jax.Array:
    spec = _parse(equation)
    if spec.shared:
        raise ValueError(
            f"etp_einsum: {spec.shared!r} of {equation!r} is shared by data and output only and has no place in a "
            f"weight-shaped trace; call etp_ops.einsum, which folds it into the batch axis."
        )
    return jnp.einsum(equation, x, apply_hook(weight_fn, weight))


def _dt_to_t(hidden_dim: jax.Array, trace: Arrays, *, equation: str, **_: Any) -> Arrays:
    spec = _parse(equation)
    return {"weight": jnp.einsum(f"{spec.y},{spec.trace}->{spec.trace}", hidden_dim, trace["weight"])}


def _instant(x: jax.Array, df: jax.Array, weights: Arrays, *, equation: str, **_: Any) -> Arrays:
    spec = _parse(equation)
    return {"weight": jnp.einsum(f"{spec.x},{spec.y}->{spec.trace}", x, df)}


def _solve(signal: jax.Array, trace: Arrays, weights: Arrays, *, equation: str, weight_fn: Hook = None) -> Arrays:
    spec = _parse(equation)
    total = jnp.einsum(f"{spec.y},{spec.trace}->{spec.weight}", signal, trace["weight"])
    return {"weight": pull_hook(weight_fn, weights["weight"], total)}


def _init_drtrl(x_var: Any, y_var: Any, weight_vars: Any, num_hidden_state: int) -> Arrays:
    shape = (x_var.aval.shape[0], *weight_vars["weight"].aval.shape, num_hidden_state)
    return {"weight": jnp.zeros(shape, y_var.aval.dtype)}


etp_einsum_p: ETPPrimitive = register_primitive(
    "etp_einsum", _impl, batched=True, trainable_invars_fn=trainable("weight")
)
etp_einsum_p.register_etp_rules(
    dt_to_t=_dt_to_t,
    xy_to_dw=pull_back(_impl, "weight"),
    init_drtrl=_init_drtrl,
    init_pp=init_pp,
    instant=_instant,
    solve=_solve,
)
