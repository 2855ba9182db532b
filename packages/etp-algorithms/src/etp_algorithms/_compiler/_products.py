"""Plain products of data with a weight, such as a read-out's.

Their operator is not marked, and no trace belongs to them. But the gradient of the weight is a product of the data with
the cotangent of the result, and over a known sequence one product of all steps costs far less than one per step.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from etp_algorithms._compiler._program import StepProgram
from etp_core.jaxpr import Atom, Equation, Variable, dependents, evaluate, is_differentiable, needed

__all__ = ["PlainProduct", "find_products"]


@dataclass(frozen=True, eq=False, slots=True)
class PlainProduct:
    """``y = x · g(θ)``, one ``dot_general`` of the step.

    Attributes:
        equation: the product.
        place: which of its operands is the weight.
        equations: those of ``g``.
    """

    equation: Equation
    place: int
    equations: tuple[Equation, ...]

    @property
    def x(self) -> Atom:
        """The data."""
        return self.equation.inputs[1 - self.place]

    @property
    def weight(self) -> Variable:
        """The weight."""
        found = self.equation.inputs[self.place]
        assert isinstance(found, Variable)
        return found

    @property
    def y(self) -> Variable:
        """The result."""
        return self.equation.outputs[0]

    def weight_of(self, parameters: dict[Variable, Any]) -> jax.Array:
        """The weight as a function of the parameter arrays."""
        return evaluate(self.equations, dict(parameters))[self.weight]

    def pull(self, xs: jax.Array, cotangents: jax.Array) -> jax.Array:
        """The gradient of the weight for data and cotangents of several steps, time leading, summed over them."""
        (summed, _) = self.equation.params["dimension_numbers"]
        data = _rows(xs, summed[1 - self.place][0] + 1)
        result = _rows(cotangents, 1 if self.place == 0 else cotangents.ndim - 1)
        few, many = sorted((data, result), key=lambda a: a.shape[1])
        # few rows by many columns: the other way round XLA's CPU back-end takes several times as long
        product = jax.lax.optimization_barrier(few.T @ many)
        by_data = summed[self.place][0] == 0
        return (product if (few is data) == by_data else product.T).astype(self.weight.aval.dtype)


def _rows(array: jax.Array, axis: int) -> jax.Array:
    """A matrix with ``axis`` last and all others as rows."""
    return jnp.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


def find_products(step: StepProgram) -> tuple[PlainProduct, ...]:
    """Every product of a matrix that is a function of parameters alone with something that changes between steps."""
    parameters = {leaf.input for leaf in step.parameters}
    moving = {*step.arguments, *(leaf.input for leaf in (*step.hidden, *step.others))}
    moving.update(v for e in dependents(step.equations, moving) for v in e.outputs)
    found = []
    for equation in step.equations:
        if equation.primitive.name != "dot_general" or not is_differentiable(equation.outputs[0]):
            continue
        (summed, batch) = equation.params["dimension_numbers"]
        for place, weight in enumerate(equation.inputs):
            if weight in moving or equation.inputs[1 - place] not in moving or not isinstance(weight, Variable):
                continue
            if len(weight.aval.shape) != 2 or len(summed[0]) != 1 or batch[0]:
                continue
            equations = needed(step.equations, [weight])
            if parameters & {weight, *(v for e in equations for v in e.inputs)}:
                found.append(PlainProduct(equation, place, tuple(equations)))
    return tuple(found)
