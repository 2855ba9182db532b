"""Closed-form kernels for eligibility traces.

Nothing here is imported by the algorithms: installing the package is enough. Its entry point in the group
``etp_core.kernels`` registers the kernels when they are first looked up, and each says with ``applicable`` for
which operators it is right; everything else stays on the rules.
"""

from etp_fastpath._register import register
from etp_fastpath._streaming import roll_and_solve

__all__ = ["register", "roll_and_solve"]
