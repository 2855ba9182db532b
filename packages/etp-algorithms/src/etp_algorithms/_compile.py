"""From a model to a ready learner in one call."""

import contextlib
from collections.abc import Callable
from typing import Any

import brainstate

from etp_algorithms._advice import COMPILE, GRAPH
from etp_algorithms._algorithms._config import ETraceConfig
from etp_algorithms._algorithms._table import ALGORITHMS
from etp_algorithms._compiler._capture import capture_module
from etp_algorithms._compiler._diagnostics import CompilationError, warn_about
from etp_algorithms._compiler._graph import TraceGraph, compile_step
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._learner import Learner
from etp_algorithms._report import relation_table
from etp_core.arguments import advice_of, advised, nearest, taken_by

__all__ = ["compile", "compile_etrace_graph", "find_algorithm", "nothing_to_learn"]

_OWN = ("batch_size", "vmap", "seed", "verbose")
_ALIASES = {"es_d_rtrl": "pp_prop", "esd_rtrl": "pp_prop", "e_prop": "eprop"}


@advised(COMPILE)
def compile(
    model: brainstate.nn.Module,
    algorithm: type[Learner] | Callable[..., Learner] | Learner | ETraceConfig | str,
    *example_inputs: Any,
    batch_size: int | None = None,
    vmap: bool = False,
    seed: int | None = None,
    verbose: int = 0,
    control_flow: ControlFlowPolicy | None = None,
    **options: Any,
) -> Learner:
    """Initialise the states of ``model`` and compile it for online learning.

    Args:
        model: a module whose ``update`` is one step.
        algorithm: a learner class, the name of one in any case (``"d_rtrl"``, ``"pp_prop"``, ...; see
            :data:`ALGORITHMS`), an :class:`ETraceConfig`, or a learner of this very model.
        *example_inputs: inputs of one step, with the batch axis if there is one.
        batch_size: passed to the ``init_state`` of every module; None initialises without batch axis.
        vmap: the model is written for one sample; its step is mapped over ``batch_size`` of them. Parameters are
            shared, hidden and other short-term states become one per sample, random keys are split.
        seed: seed of the random numbers that the initialisation draws.
        verbose: 1 prints the trust report with its diagnostics, 2 also a line for every use of a marked operator,
            0 nothing.
        control_flow: limits for marked operators inside branches and loops; None for the learner's own.
        **options: passed to the learner, for example ``decay_or_rank`` of ``pp_prop``.

    Returns:
        The learner; call it as you would call the model.

    Raises:
        ValueError: no inputs, an unknown name, or an unknown ``verbose``.
        TypeError: ``algorithm`` is neither a name, a learner class nor a configuration, or an option is unknown.
        CompilationError: the model has no marked weight that can be traced, or cannot be compiled.
    """
    if not example_inputs:
        raise ValueError(
            "compile needs example inputs of one step, with the batch axis if there is one: "
            "compile(model, algorithm, x0, ...)."
        )
    if verbose not in (0, 1, 2):
        raise ValueError(f"verbose must be 0, 1 or 2, got {verbose!r}.")
    if vmap and batch_size is None:
        raise ValueError("vmap=True needs batch_size, the number of samples that the step is mapped over.")
    make = find_algorithm(algorithm)
    _check_options(make, options)
    learner = make(model, **options)
    if not isinstance(learner, Learner):
        raise TypeError(f"algorithm must make a Learner, got {type(learner).__name__}.")
    with contextlib.nullcontext() if seed is None else brainstate.random.seed_context(seed):
        _initialise(model, None if vmap else batch_size)
    learner.lanes = batch_size if vmap else None
    if control_flow is not None:
        learner.control_flow = control_flow
    learner.compile_graph(*example_inputs)
    if learner.algorithm.marked_only and not learner.graph.hidden_param_op_relations:
        raise CompilationError(nothing_to_learn(learner.graph))
    if verbose:
        print(learner.report)
    if verbose == 2:
        print(relation_table(learner.report))
    return learner


@advised(GRAPH)
def compile_etrace_graph(
    model: brainstate.nn.Module, *args: Any, strict: bool = False, control_flow: ControlFlowPolicy | None = None
) -> TraceGraph:
    """Compile the step of a model whose states are initialised, without making a learner.

    Args:
        model: a module whose ``update`` is one step.
        *args: example inputs of one step.
        strict: raise where a path has to be left out of the traces.
        control_flow: limits for marked operators inside branches and loops; None for the defaults.

    Raises:
        CompilationError: the model cannot be compiled.
    """
    captured = capture_module(model, *args)
    graph = compile_step(captured.step, strict=strict, control_flow=control_flow)
    warn_about((*captured.diagnostics, *graph.diagnostics), stacklevel=1)
    return graph


def find_algorithm(algorithm: Any) -> Callable[..., Learner]:
    """What makes the learner that a name in any case, a configuration, or the class itself stands for."""
    if isinstance(algorithm, str):
        name = algorithm.lower().replace("-", "_")
        name = _ALIASES.get(name, name)
        if name not in ALGORITHMS:
            guess = nearest(name, tuple(ALGORITHMS)) or "."
            raise ValueError(f"unknown algorithm {algorithm!r}; there are {', '.join(sorted(ALGORITHMS))}{guess}")
        return ALGORITHMS[name].learner
    if isinstance(algorithm, ETraceConfig):

        def configured(model: brainstate.nn.Module, **options: Any) -> Learner:
            return Learner(model, algorithm.algorithm(use_kernels=options.get("kernels") != "reference"), **options)

        return configured
    if isinstance(algorithm, Learner):

        def made(model: brainstate.nn.Module, **options: Any) -> Learner:
            if algorithm.model is not model:
                raise ValueError("the learner that compile was given is of another model; give its class instead.")
            if options:
                raise TypeError(f"a learner that is made already takes no options; got {', '.join(sorted(options))}.")
            return algorithm

        return made
    if not callable(algorithm):
        raise TypeError(
            f"algorithm must be a learner class, the name of one, or an ETraceConfig; got {type(algorithm).__name__}."
        )
    make: Callable[..., Any] = algorithm
    return make


def _initialise(model: brainstate.nn.Module, batch_size: int | None) -> None:
    if not isinstance(model, brainstate.nn.Module):
        given = f"the class {model.__name__} itself" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a brainstate.nn.Module, got {given}; make one, for example MyModel().")
    sizes = {} if batch_size is None else {"batch_size": batch_size}
    try:
        brainstate.nn.init_all_states(model, **sizes)
    except TypeError as error:
        if "init_state() got an unexpected keyword argument 'batch_size'" not in str(error):
            raise
        raise TypeError(
            f"{error}: compile(..., batch_size={batch_size}) passes it to the init_state of every module. Write "
            f"init_state(self, batch_size=None, **kwargs) and give the states a leading axis of that size."
        ) from error


def _check_options(make: Callable[..., Learner], options: dict[str, Any]) -> None:
    """An option that the algorithm does not take and that resembles one of compile's own was meant for compile."""
    if not isinstance(make, type):
        return
    unknown = set(options) - {*taken_by(make), *advice_of(make).replaced}
    for option in sorted(unknown):
        if guess := nearest(option, _OWN):
            raise TypeError(f"compile takes no {option!r}{guess}")


def nothing_to_learn(graph: TraceGraph) -> str:
    """What to say of a model without a relation."""
    rows = [f"- {row.name}: {row.trust.value} ({'; '.join(row.reasons)})" for row in graph.trust]
    found = "\n".join(rows) if rows else "- the step uses no ParamState at all"
    return (
        "no weight of this model can be learned forward in time: no marked operator takes a parameter to a hidden "
        "state.\n"
        f"{found}\n"
        "Keep a weight in a brainstate.ParamState and mark it by using an operator in update(), for example "
        "etp_ops.matmul(x, W) in place of x @ W, and keep the recurrent value in a brainstate.HiddenState."
    )
