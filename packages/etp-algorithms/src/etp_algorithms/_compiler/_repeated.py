"""An operator that a long loop applies once per iteration, as one operator with the iterations as leading axis.

    y_l = op(x_l, w)  for l = 1 … L        becomes        y = op×L(x, w)

Every iteration drives the same positions, so one trace serves them all where they share their weight: its newest
term is ``Σ_l Df_l ⊗ ∂y_l/∂w``, the operator's own rule for a window. Where each iteration has a weight of its own,
weights and rules have the leading axis too.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from etp_core import ETPPrimitive
from etp_core.jaxpr import Atom, Variable

__all__ = ["repeated"]

Arrays = dict[str, jax.Array]
_made: dict[tuple[ETPPrimitive, int, tuple[bool, ...]], "_Repeated"] = {}


def repeated(base: ETPPrimitive, length: int, stacked: tuple[bool, ...]) -> ETPPrimitive:
    """The operator ``base`` of ``length`` iterations; ``stacked`` says which operands have them as leading axis.

    Equal arguments give the same primitive, so that equal programs share a compilation.
    """
    key = (base, length, stacked)
    if key not in _made:
        _made[key] = _Repeated(*key)
    return _made[key]


class _Repeated(ETPPrimitive):
    """What :func:`repeated` makes: derived JAX rules, and trace rules on top of those of ``base``."""

    def __init__(self, base: ETPPrimitive, length: int, stacked: tuple[bool, ...]) -> None:
        Primitive.__init__(self, f"{base.name}[{length}]")
        self.base, self.length, self.stacked = base, length, stacked
        self.batched = False
        self.gradient_enabled = base.gradient_enabled
        self.x_invar_index = base.x_invar_index
        self.y_outvar_index = base.y_outvar_index
        self.defined_at = base.defined_at
        self.impl_fn = self._apply
        _install(self)

    def _apply(self, *operands: Any, **static: Any) -> jax.Array:
        axes = tuple(0 if s else None for s in self.stacked)
        return jax.vmap(functools.partial(self.base.impl_fn, **static), in_axes=axes)(*operands)

    def trainable_invars(self, static: Mapping[str, Any]) -> dict[str, int]:
        """Those of the operator it repeats."""
        return self.base.trainable_invars(static)

    def rule(self, kind: str) -> Any | None:
        """The rule of ``kind``, made from the rules of the operator it repeats; None where that has none."""
        needs = {"instant": "xy_to_dw", "window": "xy_to_dw", "solve": "dt_to_t"}.get(kind, kind)
        if self.base.rule(kind) is None and self.base.rule(needs) is None:
            return None
        rules = _OF_OWN_WEIGHTS if self._own_weights else _OF_ONE_WEIGHT
        return functools.partial(rules[kind], self) if kind in rules else None

    def require_rule(self, kind: str, algorithm: str) -> Any:
        """The same, or the error of the operator it repeats."""
        return self.rule(kind) or self.base.require_rule(kind, algorithm)

    @property
    def batched_twin(self) -> ETPPrimitive | None:
        """None: the leading axis is no batch."""
        return None

    @property
    def _own_weights(self) -> bool:
        """Whether every iteration has weights of its own."""
        return any(s for k, s in enumerate(self.stacked) if k != self.x_invar_index)


def _install(primitive: _Repeated) -> None:
    """The JAX rules; unlike those of a user's operator they may dissolve, for the step is compiled by now."""
    impl = primitive.impl_fn
    primitive.def_impl(impl)

    def abstract(*avals: Any, **static: Any) -> Any:
        out = jax.eval_shape(
            functools.partial(impl, **static), *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
        )
        return jax.core.ShapedArray(out.shape, out.dtype)

    def jvp(primals: Any, tangents: Any, **static: Any) -> Any:
        return jax.jvp(functools.partial(impl, **static), primals, tuple(map(ad.instantiate_zeros, tangents)))

    def batch(args: Any, axes: Any, **static: Any) -> Any:
        return jax.vmap(functools.partial(impl, **static), in_axes=axes)(*args), 0

    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(impl, multiple_results=False))
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batch


# --- the terms of one iteration ----------------------------------------------------------------------------------


def _instant(base: ETPPrimitive, x: Any, df: jax.Array, weights: Arrays, static: Mapping[str, Any]) -> Arrays:
    rule = base.rule("instant")
    if rule is not None:
        return rule(x, df, weights, **static)
    pull = base.require_rule("xy_to_dw", "an online learner")
    if not base.batched:
        return pull(x, df, weights, **static)
    return jax.vmap(lambda x, df: pull(x[None], df[None], weights, **static))(x, df)


def _solve(base: ETPPrimitive, signal: jax.Array, trace: Arrays, weights: Arrays, static: Mapping[str, Any]) -> Arrays:
    rule = base.rule("solve")
    if rule is not None:
        return rule(signal, trace, weights, **static)
    products = base.require_rule("dt_to_t", "an online learner")(signal, trace, **static)
    return {key: products[key].sum(tuple(range(products[key].ndim - w.ndim))) for key, w in weights.items()}


def _sum_over(leading: int, term: Callable[[Any, Any], Arrays], xs: Any, values: jax.Array) -> Arrays:
    """``Σ term(x, value)`` over the leading axes, one by one: a term may be as large as a trace."""
    values = values.reshape(-1, *values.shape[leading:])
    xs = None if xs is None else xs.reshape(-1, *xs.shape[leading:])
    zero = jax.eval_shape(term, None if xs is None else xs[0], values[0])
    start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), zero)
    return jax.lax.scan(lambda sum_, now: (jax.tree.map(jnp.add, sum_, term(*now)), None), start, (xs, values))[0]


def _first(atom: Atom | None) -> Variable | None:
    """The atom of one iteration."""
    return None if atom is None else Variable(jax.core.ShapedArray(atom.aval.shape[1:], atom.aval.dtype))


# --- rules where the iterations share their weights --------------------------------------------------------------


def _one_init(self: _Repeated, x: Any, y: Any, weights: Any, states: int) -> Any:
    return self.base.require_rule("init_drtrl", "an online learner")(_first(x), _first(y), weights, states)


def _one_instant(self: _Repeated, x: Any, df: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    window = self.base.rule("window")
    if window is not None:
        return window(x, df, weights, **static)
    return _sum_over(1, lambda x, df: _instant(self.base, x, df, weights, static), x, df)


def _one_window(self: _Repeated, xs: Any, dfs: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    window = self.base.rule("window")
    if window is not None:
        merged = [None if a is None else a.reshape(-1, *a.shape[2:]) for a in (xs, dfs)]
        return window(*merged, weights, **static)
    return _sum_over(2, lambda x, df: _instant(self.base, x, df, weights, static), xs, dfs)


def _one_dt_to_t(self: _Repeated, factor: jax.Array, trace: Arrays, **static: Any) -> Arrays:
    return self.base.require_rule("dt_to_t", "an online learner")(factor[0], trace, **static)


def _one_solve(self: _Repeated, signal: jax.Array, trace: Arrays, weights: Arrays, **static: Any) -> Arrays:
    return _solve(self.base, signal[0], trace, weights, static)


def _one_pull(self: _Repeated, x: Any, cotangent: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    pull = self.base.require_rule("xy_to_dw", "an online learner")
    return _sum_over(1, lambda x, g: pull(x, g, weights, **static), x, cotangent)


# --- rules where every iteration has its own ---------------------------------------------------------------------


def _own_init(self: _Repeated, x: Any, y: Any, weights: Mapping[str, Any], states: int) -> Any:
    singles = {key: _first(atom) for key, atom in weights.items()}
    made = self.base.require_rule("init_drtrl", "an online learner")(_first(x), _first(y), singles, states)
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (self.length, *a.shape)), made)


def _own_instant(self: _Repeated, x: Any, df: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    return jax.vmap(lambda x, df, w: _instant(self.base, x, df, w, static))(x, df, weights)


def _own_dt_to_t(self: _Repeated, factor: jax.Array, trace: Arrays, **static: Any) -> Arrays:
    rule = self.base.require_rule("dt_to_t", "an online learner")
    return jax.vmap(lambda f, t: rule(f, t, **static))(factor, trace)


def _own_solve(self: _Repeated, signal: jax.Array, trace: Arrays, weights: Arrays, **static: Any) -> Arrays:
    return jax.vmap(lambda s, t, w: _solve(self.base, s, t, w, static))(signal, trace, weights)


def _own_pull(self: _Repeated, x: Any, cotangent: jax.Array, weights: Arrays, **static: Any) -> Arrays:
    pull = self.base.require_rule("xy_to_dw", "an online learner")
    return jax.vmap(lambda x, g, w: pull(x, g, w, **static))(x, cotangent, weights)


# --- rules of factorised traces ----------------------------------------------------------------------------------


def _init_pp(self: _Repeated, x: Any, y: Any, weights: Mapping[str, Any], states: int) -> jax.Array:
    singles = {key: _first(atom) for key, atom in weights.items()} if self._own_weights else weights
    made = self.base.require_rule("init_pp", "an online learner")(_first(x), _first(y), singles, states)
    return jnp.broadcast_to(made, (self.length, *made.shape))


def _pp_input(self: _Repeated, x: jax.Array, weights: Arrays, **static: Any) -> jax.Array:
    rule = self.base.require_rule("pp_input", "an online learner")
    if self._own_weights:
        return jax.vmap(lambda x, w: rule(x, w, **static))(x, weights)
    return jax.vmap(lambda x: rule(x, weights, **static))(x)


_FACTORISED = {"init_pp": _init_pp, "pp_input": _pp_input}
_OF_ONE_WEIGHT: Mapping[str, Callable[..., Any]] = {
    "init_drtrl": _one_init,
    "instant": _one_instant,
    "window": _one_window,
    "dt_to_t": _one_dt_to_t,
    "solve": _one_solve,
    "xy_to_dw": _one_pull,
    **_FACTORISED,
}
_OF_OWN_WEIGHTS: Mapping[str, Callable[..., Any]] = {
    "init_drtrl": _own_init,
    "instant": _own_instant,
    "dt_to_t": _own_dt_to_t,
    "solve": _own_solve,
    "xy_to_dw": _own_pull,
    **_FACTORISED,
}
