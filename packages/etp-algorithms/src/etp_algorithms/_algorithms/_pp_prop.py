"""pp_prop (ES-D-RTRL): the trace of a weight as the product of an input filter and an output filter.

    ε_x ← α_x ε_x + x ,   ε_f,a ← α_f Σ_b D_ab ε_f,b + (1 − α_f) Df_a ,   c ← α_f c + (1 − α_f)
    ∇w = xy_to_dw(ε_x , Σ_a s_a ε_f,a / c)

The mass ``c = 1 − α_f^t`` corrects the start of the output filter after ``t`` steps, however they were cut into
windows. Memory ``O(B·(I + O·S))``. Source: Wang et al., the ES-D-RTRL (pp-prop) approximation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from etp_algorithms._algorithms._factors import gathered, known_apart, spread
from etp_algorithms._algorithms._filters import decayed_sum, filter_back
from etp_algorithms._algorithms._param_dim_traces import check_trace_dtype, relation_keys
from etp_algorithms._algorithms._precision import check_decay_holds, wide_enough
from etp_algorithms._algorithms._rule_calls import closed_form, input_key, pull_pairs, pull_sequence, pull_step
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._compiler._relations import GroupLink, HiddenParamOpRelation, link_key
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import AT_ENTRY, FoldedSteps, LearningSignal, SignalPlace
from etp_algorithms._learner import Kernels, Learner, VjpMethod
from etp_algorithms._report import bytes_of
from etp_algorithms._residuals import RecordedSteps
from etp_algorithms._step import Arrays, Operands, Signals, StepPoint, StepValues, evaluate_operands
from etp_algorithms._trees import add_trees

__all__ = ["ES_D_RTRL", "FactorisedTraces", "IODimVjpAlgorithm", "decays_of", "pp_prop"]


def decays_of(decay_or_rank: float | int | Sequence[float | int]) -> tuple[float, float]:
    """The decays of the input and of the output filter.

    Args:
        decay_or_rank: a decay in ``[0, 1)``; a rank ``r ≥ 1``, which means the decay ``(r − 1) / (r + 1)``; or a
            pair of these, for input and output.

    Raises:
        TypeError: another type.
        ValueError: a value out of range.
    """
    if isinstance(decay_or_rank, Sequence) and not isinstance(decay_or_rank, str):
        if len(decay_or_rank) != 2:
            raise ValueError(f"a pair of decays is (input, output); got {len(decay_or_rank)} values.")
        return _decay(decay_or_rank[0]), _decay(decay_or_rank[1])
    return _decay(decay_or_rank), _decay(decay_or_rank)


def _decay(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"decay_or_rank takes a float in [0, 1), an int of at least 1, or a pair; got {value!r}.")
    if isinstance(value, int):
        if value < 1:
            raise ValueError(f"a rank must be at least 1, got {value}.")
        return (value - 1) / (value + 1)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"a decay must lie in [0, 1), got {value}.")
    return float(value)


class Followed(NamedTuple):
    """What is recorded of a step of a known sequence.

    Attributes:
        xs: for every marked operator the data operand, or None.
        inputs: the input filters, by name, of operators not known to be linear in their data.
        outputs: the output filters by relation and group.
    """

    xs: tuple[jax.Array | None, ...]
    inputs: dict[str, jax.Array]
    outputs: dict[str, tuple[jax.Array | None, ...]]


@dataclass(frozen=True)
class FactorisedTraces:
    """The trace algorithm of pp_prop.

    Attributes:
        decay_x: decay of the input filter per step.
        decay_f: decay of the output filter per step.
        trace_dtype: the dtype in which traces are stored; None keeps that of inputs and outputs.
        signal: where the credit comes from.
        name: the algorithm's name.
    """

    decay_x: float
    decay_f: float
    trace_dtype: Any = None
    signal: LearningSignal = AT_ENTRY
    name: str = "pp_prop"
    marked_only: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_trace_dtype(self.trace_dtype)

    def check(self, graph: TraceGraph) -> None:
        """Raise if a primitive lacks a rule, or a filter would stall in the dtype of the traces."""
        for relation in graph.hidden_param_op_relations:
            for kind in ("xy_to_dw", "init_pp"):
                relation.primitive.require_rule(kind, self.name)
        if self.trace_dtype is not None:
            check_decay_holds("input decay", self.decay_x, self.trace_dtype)
            check_decay_holds("output decay", self.decay_f, self.trace_dtype)
        self.signal.check(graph)

    def judge(self, graph: TraceGraph, verdict: ParameterTrust) -> ParameterTrust:
        """A traced parameter is never exact: its trace is a product of sums."""
        factorised = replace(verdict, trust=Trust.FACTORISED) if verdict.relations else verdict
        return self.signal.judge(graph, factorised)

    def init(self, graph: TraceGraph) -> Any:
        """Zero filters and zero mass."""
        inputs, outputs, masses = {}, {}, {}
        for relation in graph.hidden_param_op_relations:
            shape = self._input_shape(relation)
            if shape is not None:
                kept = self.trace_dtype or wide_enough(shape.dtype, self.decay_x)
                inputs[input_key(graph, relation)] = jnp.zeros(shape.shape, kept)
            for link in relation.links:
                init = relation.primitive.require_rule("init_pp", self.name)
                made = jax.eval_shape(lambda init=init, r=relation: init(r.x, r.y, r.trainable_vars, 1))
                lanes = (link.layout.lanes,) if link.layout.lanes > 1 else ()
                kept = self.trace_dtype or wide_enough(made.dtype, self.decay_f)
                zero = jnp.zeros((*lanes, *made.shape[:-1]), kept)
                outputs[link_key(relation, link)] = tuple(zero if p else None for p in link.present)
                # one mass per lane of a batch, since lanes may start anew one by one: an axis of it, ones after
                lead = zero.shape[: len(lanes) + 1]
                shape = (*lead, *(1,) * (zero.ndim - len(lead)))
                masses[link_key(relation, link)] = jnp.zeros(shape, jnp.result_type(float))
        return {"input": inputs, "output": outputs, "mass": masses}

    def reset(self, graph: TraceGraph, traces: Any) -> Any:
        """Zero traces again."""
        return self.init(graph)

    def bytes_for(self, graph: TraceGraph, traces: Any, verdict: ParameterTrust) -> int:
        """The output filters of the relations that the parameter enters; input filters are shared."""
        return bytes_of([traces["output"][key] for key in relation_keys(graph, verdict)])

    def tracked(self, graph: TraceGraph, parameters: Arrays) -> Operands:
        """The operands of the marked operators."""
        return evaluate_operands(graph, parameters)

    def read(self, point: StepPoint) -> StepValues:
        """The data of every operator and the Jacobians."""
        return StepValues(point.xs, known_apart(point, point.jacobians))

    def roll(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> Any:
        """One step of both filters."""
        outputs = {}
        for relation in graph.hidden_param_op_relations:
            for link in relation.links:
                name = link_key(relation, link)
                outputs[name] = self._roll_output(relation, link, traces["output"][name], values)
        masses = {key: self.decay_f * mass + (1.0 - self.decay_f) for key, mass in traces["mass"].items()}
        inputs = self._roll_inputs(graph, traces, values.xs, operands)
        return {"input": inputs, "output": outputs, "mass": masses}

    def roll_window(self, graph: TraceGraph, traces: Any, steps: RecordedSteps, operands: Operands) -> Any:
        """The filters after a window, step by step: they are small."""
        return steps.scan(lambda old, now: (self.roll(graph, old, now[0], operands), None), traces, None)[0]

    def _roll_inputs(
        self, graph: TraceGraph, traces: Any, xs: Sequence[Any], operands: Operands
    ) -> dict[str, jax.Array]:
        inputs: dict[str, jax.Array] = {}
        for r, relation in enumerate(graph.hidden_param_op_relations):
            key = input_key(graph, relation)
            if key in traces["input"] and key not in inputs:
                inputs[key] = self._roll_input(relation, traces["input"][key], xs[r], operands[r])
        return inputs

    def _roll_input(self, relation: HiddenParamOpRelation, old: jax.Array, x: Any, weights: Any) -> jax.Array:
        seen = self._view(relation, x, weights)
        return (self.decay_x * _widened(old, seen) + seen).astype(old.dtype)

    def _roll_output(
        self, relation: HiddenParamOpRelation, link: GroupLink, old: tuple[jax.Array | None, ...], values: StepValues
    ) -> tuple[jax.Array | None, ...]:
        jacobian = values.jacobians[link.group]
        assert jacobian is not None
        rolled: list[jax.Array | None] = []
        for kept, row, df in zip(old, jacobian.transition, jacobian.inputs[relation.index], strict=True):
            if kept is None:
                rolled.append(None)
                continue
            terms = [
                gathered(relation, link.layout, factor) * (self.decay_f * _widened(filtered, kept))
                for factor, filtered in zip(row, old, strict=True)
                if factor is not None and filtered is not None
            ]
            if df is not None:
                terms.append((1.0 - self.decay_f) * _widened(jnp.asarray(spread(relation, link.layout, df)), kept))
            rolled.append((add_trees(*terms) if terms else jnp.zeros_like(kept)).astype(kept.dtype))
        return tuple(rolled)

    def solve(self, graph: TraceGraph, traces: Any, signals: Signals, operands: Operands) -> Operands:
        """The pull-back of the filtered output signal at the filtered input."""
        solved = []
        for relation, weights in zip(graph.hidden_param_op_relations, operands, strict=False):
            x, g = self._factors(graph, relation, traces, signals)
            solved.append(pull_step(relation, x, g, weights))
        return tuple(solved)

    def follow(self, graph: TraceGraph, traces: Any, values: StepValues, operands: Operands) -> tuple[Any, Followed]:
        """One step of the filters, and the filters that the signal of the step meets.

        The input filter of an operator that is known to be linear in its data stands still: a fold makes up for it.
        """
        rolled, streamed = self.roll(graph, traces, values, operands), _streamed_keys(graph)
        rolled["input"] = {
            key: new if key in streamed else traces["input"][key] for key, new in rolled["input"].items()
        }
        met = rolled if self.signal.place == "exit" else traces
        return rolled, Followed(values.xs, {key: met["input"][key] for key in streamed}, met["output"])

    def fold(
        self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands, *, last: bool = False
    ) -> tuple[Operands, Any]:
        """``γ``, the signals through both filters, with what passes within the steps, and one product with the data.

        Relations whose operator is not known to be linear in its data have their input filters run step by step.
        """
        if traces is not None and steps.values.length == 1:
            return self._fold_one(graph, traces, steps, operands)
        relations, at_exit = graph.hidden_param_op_relations, self.signal.place == "exit"
        start = self.init(graph) if traces is None else traces
        kept: Followed = steps.values.stacked
        keys, streamed = [input_key(graph, relation) for relation in relations], _streamed_keys(graph)
        linear = [r for r, relation in enumerate(relations) if relation.x is not None and keys[r] not in streamed]
        masses = {key: self._masses(mass, steps.values.length) for key, mass in start["mass"].items()}
        met = ({"output": kept.outputs, "mass": masses}, steps.spread_signals())

        def outputs(now: Any, chosen: Sequence[int]) -> list[jax.Array]:
            return [self._signal(relations[r], *now).astype(relations[r].y.aval.dtype) for r in chosen]

        credits, first = filter_back(
            self.decay_x, lambda now: outputs(now, linear), met, [steps.drives[r] for r in linear], at_exit
        )
        unfiltered = jax.vmap(lambda now: outputs(now, range(len(relations))))(met)
        gradients = []
        for o, operator in enumerate(graph.operators):
            xs, drive = kept.xs[o], steps.drives[o]
            if o < len(relations) and operator.x is not None and o not in linear:
                view = self._view_sequence(operator, xs, operands[o])
                filtered = kept.inputs[keys[o]].astype(unfiltered[o].dtype)
                xs = filtered if drive is None else jnp.concatenate([view.astype(filtered.dtype), filtered])
                drive = unfiltered[o] if drive is None else jnp.concatenate([drive, unfiltered[o]])
            elif o < len(relations):
                drive = unfiltered[o] if drive is None else drive + unfiltered[o]
            assert drive is not None
            pulled = pull_sequence(operator, xs, drive, operands[o])
            if o in linear:  # a bias meets no data, so its signal passes no input filter
                filtered = pull_sequence(operator, xs, credits[linear.index(o)], operands[o])
                pulled = {key: pulled[key] if key == "bias" else found for key, found in filtered.items()}
            gradients.append(pulled)
        for r, signal in zip(linear, first, strict=True) if traces is not None else ():
            old = start["input"][keys[r]]
            entered = pull_step(relations[r], old.astype(signal.dtype), signal, operands[r])
            gradients[r] = {k: g if k == "bias" else g + entered[k] for k, g in gradients[r].items()}
        if last:
            return tuple(gradients), None
        rolled = {**steps.followed, "input": dict(steps.followed["input"])}
        for r in linear:
            old = start["input"][keys[r]]
            seen = self._view_sequence(relations[r], kept.xs[r], operands[r])
            rolled["input"][keys[r]] = decayed_sum(self.decay_x, old, seen).astype(old.dtype)
        return tuple(gradients), rolled

    def _fold_one(self, graph: TraceGraph, traces: Any, steps: FoldedSteps, operands: Operands) -> tuple[Operands, Any]:
        """A single step: the filtered input as it is meets the filtered signal, with what passes within the step."""
        xs = steps.values.last().xs
        signals, drives = jax.tree.map(lambda s: s[0], (steps.signals, steps.drives))
        rolled = {**steps.followed, "input": self._roll_inputs(graph, traces, xs, operands)}
        met = rolled if self.signal.place == "exit" else traces
        gradients = []
        for o, (operator, drive, weights) in enumerate(zip(graph.operators, drives, operands, strict=True)):
            pairs: list[tuple[Any, jax.Array]] = []
            if drive is not None:
                pairs.append((None if operator.x is None else self._view(operator, xs[o], weights), drive))
            if o < len(graph.hidden_param_op_relations):
                pairs.append(self._factors(graph, operator, met, signals))
            gradients.append(pull_pairs(operator, pairs, weights))
        return tuple(gradients), rolled

    def _masses(self, start: jax.Array, length: int) -> jax.Array:
        """``c`` as the signal of every step meets it, time leading."""
        steps = jnp.arange(length, dtype=start.dtype) + (self.signal.place == "exit")
        left = (jnp.asarray(self.decay_f, start.dtype) ** steps).reshape(-1, *(1,) * start.ndim)
        return left * start + (1 - left)

    def _signal(self, relation: HiddenParamOpRelation, traces: Any, signals: Signals) -> jax.Array:
        """``Σ_a s_a ε_f,a / c``, laid out like ``y``."""
        parts = []
        for link in relation.links:
            filters, mass = traces["output"][link_key(relation, link)], traces["mass"][link_key(relation, link)]
            weight = 1 / jnp.where(mass > 0, mass, 1.0)
            for signal, filtered in zip(signals[link.group], filters, strict=True):
                if filtered is not None:
                    part = link.layout.gather(signal) * filtered * weight
                    parts.append(part.sum(0) if link.layout.lanes > 1 else part)
        return add_trees(*parts)

    def _factors(
        self, graph: TraceGraph, relation: HiddenParamOpRelation, traces: Any, signals: Signals
    ) -> tuple[jax.Array | None, jax.Array]:
        """``ε_x`` and ``Σ_a s_a ε_f,a / c``, the latter laid out like ``y``."""
        x = traces["input"].get(input_key(graph, relation))
        g = self._signal(relation, traces, signals).astype(relation.y.aval.dtype)
        return x if x is None else x.astype(g.dtype), g

    def _view_sequence(self, operator: HiddenParamOpRelation, xs: jax.Array | None, weights: Any) -> jax.Array:
        return jax.vmap(lambda x: self._view(operator, x, weights))(xs)

    def _input_shape(self, relation: HiddenParamOpRelation) -> jax.ShapeDtypeStruct | None:
        if relation.x is None:
            return None
        weights = {key: _struct(atom) for key, atom in relation.trainable_vars.items()}
        view = jax.eval_shape(lambda x, w: self._view(relation, x, w), _struct(relation.x), weights)
        return jax.ShapeDtypeStruct(view.shape, view.dtype)

    def _view(self, relation: HiddenParamOpRelation, x: Any, weights: Any) -> jax.Array:
        """``x`` as floating point: by the primitive's own rule, or converted to the dtype of ``y``."""
        rule = relation.primitive.rule("pp_input")
        if rule is not None:
            return rule(x, weights, **relation.static)
        return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(relation.y.aval.dtype)


class pp_prop(Learner):
    """A learner that keeps a trace per input and per output instead of one per weight; memory ``O(B·(I + O))``.

    Args:
        model: a module whose ``update`` is one step.
        decay_or_rank: decay of the filters per step in ``[0, 1)``; or a rank ``r ≥ 1``, short for the decay
            ``(r − 1) / (r + 1)``; or a pair, for the input and the output filter.
        signal: ``"entry"``, the credit of the state that enters a window, or ``"exit"``, of every new state.
        trace_dtype: the dtype in which traces are stored.
        vjp_method: see :class:`Learner`, as every option below.
        strict: raise where a plain operation mixes positions.
        kernels: ``"auto"`` or ``"reference"``.
        memory_limit: bytes for recording a sequence.
        control_flow: limits for marked operators inside branches and loops.
        name: name of the module.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        decay_or_rank: float | int | Sequence[float | int],
        *,
        signal: SignalPlace = "entry",
        trace_dtype: Any = None,
        vjp_method: VjpMethod | None = None,
        strict: bool = False,
        kernels: Kernels = "auto",
        memory_limit: int | None = None,
        control_flow: ControlFlowPolicy | None = None,
        name: str | None = None,
    ) -> None:
        decay_x, decay_f = decays_of(decay_or_rank)
        super().__init__(
            model,
            FactorisedTraces(decay_x, decay_f, trace_dtype, LearningSignal(signal)),
            vjp_method=vjp_method,
            strict=strict,
            kernels=kernels,
            memory_limit=memory_limit,
            control_flow=control_flow,
            name=name,
        )


ES_D_RTRL = pp_prop
IODimVjpAlgorithm = pp_prop


def _widened(array: jax.Array, other: jax.Array) -> jax.Array:
    """``array`` in the precision in which a filter is computed: that of both, and float32 at least."""
    return array.astype(jnp.promote_types(jnp.promote_types(array.dtype, other.dtype), jnp.float32))


def _struct(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _streamed_keys(graph: TraceGraph) -> list[str]:
    """The input filters, by name, of operators not known to be linear in their data."""
    relations = [r for r in graph.hidden_param_op_relations if r.x is not None and closed_form(r) is None]
    return list(dict.fromkeys(input_key(graph, relation) for relation in relations))
