"""The learner: a model, its traces, and the gradient that both give."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._compiler._capture import CapturedModel, StateSlot, capture_module
from etp_algorithms._compiler._diagnostics import warn_about
from etp_algorithms._compiler._graph import TraceGraph, compile_step
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._engine import FoldingAlgorithm, TraceAlgorithm, run_window
from etp_algorithms._fold import Recording, Tape, pull_operands, record_step, steps_per_fold
from etp_algorithms._inputs import split_arguments
from etp_algorithms._modulator import read_modulator, zero_modulator
from etp_algorithms._report import TrustReport, bytes_of, make_report
from etp_algorithms._sequence import SequenceDrivers, zeros_like
from etp_algorithms._step import evaluate_operands
from etp_algorithms._trees import add_trees

__all__ = ["EligibilityTrace", "Kernels", "Learner", "VjpMethod"]

VjpMethod = Literal["single-step", "multi-step"]
Kernels = Literal["auto", "reference"]


class EligibilityTrace(brainstate.ShortTermState):
    """The traces of one learner: a pytree of arrays with stable keys."""


class Learner(SequenceDrivers, brainstate.nn.Module):
    """A model that runs step by step, or window by window, and can be differentiated at any time.

    Calling the learner runs the model and rolls the traces. A gradient taken through the call
    (``brainstate.transform.grad`` with ``grad_states=learner.param_states``) is exact reverse mode within the
    call, plus the traces' account of everything before it. Each call cuts the graph at its entry, so
    gradients of several calls add up.

    Subclasses name one algorithm each (:class:`D_RTRL`, :class:`pp_prop`).

    Args:
        model: a module whose ``update`` is one step.
        algorithm: how traces are kept.
        vjp_method: ``"single-step"`` refuses :class:`MultiStepData`; ``"multi-step"`` and None allow both.
        strict: raise where a plain operation mixes positions and would be cut from the traces. Recurrence through
            marked operators, which the algorithm leaves out by definition, is no such path.
        kernels: ``"auto"`` folds known sequences into whole-sequence products and uses installed kernels;
            ``"reference"`` runs the rules step by step. Both give the same gradients to round-off.
        memory_limit: bytes that :meth:`etrace_grad` may use to record steps before it folds them; None allows
            twice what the traces take, and 8 MiB at least.
        control_flow: limits for marked operators inside branches and loops; None for the defaults.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        algorithm: TraceAlgorithm,
        *,
        vjp_method: VjpMethod | None = None,
        strict: bool = False,
        kernels: Kernels = "auto",
        memory_limit: int | None = None,
        control_flow: ControlFlowPolicy | None = None,
    ) -> None:
        super().__init__()
        if kernels not in ("auto", "reference"):
            raise ValueError(f"kernels must be 'auto' or 'reference', got {kernels!r}.")
        if memory_limit is not None and memory_limit <= 0:
            raise ValueError(f"memory_limit must be a positive number of bytes or None, got {memory_limit!r}.")
        if vjp_method not in (None, "single-step", "multi-step"):
            raise ValueError(f"vjp_method must be 'single-step', 'multi-step' or None, got {vjp_method!r}.")
        self.model = model
        self.algorithm = algorithm
        self.vjp_method = vjp_method
        self.strict = strict
        self.control_flow = ControlFlowPolicy() if control_flow is None else control_flow
        self.kernels: Kernels = kernels
        self.memory_limit = memory_limit
        self._captured: CapturedModel | None = None
        self._graph: TraceGraph | None = None
        self._run: Callable[..., Any] | None = None
        self.traces: EligibilityTrace | None = None
        self._tape: Tape | None = None

    def compile_graph(self, *args: Any) -> None:
        """Compile the model for inputs like ``args`` and zero the traces.

        Args:
            *args: example inputs of one step, or :class:`MultiStepData` of a window.

        A model without any traceable weight is accepted: every parameter is then learned within a window only, as
        :attr:`report` says. :func:`compile` refuses it.

        Raises:
            CompilationError: the model cannot be compiled; the message names place and remedy.
            MissingRuleError: a primitive lacks a rule that the algorithm needs.
        """
        captured = capture_module(self.model, *_one_step(args))
        graph = compile_step(captured.step, strict=self.strict, control_flow=self.control_flow)
        self.algorithm.check(graph)
        traces = self.algorithm.init(graph)
        warn_about((*captured.diagnostics, *graph.diagnostics), stacklevel=2)
        run = functools.partial(run_window, graph, self.algorithm)
        self._captured, self._graph, self.traces = captured, graph, EligibilityTrace(traces)
        self._run = jax.jit(run, static_argnames=("stacked", "modulator_stacked"))

    @property
    def is_compiled(self) -> bool:
        """Whether :meth:`compile_graph` has run."""
        return self._graph is not None

    @property
    def graph(self) -> TraceGraph:
        """The hidden groups and relations that the compiler found."""
        return self._compiled()[1]

    @property
    def param_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """The parameters that the step uses, by path."""
        return _by_path(self._compiled()[0].parameters)

    @property
    def hidden_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """The hidden states, by path."""
        return _by_path(self._compiled()[0].hidden)

    @property
    def other_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """Every other state that the step uses, by path."""
        return _by_path(self._compiled()[0].others)

    @property
    def report(self) -> TrustReport:
        """What each parameter's gradient contains and costs."""
        captured, graph, _, traces = self._compiled()
        return make_report(
            self.algorithm, graph, traces.value, (*captured.diagnostics, *graph.diagnostics), captured.unused
        )

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """Run one step, or the steps of the :class:`MultiStepData` among ``args``.

        Args:
            *args: inputs like those the learner was compiled for.
            modulator: for an algorithm that takes one (:class:`ThreeFactor`): a scalar; an array over the leading
                axes of a hidden group's positions, or one that broadcasts to them; or a dictionary of these by the
                group's name. In :class:`MultiStepData` it has a leading time axis.

        Returns:
            The model's output; with a leading time axis if any argument is :class:`MultiStepData`.

        Raises:
            RuntimeError: the learner is not compiled.
            ValueError: an input, a state or a modulator has another shape, dtype or structure than compiled for.
            TypeError: a modulator is missing, or given to an algorithm that takes none.
        """
        captured, graph, run, traces = self._compiled()
        plain, stacked = split_arguments(args)
        if stacked is not None and self.vjp_method == "single-step":
            raise ValueError(
                "this learner was made with vjp_method='single-step', which takes one step per call; "
                "make it with vjp_method='multi-step' to pass MultiStepData."
            )
        arguments = _check_arguments(captured, plain, stacked)
        signals, signals_stacked = read_modulator(self.algorithm, graph, modulator, _length(arguments, stacked))
        states = _read_states(captured)
        if self._tape is not None:
            return self._update_on_tape(self._tape, arguments, stacked, signals, signals_stacked)
        parameters, hidden, others = states
        result = run(
            parameters=parameters,
            hidden=hidden,
            others=others,
            traces=traces.value,
            arguments=arguments,
            stacked=stacked,
            modulator=signals,
            modulator_stacked=signals_stacked,
        )
        _write(captured.hidden, result.hidden)
        _write(captured.others, result.others)
        traces.value = result.traces
        return jax.tree.unflatten(captured.output_tree, result.outputs)

    def _update_on_tape(
        self,
        tape: Tape,
        arguments: list[jax.Array],
        stacked: tuple[bool, ...] | None,
        modulator: Any,
        modulator_stacked: bool,
    ) -> Any:
        """One step of a sequence that is folded afterwards: the traces wait, the step is recorded."""
        captured, graph, _, _ = self._compiled()
        tape.calls += 1
        if stacked is not None:
            if _length(arguments, stacked) != 1:
                raise ValueError("step_fn passed a window of several steps; give etrace_grad the chunk_size.")
            arguments = [a[0] if flag else a for a, flag in zip(arguments, stacked, strict=True)]
            modulator = jax.tree.map(lambda m: m[0], modulator) if modulator_stacked else modulator
        inputs = (*_read_states(captured), arguments)
        feedback = self.algorithm.signal.feedback
        substitutes = feedback.substitutes(graph) if feedback else None
        (outputs, hidden, others), values = record_step(graph, self.algorithm, inputs, tape.offsets.value, substitutes)
        tape.record.value = Recording(values, modulator)
        _write(captured.hidden, hidden)
        _write(captured.others, others)
        outputs = outputs if stacked is None else [output[None] for output in outputs]
        return jax.tree.unflatten(captured.output_tree, outputs)

    @property
    def folds(self) -> bool:
        """Whether a known sequence is folded into whole-sequence products."""
        return self.kernels == "auto" and isinstance(self.algorithm, FoldingAlgorithm)

    def fold_gradients(
        self, loss_of: Callable[..., Any], timed: Any, states: list[brainstate.State[Any]], complete: bool
    ) -> tuple[list[Any], Any, Any]:
        """The gradients of single steps, summed over a known sequence, from recorded steps.

        Args:
            loss_of: ``(gate, slices) -> (loss, (losses, aux))``; it runs the learner exactly once.
            timed: a pair of gates and slices, time leading.
            states: the states to differentiate.
            complete: the traces are zero before the sequence and are not needed after it.

        Returns:
            The gradients of ``states``, the losses and the aux, stacked over time.
        """
        captured, graph, _, traces = self._compiled()
        algorithm = self.algorithm
        assert isinstance(algorithm, FoldingAlgorithm)
        inputs = (*_read_states(captured), list(captured.argument_avals))
        modulator = (lambda: zero_modulator(graph)) if algorithm.signal.modulated else None
        tape = Tape(graph, algorithm, inputs, modulator)
        length = jax.tree.leaves(timed)[0].shape[0]
        size = steps_per_fold(length, tape.bytes_per_step, bytes_of(traces.value), self.memory_limit)

        def counted(gate: Any, slices: Any) -> Any:
            tape.rewind()
            result = loss_of(gate, slices)
            tape.check_one_call()
            return result

        gradient = brainstate.transform.grad(counted, grad_states=[*states, tape.offsets], has_aux=True)

        def one_step(total: list[Any], now: Any) -> Any:
            (*direct, offsets), (losses, aux) = gradient(*now)
            return jax.tree.map(jnp.add, total, direct), (losses, aux, offsets, tape.record.value)

        def one_fold(total: list[Any], chunk: Any) -> Any:
            total, (losses, aux, *recorded) = brainstate.transform.scan(one_step, total, chunk)
            parameters = _read(captured.parameters, captured.step.parameters)
            operands = evaluate_operands(graph, parameters)
            steps, first = tape.folded(*recorded)
            alone = complete and size == length
            cotangents, rolled = algorithm.fold(graph, None if alone else traces.value, steps, operands)
            if first is not None and not alone:
                entered = algorithm.solve(graph, traces.value, first, operands)
                cotangents = (*map(add_trees, cotangents, entered), *cotangents[len(entered) :])
            traces.value = traces.value if rolled is None else rolled
            pulled = iter(pull_operands(graph, parameters, cotangents))
            folded = {id(s.state): [next(pulled) for _ in range(s.tree.num_leaves)] for s in captured.parameters}
            return [_add_leaves(t, folded.get(id(s))) for t, s in zip(total, states, strict=True)], (losses, aux)

        self._tape = tape
        try:
            return _in_folds(one_fold, zeros_like(states), timed, length, size)
        finally:
            self._tape = None

    def init_state(self, *args: Any, **kwargs: Any) -> None:
        """Zero the traces, so that ``brainstate.nn.init_all_states`` of a learner starts a new sequence."""
        if self.is_compiled:
            self.reset_state()

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Zero the traces.

        The model's own states are reset by ``brainstate.nn.init_all_states`` or ``reset_all_states``, as
        without a learner. After initialising them with another batch size, compile again.
        """
        _, graph, _, traces = self._compiled()
        traces.value = self.algorithm.init(graph)

    def _compiled(self) -> tuple[CapturedModel, TraceGraph, Callable[..., Any], EligibilityTrace]:
        if self._captured is None or self._graph is None or self._run is None or self.traces is None:
            raise RuntimeError(
                "the learner is not compiled. Call compile_graph(*example_inputs) after initialising the model's "
                "states, or make the learner with etp_algorithms.compile."
            )
        self._captured = self._captured.follow(self.model)
        return self._captured, self._graph, self._run, self.traces


def _one_step(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of the first step."""
    plain, stacked = split_arguments(args)
    leaves, tree = jax.tree.flatten(plain)
    first = [leaf[0] if s else leaf for leaf, s in zip(leaves, stacked or (False,) * len(leaves), strict=True)]
    return jax.tree.unflatten(tree, first)


def _length(arguments: list[jax.Array], stacked: tuple[bool, ...] | None) -> int | None:
    """The number of steps of a window; None for a single step."""
    if stacked is None:
        return None
    return next(a.shape[0] for a, flag in zip(arguments, stacked, strict=True) if flag)


def _check_arguments(captured: CapturedModel, plain: Any, stacked: tuple[bool, ...] | None) -> list[jax.Array]:
    leaves, tree = jax.tree.flatten(plain)
    if tree != captured.argument_tree:
        raise ValueError(
            f"the learner was compiled for inputs of the structure {captured.argument_tree}, got {tree}. Pass the same "
            f"structure and units, or call compile_graph with the new inputs."
        )
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for n, (array, aval) in enumerate(zip(arrays, captured.argument_avals, strict=True)):
        shape = array.shape[1:] if stacked is not None and stacked[n] else array.shape
        if (shape, array.dtype) != (aval.shape, aval.dtype):
            raise ValueError(
                f"input {n} has shape {shape} and dtype {array.dtype.name} per step, but the learner was compiled for "
                f"{aval.shape} and {aval.dtype.name}. Wrap windows in MultiStepData, or call compile_graph with the "
                f"new inputs."
            )
    return arrays


def _read_states(captured: CapturedModel) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    step = captured.step
    return (
        _read(captured.parameters, step.parameters),
        _read(captured.hidden, step.hidden),
        _read(captured.others, step.others),
    )


def _read(slots: tuple[StateSlot, ...], leaves: Any) -> list[jax.Array]:
    arrays = [jnp.asarray(array) for slot in slots for array in slot.read()]
    for array, leaf in zip(arrays, leaves, strict=True):
        if (array.shape, array.dtype) != (leaf.input.aval.shape, leaf.input.aval.dtype):
            raise ValueError(
                f"the state {leaf.name} has shape {array.shape} and dtype {array.dtype.name}, but the learner was "
                f"compiled for {leaf.input.aval.shape} and {leaf.input.aval.dtype.name}. Initialise the states as they "
                f"were, or call compile_graph again."
            )
    return arrays


def _write(slots: tuple[StateSlot, ...], arrays: list[jax.Array]) -> None:
    rest = iter(arrays)
    for slot in slots:
        slot.write([next(rest) for _ in range(slot.tree.num_leaves)])


def _by_path(slots: tuple[StateSlot, ...]) -> dict[tuple[Any, ...], brainstate.State[Any]]:
    return {slot.path: slot.state for slot in slots}


def _in_folds(
    one_fold: Callable[..., Any], total: list[Any], timed: Any, length: int, size: int
) -> tuple[list[Any], Any, Any]:
    """Run ``one_fold`` over chunks of ``size`` steps, the last one shorter if it must be."""
    whole, rest = divmod(length, size)
    head = jax.tree.map(lambda a: a[: whole * size].reshape(whole, size, *a.shape[1:]), timed)
    if whole > 1:
        total, out = brainstate.transform.scan(one_fold, total, head)
        out = jax.tree.map(lambda a: a.reshape(whole * size, *a.shape[2:]), out)
    else:
        total, out = one_fold(total, jax.tree.map(lambda a: a[0], head))
    if rest:
        total, tail = one_fold(total, jax.tree.map(lambda a: a[whole * size :], timed))
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, tail)
    return total, *out


def _add_leaves(total: Any, leaves: list[jax.Array] | None) -> Any:
    """A gradient with the shape of a state's value, with arrays added to its leaves."""
    if leaves is None:
        return total
    old, tree = jax.tree.flatten(total)
    return jax.tree.unflatten(tree, [a + b for a, b in zip(old, leaves, strict=True)])
