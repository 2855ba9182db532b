"""One step of a dense trace and its contraction in one pass over memory.

    g = Σ_batch Σ_a s_a ε_a ,      ε_a ← Σ_b D_ab ε_b + Df_a ⊗ x

Where the signal is known when the trace moves, each element is read once and written once, which is the least that a
step can cost. Under ``jax.grad`` the two happen in different passes, so learners use the separate kernels.
"""

import functools
import operator
from typing import Any, Literal

import jax
import jax.numpy as jnp

__all__ = ["roll_and_solve"]

_TILE = 64


def roll_and_solve(
    signals: tuple[jax.Array, ...],
    factors: tuple[tuple[jax.Array | None, ...], ...],
    x: jax.Array,
    df: tuple[jax.Array | None, ...],
    traces: tuple[jax.Array, ...],
    *,
    kernel: Literal["reference", "pallas", "interpret"] = "reference",
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The gradient of a dense weight at the traces before a step, and the traces after it.

    Args:
        signals: ``s_a``, one ``(B, O)`` per state.
        factors: ``D_ab``, each ``(B, O)``; None for a structural zero.
        x: the data, ``(B, I)``.
        df: ``Df_a``, each ``(B, O)`` or None.
        traces: ``ε_a``, each ``(B, I, O)``, of any floating-point type; they keep it.
        kernel: plain JAX; the Pallas kernel of an accelerator; or the same kernel interpreted, for tests.

    Returns:
        The gradient, ``(I, O)`` in the type of the signals, and the new traces.

    Raises:
        ValueError: the Pallas kernel is asked for sizes that no tile divides.

    Example:
        >>> import jax.numpy as jnp, etp_fastpath
        >>> s, x, e = jnp.ones((2, 4)), jnp.ones((2, 3)), jnp.ones((2, 3, 4))
        >>> gradient, (new,) = etp_fastpath.roll_and_solve((s,), ((0.5 * s,),), x, (s,), (e,))
        >>> float(gradient[0, 0]), float(new[0, 0, 0])
        (2.0, 1.5)
    """
    if kernel == "reference":
        return _reference(signals, factors, x, df, traces)
    return _pallas(signals, factors, x, df, traces, interpret=kernel == "interpret")


def _reference(signals: Any, factors: Any, x: jax.Array, df: Any, traces: Any) -> Any:
    dtype = signals[0].dtype
    gradient = sum(jnp.einsum("bo,bio->io", s, e.astype(dtype)) for s, e in zip(signals, traces, strict=True))
    new = []
    for row, d, kept in zip(factors, df, traces, strict=True):
        terms: list[Any] = [f[:, None, :] * e.astype(dtype) for f, e in zip(row, traces, strict=True) if f is not None]
        terms += [] if d is None else [x[:, :, None] * d[:, None, :]]
        new.append(functools.reduce(operator.add, terms).astype(kept.dtype) if terms else jnp.zeros_like(kept))
    return jnp.asarray(gradient), tuple(new)


def _pallas(signals: Any, factors: Any, x: jax.Array, df: Any, traces: Any, *, interpret: bool) -> Any:
    """A program per tile of the weight goes through the batch; its part of the gradient stays in registers."""
    from jax.experimental import pallas as pl  # takes long to import, and few need it

    batch, rows, columns = traces[0].shape
    tiles = [next((t for t in (_TILE, 32, 16) if n % t == 0), n if interpret else 0) for n in (rows, columns)]
    if 0 in tiles:
        raise ValueError(f"the kernel needs sizes that 16 divides, got {rows} × {columns}; use kernel='reference'.")
    tile_i, tile_o = tiles
    small, structure = jax.tree.flatten((signals, factors, df))  # None is structure, so a zero costs nothing
    per_o = pl.BlockSpec((batch, tile_o), lambda i, o: (0, o))
    per_i = pl.BlockSpec((batch, tile_i), lambda i, o: (0, i))
    whole = pl.BlockSpec((batch, tile_i, tile_o), lambda i, o: (0, i, o))
    out = (
        jax.ShapeDtypeStruct((rows, columns), signals[0].dtype),
        *(jax.ShapeDtypeStruct(e.shape, e.dtype) for e in traces),
    )
    gradient, *new = pl.pallas_call(
        functools.partial(_body, structure, len(small), batch),
        grid=(rows // tile_i, columns // tile_o),
        in_specs=[*(per_o for _ in small), per_i, *(whole for _ in traces)],
        out_specs=[pl.BlockSpec((tile_i, tile_o), lambda i, o: (i, o)), *(whole for _ in traces)],
        out_shape=list(out),
        input_output_aliases={len(small) + 1 + a: 1 + a for a in range(len(traces))},
        interpret=interpret,
    )(*small, x, *traces)
    return gradient, tuple(new)


def _body(structure: Any, count: int, batch: int, *refs: Any) -> None:
    small, x, rest = refs[:count], refs[count], refs[count + 1 :]
    states = (len(rest) - 1) // 2
    old, gradient, new = rest[:states], rest[states], rest[states + 1 :]

    def sample(b: Any, total: jax.Array) -> jax.Array:
        signals, factors, df = jax.tree.unflatten(structure, [ref[b, :] for ref in small])
        kept = [ref[b, :, :].astype(total.dtype) for ref in old]
        for a, ref in enumerate(new):
            terms: list[Any] = [f[None, :] * e for f, e in zip(factors[a], kept, strict=True) if f is not None]
            terms += [] if df[a] is None else [x[b, :][:, None] * df[a][None, :]]
            moved = functools.reduce(operator.add, terms) if terms else jnp.zeros(total.shape, total.dtype)
            ref[b, :, :] = moved.astype(ref.dtype)
        return total + sum(s[None, :] * e for s, e in zip(signals, kept, strict=True))

    gradient[...] = jax.lax.fori_loop(0, batch, sample, jnp.zeros(gradient.shape, gradient.dtype))
