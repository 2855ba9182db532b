"""What spiking neurons have in common: the time step, decays, parameters with units, the reset."""

from typing import Any

import brainstate
import brainunit as u
import jax

from etp_ops.nn._cells import hidden_state
from etp_ops.nn._values import make_value

__all__ = ["check_same_dimension", "decay", "per_neuron", "reset_voltage", "time_step", "initial_state"]


def time_step(dt: Any) -> Any:
    """``dt``, or that of the brainstate environment where it is None."""
    value = brainstate.environ.get("dt", None) if dt is None else dt
    if value is None:
        raise ValueError("the time step is not known: pass dt=..., or brainstate.environ.set(dt=0.1 * brainunit.ms).")
    return value


def decay(dt: Any, tau: Any, *, name: str = "tau") -> Any:
    """``exp(−dt / tau)``."""
    ratio = u.maybe_decimal(dt / tau)
    if isinstance(ratio, u.Quantity):
        raise ValueError(
            f"dt and {name} must both be times or both be plain numbers, "
            f"got dt in {_unit(dt)} and {name} in {_unit(tau)}."
        )
    return u.math.exp(-ratio)


def per_neuron(value: Any, size: tuple[int, ...], *, name: str) -> Any:
    """A number, or one per neuron; a function of a shape is asked for ``size``."""
    if callable(value):
        return make_value(value, size, name=name)
    value = u.math.asarray(value)
    if value.ndim:
        make_value(value, size, name=name)  # refuses what does not fit
    return value


def check_same_dimension(of: str, **values: Any) -> None:
    """Refuse voltages of which some have units and some have none."""
    units = {name: u.get_unit(value) for name, value in values.items()}
    first, unit = next(iter(units.items()))
    for name, other in units.items():
        if not unit.has_same_dim(other):
            raise ValueError(
                f"{of}: {name} is in {_unit(values[name])} but {first} is in {_unit(values[first])}; "
                f"give all of {', '.join(units)} units of one dimension, or none."
            )


def initial_state(
    initializer: Any, default: Any, size: tuple[int, ...], batch_size: int | None
) -> brainstate.HiddenState:
    """A hidden state that starts at ``default`` unless there is an initialiser."""
    return hidden_state(default if initializer is None else initializer, size, batch_size)


def reset_voltage(v: Any, spike: Any, *, threshold: Any, reset: Any, how: str) -> Any:
    """``v`` after the reset of the neurons that spiked."""
    if how == "soft":
        return v - (threshold - reset) * spike
    return v - (jax.lax.stop_gradient(v) - reset) * spike


def _unit(value: Any) -> str:
    unit = u.get_unit(value)
    return "no unit" if unit.is_unitless else str(unit)
