"""The step program: one step of a model as flat equations, with a role for every input and output.

    (out, h′, o′) = f(x, θ, h, o)

Only the capture pass knows where a step program came from; every later pass sees this and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etp_core.jaxpr import Atom, Equation, Program, Variable, is_differentiable

__all__ = ["HiddenLeaf", "StateLeaf", "StepProgram"]


@dataclass(frozen=True, eq=False, slots=True)
class StateLeaf:
    """One array of a parameter or of another state.

    Attributes:
        path: path of the state, then of the array inside it.
        input: the value at the start of the step.
        output: the value at its end; the input itself for a parameter.
    """

    path: tuple[Any, ...]
    input: Variable
    output: Atom

    @property
    def name(self) -> str:
        """The path in dotted form."""
        return ".".join(str(part) for part in self.path)


@dataclass(frozen=True, eq=False, slots=True)
class HiddenLeaf(StateLeaf):
    """The array of a hidden state.

    Attributes:
        stacked: whether the last axis counts states of a position rather than positions.
    """

    stacked: bool = False

    @property
    def varshape(self) -> tuple[int, ...]:
        """The shape of the positions."""
        shape = tuple(self.input.aval.shape)
        return shape[:-1] if self.stacked else shape

    @property
    def columns(self) -> tuple[int | None, ...]:
        """The states of a position: one without axis, or one per entry of the last axis."""
        return tuple(range(self.input.aval.shape[-1])) if self.stacked else (None,)

    @property
    def differentiable(self) -> bool:
        """Whether the state is floating point; counters are carried but not learned through."""
        return is_differentiable(self.input)


@dataclass(frozen=True, eq=False, slots=True)
class StepProgram:
    """One step as equations with roles."""

    equations: tuple[Equation, ...]
    arguments: tuple[Variable, ...]
    outputs: tuple[Atom, ...]
    parameters: tuple[StateLeaf, ...]
    hidden: tuple[HiddenLeaf, ...]
    others: tuple[StateLeaf, ...]

    @classmethod
    def assign_roles(
        cls,
        program: Program,
        *,
        arguments: int,
        outputs: int,
        leaves: Sequence[tuple[str, tuple[Any, ...], bool]],
    ) -> "StepProgram":
        """Split the inputs and outputs of ``program`` by role.

        Args:
            program: inputs are the arguments, then the state arrays; outputs are the model's, then the same
                state arrays after the step.
            arguments: number of argument arrays.
            outputs: number of output arrays.
            leaves: for each state array its role (``parameter``, ``hidden`` or ``other``), path, and whether
                its last axis counts states.
        """
        roles: dict[str, list[Any]] = {"parameter": [], "hidden": [], "other": []}
        values = zip(program.inputs[arguments:], program.outputs[outputs:], leaves, strict=True)
        for before, after, (role, path, stacked) in values:
            leaf = HiddenLeaf(path, before, after, stacked) if role == "hidden" else StateLeaf(path, before, after)
            roles[role].append(leaf)
        return cls(
            equations=program.equations,
            arguments=program.inputs[:arguments],
            outputs=program.outputs[:outputs],
            parameters=tuple(roles["parameter"]),
            hidden=tuple(roles["hidden"]),
            others=tuple(roles["other"]),
        )

    @property
    def memories(self) -> Iterator[StateLeaf]:
        """The state arrays that carry a derivative from one step to the next."""
        for leaf in (*self.hidden, *self.others):
            if is_differentiable(leaf.input):
                yield leaf
