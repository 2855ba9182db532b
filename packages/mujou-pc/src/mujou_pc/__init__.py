"""Predictive coding that learns while it runs.

Every node of a network holds how far its activity is from its prediction, and relaxes it with the
error that the nodes after it send back. Where that comes to rest stands the credit that
backpropagation computes, and the node learns from it alone, with no pass through the network and
nobody waiting. Nodes run in background threads, on one timer whose seconds set every speed.

Usually: a ``Chain``, ``show``, ``TimeConstants``, an optimizer of ``optim``, a loss of ``loss`` and a
``msg.Sample``. Nodes of your own are built from ``clock``, ``functional`` and ``msg``; ``runtime`` is what
all of them live in.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("mujou_pc needs PyTorch, which is not installed: pip install torch")

from mujou_pc import clock, functional, loss, msg, optim, relax, runtime, testing
from mujou_pc._chain import Chain
from mujou_pc._nodes import Input, Layer, Output
from mujou_pc._show import show
from mujou_pc._time_constants import TimeConstants
from mujou_pc.runtime import load, run, save

__all__ = [
    "Chain",
    "Input",
    "Layer",
    "Output",
    "TimeConstants",
    "show",
    "run",
    "save",
    "load",
    "clock",
    "functional",
    "loss",
    "msg",
    "optim",
    "relax",
    "runtime",
    "testing",
]
