"""The runtime: nodes that update in their own time and talk through ports that hold the latest message.

A ``Node`` updates every ``period`` seconds. ``Network`` and ``Group`` put nodes together, ``run`` starts them in
background threads, and the ``Run`` it returns is how the host writes, reads, waits, pauses, saves and stops. Nobody
waits for anybody: a node reads what is there. All times are read from one timer, which can be paused, or be
virtual.
"""

from mujou_pc.runtime._errors import NetworkError, SpecError, StuckError, WiringError
from mujou_pc.runtime._network import Group, Network, Part
from mujou_pc.runtime._node import Node
from mujou_pc.runtime._port import AnyPort, Channel, Message, MultiPort, Port
from mujou_pc.runtime._run import Run, run
from mujou_pc.runtime._saving import load, save
from mujou_pc.runtime._schedule import NodeStats
from mujou_pc.runtime._spec import (
    BoolSpec,
    DictSpec,
    FloatSpec,
    IntSpec,
    Spec,
    TensorSpec,
    TimestampSpec,
)
from mujou_pc.runtime._stateful import State, Stateful
from mujou_pc.runtime._subscription import Subscription
from mujou_pc.runtime._timer import RealTimer, Timer, Timestamp, VirtualTimer

__all__ = [
    "Node",
    "Port",
    "MultiPort",
    "Channel",
    "AnyPort",
    "Message",
    "Network",
    "Group",
    "Part",
    "run",
    "Run",
    "Subscription",
    "save",
    "load",
    "NodeStats",
    "Spec",
    "TensorSpec",
    "DictSpec",
    "IntSpec",
    "FloatSpec",
    "BoolSpec",
    "TimestampSpec",
    "Timer",
    "RealTimer",
    "VirtualTimer",
    "Timestamp",
    "State",
    "Stateful",
    "NetworkError",
    "SpecError",
    "StuckError",
    "WiringError",
]
