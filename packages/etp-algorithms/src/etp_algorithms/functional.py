"""Online learning of a pure step function: any framework, plain JAX around it.

    step(params, hidden, x) -> (hidden, out)

The compiler, the report and the algorithms are those of :class:`Learner`; states and traces are values that the
caller carries.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import brainstate
import jax

from etp_algorithms._compile import find_algorithm, nothing_to_learn
from etp_algorithms._compiler._capture_function import CapturedFunction, StepFunction, capture_function
from etp_algorithms._compiler._diagnostics import CompilationError, warn_about
from etp_algorithms._compiler._graph import TraceGraph, compile_step
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._engine import TraceAlgorithm, run_window
from etp_algorithms._learner import Learner
from etp_algorithms._modulator import read_modulator
from etp_algorithms._report import TrustReport, make_report

__all__ = ["Carry", "FunctionalLearner", "compile_step_function"]


class Carry(NamedTuple):
    """What one call hands to the next: a pytree of arrays.

    Attributes:
        hidden: the hidden state, as the step function has it.
        traces: the eligibility traces.
    """

    hidden: Any
    traces: Any


@dataclass(frozen=True, eq=False)
class FunctionalLearner:
    """A compiled step function; every method is pure and may be transformed by JAX.

    A gradient of anything computed from ``out`` with respect to ``params`` is exact reverse mode within the call,
    plus the traces' account of everything before it. No gradient passes from call to call through the carry.

    Attributes:
        graph: the hidden groups and relations that the compiler found.
        algorithm: how traces are kept.
    """

    graph: TraceGraph
    algorithm: TraceAlgorithm
    _captured: CapturedFunction = field(repr=False)
    _hidden: Any = field(repr=False)

    def init(self, hidden: Any = None, *, after: Carry | None = None) -> Carry:
        """The carry of a sequence's start.

        Args:
            hidden: the hidden state to start from; None takes the one the step was compiled with.
            after: the carry of an earlier sequence; what an algorithm keeps from one to the next (random signs of
                UORO, synthetic gradients of DNI) goes on from there.
        """
        start = self._hidden if hidden is None else hidden
        self._captured.hidden.flatten(start)
        if after is None:
            return Carry(start, self.algorithm.init(self.graph))
        return Carry(start, self.algorithm.reset(self.graph, after.traces))

    def apply(self, params: Any, carry: Carry, x: Any, *, modulator: Any = None) -> tuple[Carry, Any]:
        """Run one step and roll the traces.

        Args:
            params: the parameters.
            carry: from :meth:`init` or the call before.
            x: the input of one step.
            modulator: for an algorithm that takes one; as for :meth:`Learner.update`.

        Returns:
            The new carry and the output.

        Raises:
            ValueError: an argument has another structure, shape or dtype than compiled for.
        """
        return self._run(params, carry, self._captured.x.flatten(x), None, modulator)

    def apply_window(self, params: Any, carry: Carry, xs: Any, *, modulator: Any = None) -> tuple[Carry, Any]:
        """Run a window of steps in one scan: reverse mode inside it is exact for every parameter.

        Args:
            params: the parameters.
            carry: from :meth:`init` or the call before.
            xs: the inputs, time leading.
            modulator: for an algorithm that takes one; in :class:`MultiStepData` with a leading time axis.

        Returns:
            The new carry and the outputs, time leading.

        Raises:
            ValueError: ``xs`` holds no array, or an argument differs from what was compiled.
        """
        leaves = jax.tree.leaves(xs)
        if not leaves or not jax.numpy.ndim(leaves[0]):
            raise ValueError("a window needs inputs whose leading axis is time; use apply for one step.")
        length = jax.numpy.shape(leaves[0])[0]
        return self._run(params, carry, self._captured.x.flatten(xs, length=length), length, modulator)

    @property
    def report(self) -> TrustReport:
        """What each parameter's gradient contains and costs."""
        traces = jax.eval_shape(lambda: self.algorithm.init(self.graph))
        return make_report(self.algorithm, self.graph, traces, self.graph.diagnostics)

    def _run(
        self, params: Any, carry: Carry, arguments: list[Any], length: int | None, modulator: Any
    ) -> tuple[Carry, Any]:
        captured = self._captured
        learned, constants = captured.split(params)
        signals, stacked = read_modulator(self.algorithm, self.graph, modulator, length)
        result = run_window(
            self.graph,
            self.algorithm,
            parameters=learned,
            hidden=captured.hidden.flatten(carry.hidden),
            others=[],
            traces=carry.traces,
            arguments=[*constants, *arguments],
            stacked=None if length is None else (False,) * len(constants) + (True,) * len(arguments),
            modulator=signals,
            modulator_stacked=stacked,
        )
        hidden = captured.hidden.tree.unflatten(result.hidden)
        return Carry(hidden, result.traces), captured.output_tree.unflatten(result.outputs)


def compile_step_function(
    step: StepFunction,
    params: Any,
    hidden: Any,
    x: Any,
    *,
    algorithm: Callable[..., Learner] | str = "d_rtrl",
    strict: bool = False,
    control_flow: ControlFlowPolicy | None = None,
    **options: Any,
) -> FunctionalLearner:
    """Compile ``step(params, hidden, x) -> (hidden, out)`` for online learning.

    Args:
        step: a pure function of pytrees of arrays; weights are marked by the operators of ``etp_ops``.
        params: example parameters. Integers and keys among them are passed on and not learned.
        hidden: the hidden state that a sequence starts from, with the batch axis if there is one.
        x: example input of one step.
        algorithm: as for :func:`compile`: a name, or a learner class.
        strict: raise where the compiler would have to leave a path out of the traces.
        control_flow: limits for marked operators inside branches and loops; None for the defaults.
        **options: of the algorithm, for example ``decay_or_rank`` of ``pp_prop``.

    Returns:
        The learner, with pure ``init``, ``apply`` and ``apply_window``.

    Raises:
        TypeError: an argument holds something else than arrays, or ``step`` returns no pair.
        ValueError: an unknown algorithm.
        CompilationError: no marked weight can be traced, or the step cannot be compiled.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from etp_algorithms import functional
        >>> from etp_ops import matmul
        >>> def step(params, h, x):
        ...     h = jnp.tanh(0.9 * h + matmul(x, params["w"]))
        ...     return h, h.sum()
        >>> params, h0 = {"w": jnp.ones((3, 4))}, jnp.zeros(4)
        >>> learner = functional.compile_step_function(step, params, h0, jnp.ones(3))
        >>> carry, out = learner.apply(params, learner.init(), jnp.ones(3))
        >>> jax.grad(lambda p: learner.apply(p, carry, jnp.ones(3))[1])(params)["w"].shape
        (3, 4)
    """
    for option in ("vjp_method", "memory_limit"):
        if option in options:
            raise TypeError(f"{option} has no effect on a step function; call apply or apply_window as you need.")
    captured = capture_function(step, params, hidden, x)
    rule = find_algorithm(algorithm)(brainstate.nn.Module(), **options).algorithm
    graph = compile_step(captured.step, strict=strict and rule.marked_only, control_flow=control_flow)
    rule.check(graph)
    warn_about(graph.diagnostics if rule.marked_only else (), stacklevel=1)
    if rule.marked_only and not graph.hidden_param_op_relations:
        raise CompilationError(nothing_to_learn(graph))
    return FunctionalLearner(graph, rule, captured, jax.tree.map(jax.numpy.asarray, hidden))
