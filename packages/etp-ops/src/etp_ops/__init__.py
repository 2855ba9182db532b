"""Operators that mark the weights of a model for online learning, and the primitives behind them.

Use an operator where you would use the plain JAX function; everything else stays as it is. ``etp_ops.nn``
(extra ``nn``) holds brainstate layers that are wired on these operators.
"""

from etp_ops._conv import conv, etp_conv_p
from etp_ops._dense import etp_mm_p, etp_mv_p, matmul
from etp_ops._einsum import einsum, etp_einsum_p
from etp_ops._element_wise import element_wise, etp_elemwise_p
from etp_ops._embedding import embedding, etp_emb_p, etp_emb_v_p
from etp_ops._grouped import etp_gmm_p, etp_gmv_p, grouped_matmul
from etp_ops._lora import etp_lora_mm_p, etp_lora_mv_p, lora_matmul
from etp_ops._sparse import etp_sp_mm_p, etp_sp_mv_p, sparse_matmul

__all__ = [
    "conv",
    "einsum",
    "element_wise",
    "embedding",
    "etp_conv_p",
    "etp_einsum_p",
    "etp_elemwise_p",
    "etp_emb_p",
    "etp_emb_v_p",
    "etp_gmm_p",
    "etp_gmv_p",
    "etp_lora_mm_p",
    "etp_lora_mv_p",
    "etp_mm_p",
    "etp_mv_p",
    "etp_sp_mm_p",
    "etp_sp_mv_p",
    "grouped_matmul",
    "lora_matmul",
    "matmul",
    "sparse_matmul",
]
