"""Loops without fixed length: what runs through them has no reverse derivative, and the error says so in our words."""

from dataclasses import dataclass, replace
from typing import Any

import jax

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._links import is_irreversible
from etp_algorithms._compiler._program import StepProgram
from etp_core.jaxpr import Equation, Variable, is_differentiable, needed

__all__ = ["name_irreversible_loops"]


@dataclass(frozen=True, eq=False, slots=True)
class _NamedLoop(Equation):
    """An equation around a while loop; ``message`` replaces JAX's error when a derivative is pulled through it."""

    message: str

    def bind(self, *operands: Any) -> list[Any]:
        def run(*operands: Any) -> list[Any]:
            return Equation.bind(self, *operands)

        def backward(operands: Any, cotangents: Any) -> Any:
            try:
                return jax.vjp(run, *operands)[1](cotangents)
            except ValueError as error:
                raise CompilationError(self.message) from error

        loop = jax.custom_vjp(run)
        loop.defvjp(lambda *operands: (run(*operands), operands), backward)
        return loop(*operands)


def name_irreversible_loops(step: StepProgram) -> StepProgram:
    """The same step, whose while loops say which parameters and states no gradient can reach through them."""
    if not any(map(is_irreversible, step.equations)):
        return step
    equations = tuple(_named(step, e) if is_irreversible(e) else e for e in step.equations)
    return replace(step, equations=equations)


def _named(step: StepProgram, equation: Equation) -> _NamedLoop:
    above = needed(step.equations, equation.inputs)
    read = {v for e in (*above, equation) for v in e.inputs if isinstance(v, Variable)}
    parameters, states = (
        ", ".join(leaf.name for leaf in leaves if leaf.input in read and is_differentiable(leaf.input))
        for leaves in (step.parameters, (*step.hidden, *step.others))
    )
    message = (
        f"no gradient passes through {equation.primitive.name} at {equation.source}: a loop without fixed length has "
        f"no reverse derivative. It computes with the parameters {parameters or '(none)'} and the states "
        f"{states or '(none)'}. Use a loop of fixed length (jax.lax.scan, or jax.lax.fori_loop with static bounds) and "
        f"mask the iterations past the end, or pass what needs no gradient through jax.lax.stop_gradient."
    )
    return _NamedLoop(
        equation.primitive,
        equation.inputs,
        equation.outputs,
        equation.params,
        equation.source_info,
        equation.context,
        message,
    )
