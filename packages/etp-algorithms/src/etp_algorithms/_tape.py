"""A known sequence of steps or windows, recorded first and folded after.

Gradients over a known sequence do not need the trace at every step. Every call is recorded (``_recording.py``), and
:meth:`FoldingAlgorithm.fold` makes the sum of all gradients, and the final traces, from whole-sequence products.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._ahead import feeds_its_groups, reaches_in_place, send_back, sends_back
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._products import PlainProduct
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._engine import FoldedSteps, FollowingAlgorithm, TraceAlgorithm
from etp_algorithms._recording import Offsets, Recording, record_call, recorder_of
from etp_algorithms._residuals import RecordedSteps, residuals_of
from etp_algorithms._step import Arrays, Signals, group_signals

__all__ = ["Tape", "TapedSteps"]


class TapedSteps(NamedTuple):
    """The recorded steps.

    Attributes:
        steps: as algorithms take them.
        first: the signals at the very first entry, of what outputs read of it directly; or None.
        products: the plain products, each with its data and the cotangents of its result, time leading.
    """

    steps: FoldedSteps
    first: Signals | None
    products: tuple[tuple[PlainProduct, jax.Array, jax.Array], ...]


class Tape:
    """Where a learner writes the calls of a sequence that is being folded.

    The values are brainstate states, so that they pass through any transformation the user puts around the call.

    Attributes:
        window: the steps of a call, which then has a time axis; None for a single step.
        offsets: zeros whose gradients are the signals and the cotangents within the call; None for a drive that no
            derivative reaches.
        record: the recording of the last call.
        followed: the traces of an algorithm whose traces follow the recording; else ``()``.
        sends_back: whether entry signals are credited to the step before, as ``_ahead.py`` says.
        calls: how often the learner ran since the tape was rewound.
    """

    def __init__(
        self,
        graph: TraceGraph,
        algorithm: TraceAlgorithm,
        inputs: tuple[Arrays, Arrays, Arrays, Sequence[Any]],
        modulator: Callable[[], Signals] | None,
        window: int | None,
        calls: int,
    ) -> None:
        self._graph, self._algorithm, self.window = graph, algorithm, window
        self.sends_back = window is None and calls > 1 and sends_back(algorithm)
        self._at_exit = algorithm.signal.place == "exit"
        hidden = inputs[1]
        states = [jnp.zeros_like(a) for a, leaf in zip(hidden, graph.step.hidden, strict=True) if leaf.differentiable]
        offsets = Offsets(
            states=states,
            entries=states if self._at_exit and graph.exit_plan.reads_entry and not algorithm.signal.modulated else [],
            drives=[jnp.zeros(o.y.aval.shape, o.y.aval.dtype) if self._is_driven(o) else None for o in graph.operators],
            products=[jnp.zeros(p.y.aval.shape, p.y.aval.dtype) for p in recorder_of(graph, algorithm).products],
            exits=states if self.sends_back else [],
        )
        traces = algorithm.init(graph) if isinstance(algorithm, FollowingAlgorithm) else ()
        _, values, kept, _ = jax.eval_shape(lambda i, t: record_call(graph, algorithm, i, t, offsets), inputs, traces)
        record = Recording(values, kept, None if modulator is None else jax.eval_shape(modulator))
        lead = () if window is None else (window,)
        each = jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), (offsets, record))
        self.offsets = brainstate.ShortTermState(each[0] if self._at_exit else each[0]._replace(states=states))
        self.record = brainstate.ShortTermState(each[1])
        self.followed = brainstate.ShortTermState(traces)
        self.calls = 0

    def _is_driven(self, operator: HiddenParamOpRelation) -> bool:
        """Whether the output of an operator has a cotangent within the call that is not accounted for otherwise."""
        signal = self._algorithm.signal
        if self.sends_back:
            return not reaches_in_place(self._graph, operator)
        if signal.place == "entry":
            return True
        return not (signal.modulated and operator.links) and not feeds_its_groups(self._graph, operator)

    def rewind(self) -> None:
        """Expect the next call."""
        self.calls = 0

    def check_one_call(self) -> None:
        """Raise unless the learner ran once since the tape was rewound."""
        if self.calls != 1:
            unit = "step" if self.window is None else "window"
            raise ValueError(f"step_fn must run the learner exactly once per {unit}; it ran {self.calls} times.")

    @property
    def bytes_per_call(self) -> int:
        """The memory that one recorded call takes."""
        kept = (self.offsets.value._replace(exits=[]), self.record.value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    def no_credit(self) -> Any:
        """What :meth:`credited` takes for the first call."""
        return jax.tree.map(jnp.zeros_like, self._signals(self.offsets.value.exits)) if self.sends_back else ()

    def credited(self, gradients: Offsets, parameters: Arrays, before: Any) -> tuple[Offsets, Any]:
        """The gradients of a call as they are recorded, and what the next call adds to its own.

        If entry signals are sent back, they are by group and state from here on.
        """
        if not self.sends_back:
            return gradients, before
        residuals = residuals_of(self._graph, recorder_of(self._graph, self._algorithm))
        values, _ = residuals.reader(parameters)(self.record.value.values)
        new, entering = self._signals(gradients.exits), self._signals(gradients.states)
        signals, drives = send_back(self._graph, values.jacobians, entering, new, gradients.drives, before)
        return gradients._replace(states=signals, drives=drives, exits=[]), new

    def taped(self, gradients: Offsets, record: Recording, parameters: Arrays, calls: int, ahead: Any) -> TapedSteps:
        """What was recorded of ``calls`` calls, stacked over them, with what :meth:`credited` gave for the last.

        What outputs read of an entry state directly is credited to the new state of the step before.
        """
        length, spacing = calls * (self.window or 1), 1
        if self.window is not None:
            at_entry = {} if self._at_exit else {"states": gradients.states}
            spacing = self.window if at_entry else 1
            steps = (gradients._replace(**dict.fromkeys(at_entry, ())), record)
            gradients, record = jax.tree.map(lambda a: a.reshape(length, *a.shape[2:]), steps)
            gradients = gradients._replace(**at_entry)
        recorder = recorder_of(self._graph, self._algorithm)
        recorded = residuals_of(self._graph, recorder).steps(parameters, record.values, length)
        data = recorded.map(lambda read: read[1]).stacked
        products = tuple(zip(recorder.products, data, gradients.products, strict=True))
        values = recorded.map(lambda read: read[0])
        if isinstance(self._algorithm, FollowingAlgorithm):
            values = RecordedSteps(record.followed, lambda kept: kept, length)
        rest = (tuple(gradients.drives), self.followed.value, spacing)
        if self.sends_back:
            return TapedSteps(FoldedSteps(values, gradients.states, *rest, ahead), None, products)
        if record.modulator is not None:
            return TapedSteps(FoldedSteps(values, record.modulator, *rest), None, products)
        signals = self._signals(gradients.states)
        first = None
        if gradients.entries:
            entries = self._signals(gradients.entries)
            first = jax.tree.map(lambda e: e[0], entries)
            signals = jax.tree.map(lambda s, e: s.at[:-1].add(e[1:]), signals, entries)
        return TapedSteps(FoldedSteps(values, signals, *rest), first, products)

    def _signals(self, arrays: Arrays) -> Signals:
        """Cotangents of the differentiable hidden arrays by group and state."""
        rest = iter(arrays)
        return group_signals(
            self._graph, [next(rest) if leaf.differentiable else None for leaf in self._graph.step.hidden]
        )
