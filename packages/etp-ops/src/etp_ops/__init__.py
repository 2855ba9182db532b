"""Operators that mark the weights of a model for online learning, and the primitives behind them.

Use an operator where you would use the plain JAX function; everything else stays as it is. ``etp_ops.nn``
(extra ``nn``) holds brainstate layers that are wired on these operators.
"""

from etp_ops._dense import etp_mm_p, etp_mv_p, matmul
from etp_ops._element_wise import element_wise, etp_elemwise_p

__all__ = ["element_wise", "etp_elemwise_p", "etp_mm_p", "etp_mv_p", "matmul"]
