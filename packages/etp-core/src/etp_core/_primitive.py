"""``ETPPrimitive``: a JAX primitive whose trainable inputs are marked, and its registration."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from jax.extend.core import Primitive

from etp_core import _derive
from etp_core._errors import MissingRuleError, RegistrationError
from etp_core._plugins import load_plugins
from etp_core._registry import add_primitive, add_rule, find_rule
from etp_core._rules import RULES, FastPathRules, Rule
from etp_core.arguments import Advice, advised

__all__ = ["ETPPrimitive", "get_fast_path_rules", "register_primitive"]

TrainableInvars = Callable[[Mapping[str, Any]], dict[str, int]]

# What the four registrations and register_etp_rules of braintrace 0.2 take and these do not.
_ONE_RULE = Advice(renamed={"fn": "rule"})
_RULES = Advice(
    replaced={
        "pp_x_repr": "the rule is pp_input(x, weights, **static)",
        "snap_adjacency": "the rule is adjacency(x_shape, y_shape, **static)",
        "snap_anchor": "nothing is asked: a trace has the positions that the links of its relation have",
    }
)


class ETPPrimitive(Primitive):
    """A JAX primitive ``y = op(x, w₁, w₂, …; **static)`` that marks its weights for online learning.

    Made by :func:`register_primitive`; never constructed directly. ``bind`` takes the arrays positionally
    and the static parameters, which must be hashable, as keywords.

    Attributes:
        impl_fn: the pure JAX function that defines the operation.
        batched: whether ``x`` and ``y`` carry a leading batch axis.
        gradient_enabled: whether the operation is identity-like, so that it does not end the path of
            another weight to a hidden state.
        x_invar_index: position of the data operand, or None where there is none.
        y_outvar_index: position of ``y`` among the outputs.
        defined_at: file and line of the registration.
    """

    impl_fn: Callable[..., Any]
    batched: bool
    gradient_enabled: bool
    x_invar_index: int | None
    y_outvar_index: int
    defined_at: str
    _trainable_invars_fn: TrainableInvars | None

    def trainable_invars(self, static: Mapping[str, Any]) -> dict[str, int]:
        """The trainable operands under these static parameters: ``{name: operand index}``."""
        return {"weight": 1} if self._trainable_invars_fn is None else dict(self._trainable_invars_fn(static))

    def rule(self, kind: str) -> Any | None:
        """The registered rule of ``kind`` (a key of ``RULES``), or None."""
        return find_rule(kind, self)

    def require_rule(self, kind: str, algorithm: str) -> Rule:
        """The registered rule of ``kind``.

        Raises:
            MissingRuleError: there is none; the message names primitive, rule and algorithm.
        """
        rule = find_rule(kind, self)
        if rule is None:
            raise MissingRuleError(
                f"{algorithm} needs the {kind} rule of the primitive {self.name!r} (defined at {self.defined_at}), "
                f"which has none. Register it: {self.name}.register_{kind}(fn) with {RULES[kind].signature}."
            )
        return rule

    @property
    def batched_twin(self) -> "ETPPrimitive | None":
        """The batched primitive that takes over when the data of this unbatched one is mapped."""
        return find_rule("batched_twin", self)

    @advised(_ONE_RULE)
    def register_dt_to_t(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register the trace rule ``dt_to_t(hidden_dim, trace, **static) -> dict``."""
        add_rule("dt_to_t", self, rule, replace=replace)
        return rule

    register_yw_to_w = register_dt_to_t

    @advised(_ONE_RULE)
    def register_xy_to_dw(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register the pull-back rule ``xy_to_dw(x, hidden_dim, weights, **static) -> dict``."""
        add_rule("xy_to_dw", self, rule, replace=replace)
        return rule

    @advised(_ONE_RULE)
    def register_init_drtrl(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``init_drtrl(x_var, y_var, weight_vars, num_hidden_state) -> dict`` of zero traces."""
        add_rule("init_drtrl", self, rule, replace=replace)
        return rule

    @advised(_ONE_RULE)
    def register_init_pp(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``init_pp(x_var, y_var, weight_vars, num_hidden_state) -> array`` of zeros."""
        add_rule("init_pp", self, rule, replace=replace)
        return rule

    def register_instant(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``instant(x, df, weights, **static) -> dict``, shaped like the trace without state axis."""
        add_rule("instant", self, rule, replace=replace)
        return rule

    def register_solve(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``solve(signal, trace, weights, **static) -> dict``, shaped like the weights."""
        add_rule("solve", self, rule, replace=replace)
        return rule

    def register_window(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``window(x_seq, df_seq, weights, **static) -> dict``, the ``instant`` terms summed over time."""
        add_rule("window", self, rule, replace=replace)
        return rule

    def register_pp_input(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``pp_input(x, weights, **static) -> array``, the view of ``x`` that can be low-passed."""
        add_rule("pp_input", self, rule, replace=replace)
        return rule

    def register_adjacency(self, rule: Rule, *, replace: bool = False) -> Rule:
        """Register ``adjacency(x_shape, y_shape, **static) -> bool array`` of shape ``(y.size, x.size)``.

        Shapes are those of one sample. An entry must be true wherever an element of ``y`` can depend on an element of
        ``x``; without the rule every element of a sample may depend on every other.
        """
        add_rule("adjacency", self, rule, replace=replace)
        return rule

    def register_fast_path(self, rules: FastPathRules, *, replace: bool = False) -> FastPathRules:
        """Register the closed-form kernels of this primitive.

        Raises:
            TypeError: ``rules`` is not a :class:`FastPathRules`.
        """
        if not isinstance(rules, FastPathRules):
            raise TypeError(f"fast_path must be a FastPathRules, got {type(rules).__name__}.")
        add_rule("fast_path", self, rules, replace=replace)
        return rules

    def register_batched_twin(self, twin: "ETPPrimitive", *, replace: bool = False) -> "ETPPrimitive":
        """Name the batched primitive that a vmap over this one's data binds instead.

        Raises:
            RegistrationError: this primitive is batched itself, or ``twin`` is not batched.
        """
        if self.batched or not twin.batched:
            raise RegistrationError(
                f"a batched twin joins an unbatched primitive to a batched one; {self.name} is "
                f"{'batched' if self.batched else 'unbatched'}, {twin.name} is "
                f"{'batched' if twin.batched else 'unbatched'}."
            )
        add_rule("batched_twin", self, twin, replace=replace)
        return twin

    @advised(_RULES)
    def register_etp_rules(
        self,
        *,
        dt_to_t: Rule | None = None,
        yw_to_w: Rule | None = None,
        xy_to_dw: Rule | None = None,
        init_drtrl: Rule | None = None,
        init_pp: Rule | None = None,
        instant: Rule | None = None,
        solve: Rule | None = None,
        window: Rule | None = None,
        pp_input: Rule | None = None,
        adjacency: Rule | None = None,
        fast_path: FastPathRules | None = None,
        replace: bool = False,
    ) -> None:
        """Register several rules at once; what is left out stays as it is.

        ``yw_to_w`` is the older name of ``dt_to_t``.

        Raises:
            TypeError: both spellings of the trace rule are given.
            RegistrationError: a rule exists already and ``replace`` is not set.
        """
        if dt_to_t is not None and yw_to_w is not None:
            raise TypeError(f"{self.name}: dt_to_t and yw_to_w are two names of one rule; give one of them.")
        given = {
            "dt_to_t": dt_to_t if dt_to_t is not None else yw_to_w,
            "xy_to_dw": xy_to_dw,
            "init_drtrl": init_drtrl,
            "init_pp": init_pp,
            "instant": instant,
            "solve": solve,
            "window": window,
            "pp_input": pp_input,
            "adjacency": adjacency,
        }
        for kind, rule in given.items():
            if rule is not None:
                add_rule(kind, self, rule, replace=replace)
        if fast_path is not None:
            self.register_fast_path(fast_path, replace=replace)


def register_primitive(
    name: str,
    impl_fn: Callable[..., Any],
    *,
    batched: bool = False,
    gradient_enabled: bool = False,
    trainable_invars_fn: TrainableInvars | None = None,
    x_invar_index: int | None = 0,
    y_outvar_index: int = 0,
    replace: bool = False,
) -> ETPPrimitive:
    """Make and register an :class:`ETPPrimitive` from one implementation.

    Evaluation, abstract evaluation, lowering, differentiation, transposition and batching are derived from
    ``impl_fn``.

    Args:
        name: the name in jaxprs and reports; given once.
        impl_fn: pure JAX function ``(*arrays, **static) -> array``.
        batched: ``x`` and ``y`` carry a leading batch axis, and rows do not interact.
        gradient_enabled: the operation is identity-like and may stand between another marked weight and a
            hidden state.
        trainable_invars_fn: static parameters to ``{name: operand index}``; None means ``{"weight": 1}``.
        x_invar_index: position of the data operand; None where there is none.
        y_outvar_index: position of ``y`` among the outputs; 0, since ``impl_fn`` returns one array.
        replace: replace an earlier primitive of this name, with all its rules.

    Returns:
        The primitive; give it rules with :meth:`ETPPrimitive.register_etp_rules`.

    Raises:
        RegistrationError: the name is taken and ``replace`` is not set, or an index is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_core import register_primitive
        >>> scale_p = register_primitive("doc_scale", lambda x, w: x * w, replace=True)
        >>> scale_p.bind(jnp.ones(2), jnp.full(2, 3.0)).tolist()
        [3.0, 3.0]
    """
    if not callable(impl_fn):
        raise TypeError(f"{name}: impl_fn must be a function of arrays, got {type(impl_fn).__name__}.")
    if y_outvar_index != 0:
        raise RegistrationError(
            f"{name}: impl_fn returns one array, so y_outvar_index must be 0, got {y_outvar_index}."
        )
    if x_invar_index is not None and x_invar_index < 0:
        raise RegistrationError(f"{name}: x_invar_index must be None or not negative, got {x_invar_index}.")
    primitive = ETPPrimitive(name)
    primitive.impl_fn = impl_fn
    primitive.batched = batched
    primitive.gradient_enabled = gradient_enabled
    primitive.x_invar_index = x_invar_index
    primitive.y_outvar_index = y_outvar_index
    primitive._trainable_invars_fn = trainable_invars_fn
    primitive.defined_at = _caller()
    _derive.install(primitive)
    add_primitive(primitive, replace=replace)
    return primitive


def _caller() -> str:
    """File and line of the nearest frame that is neither ours nor a type checker's wrapper around us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _WRAPPERS:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_WRAPPERS = frozenset(("etp_core", "jaxtyping", "beartype"))


def get_fast_path_rules(primitive: ETPPrimitive) -> FastPathRules | None:
    """The closed-form kernels of ``primitive``, or None; loads installed kernel providers on first call."""
    load_plugins()
    return find_rule("fast_path", primitive)
