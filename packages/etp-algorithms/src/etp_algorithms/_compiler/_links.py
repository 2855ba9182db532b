"""How the elements of one equation's outputs depend on the elements of its operands.

A *link* joins operand ``k`` to output ``m`` of an equation wherever a derivative can pass:

- :class:`Gather`: every output element depends on at most one operand element (maps, slices, broadcasts);
- :class:`Scatter`: every operand element reaches at most one output element (reductions);
- :class:`Nested`: as a program says (primitives known only by their derivative);
- :class:`Branches` and :class:`Loop`: as the programs inside say, for all operands and outputs together;
- ``OPAQUE``: every output element may depend on every operand element;
- ``SEVERED``: a dependence that reverse mode cannot follow, so that no trace may use it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives as jex_primitives

from etp_core import ETPPrimitive
from etp_core.jaxpr import (
    Atom,
    Equation,
    Program,
    Scan,
    dependents,
    flatten,
    inner_programs,
    is_differentiable,
    scan_of,
    trace,
)

__all__ = [
    "OPAQUE",
    "SEVERED",
    "Branches",
    "Gather",
    "Link",
    "Loop",
    "Nested",
    "Scatter",
    "is_irreversible",
    "links_of",
    "opaque_links",
    "size_of",
]

Index = np.ndarray  # of flat positions; -1 stands for none


@dataclass(frozen=True, eq=False, slots=True)
class Gather:
    """``out.flat[i]`` depends on ``operand.flat[source[i]]`` alone; None is the identity."""

    source: Index | None


@dataclass(frozen=True, eq=False, slots=True)
class Scatter:
    """``operand.flat[j]`` reaches ``out.flat[target[j]]`` alone."""

    target: Index


@dataclass(frozen=True, eq=False, slots=True)
class Nested:
    """Input ``input`` of ``program`` reaches its output ``output``; of its transpose if ``transposed``.

    ``carrying`` are the equations that depend on that input. No other carries anything, and to look into one need not
    end: the derivative of an exponential is one.
    """

    program: Program
    input: int
    output: int
    carrying: frozenset[Equation]
    transposed: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Branches:
    """Operand ``k`` is input ``k − 1`` of every program; an output is the like output of one of them."""

    programs: tuple[Program, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """Operands and outputs are those of the loop's body, carries from iteration to iteration, slices one by one."""

    scan: Scan


class _Named:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


OPAQUE = _Named("OPAQUE")
SEVERED = _Named("SEVERED")
Link = Gather | Scatter | Nested | Branches | Loop | _Named


def _primitives(*names: str) -> frozenset[Any]:
    return frozenset(getattr(lax, f"{name}_p") for name in names if hasattr(lax, f"{name}_p"))


_ELEMENT_WISE = _primitives(
    *"abs acos acosh add asin asinh atan atan2 atanh cbrt clamp complex conj convert_element_type copy cos".split(),
    *"cosh digamma div erf erfc erf_inv exp exp2 expm1 imag integer_pow lgamma log log1p log2 logistic max min".split(),
    *"mul neg one_minus_square pow real reduce_precision rem rsqrt select_n sin sinh sqrt square sub tan tanh".split(),
) | {jex_primitives.add_jaxvals_p}
_CONSTANT = _primitives(*"ceil floor iota nextafter round sign argmax argmin".split()) | {
    jex_primitives.stop_gradient_p
}
_REDUCTIONS = _primitives("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
_MIXING = _primitives(
    *"dot_general conv_general_dilated cumsum cumprod cummax cummin cumlogsumexp sort fft reduce_window".split(),
    *"reduce_window_sum reduce_window_max reduce_window_min reduce linear_solve top_k".split(),
    *"select_and_scatter_add select_and_gather_add psum all_gather ppermute all_to_all".split(),
)

_Layout = Callable[[Index, Mapping[str, Any]], Any]
_LAYOUTS: Mapping[Any, _Layout] = {
    lax.reshape_p: lambda i, p: i.reshape(p["new_sizes"]),
    lax.squeeze_p: lambda i, p: np.squeeze(i, tuple(p["dimensions"])),
    lax.transpose_p: lambda i, p: np.transpose(i, p["permutation"]),
    lax.rev_p: lambda i, p: np.flip(i, tuple(p["dimensions"])),
    lax.broadcast_in_dim_p: lambda i, p: np.broadcast_to(_spread_axes(i, p), p["shape"]),
    lax.slice_p: lambda i, p: i[
        tuple(
            slice(*s) for s in zip(p["start_indices"], p["limit_indices"], p["strides"] or (1,) * i.ndim, strict=True)
        )
    ],
    lax.split_p: lambda i, p: np.split(i, np.cumsum(p["sizes"])[:-1], axis=p["axis"]),
}
# primitives that only move elements when their integer operands are known at compile time
_MOVES = _primitives(
    *"concatenate pad gather dynamic_slice dynamic_update_slice scatter stack unstack tile".split(),
)
# primitives that combine elements of the second operand with those of the first, position by position
_ACCUMULATING = _primitives(*"scatter_add scatter_sub scatter_mul scatter_min scatter_max".split())
# primitives that pass every operand on as it is: placement, sharding, scheduling, names
_UNTOUCHED = frozenset("sharding_constraint layout_constraint reshard device_put optimization_barrier name".split())
_MOST_EXACT_FLOATS = 2**24  # the whole numbers that float32 tells apart


def size_of(atom: Atom) -> int:
    """The number of elements."""
    return int(np.prod(atom.aval.shape, dtype=np.int64))


def links_of(equation: Equation, constant_of: Callable[[Atom], Any | None]) -> dict[tuple[int, int], Link]:
    """The links of ``equation`` as ``{(operand, output): link}``; a pair that is absent passes no derivative.

    Args:
        equation: any equation of a flat program.
        constant_of: the value of an atom that does not depend on the program's inputs, or None.
    """
    if equation.primitive in _CONSTANT:
        return {}
    reading, writing = _differentiable(equation)
    if not reading or not writing:
        return {}
    whole = _whole_link(equation)
    if whole is not None:
        return {(k, m): whole for k in reading for m in writing}
    return {
        (k, m): link
        for k in reading
        for m, link in zip(writing, _operand_links(equation, k, writing, constant_of), strict=True)
        if link is not None
    }


def opaque_links(equation: Equation) -> dict[tuple[int, int], Link]:
    """Links that say nothing: every output may depend on every operand."""
    reading, writing = _differentiable(equation)
    return {(k, m): OPAQUE for k in reading for m in writing}


def _differentiable(equation: Equation) -> tuple[list[int], list[int]]:
    """The operands and the outputs through which a derivative can pass, as far as their types say."""
    reading = [k for k, atom in enumerate(equation.inputs) if is_differentiable(atom)]
    return reading, [m for m, variable in enumerate(equation.outputs) if is_differentiable(variable)]


def is_irreversible(equation: Equation) -> bool:
    """Whether ``equation`` is a loop without fixed length, or branches or a loop around one, on floating data.

    A function with a derivative rule of its own is judged by its rule, whatever it holds.
    """
    if equation.primitive is jex_primitives.while_p:
        return any(map(is_differentiable, equation.inputs)) and any(map(is_differentiable, equation.outputs))
    if equation.primitive in (jex_primitives.cond_p, jex_primitives.scan_p):
        return any(is_irreversible(inner) for program in inner_programs(equation) for inner in program.equations)
    return False


def _whole_link(equation: Equation) -> Link | None:
    """The link that all operands and outputs of control flow share; None for other equations."""
    if is_irreversible(equation):
        return SEVERED
    if equation.primitive is jex_primitives.cond_p:
        return Branches(tuple(flatten(branch) for branch in equation.params["branches"]))
    if equation.primitive is jex_primitives.scan_p:
        return Loop(scan_of(equation))
    return None


def _operand_links(
    equation: Equation, k: int, writing: list[int], constant_of: Callable[[Atom], Any | None]
) -> list[Link | None]:
    primitive, operand = equation.primitive, equation.inputs[k]
    if primitive in _ELEMENT_WISE:
        shape = equation.outputs[0].aval.shape
        if operand.aval.shape == shape:
            return [Gather(None)]
        return [Gather(np.broadcast_to(_positions(operand), shape).reshape(-1))]
    if primitive in _LAYOUTS:
        moved = _LAYOUTS[primitive](_positions(operand), equation.params)
        parts = moved if isinstance(moved, list) else [moved]
        return [Gather(parts[m].reshape(-1)) for m in writing]
    if primitive in _REDUCTIONS:
        return [Scatter(_reduction_target(operand, equation.params["axes"]))]
    if isinstance(primitive, ETPPrimitive) and not (primitive.gradient_enabled and k == primitive.x_invar_index):
        return [OPAQUE for _ in writing]
    if primitive in _MIXING:
        return [OPAQUE for _ in writing]
    if primitive.name in _UNTOUCHED:
        return [Gather(None) if m == k else None for m in writing]
    if primitive in _MOVES:
        return _moved(equation, k, writing, constant_of)
    if primitive in _ACCUMULATING:
        return [Gather(None) if k == 0 else _accumulated(equation, constant_of)]
    return _by_derivative(equation, k, writing)


def _positions(operand: Atom) -> Index:
    return np.arange(size_of(operand), dtype=np.int64).reshape(operand.aval.shape)


def _spread_axes(index: Index, params: Mapping[str, Any]) -> Index:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], index.shape, strict=True):
        shape[axis] = size
    return index.reshape(shape)


def _reduction_target(operand: Atom, axes: tuple[int, ...]) -> Index:
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(operand.aval.shape))
    target = np.arange(int(np.prod(kept, dtype=np.int64)), dtype=np.int64).reshape(kept)
    return np.broadcast_to(target, operand.aval.shape).reshape(-1)


def _moved(
    equation: Equation, k: int, writing: list[int], constant_of: Callable[[Atom], Any | None]
) -> list[Link | None]:
    """Move the numbers of the operand's elements with the primitive itself, all else marked as none."""
    if equation.primitive is lax.concatenate_p:  # the most frequent of them, without a detour over JAX
        parts = [
            np.full(a.aval.shape, -1, np.int64) if j != k else _positions(a) for j, a in enumerate(equation.inputs)
        ]
        return [Gather(np.concatenate(parts, equation.params["dimension"]).reshape(-1)) for _ in writing]
    operands = []
    for j, atom in enumerate(equation.inputs):
        if j == k:
            operands.append(jnp.asarray(_positions(atom), jnp.int32))
        elif is_differentiable(atom):
            operands.append(jnp.full(atom.aval.shape, -1, jnp.int32))
        else:
            operands.append(constant_of(atom))
    if any(value is None for value in operands):
        return [OPAQUE for _ in writing]
    params = {**equation.params, **({"fill_value": -1} if "fill_value" in equation.params else {})}
    with jax.ensure_compile_time_eval():
        moved = equation.primitive.bind(*operands, **params)
    parts = moved if equation.primitive.multiple_results else [moved]
    return [Gather(np.asarray(parts[m], np.int64).reshape(-1)) for m in writing]


def _accumulated(equation: Equation, constant_of: Callable[[Atom], Any | None]) -> Link:
    """Where each update of a scatter goes: the transpose of the scatter, applied to the numbers of the positions."""
    operand, indices, updates = equation.inputs
    index, size = constant_of(indices), size_of(operand)
    if index is None or size >= _MOST_EXACT_FLOATS:
        return OPAQUE
    params = {name: equation.params[name] for name in ("dimension_numbers", "mode")}

    def added(values: jax.Array) -> jax.Array:
        return lax.scatter_add(jnp.zeros(operand.aval.shape), index, values, **params)

    numbers = jnp.arange(1, size + 1, dtype=jnp.zeros(()).dtype).reshape(operand.aval.shape)
    with jax.ensure_compile_time_eval():
        (target,) = jax.vjp(added, jnp.zeros(updates.aval.shape))[1](numbers)
    return Scatter(np.asarray(target, np.int64).reshape(-1) - 1)


def _by_derivative(equation: Equation, k: int, writing: list[int]) -> list[Link | None]:
    """Any other primitive: follow the tangent of operand ``k`` through the primitive's own derivative rule."""
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in equation.inputs]

    def at(primals: tuple[Any, ...]) -> Callable[[Any], list[Any]]:
        def of_operand(operand: Any) -> list[Any]:
            out = equation.bind(*primals[:k], operand, *primals[k + 1 :])
            return [out[m] for m in writing]

        return of_operand

    def pushed(tangent: Any, *primals: Any) -> list[Any]:
        return jax.jvp(at(primals), (primals[k],), (tangent,))[1]

    def pulled(*args: Any) -> Any:
        cotangents, primals = list(args[: len(writing)]), args[len(writing) :]
        return jax.vjp(at(primals), primals[k])[1](cotangents)[0]

    def linked(program: Program, input: int, output: int, transposed: bool = False) -> Link:
        carrying = frozenset(dependents(program.equations, [program.inputs[input]]))
        if any(inner.primitive is equation.primitive for inner in carrying):
            return OPAQUE  # a derivative in terms of the primitive itself, as a linear one has, tells nothing
        return Nested(program, input, output, carrying, transposed)

    if equation.primitive is jex_primitives.custom_vjp_call_p:  # has a reverse derivative only
        outs = [jax.ShapeDtypeStruct(equation.outputs[m].aval.shape, equation.outputs[m].aval.dtype) for m in writing]
        program = trace(pulled, *outs, *avals)
        return [linked(program, n, 0, transposed=True) for n in range(len(writing))]
    program = trace(pushed, avals[k], *avals)
    return [linked(program, 0, n) for n in range(len(writing))]
