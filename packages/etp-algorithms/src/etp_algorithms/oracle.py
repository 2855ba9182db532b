"""Reference gradients, and comparisons that cannot pass by accident.

A model *factory* takes no argument and returns a freshly built module; seed it, so that every call builds the
same model. The loss is the sum of squares of every output over the sequence, unless ``loss_fn`` says otherwise.

A whole sequence in one window is backpropagation through time whatever the trace does: judge a trace by
:func:`chunked_online_param_gradients` with windows shorter than the sequence, on a model that
:func:`assert_model_is_live`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np

from etp_algorithms._inputs import MultiStepData
from etp_algorithms._learner import Learner

__all__ = [
    "assert_gradients_differ",
    "assert_model_is_live",
    "assert_param_gradients_close",
    "bptt_param_gradients",
    "chunked_online_param_gradients",
    "cosine_similarity",
    "finite_difference_param_gradients",
    "gradient_norm",
    "online_param_gradients",
    "relative_deviation",
]

Factory = Callable[[], brainstate.nn.Module]
LossFn = Callable[[Any], jax.Array]
Gradients = dict[tuple[Any, ...], Any]


def sum_of_squares(out: Any) -> jax.Array:
    """The default loss of one step's output, on mantissas."""
    return sum((jnp.sum(jnp.square(u.get_mantissa(leaf))) for leaf in jax.tree.leaves(out)), jnp.zeros(()))


def bptt_param_gradients(
    factory: Factory, inputs: Any, *, loss_fn: LossFn = sum_of_squares, batch_size: int | None = 1
) -> Gradients:
    """Backpropagation through time over the whole sequence, by ordinary reverse mode; no traces are involved.

    Args:
        factory: builds the model.
        inputs: a pytree of arrays whose leading axis is time.
        loss_fn: the loss of one step's output; losses of the steps are added.
        batch_size: passed to ``init_state``; None initialises without batch axis.

    Returns:
        Gradients by the path of the parameter state.
    """
    model = _build(factory, batch_size)
    states = model.states(brainstate.ParamState)

    def total() -> jax.Array:
        return brainstate.transform.for_loop(lambda x: loss_fn(model.update(x)), inputs).sum()

    gradient = brainstate.transform.grad(total, grad_states=states, check_states=False)  # unused ones get zero
    return dict(brainstate.transform.jit(gradient)())


def finite_difference_param_gradients(
    factory: Factory, inputs: Any, *, eps: float = 1e-3, loss_fn: LossFn = sum_of_squares, batch_size: int | None = 1
) -> Gradients:
    """Central differences of the sequence loss, one parameter entry at a time; for small models.

    Args:
        factory: builds the model.
        inputs: a pytree of arrays whose leading axis is time.
        eps: half the step of the difference; use about 1e-5 in double precision.
        loss_fn: the loss of one step's output.
        batch_size: passed to ``init_state``.
    """
    model = _build(factory, batch_size)
    states = dict(model.states(brainstate.ParamState))
    start = {path: state.value for path, state in model.states().items() if path not in states}

    @brainstate.transform.jit
    def total() -> jax.Array:
        for path, state in model.states().items():
            if path in start:
                state.value = start[path]
        return brainstate.transform.for_loop(lambda x: loss_fn(model.update(x)), inputs).sum()

    def difference(state: brainstate.State, leaves: list[Any], tree: Any, n: int) -> np.ndarray:
        base, out = np.asarray(leaves[n]), np.zeros(np.shape(leaves[n]))
        for index in np.ndindex(base.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = base.copy()
                moved[index] += sign * eps
                state.value = jax.tree.unflatten(tree, [*leaves[:n], jnp.asarray(moved), *leaves[n + 1 :]])
                ends.append(float(total()))
            out[index] = (ends[0] - ends[1]) / (2 * eps)
        state.value = jax.tree.unflatten(tree, leaves)
        return out

    gradients = {}
    for path, state in states.items():
        leaves, tree = jax.tree.flatten(state.value)
        gradients[path] = jax.tree.unflatten(tree, [difference(state, leaves, tree, n) for n in range(len(leaves))])
    return gradients


def online_param_gradients(
    factory: Factory,
    inputs: Any,
    *,
    algo_factory: Callable[[brainstate.nn.Module], Learner],
    loss_fn: LossFn = sum_of_squares,
    batch_size: int | None = 1,
) -> Gradients:
    """A learner's gradient with the whole sequence in one window.

    It tests the compiler and the model's replay; it is blind to the traces.
    """
    length = len(jax.tree.leaves(inputs)[0])
    return chunked_online_param_gradients(
        factory, inputs, algo_factory=algo_factory, chunk_size=length, loss_fn=loss_fn, batch_size=batch_size
    )


def chunked_online_param_gradients(
    factory: Factory,
    inputs: Any,
    *,
    algo_factory: Callable[[brainstate.nn.Module], Learner],
    chunk_size: int,
    loss_fn: LossFn = sum_of_squares,
    batch_size: int | None = 1,
) -> Gradients:
    """A learner's gradient summed over windows of ``chunk_size`` steps: the test of a trace.

    Args:
        factory: builds the model.
        inputs: a pytree of arrays whose leading axis is time.
        algo_factory: makes the learner from the model, for example ``lambda m: D_RTRL(m)``. It is driven step by
            step: a folded sequence would never read its trace.
        chunk_size: steps per window; it divides the sequence.
        loss_fn: the loss of one step's output.
        batch_size: passed to ``init_state``.

    Returns:
        Gradients by the path of the parameter state.
    """
    learner = algo_factory(_build(factory, batch_size))
    learner.kernels = "reference"
    learner.compile_graph(jax.tree.map(lambda a: a[0], inputs))
    states = learner.model.states(brainstate.ParamState)
    used = {path: state for path, state in states.items() if path in learner.param_states}

    def losses(window: Any) -> jax.Array:
        if learner.vjp_method == "single-step":
            if chunk_size != 1:
                raise ValueError("a learner with vjp_method='single-step' takes windows of one step.")
            return loss_fn(learner(jax.tree.map(lambda a: a[0], window)))[None]
        return jax.vmap(loss_fn)(learner(MultiStepData(window)))

    def total() -> Any:
        return learner.etrace_grad(
            inputs,
            step_fn=losses if chunk_size > 1 else lambda x: losses(jax.tree.map(lambda a: a[None], x))[0],
            chunk_size=chunk_size,
            weights=used,
            reduction="sum",
        )

    gradients = brainstate.transform.jit(total)()
    return {
        path: gradients[path] if path in used else jax.tree.map(jnp.zeros_like, state.value)
        for path, state in states.items()
    }


def gradient_norm(gradients: Mapping[Any, Any]) -> float:
    """The Euclidean norm over all leaves, on mantissas."""
    return float(np.linalg.norm(_flat(gradients)))


def relative_deviation(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float:
    """``‖actual − expected‖ / ‖expected‖`` over all leaves."""
    return float(np.linalg.norm(_flat(actual) - _flat(expected)) / np.linalg.norm(_flat(expected)))


def cosine_similarity(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float:
    """The cosine of the angle between two gradients over all leaves."""
    a, b = _flat(actual), _flat(expected)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def assert_model_is_live(
    factory: Factory,
    inputs: Any,
    *,
    min_norm: float = 1e-8,
    loss_fn: LossFn = sum_of_squares,
    batch_size: int | None = 1,
) -> None:
    """Raise unless every parameter leaf has a gradient above ``min_norm``: a dead model proves nothing."""
    gradients = bptt_param_gradients(factory, inputs, loss_fn=loss_fn, batch_size=batch_size)
    for path, value in _leaves(gradients):
        norm = float(np.linalg.norm(value))
        if not norm > min_norm:
            raise AssertionError(
                f"the gradient of {path} has norm {norm:.3g}, not above {min_norm:.3g}: the model is not alive on "
                f"these inputs, so a comparison would pass by accident. Change inputs, weights or the surrogate."
            )


def assert_gradients_differ(a: Mapping[Any, Any], b: Mapping[Any, Any], *, min_rel: float = 1e-6) -> None:
    """Raise unless two gradients differ by more than ``min_rel``: the control that an option has an effect."""
    deviation = relative_deviation(a, b)
    if not deviation > min_rel:
        raise AssertionError(
            f"the gradients agree to {deviation:.3g}; expected them to differ by more than {min_rel:.3g}."
        )


def assert_param_gradients_close(
    actual: Mapping[Any, Any],
    expected: Mapping[Any, Any],
    *,
    atol: float = 1e-4,
    rtol: float = 0.0,
    keys: Any = None,
) -> None:
    """Raise unless two gradients agree entry by entry.

    Args:
        actual: gradients by path.
        expected: gradients by path.
        atol: absolute tolerance.
        rtol: tolerance relative to the largest entry of the expected leaf.
        keys: the paths to compare; default: all, which must then be the same paths.
    """
    if keys is None and actual.keys() != expected.keys():
        raise AssertionError(f"the gradients are of different parameters: {sorted(actual)} and {sorted(expected)}.")
    chosen = expected.keys() if keys is None else keys
    wanted = dict(_leaves({key: expected[key] for key in chosen}))
    for path, value in _leaves({key: actual[key] for key in chosen}):
        reference = wanted[path]
        if value.shape != reference.shape:
            raise AssertionError(f"the gradients of {path} have the shapes {value.shape} and {reference.shape}.")
        error = float(np.max(np.abs(value - reference), initial=0.0))
        allowed = atol + rtol * float(np.max(np.abs(reference), initial=0.0))
        if not error <= allowed:
            raise AssertionError(f"the gradients of {path} differ by {error:.3g}, more than {allowed:.3g} allowed.")


def _build(factory: Factory, batch_size: int | None) -> brainstate.nn.Module:
    model = factory()
    brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    return model


def _leaves(gradients: Mapping[Any, Any]) -> list[tuple[str, np.ndarray]]:
    found = []
    for path in sorted(gradients, key=str):
        for keys, leaf in jax.tree_util.tree_flatten_with_path(gradients[path])[0]:
            name = ".".join(map(str, path)) if isinstance(path, tuple) else str(path)
            found.append((name + jax.tree_util.keystr(keys), np.asarray(leaf)))
    return found


def _flat(gradients: Mapping[Any, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for _, leaf in _leaves(gradients)])
