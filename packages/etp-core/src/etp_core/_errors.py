"""The errors this workspace raises on purpose, beside ``ValueError`` and ``TypeError``."""

__all__ = [
    "MissingRuleError",
    "PluginWarning",
    "RegistrationError",
    "RelationLostWarning",
    "RuleCheckError",
]


class RegistrationError(ValueError):
    """A primitive or a rule was registered twice, or with an invalid declaration."""


class MissingRuleError(LookupError):
    """An algorithm needs a rule that the primitive does not have."""


class RuleCheckError(AssertionError):
    """A rule of a primitive disagrees with the primitive's ``impl``."""


class RelationLostWarning(UserWarning):
    """A transformation dissolved a marked operator, so the trace compiler cannot see its weight."""


class PluginWarning(UserWarning):
    """An installed kernel provider could not be loaded and is skipped."""
