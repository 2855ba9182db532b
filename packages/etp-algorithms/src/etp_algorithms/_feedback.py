"""Random feedback: read-outs send their errors back through a fixed random matrix.

    ∂L/∂z = B ∂L/∂y    in place of    Wᵀ ∂L/∂y ,    y = W z + b

A *read-out* is a marked operator that reads a hidden state and whose output no other marked operator ever reads,
now or at a later step. Source: Bellec et al., Nature Communications 2020 (random e-prop); Lillicrap et al., 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._compiler._diagnostics import CompilationError
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._groups import bears_weight
from etp_algorithms._compiler._trust import ParameterTrust
from etp_core import ETPPrimitive
from etp_core.jaxpr import Equation, Variable, dependents

__all__ = ["RandomFeedback", "find_readouts", "key_data_of"]


@dataclass(frozen=True, slots=True)
class RandomFeedback:
    """Fixed normal matrices, one per read-out of shape ``(outputs, inputs)``, drawn anew from the key when needed.

    Attributes:
        key: the raw data of the random key that the matrices are drawn from; see :func:`key_data_of`.
        scale: their standard deviation; None for ``1 / √inputs``.
    """

    key: tuple[int, ...]
    scale: float | None = None

    def check(self, graph: TraceGraph) -> None:
        """Raise unless there is a read-out, and every one takes vectors to vectors."""
        readouts = find_readouts(graph)
        if not readouts:
            raise CompilationError(
                "random feedback needs a read-out: a marked operator that reads a hidden state and whose output no "
                "other marked operator reads. Mark the read-out inside the model (out = etp_ops.matmul(h, W_out)) and "
                "return it, or use feedback='symmetric'."
            )
        for equation in readouts:
            x, y = _ends(equation)
            if x.shape[:-1] != y.shape[:-1] or not y.shape:
                raise CompilationError(
                    f"random feedback takes read-outs from (..., inputs) to (..., outputs); {equation.primitive.name} "
                    f"({equation.source}) takes {x.shape} to {y.shape}. Use a matmul, or feedback='symmetric'."
                )

    def touches(self, graph: TraceGraph, verdict: ParameterTrust) -> bool:
        """Whether a parameter gets its credit through a read-out."""
        inputs = [leaf.input for leaf in graph.step.parameters if leaf.path == verdict.path]
        moved = {v for equation in dependents(graph.step.equations, inputs) for v in equation.outputs}
        return bool(verdict.relations) or any(_reads(equation, moved) for equation in find_readouts(graph))

    def substitutes(self, graph: TraceGraph) -> dict[Equation, Callable[..., Any]]:
        """For every read-out the function that has its values and the random derivative."""
        with jax.ensure_compile_time_eval():
            key = jax.random.wrap_key_data(jnp.asarray(self.key, jnp.uint32))
            keys = jax.random.split(key, max(len(find_readouts(graph)), 1))
            return {e: self._substitute(e, key) for e, key in zip(find_readouts(graph), keys, strict=False)}

    def matrix(self, equation: Equation, key: jax.Array) -> jax.Array:
        """``B`` of one read-out, shape ``(outputs, inputs)``."""
        x, y = _ends(equation)
        scale = 1.0 / np.sqrt(x.shape[-1]) if self.scale is None else self.scale
        return scale * jax.random.normal(key, (y.shape[-1], x.shape[-1]), y.dtype)

    def _substitute(self, equation: Equation, key: jax.Array) -> Callable[..., Any]:
        assert isinstance(equation.primitive, ETPPrimitive)
        place, matrix = equation.primitive.x_invar_index, self.matrix(equation, key)
        assert place is not None

        def readout(*operands: Any) -> Any:
            x = operands[place]
            held = [jax.lax.stop_gradient(v) if k == place else v for k, v in enumerate(operands)]
            (y,) = equation.bind(*held)
            feedback = (x @ matrix.T).astype(y.dtype)
            return y + (feedback - jax.lax.stop_gradient(feedback))

        return readout


def key_data_of(key: Any) -> tuple[int, ...]:
    """The raw data of a seed, or of a JAX random key, as plain numbers."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = jax.random.key(key)
    if not isinstance(key, jax.Array):
        raise TypeError(f"a random key must be an int seed or a JAX random key, got {type(key).__name__}.")
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return tuple(int(n) for n in np.asarray(data).reshape(-1))


def find_readouts(graph: TraceGraph) -> tuple[Equation, ...]:
    """The marked operators that read a hidden state and whose output no marked operator ever reads."""
    step = graph.step
    remembered = [leaf.input for leaf in step.hidden if leaf.differentiable]
    moved = {v for equation in dependents(step.equations, remembered) for v in equation.outputs} | set(remembered)
    found = []
    for equation in step.equations:
        if bears_weight(equation) and _reads(equation, moved) and not _is_read_later(graph, equation):
            found.append(equation)
    return tuple(found)


def _reads(equation: Equation, moved: set[Variable]) -> bool:
    assert isinstance(equation.primitive, ETPPrimitive)
    place = equation.primitive.x_invar_index
    return place is not None and equation.inputs[place] in moved


def _is_read_later(graph: TraceGraph, equation: Equation) -> bool:
    """Whether what ``equation`` computes ever reaches a marked operator, through any number of steps."""
    sources, memories = set(equation.outputs), list(graph.step.memories)
    while True:
        reached = dependents(graph.step.equations, sources)
        if any(bears_weight(e) for e in reached):
            return True
        made = {v for e in reached for v in e.outputs} | sources
        later = {leaf.input for leaf in memories if leaf.output in made}
        if later <= sources:
            return False
        sources |= later


def _ends(equation: Equation) -> tuple[Any, Any]:
    assert isinstance(equation.primitive, ETPPrimitive)
    place = equation.primitive.x_invar_index
    assert place is not None
    return equation.inputs[place].aval, equation.outputs[equation.primitive.y_outvar_index].aval
