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

    __module__ = "etp_core"  # the name to import it by, as a traceback shows it


class MissingRuleError(LookupError):
    """An algorithm needs a rule that the primitive does not have."""

    __module__ = "etp_core"


class RuleCheckError(AssertionError):
    """A rule of a primitive disagrees with the primitive's ``impl``."""

    __module__ = "etp_core"


class RelationLostWarning(UserWarning):
    """A transformation dissolved a marked operator, so the trace compiler cannot see its weight."""

    __module__ = "etp_core"


class PluginWarning(UserWarning):
    """An installed kernel provider could not be loaded and is skipped."""

    __module__ = "etp_core"
