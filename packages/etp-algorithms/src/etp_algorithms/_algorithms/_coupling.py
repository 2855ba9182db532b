"""Each position's own coupling through marked operators."""

from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._step import StepPoint

__all__ = ["coupled_jacobians"]


def coupled_jacobians(point: StepPoint) -> tuple[GroupJacobian | None, ...]:
    """Not there yet."""
    raise NotImplementedError
