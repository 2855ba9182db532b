"""The rules a primitive may carry, as data: one row per rule.

Every rule receives the static parameters of the equation as keywords and speaks dictionaries keyed by
the names that ``trainable_invars_fn`` returns. Arrays are mantissas, without unit. Axes:

- a *batched* primitive's rules see the leading batch axis in ``x``, ``hidden_dim`` and traces;
- no rule ever sees the state axis of a hidden group, except the two initialisers, which append it last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["RULES", "FastPathRules", "Rule", "RuleKind"]

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RuleKind:
    """One kind of rule: its name, its signature for messages, and whether every algorithm's author must write it."""

    name: str
    signature: str
    purpose: str
    required: bool = False


RULES: Mapping[str, RuleKind] = {
    kind.name: kind
    for kind in (
        RuleKind(
            "dt_to_t",
            "dt_to_t(hidden_dim, trace, **static) -> dict",
            "multiply a trace by a y-shaped factor",
            required=True,
        ),
        RuleKind(
            "xy_to_dw",
            "xy_to_dw(x, hidden_dim, weights, **static) -> dict",
            "pull a y-shaped cotangent back to the raw weights",
            required=True,
        ),
        RuleKind(
            "init_drtrl",
            "init_drtrl(x_var, y_var, weight_vars, num_hidden_state) -> dict",
            "zero traces, one per weight, state axis last",
            required=True,
        ),
        RuleKind(
            "init_pp",
            "init_pp(x_var, y_var, weight_vars, num_hidden_state) -> array",
            "the zero output trace, state axis last",
            required=True,
        ),
        RuleKind(
            "instant",
            "instant(x, df, weights, **static) -> dict",
            "the newest term of the trace, where it is not parameter-shaped or has a closed form",
        ),
        RuleKind(
            "solve",
            "solve(signal, trace, weights, **static) -> dict",
            "contract a signal with the trace into parameter-shaped gradients",
        ),
        RuleKind(
            "window",
            "window(x_seq, df_seq, weights, **static) -> dict",
            "the sum of the instant terms of several steps, time leading",
        ),
        RuleKind(
            "pp_input",
            "pp_input(x, weights, **static) -> array",
            "the floating-point view of x that a factorised trace can low-pass (one-hot for indices)",
        ),
        RuleKind(
            "adjacency",
            "adjacency(x_shape, y_shape, **static) -> bool array",
            "which elements of y depend on which elements of x, one sample at a time; without it, all on all",
        ),
    )
}


class FastPathRules(NamedTuple):
    """Closed-form kernels that stand in for the rules of one primitive.

    Traces, factors and signals come as tuples over the ``S`` states of a hidden group, each entry without
    a state axis; a factor that is structurally zero is ``None``.

    Attributes:
        instant: ``(x, df, has_bias) -> tuple of dict``, the newest term ``x ⊗ df_a`` per state ``a``.
        recurrent: ``(factors, traces) -> tuple of dict``, ``Σ_b factors[a][b] · traces[b]`` per state ``a``.
        solve: ``(signals, traces, *, fold_batch=False) -> dict``, ``Σ_a signals[a] · traces[a]``, summed
            over the leading batch axis when ``fold_batch`` is set.
        applicable: ``(eqn_params) -> bool``, whether the kernels are right for these static parameters.
    """

    instant: Rule
    recurrent: Rule
    solve: Rule
    applicable: Callable[[Mapping[str, Any]], bool]
