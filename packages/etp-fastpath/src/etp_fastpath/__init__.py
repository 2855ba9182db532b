"""Closed-form and windowed kernels for eligibility traces, found through an entry point."""

__all__ = ["register"]


def register() -> None:
    """Register the kernels with etp_core; called by its plug-in loader."""
