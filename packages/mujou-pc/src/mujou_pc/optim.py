"""Optimizers as flows in time: how the weights move in seconds, however often a node learns.

A setting is a frozen value; each node binds it to its own weights, and the bound optimizer holds
the state. To write one, inherit ``Optimizer`` and ``BoundOptimizer``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mujou_pc.runtime import State, Stateful

__all__ = ["SGD", "AdamW", "BoundOptimizer", "Optimizer"]


class BoundOptimizer(Stateful):
    """An optimizer bound to the weights of one node."""

    @abstractmethod
    def step_(self, grads: Sequence[Tensor], elapsed: float) -> None:
        """Move the weights in place.

        Args:
            grads: the mean gradient of the batch for each weight, in the order of ``bind``.
            elapsed: seconds that the step covers; 0 moves nothing, neither weights nor state.
        """


class Optimizer(ABC):
    """The setting of an optimizer: a value without state, which can be given to every node."""

    @abstractmethod
    def bind(self, params: Sequence[Tensor]) -> BoundOptimizer:
        """An optimizer with a state of its own.

        Args:
            params: the weights that learn, and no others.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(Optimizer):
    """Gradient descent: ``tau dtheta/dt = -g``. A step of dt is SGD with the rate ``dt / tau``.

    Args:
        tau: time constant of the weights in seconds, finite.

    Raises:
        ValueError: ``tau`` is not finite and above 0.

    Example:
        >>> weight = torch.ones(2)
        >>> SGD(tau=10.0).bind([weight]).step_([torch.ones(2)], elapsed=1.0)
        >>> weight
        tensor([0.9000, 0.9000])
    """

    tau: float

    def __post_init__(self) -> None:
        _check_finite("SGD", tau=self.tau)

    def bind(self, params: Sequence[Tensor]) -> BoundOptimizer:
        """Bind to the weights of one node."""
        return _BoundSGD(self, params)


class _BoundSGD(BoundOptimizer):
    def __init__(self, setting: SGD, params: Sequence[Tensor]) -> None:
        self._setting = setting
        self._params = tuple(params)

    @torch.no_grad()
    def step_(self, grads: Sequence[Tensor], elapsed: float) -> None:
        if elapsed == 0:
            return
        for param, grad in zip(self._params, grads, strict=True):
            param.sub_(grad, alpha=elapsed / self._setting.tau)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) in time.

    With dt between steps constant it is torch's, ``lr = dt / tau`` and
    ``betas = (exp(-dt / tau_m), exp(-dt / tau_v))``.

    The flows are ``tau_m dm/dt = g - m``, ``tau_v dv/dt = g^2 - v`` and
    ``tau dtheta/dt = -(m_hat / (sqrt(v_hat) + eps) + weight_decay theta)``. Each moment is corrected
    by its mass ``tau_m dc/dt = 1 - c``, the share of it that gradients made: ``m_hat = m / c_m``.

    Args:
        tau: time constant of the weights in seconds, finite.
        tau_m: of the mean of the gradient, finite.
        tau_v: of the mean of its square, finite.
        eps: above 0.
        weight_decay: without a unit; theta decays with the time constant ``tau / weight_decay``.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> weight = torch.ones(2)
        >>> AdamW(tau=10.0, tau_m=1.0, tau_v=10.0, weight_decay=0.0).bind([weight]).step_([torch.ones(2)], elapsed=1.0)
        >>> weight
        tensor([0.9000, 0.9000])
    """

    tau: float
    tau_m: float
    tau_v: float
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        _check_finite("AdamW", tau=self.tau, tau_m=self.tau_m, tau_v=self.tau_v, eps=self.eps)
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"AdamW: weight_decay must be finite and at least 0, but got {self.weight_decay}")

    def bind(self, params: Sequence[Tensor]) -> BoundOptimizer:
        """Bind to the weights of one node."""
        return _BoundAdamW(self, params)


class _BoundAdamW(BoundOptimizer):
    def __init__(self, setting: AdamW, params: Sequence[Tensor]) -> None:
        self._setting = setting
        self._params = tuple(params)
        self._m = [torch.zeros_like(param, requires_grad=False) for param in params]
        self._v = [torch.zeros_like(param, requires_grad=False) for param in params]
        self._mass_m = self._mass_v = 0.0

    @torch.no_grad()
    def step_(self, grads: Sequence[Tensor], elapsed: float) -> None:
        if elapsed == 0:
            return
        setting = self._setting
        rate = elapsed / setting.tau
        a_m = -math.expm1(-elapsed / setting.tau_m)
        a_v = -math.expm1(-elapsed / setting.tau_v)
        self._mass_m += a_m * (1 - self._mass_m)
        self._mass_v += a_v * (1 - self._mass_v)
        for param, grad, m, v in zip(self._params, grads, self._m, self._v, strict=True):
            m.lerp_(grad, a_m)
            v.mul_(1 - a_v).addcmul_(grad, grad, value=a_v)
            size = (v / self._mass_v).sqrt_().add_(setting.eps)
            param.mul_(1 - rate * setting.weight_decay)
            param.addcdiv_(m, size, value=-rate / self._mass_m)

    def state_dict(self) -> State:
        return {
            "m": {str(i): m for i, m in enumerate(self._m)},
            "v": {str(i): v for i, v in enumerate(self._v)},
            "c_m": self._mass_m,
            "c_v": self._mass_v,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, own in (("m", self._m), ("v", self._v)):
            for i, moment in enumerate(own):
                moment.copy_(state[name][str(i)])
        self._mass_m, self._mass_v = state["c_m"], state["c_v"]


def _check_finite(name: str, **values: float) -> None:
    for key, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"{name}: {key} must be finite and above 0, but got {value}; a node that shall never "
                "learn takes learn_interval=math.inf"
            )
