"""The primitive under test on concrete operands, and the comparison that speaks in its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from etp_core._errors import RuleCheckError
from etp_core._primitive import ETPPrimitive
from etp_core._rules import RULES

__all__ = ["Subject", "relative_tolerance", "subject_of"]

_TOLERANCES = {"float64": 1e-10, "complex128": 1e-10, "float32": 3e-5, "complex64": 3e-5, "float16": 2e-2}


def relative_tolerance(*dtypes: Any) -> float:
    """The largest deviation, relative to the largest entry, that round-off in ``dtypes`` explains."""
    return max(_TOLERANCES.get(np.dtype(dtype).name, 1e-1) for dtype in dtypes)


@dataclass(frozen=True, eq=False, slots=True)
class Subject:
    """A primitive, its operands and static parameters, with seeded random draws."""

    primitive: ETPPrimitive
    operands: tuple[jax.Array, ...]
    static: Mapping[str, Any]
    trainable: Mapping[str, int]
    y: jax.Array
    _rng: np.random.Generator

    @property
    def x(self) -> jax.Array | None:
        """The data operand, or None where there is none."""
        index = self.primitive.x_invar_index
        return None if index is None else self.operands[index]

    @property
    def weights(self) -> dict[str, jax.Array]:
        """The trainable operands by name."""
        return {name: self.operands[index] for name, index in self.trainable.items()}

    def impl(self, *operands: Any) -> Any:
        """The implementation at the static parameters."""
        return self.primitive.impl_fn(*operands, **self.static)

    def bind(self, *operands: Any) -> Any:
        """The primitive at the static parameters."""
        return self.primitive.bind(*operands, **self.static)

    def of_weights(self, weights: Mapping[str, Any], x: Any = None) -> Any:
        """The implementation as a function of the weights, and of other data where ``x`` is given."""
        operands: list[Any] = list(self.operands)
        for name, index in self.trainable.items():
            operands[index] = weights[name]
        if x is not None and self.primitive.x_invar_index is not None:
            operands[self.primitive.x_invar_index] = x
        return self.impl(*operands)

    def draw(self, like: Any) -> jax.Array:
        """Random numbers of the shape and dtype of ``like``, away from zero."""
        shape, dtype = tuple(like.shape), np.dtype(like.dtype)
        values = self._rng.uniform(0.5, 1.5, shape) * self._rng.choice([-1.0, 1.0], shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * self._rng.uniform(0.5, 1.5, shape)
        return jnp.asarray(values.astype(dtype))

    def call(self, rule: str, *args: Any) -> Any:
        """The registered rule of this kind, applied with the static parameters; its own errors name it."""
        function = self.primitive.require_rule(rule, "check_primitive")
        keywords = {} if rule in ("init_drtrl", "init_pp") else self.static
        try:
            return function(*args, **keywords)
        except Exception as error:
            self.fail(rule, f"a result, but it raised {type(error).__name__}: {error}", cause=error)

    def fail(self, rule: str, expected: str, *, cause: Exception | None = None) -> NoReturn:
        """Raise a :class:`RuleCheckError` in the name of ``rule``."""
        function = self.primitive.rule(rule) if rule in _RULE_NAMES else None
        code = getattr(function, "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        raise RuleCheckError(f"{self.primitive.name}: {rule}{where}: expected {expected.rstrip('.')}.") from cause

    def same(self, rule: str, claim: str, got: Any, expected: Any) -> None:
        """Fail unless ``got`` equals ``expected``: entries, shapes, dtypes, then values up to round-off."""
        self.same_form(rule, claim, got, expected)
        pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True)
        for (path, a), b in pairs:
            if b.dtype != jax.dtypes.float0:
                self._same_values(rule, f"{claim}{jax.tree_util.keystr(path)}", a, b)

    def same_form(self, rule: str, claim: str, got: Any, expected: Any) -> None:
        """Fail unless ``got`` has the entries of ``expected``, with their shapes and dtypes."""
        if jax.tree.structure(got) != jax.tree.structure(expected):
            self.fail(rule, f"{claim} with the entries {_entries(expected)}, got {_entries(got)}")
        pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True)
        for (path, a), b in pairs:
            at = jax.tree_util.keystr(path)
            if np.shape(a) != b.shape:
                self.fail(rule, f"{claim}{at} of shape {b.shape}, got shape {np.shape(a)}")
            if _dtype(a) != b.dtype:
                self.fail(rule, f"{claim}{at} of dtype {b.dtype}, got {_dtype(a)}")

    def _same_values(self, rule: str, claim: str, got: Any, expected: Any) -> None:
        wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
        exact = [np.asarray(v).astype(wide) for v in (got, expected)]
        deviation = np.abs(exact[0] - exact[1])
        tolerance = relative_tolerance(expected.dtype, self.y.dtype)
        if deviation.size == 0 or deviation.max() <= tolerance * max(1.0, float(np.abs(exact[1]).max())):
            return
        worst = np.unravel_index(int(np.argmax(np.where(np.isnan(deviation), np.inf, deviation))), deviation.shape)
        self.fail(
            rule,
            f"{claim}: at {[int(i) for i in worst]} {exact[1][worst]:.6g}, got {exact[0][worst]:.6g} "
            f"({int((deviation > tolerance).sum())} of {deviation.size} entries differ)",
        )


_RULE_NAMES = frozenset(RULES)


def subject_of(primitive: ETPPrimitive, operands: tuple[Any, ...], static: Mapping[str, Any]) -> Subject:
    """The checked declaration of ``primitive`` on ``operands``."""
    arrays = tuple(jnp.asarray(operand) for operand in operands)
    y: Any = primitive.impl_fn(*arrays, **static)
    if not isinstance(y, jax.Array):
        raise RuleCheckError(f"{primitive.name}: impl_fn: expected one array, got {type(y).__name__}.")
    subject = Subject(primitive, arrays, dict(static), primitive.trainable_invars(static), y, np.random.default_rng(0))
    if not jnp.issubdtype(y.dtype, jnp.inexact):
        subject.fail("impl_fn", f"a floating-point result, got {y.dtype}")
    _check_layout(subject)
    return subject


def _check_layout(subject: Subject) -> None:
    primitive, count = subject.primitive, len(subject.operands)
    if primitive.x_invar_index is not None and primitive.x_invar_index >= count:
        subject.fail("x_invar_index", f"one of the {count} operands, got {primitive.x_invar_index}")
    for name, index in subject.trainable.items():
        what = f"{name!r} to be another operand than x, one of {count}"
        if not 0 <= index < count or index == primitive.x_invar_index:
            subject.fail("trainable_invars_fn", f"{what}, got operand {index}")
        if not jnp.issubdtype(subject.operands[index].dtype, jnp.inexact):
            subject.fail("trainable_invars_fn", f"{name!r} to be floating point, got {subject.operands[index].dtype}")
    x, y = subject.x, subject.y
    if primitive.batched and (x is None or x.ndim == 0 or y.ndim == 0 or x.shape[0] != y.shape[0]):
        given = None if x is None else x.shape
        subject.fail("batched", f"one leading batch axis in x and y, got x {given} and y {y.shape}")


def _entries(tree: Any) -> str:
    return str(sorted(map(str, tree))) if isinstance(tree, Mapping) else type(tree).__name__


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", None) or np.asarray(value).dtype
