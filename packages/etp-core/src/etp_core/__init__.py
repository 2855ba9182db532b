"""The contract between operators, algorithms and kernels of eligibility trace propagation.

An author of primitives needs this package alone: :func:`register_primitive` makes a marked JAX primitive
from one function, :meth:`ETPPrimitive.register_etp_rules` gives it the rules that learning needs, and
:func:`etp_core.testing.check_primitive` checks them.
"""

from etp_core._errors import (
    MissingRuleError,
    PluginWarning,
    RegistrationError,
    RelationLostWarning,
    RuleCheckError,
)
from etp_core._plugins import load_plugins
from etp_core._primitive import ETPPrimitive, get_fast_path_rules, register_primitive
from etp_core._registry import (
    BATCHED_PRIMITIVES,
    ETP_PRIMITIVES,
    ETP_RULES_DT_TO_T,
    ETP_RULES_INIT_DRTRL,
    ETP_RULES_INIT_PP,
    ETP_RULES_XY_TO_DW,
    ETP_RULES_YW_TO_W,
)
from etp_core._rules import FastPathRules

__all__ = [
    "BATCHED_PRIMITIVES",
    "ETP_PRIMITIVES",
    "ETP_RULES_DT_TO_T",
    "ETP_RULES_INIT_DRTRL",
    "ETP_RULES_INIT_PP",
    "ETP_RULES_XY_TO_DW",
    "ETP_RULES_YW_TO_W",
    "ETPPrimitive",
    "FastPathRules",
    "MissingRuleError",
    "PluginWarning",
    "RegistrationError",
    "RelationLostWarning",
    "RuleCheckError",
    "get_fast_path_rules",
    "load_plugins",
    "register_primitive",
]
