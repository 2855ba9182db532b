"""Models and traces in every precision: what is kept, what it costs, and what is refused."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData
from etp_ops import matmul

from .helpers import compiled, gradient_of, initialised, largest_error
from .models import IN, Cell, N, array, inputs

XS = inputs(batch=2)
ALGORITHMS = {
    "d_rtrl": lambda m, **o: ea.D_RTRL(m, **o),
    "exit": lambda m, **o: ea.D_RTRL(m, signal="exit", **o),
    "pp_prop": lambda m, **o: ea.pp_prop(m, 0.8, **o),
}
DTYPES = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 0.1, "float16": 1e-2}
"""The models' precisions, with the error of the gradient that each may cost."""


class Net(Cell):
    """A leaky cell and a read-out, in one precision."""

    def __init__(self, dtype="float64"):
        super().__init__(None, {"W": array(0, IN, N).astype(dtype), "O": array(1, N, 2).astype(dtype)}, {})
        self.dtype = dtype

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, N), self.dtype))

    def update(self, x):
        self.h.value = 0.75 * self.h.value + jnp.tanh(matmul(x, self.W.value))
        return matmul(self.h.value, self.O.value)


def learner_of(dtype, algorithm, **options):
    return compiled(lambda: Net(dtype), XS[0].astype(dtype), 2, algorithm=ALGORITHMS[algorithm], **options)


def calls(learner, xs):
    found = [gradient_of(learner, lambda x=x: jnp.sum(learner(x) ** 2))[0] for x in xs]
    return {(key,): sum(g[key] for g in found) for key in found[0]}


def windows(learner, xs):
    step = lambda x: jnp.sum(learner(MultiStepData(x)) ** 2, axis=(1, 2))  # noqa: E731
    return learner.etrace_grad(xs, step_fn=step, chunk_size=3, reduction="sum")


def folded(learner, xs):
    return learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")


@pytest.mark.thorough
@pytest.mark.parametrize("trace_dtype", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_traces_have_the_dtype_that_was_chosen_on_every_path_and_gradients_that_of_the_model(
    algorithm, dtype, trace_dtype
):
    xs, expected = XS.astype(dtype), folded(learner_of("float64", algorithm), XS)
    worst = max(DTYPES[dtype], DTYPES[trace_dtype or dtype])
    learner = learner_of(dtype, algorithm, trace_dtype=trace_dtype)
    for path in (folded, windows):
        learner.model.h.value = jnp.zeros((2, N), dtype)
        learner.reset_state()
        found = path(learner, xs)
        assert {g.dtype.name for g in found.values()} == {dtype}
        kept = learner.traces.value
        kept = (kept["input"], kept["output"]) if algorithm == "pp_prop" else kept
        assert {leaf.dtype.name for leaf in jax.tree.leaves(kept)} == {trace_dtype or dtype}
        assert path is windows or largest_error(found, expected) < worst


def filtered(decay, trace_dtype, dtype="float32", steps=5000):
    """The output filter of pp_prop after a constant Jacobian of 1: it should settle at 1."""

    class Held(Net):
        def update(self, x):
            self.h.value = self.h.value + matmul(x, self.W.value)
            return self.h.value

    model = initialised(lambda: Held(dtype), 1)
    learner = ea.pp_prop(model, (0.0, decay), trace_dtype=trace_dtype)
    learner.compile_graph(jnp.zeros((1, IN), dtype))
    learner.etrace_evolve(jnp.zeros((steps, 1, IN), dtype))
    return np.asarray(jax.tree.leaves(learner.traces.value["output"])[0], np.float64)


@pytest.mark.parametrize(
    ("decay", "trace_dtype", "dtype"),
    [(0.9, "bfloat16", "float32"), (0.99, "float16", "float32"), (0.99, None, "bfloat16"), (0.998, None, "bfloat16"),
     (0.9998, None, "float16"), (0.998, "float32", "bfloat16")],
)  # fmt: skip
def test_a_filter_settles_where_it_should_in_every_precision_that_is_accepted(decay, trace_dtype, dtype):
    """Held in float32, at least: what is stored in 16 bits loses 5 % at most."""
    most = 0.001 if trace_dtype in (None, "float32") else 0.05
    steps = 5000 if decay < 0.999 else 50_000
    np.testing.assert_allclose(filtered(decay, trace_dtype, dtype, steps), 1.0, rtol=most)


@pytest.mark.parametrize(("decay", "dtype"), [(0.99, "bfloat16"), (0.998, "bfloat16"), (0.9998, "float16")])
def test_a_decay_that_the_chosen_precision_cannot_hold_is_refused(decay, dtype):
    with pytest.raises(ValueError, match=rf"decay {decay} cannot be held in {dtype}.*trace_dtype=jnp.float32"):
        filtered(decay, dtype)


@pytest.mark.parametrize("options", [{"kappa_filter_decay": 0.999}])
@pytest.mark.parametrize(
    ("dtype", "trace_dtype"), [("bfloat16", None), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_a_filter_over_traces_that_would_stall_is_refused(options, dtype, trace_dtype):
    make = getattr(ea, "EProp", None)
    if make is None:
        pytest.skip("no algorithm with such a filter")
    model = initialised(lambda: Net(dtype), 2)
    with pytest.raises(ValueError, match="cannot be held in bfloat16"):
        make(model, trace_dtype=trace_dtype, **options).compile_graph(XS[0].astype(dtype))


class Slow(Net):
    """A memory that bfloat16 cannot follow: of a known decay, or of a learned one."""

    def __init__(self, learned):
        super().__init__("float32")
        if learned:
            self.d = brainstate.ParamState(jnp.full(N, 0.99, "float32"))

    def update(self, x):
        decay = self.d.value if hasattr(self, "d") else 0.99
        self.h.value = decay * self.h.value + jnp.tanh(matmul(x, self.W.value))
        return matmul(self.h.value, self.O.value)


def test_a_known_decay_of_the_model_that_the_traces_cannot_hold_is_refused():
    x = XS[0].astype("float32")
    with pytest.raises(ValueError, match=r"decay of h 0\.99.* cannot be held in bfloat16"):
        compiled(lambda: Slow(learned=False), x, 2, trace_dtype=jnp.bfloat16)
    compiled(lambda: Slow(learned=False), x, 2, trace_dtype=jnp.float32)


def test_the_report_says_how_far_traces_in_16_bits_reach():
    x = XS[0].astype("float32")
    narrow, wide = (compiled(lambda: Slow(learned=True), x, 2, trace_dtype=t) for t in (jnp.bfloat16, jnp.float32))
    assert narrow.report["W"].reasons[-1] == "traces in bfloat16 follow decays up to 0.961; slower memory stalls"
    assert not any("stalls" in reason for reason in wide.report["W"].reasons)
