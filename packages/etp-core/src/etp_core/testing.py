"""What an author of primitives can get wrong, checked in one call.

:func:`check_primitive` evaluates a primitive and its rules on given operands and holds every one of them
against the primitive's ``impl``. Put one call per primitive, static setting and dtype in your tests.
"""

from typing import Any

import jax

from etp_core._check_jax import check_jax_rules
from etp_core._check_rules import check_etp_rules
from etp_core._check_subject import subject_of
from etp_core._primitive import ETPPrimitive

__all__ = ["check_primitive"]


def check_primitive(primitive: ETPPrimitive, /, *operands: Any, **static: Any) -> None:
    """Hold every rule of ``primitive`` against its ``impl``, on these operands and static parameters.

    Checked are the derived JAX rules (evaluation, ``jit``, ``jvp``, ``vjp``, transposition where the operation is
    linear, ``vmap`` for every pattern of mapped operands), ``xy_to_dw`` against ``jax.vjp`` of the impl, the algebra

        dt_to_t(g, instant(x, f)) = instant(x, g·f),    solve(g, instant(x, f)) = xy_to_dw(x, g·f)

    (without these optional rules, ``instant`` is ``xy_to_dw`` per sample and ``solve`` is ``dt_to_t`` summed over
    the batch), ``window`` as the sum of ``instant``, ``pp_input``, ``adjacency``, shapes and dtypes of both
    initialisers for one and two hidden states, and the closed-form kernels where they say that they apply.

    Args:
        primitive: the primitive under test.
        *operands: arrays to bind, all weights included; generic numbers (no ties, no zeros) check the most.
        **static: the static parameters to bind.

    Raises:
        MissingRuleError: a rule that algorithms need is not registered.
        RuleCheckError: a rule is wrong; the message names primitive and rule, what was expected and what came.

    Example:
        >>> import jax.numpy as jnp
        >>> from etp_core import register_primitive
        >>> from etp_core.testing import check_primitive
        >>> def zeros(shape, states):
        ...     return jnp.zeros((*shape, states))
        >>> scale_p = register_primitive("doc_checked_scale", lambda x, w: x * w, replace=True)
        >>> scale_p.register_etp_rules(
        ...     dt_to_t=lambda hidden_dim, trace: {"weight": trace["weight"] * hidden_dim},
        ...     xy_to_dw=lambda x, hidden_dim, weights: {"weight": x * hidden_dim},
        ...     init_drtrl=lambda x, y, weights, states: {"weight": zeros(weights["weight"].aval.shape, states)},
        ...     init_pp=lambda x, y, weights, states: zeros(y.aval.shape, states),
        ... )
        >>> check_primitive(scale_p, jnp.arange(1.0, 4.0), jnp.full(3, 0.5))
    """
    with jax.default_matmul_precision("highest"):
        subject = subject_of(primitive, operands, static)
        check_jax_rules(subject)
        check_etp_rules(subject)
