"""The errors this workspace raises on purpose, beside ``ValueError`` and ``TypeError``."""

__all__ = [
    "MissingRuleError",
    "NotSupportedError",
    "PluginWarning",
    "RegistrationError",
    "RelationLostWarning",
    "RuleCheckError",
]


class RegistrationError(ValueError):
    """A primitive or a rule was registered twice, or with an invalid declaration."""


class MissingRuleError(LookupError):
    """An algorithm needs a rule that the primitive does not have."""


class NotSupportedError(ValueError):
    """A model uses a construct that cannot be learned online; the message names place and remedy."""


class RuleCheckError(AssertionError):
    """A rule of a primitive disagrees with the primitive's ``impl``."""


class RelationLostWarning(UserWarning):
    """A transformation dissolved a marked operator, so the trace compiler cannot see its weight."""


class PluginWarning(UserWarning):
    """An installed kernel provider could not be loaded and is skipped."""
