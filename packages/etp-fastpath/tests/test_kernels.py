import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_core
import etp_ops
from etp_algorithms import D_RTRL, oracle
from etp_core.testing import check_primitive
from etp_fastpath._register import KERNELS


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


OPERANDS = {
    "etp_mm_p": (array(0, 2, 3), array(1, 3, 4), array(2, 4)),
    "etp_mv_p": (array(0, 3), array(1, 3, 4), array(2, 4)),
    "etp_gmm_p": (array(0, 2, 2, 3), array(1, 2, 3, 4), array(2, 2, 4)),
    "etp_gmv_p": (array(0, 2, 3), array(1, 2, 3, 4), array(2, 2, 4)),
    "etp_elemwise_p": (array(0, 4),),
}


@pytest.fixture(autouse=True)
def _loaded():
    etp_core.load_plugins()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_kernel_equals_the_rules_of_its_primitive(name, has_bias):
    primitive, operands = getattr(etp_ops, name), OPERANDS[name]
    assert etp_core.get_fast_path_rules(primitive) is KERNELS[name]
    if name == "etp_elemwise_p":
        check_primitive(primitive, *operands, weight_fn=None)
    else:
        operands = operands if has_bias else operands[:2]
        check_primitive(primitive, *operands, has_bias=has_bias, weight_fn=None, bias_fn=None)


@pytest.mark.parametrize("hook", ["weight_fn", "bias_fn"])
def test_a_kernel_stands_back_where_a_hook_is_present(hook):
    kernel = etp_core.get_fast_path_rules(etp_ops.etp_mm_p)
    assert kernel.applicable({"weight_fn": None, "bias_fn": None}) is True
    assert kernel.applicable({"weight_fn": None, "bias_fn": None, hook: jnp.tanh}) is False


@pytest.mark.parametrize("name", ["etp_sp_mm_p", "etp_conv_p", "etp_lora_mm_p", "etp_emb_p", "etp_einsum_p"])
def test_operators_without_a_closed_form_have_no_kernel(name):
    assert etp_core.get_fast_path_rules(getattr(etp_ops, name)) is None


def test_a_structural_zero_stays_one():
    kernel = KERNELS["etp_mm_p"]
    trace = {"weight": array(0, 2, 3, 4)}
    factor = array(1, 2, 4)
    assert kernel.recurrent(((None, None), (factor, None)), (trace, None))[0] is None
    assert kernel.instant(array(2, 2, 3), (None, factor), False)[0] is None


@pytest.mark.parametrize("states", [1, 2, 3])
def test_the_solve_of_all_states_equals_the_sum_of_single_solves(states):
    kernel = KERNELS["etp_mm_p"]
    traces = tuple({"weight": array(a, 5, 3, 4)} for a in range(states))
    signals = tuple(array(10 + a, 5, 4) for a in range(states))
    expected = sum(jnp.einsum("bo,bio->io", s, t["weight"]) for s, t in zip(signals, traces, strict=True))
    np.testing.assert_allclose(kernel.solve(signals, traces, fold_batch=True)["weight"], expected, rtol=1e-12)


class Cell(brainstate.nn.Module):
    """Three states that feed one another, with every operator that has a kernel."""

    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, 3, 4))
        self.b = brainstate.ParamState(array(1, 4))
        self.G = brainstate.ParamState(array(2, 2, 3, 2))
        self.u = brainstate.ParamState(array(3, 4))

    def init_state(self, batch_size=None, **kwargs):
        lead = () if batch_size is None else (batch_size,)
        for name in ("i", "v", "a"):
            setattr(self, name, brainstate.HiddenState(jnp.zeros((*lead, 4))))

    def update(self, x):
        grouped = etp_ops.grouped_matmul(jnp.stack([x, -x], axis=-2), self.G.value)
        drive = etp_ops.matmul(x, self.W.value, self.b.value) + grouped.reshape(*x.shape[:-1], 4)
        self.i.value = 0.6 * self.i.value + drive
        self.v.value = jnp.tanh(etp_ops.element_wise(self.u.value) * self.v.value + self.i.value - self.a.value)
        self.a.value = 0.8 * self.a.value + 0.3 * self.v.value
        return self.v.value


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("chunk_size", [1, 2])
def test_a_learner_gives_the_same_gradient_with_kernels_and_without(batch_size, chunk_size):
    xs = array(7, *((6,) if batch_size is None else (6, batch_size)), 3)

    def gradients(kernels):
        return oracle.chunked_online_param_gradients(
            Cell,
            xs,
            algo_factory=lambda m: D_RTRL(m, kernels=kernels),
            chunk_size=chunk_size,
            batch_size=batch_size,
        )

    reference = gradients("reference")
    assert oracle.gradient_norm(reference) > 1e-3
    assert oracle.relative_deviation(gradients("auto"), reference) < 1e-13
    bptt = oracle.bptt_param_gradients(Cell, xs, batch_size=batch_size)
    assert oracle.relative_deviation(reference, bptt) < 1e-13


def test_traces_in_half_precision_stay_close_and_are_stored_small():
    xs = array(7, 6, 3, 3)
    brainstate_model = Cell()
    brainstate.nn.init_all_states(brainstate_model, batch_size=3)
    learner = D_RTRL(brainstate_model, trace_dtype=jnp.bfloat16)
    learner.compile_graph(xs[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.traces.value)} == {jnp.dtype(jnp.bfloat16)}

    def streamed(dtype):
        return oracle.chunked_online_param_gradients(
            Cell, xs, algo_factory=lambda m: D_RTRL(m, trace_dtype=dtype, memory_limit=1), chunk_size=1, batch_size=3
        )

    assert 1e-6 < oracle.relative_deviation(streamed(jnp.bfloat16), streamed(None)) < 2e-2


class Plain(brainstate.nn.Module):
    """A recurrence through a marked operator only, beside a leak that is a literal."""

    def __init__(self):
        super().__init__()
        self.W = brainstate.ParamState(array(0, 7, 4))
        self.b = brainstate.ParamState(array(1, 4))

    def init_state(self, batch_size=None, **kwargs):
        lead = () if batch_size is None else (batch_size,)
        self.h = brainstate.HiddenState(jnp.zeros((*lead, 4)))
        self.i, self.v = (brainstate.HiddenState(jnp.zeros((*lead, 4))) for _ in range(2))

    def update(self, x):
        y = etp_ops.matmul(jnp.concatenate([x, self.h.value], -1), self.W.value, self.b.value)
        self.h.value = jnp.tanh(y)
        self.i.value = 0.6 * self.i.value + y
        self.v.value = jnp.tanh(0.7 * self.v.value + self.i.value)
        return self.h.value + self.v.value


def plain(kernels="auto", **options):
    model = Plain()
    brainstate.nn.init_all_states(model, batch_size=2)
    learner = D_RTRL(model, kernels=kernels, **options)
    learner.compile_graph(array(7, 2, 3))
    return learner


def test_a_trace_that_forgets_or_is_the_same_for_all_outputs_is_kept_small():
    whole, data, out, one = (2, 7, 4), (2, 7), (2, 4), (2, 1)
    shapes = [{k: a.shape for k, a in state.items()} for link in plain().traces.value.values() for state in link]
    assert {"x": data, "df": out} in shapes  # h: nothing recurs
    assert {"filter": data, "ones": one} in shapes  # i: a linear leak
    assert shapes.count({"weight": whole, "bias": out}) == 1  # v


@pytest.mark.parametrize("signal", ["entry", "exit"])
@pytest.mark.parametrize("resets", [None, "lanes"])
def test_small_traces_give_the_gradient_of_whole_ones_step_by_step_and_folded(signal, resets):
    xs = array(8, 6, 2, 3)
    flags = None if resets is None else jnp.zeros((6, 2), bool).at[3, 1].set(True)
    options = {} if flags is None else {"resets": flags}

    def gradients(kernels, **more):
        learner = plain(kernels, signal=signal, **more)
        found = learner.etrace_grad(xs[:3], step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum")
        rest = {k: v[:3] if flags is None else v[3:] for k, v in options.items()}
        more = learner.etrace_grad(xs[3:], step_fn=lambda x: jnp.sum(learner(x) ** 2), reduction="sum", **rest)
        return jax.tree.leaves((found, more))

    reference = gradients("reference")
    assert all(float(jnp.abs(g).max()) > 1e-3 for g in reference)
    for limit in (None, 1):
        for found, expected in zip(gradients("auto", memory_limit=limit), reference, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_the_report_says_that_the_kernel_serves_a_relation_what_it_keeps_and_what_it_costs():
    (relation,) = plain().report.relations
    assert relation.kernels == ("etp_fastpath",) * 2  # in the group of h, and in that of i and v
    assert relation.traces == ("last step", "filter and per weight")
    batch, data, out = 2, 7, 4
    elements = batch * (data * out + out)
    stored = [batch * (data + out), batch * (data + 1), elements]
    assert relation.bytes_per_step == 2 * 8 * sum(stored)
    # h: one product with the last step; i: a filter (leak and input) and its product; v: two entries of D and the input
    assert relation.operations_per_step == (elements + batch * out) + (2 * stored[1] + elements) + (3 + 1) * elements


def test_the_report_says_rules_where_the_kernels_are_not_asked_for():
    (relation,) = plain("reference").report.relations
    assert (relation.kernels, relation.traces) == (("rules",) * 2, ("per weight",) * 2)
    assert relation.operations_per_step > plain().report.relations[0].operations_per_step
