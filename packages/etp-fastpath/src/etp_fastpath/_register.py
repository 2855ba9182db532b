"""The kernels by primitive, as data."""

import etp_ops
from etp_core import FastPathRules
from etp_fastpath._closed_forms import DENSE, ELEMENT_WISE

__all__ = ["KERNELS", "register"]

KERNELS: dict[str, FastPathRules] = {
    "etp_mm_p": DENSE,
    "etp_mv_p": DENSE,
    "etp_gmm_p": DENSE,
    "etp_gmv_p": DENSE,
    "etp_elemwise_p": ELEMENT_WISE,
}
"""Sparse, convolution, low-rank, embedding and einsum operators have no closed form and stay on their rules."""


def register() -> None:
    """Register every kernel; called once by the plug-in loader of ``etp_core``."""
    for name, kernel in KERNELS.items():
        getattr(etp_ops, name).register_fast_path(kernel)
