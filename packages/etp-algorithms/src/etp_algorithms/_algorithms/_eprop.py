"""e-prop: eligibility traces per weight, credited at each step by the read-outs' errors.

    ε ← D ε + Df ⊗ ∂y/∂w ,      ē ← κ ē + ε ,      ∇w = Σ_t ⟨L_t , ē_t⟩

The learning signal ``L_t`` is the derivative of the step's own loss with respect to the new state, or what random
matrices in the read-outs make of it; the filter ``κ`` stands for a leaky read-out that comes after the exit of the
step. Source: Bellec et al., "A solution to the learning dilemma for recurrent networks of spiking neurons",
Nature Communications 2020.
"""

from typing import Any, Literal

import brainstate

from etp_algorithms._algorithms._param_dim_traces import ParamDimTraces
from etp_algorithms._algorithms._recursion import TemporalRecursion, check_decay
from etp_algorithms._engine import LearningSignal
from etp_algorithms._feedback import RandomFeedback, key_data_of
from etp_algorithms._learner import Learner

__all__ = ["EProp", "make_feedback"]


def make_feedback(kind: str, key: Any, scale: float | None = None) -> RandomFeedback | None:
    """The feedback that ``kind`` stands for, or None for the true one."""
    if kind not in ("symmetric", "random"):
        raise ValueError(f"feedback must be 'symmetric' or 'random', got {kind!r}.")
    if kind == "symmetric":
        if key is not None or scale is not None:
            raise ValueError("random_feedback_key and feedback_scale have no effect with feedback='symmetric'.")
        return None
    if key is None:
        raise ValueError("feedback='random' needs random_feedback_key, an int seed or a JAX random key.")
    return RandomFeedback(key_data_of(key), scale)


class EProp(Learner):
    """A learner with traces per weight that are credited at the exit of every step; memory ``O(B·|w|·S)``.

    Args:
        model: a module whose ``update`` is one step.
        feedback: ``"symmetric"``, errors pass backward through the read-outs' own weights; ``"random"``, through
            fixed matrices of shape (outputs, inputs) of every marked read-out.
        kappa_filter_decay: decay ``κ`` per step in ``[0, 1)`` of the filter over the traces.
        random_feedback_key: an int seed or a JAX random key, with random feedback.
        feedback_scale: standard deviation of the random matrices; None for ``1 / √inputs``.
        trace_dtype: the dtype in which traces are stored.
        **options: those of :class:`Learner`.

    Raises:
        ValueError: an option out of range, missing or without effect.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        *,
        feedback: Literal["symmetric", "random"] = "symmetric",
        kappa_filter_decay: float = 0.0,
        random_feedback_key: Any = None,
        feedback_scale: float | None = None,
        trace_dtype: Any = None,
        **options: Any,
    ) -> None:
        kappa = check_decay("kappa_filter_decay", kappa_filter_decay)
        algorithm = ParamDimTraces(
            trace_dtype,
            options.get("kernels", "auto") == "auto",
            LearningSignal("exit", make_feedback(feedback, random_feedback_key, feedback_scale)),
            TemporalRecursion(kappa=kappa),
            "EProp",
        )
        super().__init__(model, algorithm, **options)
