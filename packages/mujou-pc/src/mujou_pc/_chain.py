"""A chain: Input, Layers and Output in a row."""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from mujou_pc._nodes import EULER, Input, Layer, Output, check_settings
from mujou_pc._time_constants import TimeConstants
from mujou_pc.loss import Loss
from mujou_pc.msg import Prediction, Sample
from mujou_pc.optim import Optimizer
from mujou_pc.relax import Relaxer
from mujou_pc.runtime import Network, Port, TensorSpec

__all__ = ["Chain"]


class Chain(Network):
    """A network of Input, a Layer for every module but the last, and an Output with the last.

    The parts are called ``input``, ``layer0``, ``layer1``, ... and ``output``. The host writes a ``Sample``
    to ``prev`` and reads a ``Prediction`` from ``next``.

    Args:
        modules: at least one; each maps one tensor (B, ...) to one.
        x: spec of the samples, the batch first.
        y: spec of the targets.
        loss: gives one value for each sample.
        tau: time constants of every node.
        optimizer: setting of how the weights move, for every node.
        learn_interval: seconds from the write of a sample to learning from it, and between two such;
            None: every update; ``math.inf``: never.
        relaxer: setting of how the deviations move, for every Layer.
        period: seconds between two updates of every node; ``tau.period`` by default.

    Raises:
        ValueError: as ``Layer`` and ``Output``; or there is no module, or one is in two nodes.

    Warns:
        UserWarning: ``learn_interval`` is shorter than the 2 L periods that the credit needs to reach
            the first of L Layers.

    Example:
        >>> import mujou_pc as pc
        >>> from mujou_pc.runtime import TensorSpec
        >>> chain = pc.Chain(
        ...     [nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2)],
        ...     x=TensorSpec((3, 4)),
        ...     y=TensorSpec((3, 2)),
        ...     loss=pc.loss.MSELoss(),
        ...     tau=pc.TimeConstants(h=0.02, lam=0.01, r=0.02),
        ...     optimizer=pc.optim.SGD(tau=1.0),
        ...     learn_interval=0.04,
        ... )
        >>> with pc.testing.run(chain) as run:
        ...     print(list(run.nodes))
        ['input', 'layer0', 'output']
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        x: TensorSpec,
        y: TensorSpec,
        loss: Loss,
        tau: TimeConstants,
        optimizer: Optimizer,
        learn_interval: float | None,
        relaxer: Relaxer = EULER,
        period: float | None = None,
    ) -> None:
        if not modules:
            raise ValueError("a chain needs at least one module, for its Output")
        check_settings(modules, tau, optimizer)
        period = tau.period if period is None else period
        _warn_if_early(learn_interval, 2 * (len(modules) - 1) * period)
        self.input: Input = Input(x, y, period=period)
        layers: list[Layer] = []
        for module in modules[:-1]:
            layers.append(
                Layer(
                    module,
                    (layers or [self.input])[-1].spec,
                    tau=tau,
                    optimizer=optimizer,
                    learn_interval=learn_interval,
                    relaxer=relaxer,
                    period=period,
                )
            )
        self.layers: tuple[Layer, ...] = tuple(layers)
        self.output: Output = Output(
            modules[-1],
            (layers or [self.input])[-1].spec,
            loss=loss,
            tau=tau,
            optimizer=optimizer,
            learn_interval=learn_interval,
            period=period,
        )
        self.prev: Port[Sample, Any] = self.input.prev
        self.next: Port[Any, Prediction] = self.output.next
        row = [self.input, *layers, self.output]
        super().__init__(
            {
                "input": self.input,
                **{f"layer{i}": layer for i, layer in enumerate(layers)},
                "output": self.output,
            },
            connect=[(node.next, after.prev) for node, after in pairwise(row)],
            ports={"prev": self.prev, "next": self.next},
        )

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules, in order."""
        return (*(layer.module for layer in self.layers), self.output.module)


def _warn_if_early(learn_interval: float | None, credit_time: float) -> None:
    if learn_interval is not None and learn_interval < credit_time * (1 - 1e-9):
        warnings.warn(
            f"learn_interval={learn_interval:g} s is shorter than {credit_time:g} s, the 2 L periods "
            "that the credit may need to reach the first of L Layers: the first ones would learn from "
            "an error that has not arrived; give a longer learn_interval, or shorter time constants",
            stacklevel=3,
        )
