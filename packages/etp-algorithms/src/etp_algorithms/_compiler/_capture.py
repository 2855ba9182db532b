"""Capture: stage one ``update`` of a brainstate module to a step program. The only pass that knows brainstate."""

from dataclasses import dataclass, replace
from typing import Any

import brainstate
import jax

from etp_algorithms._compiler._diagnostics import CompilationError, Diagnostic, DiagnosticKind
from etp_algorithms._compiler._explain import describe, explain_step
from etp_algorithms._compiler._program import StepProgram
from etp_core.jaxpr import flatten

__all__ = ["CapturedModel", "StateSlot", "capture_module"]


@dataclass(frozen=True, eq=False, slots=True)
class StateSlot:
    """A brainstate State and the structure of its value."""

    path: tuple[Any, ...]
    state: brainstate.State
    tree: Any

    @property
    def name(self) -> str:
        """The path in dotted form."""
        return ".".join(str(part) for part in self.path)

    def read(self) -> list[Any]:
        """The arrays of the current value (mantissas where it has a unit)."""
        leaves, tree = jax.tree.flatten(self.state.value)
        if tree != self.tree:
            raise ValueError(
                f"the state {self.name} changed its structure since the model was compiled: {self.tree} then, {tree} "
                f"now. Keep structure and unit, or compile again."
            )
        return leaves

    def write(self, leaves: list[Any]) -> None:
        """Set the value from arrays."""
        self.state.value = jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True, eq=False, slots=True)
class CapturedModel:
    """A step program and the states it stands for.

    Attributes:
        step: the step.
        parameters: the parameter states, in the model's order.
        hidden: the hidden states.
        others: every other state that the step reads or writes.
        argument_tree: the structure of the arguments.
        argument_avals: their shapes and dtypes.
        output_tree: the structure of the output.
        diagnostics: states that are used but are not part of the model.
        unused: the paths of the parameter arrays of the model that the step never reads.
    """

    step: StepProgram
    parameters: tuple[StateSlot, ...]
    hidden: tuple[StateSlot, ...]
    others: tuple[StateSlot, ...]
    argument_tree: Any
    argument_avals: tuple[jax.ShapeDtypeStruct, ...]
    output_tree: Any
    diagnostics: tuple[Diagnostic, ...]
    unused: tuple[tuple[Any, ...], ...]

    def follow(self, model: brainstate.nn.Module) -> "CapturedModel":
        """The same for the states that ``model`` holds now: to initialise a model again may make new ones."""
        now = model.states()
        if all(now.get(slot.path, slot.state) is slot.state for slot in self._slots):
            return self

        def bound(slots: tuple[StateSlot, ...]) -> tuple[StateSlot, ...]:
            return tuple(replace(slot, state=now.get(slot.path, slot.state)) for slot in slots)

        return replace(self, parameters=bound(self.parameters), hidden=bound(self.hidden), others=bound(self.others))

    @property
    def _slots(self) -> tuple[StateSlot, ...]:
        return (*self.parameters, *self.hidden, *self.others)


def capture_module(model: brainstate.nn.Module, *args: Any) -> CapturedModel:
    """Stage ``model.update(*args)``.

    Args:
        model: a module whose states are initialised.
        *args: example inputs of one step.

    Raises:
        TypeError: ``model`` is not a brainstate module.
        CompilationError: the step writes a parameter, changes the shape, structure or unit of a state, or
            cannot be traced with these inputs.
    """
    if not isinstance(model, brainstate.nn.Module):
        raise TypeError(
            f"online learning compiles a brainstate.nn.Module whose update() is one time step, got "
            f"{type(model).__name__}. Wrap the step in a module with HiddenState and ParamState attributes."
        )
    stateful = brainstate.transform.StatefulFunction(model.update, return_only_write=False)
    hidden = model.states(brainstate.HiddenState).items()
    shown = [(".".join(map(str, path)), state.value) for path, state in hidden]
    with explain_step(f"{type(model).__name__}.update", inputs=args[0] if len(args) == 1 else args, states=shown):
        stateful.make_jaxpr(*args)
    used = tuple(stateful.get_states(*args))
    written = {id(state) for state in stateful.get_write_states(*args)}
    output_shapes, state_shapes = stateful.get_out_shapes(*args)
    paths, diagnostics = _paths_of(model, used)

    slots: dict[str, list[StateSlot]] = {"parameter": [], "hidden": [], "other": []}
    leaves = []
    for state, after in zip(used, state_shapes, strict=True):
        slot = StateSlot(paths[id(state)], state, jax.tree.structure(state.value))
        role = _role_of(state)
        if role == "parameter" and id(state) in written:
            raise CompilationError(
                f"the step writes the parameter {slot.name}. Parameters are fixed within a step; change them with an "
                f"optimizer between steps, or make it a ShortTermState or LongTermState."
            )
        _check_unchanged(slot, after)
        slots[role].append(slot)
        stacked = isinstance(state, brainstate.HiddenGroupState)
        leaves += [(role, (*slot.path, *key), stacked) for key in _leaf_keys(state.value)]
    argument_leaves, argument_tree = jax.tree.flatten(args)
    step = StepProgram.assign_roles(
        flatten(stateful.get_jaxpr(*args)),
        arguments=len(argument_leaves),
        outputs=len(jax.tree.leaves(output_shapes)),
        leaves=leaves,
    )
    return CapturedModel(
        step=step,
        parameters=tuple(slots["parameter"]),
        hidden=tuple(slots["hidden"]),
        others=tuple(slots["other"]),
        argument_tree=argument_tree,
        argument_avals=tuple(_aval(leaf) for leaf in argument_leaves),
        output_tree=jax.tree.structure(output_shapes),
        diagnostics=diagnostics,
        unused=tuple(
            (*path, *key)
            for path, state in model.states(brainstate.ParamState).items()
            if all(state is not one for one in used)
            for key in _leaf_keys(state.value)
        ),
    )


def _role_of(state: brainstate.State) -> str:
    if isinstance(state, brainstate.ParamState):
        return "parameter"
    return "hidden" if isinstance(state, brainstate.HiddenState) else "other"


def _paths_of(
    model: brainstate.nn.Module, used: tuple[brainstate.State, ...]
) -> tuple[dict[int, tuple[Any, ...]], tuple[Diagnostic, ...]]:
    paths = {id(state): tuple(path) for path, state in model.states().items()}
    diagnostics = []
    for n, state in enumerate(s for s in used if id(s) not in paths):
        paths[id(state)] = (f"outside_{n}",)
        if _role_of(state) != "other":
            diagnostics.append(
                Diagnostic(
                    kind=DiagnosticKind.UNREACHABLE_STATE,
                    level="warning",
                    path=f"outside_{n}",
                    place=type(model).__qualname__,
                    message=(
                        f"the step uses a {type(state).__name__} that is no attribute of the model or its submodules, "
                        "so optimizers and checkpoints will miss it. Assign it to the model."
                    ),
                )
            )
    return paths, tuple(diagnostics)


def _check_unchanged(slot: StateSlot, after: Any) -> None:
    before_leaves, after_leaves = jax.tree.leaves(slot.state.value), jax.tree.leaves(after)
    before = [(jax.numpy.shape(v), jax.numpy.result_type(v)) for v in before_leaves]
    now = [(v.shape, v.dtype) for v in after_leaves]
    if jax.tree.structure(after) != slot.tree or before != now:
        raise CompilationError(
            f"the step changes the state {slot.name} from {describe(slot.state.value)} to {describe(after)}. A state "
            f"must keep shape, dtype, unit and structure; initialise it as the step leaves it. If the inputs have a "
            f"batch axis, say so: compile(..., batch_size=B), or init_all_states(model, batch_size=B). A state that is "
            f"made in __init__ has no batch axis: make it in init_state(self, batch_size=None)."
        )


def _leaf_keys(value: Any) -> list[tuple[Any, ...]]:
    """The key path of every array of a state's value; units have none."""
    keyed = jax.tree_util.tree_flatten_with_path(value)[0]

    def name(key: Any) -> Any:
        return getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))

    # a lone array (or quantity) is named by its state alone
    return [
        () if len(keyed) == 1 and not isinstance(value, (dict, list, tuple)) else tuple(map(name, path))
        for path, _ in keyed
    ]


def _aval(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.result_type(leaf))
