"""A step that is ready to run: its program, and how to run it, compiled."""

import functools

import brainstate
import jax

from etp_algorithms._calls import CompiledStep
from etp_algorithms._compiler._capture import CapturedModel
from etp_algorithms._compiler._diagnostics import Diagnostic
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._engine import TraceAlgorithm, run_window

__all__ = ["noticed", "ready_step"]


def ready_step(
    model: brainstate.nn.Module, captured: CapturedModel, graph: TraceGraph, algorithm: TraceAlgorithm
) -> CompiledStep:
    """The step of ``model`` under an algorithm, with :func:`run_window` jitted for it."""
    run = jax.jit(functools.partial(run_window, graph, algorithm), static_argnames=("stacked", "modulator_stacked"))
    return CompiledStep(model, captured, graph, algorithm, run)


def noticed(algorithm: TraceAlgorithm, graph: TraceGraph) -> tuple[Diagnostic, ...]:
    """What the compiler says about traces per position, for algorithms that keep such traces."""
    return graph.diagnostics if algorithm.marked_only else ()
