"""Layers and cells for brainstate whose weights are marked for online learning.

Names, arguments, initialisers and parameter shapes are those of ``brainstate.nn``; change the import and the
model can be learned forward in time. Every module here is a ``brainstate.nn.Module``: it mixes with all others, and
activations, normalisations, poolings and drop-out come from ``brainstate.nn`` itself. Needs the extra ``nn``.
"""

from importlib.util import find_spec

if find_spec("brainstate") is None:
    raise ImportError('etp_ops.nn needs brainstate, which is not installed: pip install "etp-ops[nn]"')

from etp_ops.nn import surrogate
from etp_ops.nn._conductance import ConductanceEICell
from etp_ops.nn._conv import Conv1d, Conv2d, Conv3d
from etp_ops.nn._embedding import Embedding
from etp_ops.nn._gif import GIF
from etp_ops.nn._grouped import GroupedLinear
from etp_ops.nn._gru import CFNCell, GRUCell, MGUCell, MiniGRU
from etp_ops.nn._lif import ALIF, LIF
from etp_ops.nn._linear import Linear, ScaledWSLinear, SignedWLinear
from etp_ops.nn._lora import LoRA
from etp_ops.nn._lru import LRUCell
from etp_ops.nn._lstm import LSTMCell, MiniLSTM, URLSTMCell
from etp_ops.nn._readout import LeakyRateReadout
from etp_ops.nn._rnn import MinimalRNNCell, ValinaRNNCell
from etp_ops.nn._sparse import SparseLinear

__all__ = [
    "ALIF",
    "CFNCell",
    "ConductanceEICell",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "GIF",
    "GRUCell",
    "GroupedLinear",
    "LIF",
    "LRUCell",
    "LSTMCell",
    "LeakyRateReadout",
    "Linear",
    "LoRA",
    "MGUCell",
    "MiniGRU",
    "MiniLSTM",
    "MinimalRNNCell",
    "ScaledWSLinear",
    "SignedWLinear",
    "SparseLinear",
    "URLSTMCell",
    "ValinaRNNCell",
    "surrogate",
]
