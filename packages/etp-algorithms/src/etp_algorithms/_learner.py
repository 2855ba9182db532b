"""The learner: a model, its traces, and the gradient that both give."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import brainstate
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from etp_algorithms._advice import LEARNER_ATTRIBUTES, LEARNERS
from etp_algorithms._calls import (
    CompiledStep,
    by_path,
    check_arguments,
    first_step,
    read_states,
    resized_inputs,
    states_of_calls,
    window_length,
    write_slots,
)
from etp_algorithms._compiler._capture import CapturedModel, capture_module
from etp_algorithms._compiler._diagnostics import warn_about
from etp_algorithms._compiler._graph import TraceGraph, compile_step
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._engine import FoldingAlgorithm, TraceAlgorithm
from etp_algorithms._folding import Folded, fold_gradients, run_on_tape, tape_of
from etp_algorithms._inputs import split_arguments
from etp_algorithms._lanes import reset_slots
from etp_algorithms._modulator import read_modulator
from etp_algorithms._ready import noticed, ready_step
from etp_algorithms._report import TrustReport, make_report
from etp_algorithms._resets import read_flags, resetting_step
from etp_algorithms._saving import named_states, read_arrays, write_arrays
from etp_algorithms._sequence import SequenceDrivers
from etp_algorithms._sharding import MeshPlan, also_placed, check_gates, make_plan, place, placed_states, run_on_mesh
from etp_algorithms._tape import Tape
from etp_algorithms._vmapped import spread_lanes, take_sample, vmapped
from etp_core.arguments import Advice, advised, no_attribute

__all__ = ["EligibilityTrace", "Kernels", "Learner", "StartValues", "VjpMethod"]

VjpMethod = Literal["single-step", "multi-step"]
Kernels = Literal["auto", "reference"]


class EligibilityTrace(brainstate.ShortTermState):
    """The traces of one learner: a pytree of arrays with stable keys."""


class StartValues(brainstate.ShortTermState):
    """The arrays that hidden and other short-term states had when the learner was compiled."""


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
            twice what the traces take, and 8 MiB at least, or 24 MiB for a complete sequence that then needs no trace.
        control_flow: limits for marked operators inside branches and loops; None for the defaults.
        name: name of the module.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            advised(LEARNERS["Learner"] | LEARNERS.get(cls.__name__, Advice()))(cls)

    @advised(LEARNERS["Learner"])
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
        name: str | None = None,
    ) -> None:
        brainstate.nn.Module.__init__(self, name=name)  # the drivers, first among the bases, construct nothing
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
        self.control_flow: ControlFlowPolicy = ControlFlowPolicy() if control_flow is None else control_flow
        self.kernels: Kernels = kernels
        self.memory_limit = memory_limit
        self.lanes: int | None = None
        self.traces: EligibilityTrace | None = None
        self.start: StartValues | None = None
        self._one_sample: CapturedModel | None = None
        self._program: CompiledStep | None = None
        self._resetting: dict[tuple[int, ...], CompiledStep] = {}
        self._flags: tuple[jax.Array, bool] | None = None
        self._holding = False
        self._plan: MeshPlan | None = None
        self._on_device = False
        self._local: tuple[CompiledStep, dict[tuple[int, ...], CompiledStep]] | None = None
        self._tape: Tape | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, LEARNER_ATTRIBUTES)

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
        example = first_step(args)
        with self._unchanged_on_failure():
            model = self.model
            if self.lanes is not None:
                self._one_sample = take_sample(self.model, self._one_sample, self.lanes, example)
                model = vmapped(self.model, self._one_sample, self.lanes)
            captured = capture_module(model, *example)
            strict = self.strict and self.algorithm.marked_only
            graph = compile_step(captured.step, strict=strict, control_flow=self.control_flow)
            self.algorithm.check(graph)
            traces = self.algorithm.init(graph)
        warn_about((*captured.diagnostics, *noticed(self.algorithm, graph)), stacklevel=2)
        self._program, self._resetting = ready_step(model, captured, graph, self.algorithm), {}
        self._local = self._plan = None
        start = [jnp.array(leaf) for slot in reset_slots(captured) for leaf in slot.read()]
        if self.traces is None or self.start is None:
            self.traces, self.start = EligibilityTrace(traces), StartValues(start)
        else:
            self.traces.value, self.start.value = traces, start

    @property
    def is_compiled(self) -> bool:
        """Whether :meth:`compile_graph` has run."""
        return self._program is not None

    @property
    def compiled_step(self) -> CompiledStep:
        """The step as it was compiled: its program, its states and its graph."""
        return self._compiled()[0]

    @property
    def graph(self) -> TraceGraph:
        """The hidden groups and relations that the compiler found."""
        return self._compiled()[0].graph

    @property
    def param_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """The parameters that the step uses, by path."""
        return by_path(self._compiled()[0].captured.parameters)

    @property
    def hidden_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """The hidden states, by path."""
        return by_path(self._compiled()[0].captured.hidden)

    @property
    def other_states(self) -> dict[tuple[Any, ...], brainstate.State[Any]]:
        """Every other state that the step uses, by path."""
        return by_path(self._compiled()[0].captured.others)

    @property
    def report(self) -> TrustReport:
        """What each parameter's gradient contains and costs."""
        program, traces = self._compiled()
        captured, graph = program.captured, program.graph
        return make_report(
            self.algorithm,
            graph,
            traces.value,
            (*captured.diagnostics, *noticed(self.algorithm, graph)),
            captured.unused,
        )

    def update(self, *args: Any, modulator: Any = None, resets: Any = None) -> Any:
        """Run one step, or the steps of the :class:`MultiStepData` among ``args``.

        Args:
            *args: inputs like those the learner was compiled for.
            modulator: for an algorithm that takes one (:class:`ThreeFactor`): a scalar; an array over the leading
                axes of a hidden group's positions, or one that broadcasts to them; or a dictionary of these by the
                group's name. In :class:`MultiStepData` it has a leading time axis.
            resets: booleans, one per lane of the batch, or one for all: an episode begins with this step. Hidden and
                other short-term states of a flagged lane take the values they had when the learner was compiled, its
                traces are those of a new sequence, and no gradient passes to what was before. With a window, one set
                of flags per step, time leading.

        Returns:
            The model's output; with a leading time axis if any argument is :class:`MultiStepData`.

        Raises:
            RuntimeError: the learner is not compiled.
            ValueError: an input, a state, a modulator or a set of flags has another shape, dtype or structure than
                compiled for, or a state that a reset has to touch has no batch axis.
            TypeError: a modulator is missing, or given to an algorithm that takes none.
        """
        program, traces = self._compiled()
        plain, stacked = split_arguments(args)
        if stacked is not None and self.vjp_method == "single-step":
            raise ValueError(
                "this learner was made with vjp_method='single-step', which takes one step per call; "
                "make it with vjp_method='multi-step' to pass MultiStepData."
            )
        arguments = check_arguments(program.captured, plain, stacked)
        length = window_length(arguments, stacked)
        signals, signals_stacked = read_modulator(self.algorithm, program.graph, modulator, length)
        flags = read_flags(resets, self._flags, length)
        if flags is not None:
            program = self._resetting_step(flags.shape[0 if length is None else 1 :])
            assert self.start is not None
            start = self.start.value
            arguments = [flags, *start, *arguments]
            stacked = None if stacked is None else (True, *(False for _ in start), *stacked)
        parameters, hidden, others = read_states(program.captured)
        if self._tape is not None:
            return run_on_tape(program, self._tape, arguments, stacked, signals, signals_stacked)
        result = program.run(
            parameters=parameters,
            hidden=hidden,
            others=others,
            traces=traces.value,
            arguments=arguments,
            stacked=stacked,
            modulator=signals,
            modulator_stacked=signals_stacked,
        )
        write_slots(program.captured.hidden, result.hidden)
        write_slots(program.captured.others, result.others)
        if not self._holding:
            traces.value = result.traces
        if self._plan is not None and not self._on_device:
            assert self.start is not None
            place(self._plan, placed_states(program, traces, self.start))
        return jax.tree.unflatten(program.captured.output_tree, result.outputs)

    def _resetting_step(self, shape: tuple[int, ...]) -> CompiledStep:
        """The step that puts lanes back first, for flags of this shape; compiled when it is first asked for."""
        program, traces = self._compiled()
        if shape not in self._resetting:
            self._resetting[shape] = resetting_step(program, traces.value, self.algorithm, shape, self.control_flow)
        return self._resetting[shape].follow()

    def _prepared_step(self, flags: jax.Array | None) -> CompiledStep:
        """The step that a driver runs, compiled; with the flags of a whole sequence, time leading, if it has any."""
        program, _ = self._compiled()
        return program if flags is None else self._resetting_step(flags.shape[1:])

    def _folds(self, program: CompiledStep) -> bool:
        """Whether a known sequence is folded into whole-sequence products."""
        return self.kernels == "auto" and isinstance(program.algorithm, FoldingAlgorithm)

    def _fold_gradients(
        self,
        program: CompiledStep,
        total: list[Any],
        traces: Any,
        loss_of: Callable[..., Any],
        timed: Any,
        states: list[brainstate.State[Any]],
        *,
        window: int | None,
        last: bool,
    ) -> Folded:
        """The gradients of single calls, summed over a known sequence; see :func:`fold_gradients`."""
        self._tape = tape_of(program, window, timed)
        try:
            limit = self.memory_limit
            return fold_gradients(program, self._tape, total, traces, loss_of, timed, states, last=last, limit=limit)
        finally:
            self._tape = None

    def place_on(self, mesh: Mesh, *, data: str = "data", model: str | None = None) -> None:
        """Spread the learner over a mesh of devices: the lanes of the batch, and the width of layers if asked.

        Hidden states, other short-term states and traces are split by lane over the axis ``data``; parameters are on
        every device. With ``model`` the last axis of each array is split over that axis where it divides. A single
        call then runs as XLA partitions it. A known sequence (:meth:`etrace_grad`, :meth:`etrace_evolve`) runs for the
        lanes of each device on their own, and the gradients are summed over devices once. Its losses must therefore
        be by lane: give a mask of shape ``(T, B)``.

        Args:
            mesh: with axes of the type ``Auto``.
            data: the axis for lanes.
            model: the axis for wide layers; None for none.

        Raises:
            RuntimeError: the learner is not compiled.
            ValueError: an unknown axis, a batch that the devices do not divide, or a state that the step writes and
                all lanes share.
        """
        program, traces = self._compiled()
        plan = make_plan(program, mesh, data, model)
        assert self.start is not None
        place(plan, placed_states(program, traces, self.start))
        self._plan = plan

    def _run_placed(
        self,
        core: Callable[[Any, Any], tuple[list[Any], Any]],
        timed: Any,
        shared: Any,
        *,
        lead: int,
        extra: Sequence[brainstate.State[Any]] = (),
    ) -> tuple[list[Any], Any]:
        """``core(timed, shared)``, on the mesh if the learner is on one; see :func:`run_on_mesh`."""
        program, traces = self._compiled()
        if self._plan is None:
            return core(timed, shared)
        assert self.start is not None
        check_gates(timed.gates)
        placed = also_placed(placed_states(program, traces, self.start), extra)

        def local(timed: Any, shared: Any) -> tuple[list[Any], Any]:
            with self._for_lanes():
                return core(timed, shared)

        return run_on_mesh(self._plan, placed, local, timed, shared, lead=lead)

    @contextlib.contextmanager
    def _for_lanes(self) -> Generator[None, None, None]:
        """The step is that of the lanes which the states have inside."""
        whole = self._program, self._resetting
        assert self._program is not None
        self._on_device = True
        example = resized_inputs(self._program.captured)
        if example is not None:
            if self._local is None:
                self._local = self._local_step(self._program, example), {}
            self._program, self._resetting = self._local
        try:
            yield
        finally:
            self._program, self._resetting = whole
            self._on_device = False

    def _local_step(self, program: CompiledStep, example: tuple[Any, ...]) -> CompiledStep:
        """The step for as many lanes as ``example`` has."""
        model = program.model
        if self._one_sample is not None:
            model = vmapped(self.model, self._one_sample, jax.tree.leaves(example)[0].shape[0])
        captured = capture_module(model, *example)
        graph = compile_step(captured.step, control_flow=self.control_flow)
        return ready_step(model, captured, graph, self.algorithm)

    @contextlib.contextmanager
    def _giving(self, flags: jax.Array | None, *, windowed: bool) -> Generator[None, None, None]:
        """Calls of the learner inside get these flags."""
        if flags is None:
            yield
            return
        self._flags = (flags, windowed)
        try:
            yield
        finally:
            self._flags = None

    @contextlib.contextmanager
    def _holding_traces(self) -> Generator[None, None, None]:
        """Calls of the learner inside move the model's states and leave the traces."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    @contextlib.contextmanager
    def _unchanged_on_failure(self) -> Generator[None, None, None]:
        """A block that either succeeds or leaves every state as it was."""
        changing = states_of_calls(self.model, self._program, self.traces)
        before = [(state, state.value) for state in changing]
        try:
            yield
        except BaseException:
            for state, value in before:
                state.value = value
            raise

    def state_dict(self, *, model: bool = True) -> dict[str, jax.Array]:
        """Everything that the next step depends on, as a flat dictionary of arrays.

        The keys are the names of relations, groups and states; they are the same in every process. Random keys are
        arrays of unsigned integers. A learner that is built, initialised and compiled alike continues bit for bit
        after :meth:`load_state_dict`. The state of an optimizer is not in it.

        Args:
            model: include parameters, hidden and other states; False gives the traces alone.

        Raises:
            RuntimeError: the learner is not compiled.
        """
        return read_arrays(self._saved(model))

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave, with the model's states or without.

        Raises:
            RuntimeError: the learner is not compiled.
            ValueError: an array is missing, unknown, or of another shape or dtype, as after compiling for another batch
                size; nothing is changed then.
        """
        model = not arrays or any(name.startswith("model.") for name in arrays)
        write_arrays(self._saved(model), arrays)

    def _saved(self, model: bool) -> dict[str, brainstate.State[Any]]:
        program, traces = self._compiled()
        assert self.start is not None
        if not model:
            return {"traces": traces}
        return {"traces": traces, "start": self.start, **named_states(self.model, program.captured)}

    def init_state(self, *args: Any, **kwargs: Any) -> None:
        """Zero the traces, so that ``brainstate.nn.init_all_states`` of a learner starts a new sequence."""
        if self.is_compiled:
            self.reset_state()

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Start a new sequence: zero the traces.

        The model's own states are reset by ``brainstate.nn.init_all_states`` or ``reset_all_states``, as
        without a learner. If they were initialised for another batch size, the step is compiled again for inputs of
        that size.

        Args:
            batch_size: for a learner that maps a step of one sample over lanes, their number; None keeps it.
            **kwargs: ignored; brainstate passes what a model's states may need.
        """
        program, traces = self._compiled()
        if self.lanes is not None and batch_size not in (None, self.lanes):
            self._resize_lanes(program, batch_size)
            return
        resized = resized_inputs(program.captured)
        if resized is not None:
            self.compile_graph(*resized)
        else:
            traces.value = self.algorithm.reset(program.graph, traces.value)

    def _resize_lanes(self, program: CompiledStep, lanes: int) -> None:
        avals = [jax.ShapeDtypeStruct((lanes, *a.shape[1:]), a.dtype) for a in program.captured.argument_avals]
        before, self.lanes = self.lanes, lanes
        try:
            self.compile_graph(*jax.tree.unflatten(program.captured.argument_tree, avals))
        except BaseException:
            self.lanes = before
            raise

    def _compiled(self) -> tuple[CompiledStep, EligibilityTrace]:
        if self._program is None or self.traces is None:
            raise RuntimeError(
                "the learner is not compiled. Call compile_graph(*example_inputs) after initialising the model's "
                "states, or make the learner with etp_algorithms.compile."
            )
        if self.lanes is not None and self._one_sample is not None:
            spread_lanes(self.model, self._one_sample, self.lanes)
        self._program = self._program.follow()
        return self._program, self.traces
