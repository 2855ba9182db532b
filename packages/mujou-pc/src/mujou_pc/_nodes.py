"""The nodes of a chain: Input, Layer and Output."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mujou_pc._time_constants import TimeConstants
from mujou_pc.clock import LearnClock
from mujou_pc.functional import loss_vjp, relax_, vjp
from mujou_pc.loss import Loss
from mujou_pc.msg import (
    Activity,
    Prediction,
    Sample,
    activity_spec,
    gradient_spec,
    prediction_spec,
    sample_spec,
)
from mujou_pc.optim import BoundOptimizer, Optimizer
from mujou_pc.relax import BoundRelaxer, Euler, Relaxer
from mujou_pc.runtime import DictSpec, MultiPort, Node, Port, TensorSpec

__all__ = ["Input", "Layer", "Output"]

EULER = Euler()


class Input(Node):
    """Sends what the host writes as an activity, in every update. It holds nothing.

    Ports: ``prev`` receives a ``Sample`` from the host; ``next`` sends an ``Activity`` to each peer, and
    does not read the gradient that comes back. ``spec`` is the spec of that activity.

    Args:
        x: spec of the samples, the batch first.
        y: spec of the targets.
        period: seconds between two updates.

    Example:
        >>> import mujou_pc as pc
        >>> source = pc.Input(TensorSpec((3, 4)), TensorSpec((3, 2)), period=0.01)
        >>> sorted(source.spec.fields)
        ['h', 'mask', 'reset', 'time', 'y']
    """

    def __init__(self, x: TensorSpec, y: TensorSpec, *, period: float) -> None:
        super().__init__(period=period)
        self.spec: DictSpec = activity_spec(x, y)
        self.prev: Port[Sample, Any] = Port(receives=sample_spec(x, y))
        self.next: MultiPort[Tensor, Activity] = MultiPort(receives=gradient_spec(x), sends=self.spec)

    def on_update(self, dt: float) -> None:
        """Pass the sample on, with the time of its write."""
        message = self.prev.latest()
        sample = message.value
        self.next.send(
            {
                "h": sample["x"],
                "y": sample["y"],
                "mask": sample["mask"],
                "reset": sample["reset"],
                "time": message.time,
            }
        )


class Layer(Node):
    """Holds one module, the deviation from its prediction and the dual, and learns its weights.

    Ports: ``prev`` receives an ``Activity`` and sends ``g_in`` back; ``next`` sends the prediction of the
    module as an ``Activity`` to each peer and receives their gradients. ``spec`` is the spec of that
    activity. State: ``module``, ``r``, ``lam``, ``clock``, ``optimizer``, ``relaxer``.

    Args:
        module: any module from one tensor (B, ...) to one. It runs once in every update.
        spec: of the activity it reads: ``spec`` of the node before, or ``msg.activity_spec(...)``.
        tau: time constants of the relaxation.
        optimizer: setting of how the weights move.
        learn_interval: seconds between two learning updates; None: every update; ``math.inf``: never.
        relaxer: setting of how the deviation moves.
        period: seconds between two updates; ``tau.period`` by default.

    Raises:
        ValueError: ``period`` is longer than ``tau.max_dt``, or the module does not keep the batch.
        TypeError: the module does not return one tensor.

    Warns:
        UserWarning: the module holds Dropout or BatchNorm in training mode.

    Example:
        >>> import mujou_pc as pc
        >>> layer = pc.Layer(
        ...     nn.Linear(4, 8),
        ...     activity_spec(TensorSpec((3, 4)), TensorSpec((3, 2))),
        ...     tau=TimeConstants(h=0.02, lam=0.01, r=0.02),
        ...     optimizer=pc.optim.SGD(tau=1.0),
        ...     learn_interval=0.04,
        ... )
        >>> tuple(layer.r.shape), sorted(layer.state_dict())
        ((3, 8), ['clock', 'lam', 'module', 'optimizer', 'r', 'relaxer'])
    """

    def __init__(
        self,
        module: nn.Module,
        spec: DictSpec,
        *,
        tau: TimeConstants,
        optimizer: Optimizer,
        learn_interval: float | None,
        relaxer: Relaxer = EULER,
        period: float | None = None,
    ) -> None:
        check_settings((module,), tau, optimizer)
        super().__init__(period=tau.period if period is None else period)
        h_in, _ = _activity_fields(spec)
        mu = _output_spec(module, h_in)
        self.prev: Port[Activity, Tensor] = Port(receives=spec, sends=gradient_spec(h_in))
        self.spec: DictSpec = DictSpec({**spec.fields, "h": mu})
        self.next: MultiPort[Tensor, Activity] = MultiPort(receives=gradient_spec(mu), sends=self.spec)
        self.module = module
        self.tau = tau
        self.clock: LearnClock = LearnClock.of(tau, period=self.period, learn_interval=learn_interval)
        self.r: Tensor = self.register_state("r", mu.zero())
        self.lam: Tensor = self.register_state("lam", mu.zero())
        self.relaxer: BoundRelaxer = relaxer.bind(self.r)
        self._params = _learning(module)
        self.optimizer: BoundOptimizer = optimizer.bind(self._params)
        self._targets = _Targets()
        self._no_g = mu.zero()

    def on_update(self, dt: float) -> None:
        """Read, tick, send ``g_in``, relax, send the prediction, learn."""
        activity = self.prev.read()
        tick = self.clock.tick(dt, activity["time"], self.timer.now())
        if tick.new:
            self._start_anew(activity["reset"])
        mask = activity["mask"]
        targets = self._targets.of(mask)
        learn = tick.learn and targets.some
        mu, g_in, g_theta = vjp(
            self.module,
            activity["h"],
            lambda mu: self.r + self.lam,
            self._params if learn else (),
            targets.mask,
        )
        self.prev.send(g_in, fresh=True)
        relax_(self.r, self.lam, self._g(), dt=tick.dt, tau=self.tau, relaxer=self.relaxer)
        reset, time = activity["reset"], activity["time"]
        self.next.send({"h": mu, "y": activity["y"], "mask": mask, "reset": reset, "time": time}, fresh=True)
        if learn:
            self.optimizer.step_([g / len(mu) for g in g_theta], tick.elapsed)

    def on_start(self) -> None:
        """Check that the module still has the weights that the optimizer moves."""
        _check_bound(self.module, self._params)

    def _start_anew(self, reset: Tensor) -> None:
        rows = reset.view(-1, *[1] * (self.r.dim() - 1))
        self.r.masked_fill_(rows, 0)
        self.lam.masked_fill_(rows, 0)
        self.relaxer.reset_(reset)

    def _g(self) -> Tensor:
        first, *others = self.next.read() or (self._no_g,)
        for other in others:
            first = first + other
        return first


class Output(Node):
    """Holds the last module and the loss, predicts, and learns. It holds neither r nor lam.

    Ports: ``prev`` receives an ``Activity`` and sends the gradient of the loss back; ``next`` sends a
    ``Prediction``. State: ``module``, ``clock``, ``optimizer``.

    Args:
        module: any module from one tensor (B, ...) to one. It runs once in every update.
        spec: of the activity it reads.
        loss: gives one value for each sample.
        tau: time constants of the chain; the period and the cap of dt come from them.
        optimizer: setting of how the weights move.
        learn_interval: seconds between two learning updates; None: every update; ``math.inf``: never.
        period: seconds between two updates; ``tau.period`` by default.

    Raises:
        ValueError: ``period`` is longer than ``tau.max_dt``, or the loss does not have the shape (B,).
        TypeError: the module does not return one tensor.

    Warns:
        UserWarning: the module holds Dropout or BatchNorm in training mode.

    Example:
        >>> import mujou_pc as pc
        >>> output = pc.Output(
        ...     nn.Linear(4, 2),
        ...     activity_spec(TensorSpec((3, 4)), TensorSpec((3, 2))),
        ...     loss=pc.loss.MSELoss(),
        ...     tau=TimeConstants(h=0.02, lam=0.01, r=0.02),
        ...     optimizer=pc.optim.SGD(tau=1.0),
        ...     learn_interval=0.04,
        ... )
        >>> tuple(output.next.sends.fields["y_hat"].shape)
        (3, 2)
    """

    def __init__(
        self,
        module: nn.Module,
        spec: DictSpec,
        *,
        loss: Loss,
        tau: TimeConstants,
        optimizer: Optimizer,
        learn_interval: float | None,
        period: float | None = None,
    ) -> None:
        check_settings((module,), tau, optimizer)
        super().__init__(period=tau.period if period is None else period)
        h_in, y = _activity_fields(spec)
        y_hat = _output_spec(module, h_in)
        _try_loss(loss, y_hat, y)
        self.prev: Port[Activity, Tensor] = Port(receives=spec, sends=gradient_spec(h_in))
        self.next: Port[Any, Prediction] = Port(sends=prediction_spec(y_hat, y))
        self.module = module
        self.loss = loss
        self.clock: LearnClock = LearnClock.of(tau, period=self.period, learn_interval=learn_interval)
        self._params = _learning(module)
        self.optimizer: BoundOptimizer = optimizer.bind(self._params)
        self._targets = _Targets()

    def on_update(self, dt: float) -> None:
        """Read, tick, send the gradient of the loss, send the prediction, learn."""
        activity = self.prev.read()
        tick = self.clock.tick(dt, activity["time"], self.timer.now())
        y, mask = activity["y"], activity["mask"]
        targets = self._targets.of(mask)
        learn = tick.learn and targets.some
        y_hat, g_in, g_theta = loss_vjp(
            self.module,
            activity["h"],
            self.loss,
            y,
            targets.mask,
            self._params if learn else (),
        )
        self.prev.send(g_in, fresh=True)
        self.next.send({"y_hat": y_hat, "y": y, "mask": mask, "time": activity["time"]}, fresh=True)
        if learn:
            self.optimizer.step_([g / len(y_hat) for g in g_theta], tick.elapsed)

    def on_start(self) -> None:
        """Check that the module still has the weights that the optimizer moves."""
        _check_bound(self.module, self._params)


def check_settings(modules: Sequence[nn.Module], tau: TimeConstants, optimizer: Optimizer) -> None:
    """Refuse what is easily given in their place.

    Raises:
        TypeError: one is of another type.
    """
    wanted = [(module, nn.Module, "a torch.nn.Module") for module in modules]
    wanted += [(tau, TimeConstants, "TimeConstants(h=, lam=, r=)")]
    wanted += [(optimizer, Optimizer, "a setting of optim, such as optim.AdamW(...)")]
    for given, kind, told in wanted:
        if not isinstance(given, kind):
            raise TypeError(f"{given!r} was given where {told} is needed")


class _Targets:
    """Which samples have a target. Asked of a mask once: it stays the same tensor until the next write."""

    def __init__(self) -> None:
        self._asked: Tensor | None = None
        self.some = False
        self.mask: Tensor | None = None

    def of(self, mask: Tensor) -> "_Targets":
        if mask is not self._asked:
            self._asked = mask
            self.some = bool(mask.any())
            self.mask = None if bool(mask.all()) else mask
        return self


def _activity_fields(spec: DictSpec) -> tuple[TensorSpec, TensorSpec]:
    h, y = spec.fields.get("h"), spec.fields.get("y")
    if not (isinstance(h, TensorSpec) and isinstance(y, TensorSpec) and spec == activity_spec(h, y)):
        raise ValueError(
            f"spec must be that of an activity, but got {spec}: take node.spec of the node before, "
            "or make it with msg.activity_spec(h, y)"
        )
    return h, y


def _learning(module: nn.Module) -> tuple[nn.Parameter, ...]:
    return tuple(param for param in module.parameters() if param.requires_grad)


def _check_bound(module: nn.Module, params: tuple[nn.Parameter, ...]) -> None:
    if [id(param) for param in _learning(module)] != [id(param) for param in params]:
        raise RuntimeError(
            f"the weights of {type(module).__name__} that require gradients are not those its node was made with: "
            "replace, freeze and unfreeze weights before the node is made"
        )


def _output_spec(module: nn.Module, h_in: TensorSpec) -> TensorSpec:
    """What the module makes of such an input; found by calling it once on zeros, with its gradients.

    So that what cannot be differentiated is told here, and what torch imports with the first gradient of a process is
    not imported in the middle of a run.
    """
    _warn_if_random(module)
    name = type(module).__name__
    made: list[Any] = []

    def trial(h: Tensor) -> Tensor:
        made.append(module(h))
        return made[0] if isinstance(made[0], Tensor) else h

    try:
        with _evaluating(module):
            vjp(trial, h_in.zero(), torch.zeros_like, _learning(module))
    except Exception as error:
        raise ValueError(f"{name} failed on an input {h_in}: {error}") from error
    (mu,) = made
    if not (isinstance(mu, Tensor) and mu.is_floating_point()):
        kind = mu.dtype if isinstance(mu, Tensor) else type(mu).__name__
        raise TypeError(
            f"{name} returned {kind}, but a node needs one tensor of floats: wrap the module so that it returns the "
            "one to send on"
        )
    if mu.shape[:1] != h_in.shape[:1]:
        raise ValueError(f"{name} made {list(mu.shape)} of {list(h_in.shape)}: the first axis must stay the batch")
    return replace(h_in, shape=tuple(mu.shape), dtype=mu.dtype, device=mu.device)


def _try_loss(loss: Loss, y_hat: TensorSpec, y: TensorSpec) -> None:
    try:
        loss_vjp(nn.Identity(), y_hat.zero(), loss, y.zero())
    except Exception as error:
        raise ValueError(f"the loss failed on predictions {y_hat} and targets {y}: {error}") from error


@contextmanager
def _evaluating(module: nn.Module) -> Generator[None]:
    """Evaluation mode, so that a trial call leaves statistics and random numbers as they were."""
    training = [inner for inner in module.modules() if inner.training]
    for inner in training:
        inner.training = False
    try:
        yield
    finally:
        for inner in training:
            inner.training = True


def _warn_if_random(module: nn.Module) -> None:
    found = [type(inner).__name__ for inner in module.modules() if inner.training and _is_random(inner)]
    if found:
        warnings.warn(
            f"{', '.join(found)} in training mode: a node runs its module in every update, many times "
            "for each sample, so the prediction would never settle; call module.eval() first",
            stacklevel=4,
        )


def _is_random(module: nn.Module) -> bool:
    """Whether it drops units, as attention and recurrent modules also do, or normalises by the batch, when training."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    dropout = getattr(module, "dropout", 0.0)
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or (isinstance(dropout, float) and dropout > 0)
