"""The contract of every algorithm of the table: what it reports exact equals backpropagation through short windows."""

import itertools

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etp_algorithms as ea
from etp_algorithms import MultiStepData, oracle
from etp_algorithms._algorithms._coupling import coupled_jacobians
from etp_algorithms._calls import read_states
from etp_algorithms._step import StepPoint, evaluate_step
from etp_ops import matmul, sparse_matmul

from .helpers import compiled, facts, gradient_of, largest_error, online, reference, tree_sum, trusts
from .models import DIAGONAL, EXACT, IN, N, array, cell, inputs, spike
from .spiking_models import SPIKING

OPTIONS = {"pp_prop": {"decay_or_rank": 0.9}, "ottt": {"leak": 0.7}}
UNMODULATED = sorted(set(ea.ALGORITHMS) - {"three_factor"})
AT_ENTRY = [name for name in UNMODULATED if name not in ("eprop", "ottt")]
ALL = {**EXACT, **{name: row[0] for name, row in DIAGONAL.items()}}
MODELS = ["adaptive_spiking", "width_one_gate", "gru", "two_layers"]
SIGNALS = ["entry", "exit"]


def made(name, **more):
    """A factory of learners of one algorithm."""
    return lambda model, **options: ea.ALGORITHMS[name].learner(model, **OPTIONS.get(name, {}), **more, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", UNMODULATED)
def test_what_an_algorithm_reports_exact_equals_backpropagation_through_time(name, model):
    learner = compiled(ALL[model], inputs(batch=2)[0], 2, algorithm=made(name))
    found, expected = online(ALL[model], 2, 1, algorithm=made(name)), reference(ALL[model], 2)
    exact = [path for path in expected if trusts(learner)[".".join(path)] == "exact"]
    oracle.assert_param_gradients_close(found, expected, atol=0.0, rtol=1e-10, keys=exact)


@pytest.mark.thorough
@pytest.mark.parametrize("name", AT_ENTRY)
def test_a_whole_sequence_from_the_entry_is_backpropagation_for_every_algorithm(name):
    found = online(DIAGONAL["dense_tanh"][0], 2, 6, algorithm=made(name))
    assert oracle.relative_deviation(found, reference(DIAGONAL["dense_tanh"][0], 2)) < 1e-12


# the signal at the exit


@pytest.mark.thorough
@pytest.mark.parametrize("model", sorted(EXACT)[::2])
def test_at_the_exit_too_an_exact_model_has_the_gradient_of_backpropagation(model):
    found = online(EXACT[model], 2, 1, algorithm=made("d_rtrl", signal="exit"))
    assert oracle.relative_deviation(found, reference(EXACT[model], 2)) < 1e-13


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
def late_output(self, x):
    before = self.h.value
    self.h.value = jnp.tanh(0.7 * before + matmul(x, self.W.value))
    return before * self.h.value


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_an_output_reads_of_the_state_before_the_step_is_credited(signal):
    found = online(late_output, 2, 1, algorithm=made("d_rtrl", signal=signal))
    assert oracle.relative_deviation(found, reference(late_output, 2)) < 1e-13


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["dense_tanh", "gru", "lstm", "two_layers", "plain_input_weight"])
def test_at_the_exit_a_recurrence_is_cut_where_the_trace_cuts_it(model):
    at_exit = online(ALL[model], 2, 1, algorithm=made("d_rtrl", signal="exit"))
    if model in ("dense_tanh", "gru", "lstm"):  # a recurrent weight lies between the entry and the loss
        oracle.assert_gradients_differ(at_exit, online(ALL[model], 2, 1, algorithm=made("d_rtrl")), min_rel=1e-3)
    windowed = online(ALL[model], 2, 3, algorithm=made("d_rtrl", signal="exit"))
    assert oracle.relative_deviation(windowed, at_exit) < 1e-13  # every step stands for itself


def folded(learner, xs, **options):
    gradient = brainstate.transform.jit(
        lambda: learner.etrace_grad(xs, step_fn=lambda x: oracle.sum_of_squares(learner(x)), reduction="sum", **options)
    )()
    return gradient


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "limit"), [("adaptive_spiking", None), ("gru", 1), (late_output, None)], ids=str)
@pytest.mark.parametrize(
    "algorithm",
    [
        made("d_rtrl", signal="exit"),
        made("pp_prop", signal="exit"),
        made("eprop", kappa_filter_decay=0.6),
        made("ostl_recurrent"),
        made("ottt"),
    ],
    ids=["d_rtrl", "pp_prop", "eprop", "ostl_recurrent", "ottt"],
)
def test_a_folded_sequence_equals_the_steps_one_by_one(algorithm, model, limit):
    xs = inputs(batch=2)
    factory = ALL[model] if isinstance(model, str) else model
    fast, slow = (compiled(factory, xs[0], 2, algorithm=algorithm, kernels=k) for k in ("auto", "reference"))
    fast.memory_limit = limit
    for _ in range(2):  # the second sequence starts from the traces of the first
        found, expected = folded(fast, xs), folded(slow, xs)
        assert largest_error(list(found.values()), list(expected.values())) < 1e-12
        assert largest_error(fast.traces.value, slow.traces.value) < 1e-12


# RTRL


@pytest.mark.thorough
@pytest.mark.parametrize("model", [*sorted(ALL), *SPIKING])
def test_rtrl_is_backpropagation_on_every_model(model):
    factory = ALL[model] if model in ALL else SPIKING[model][0]
    found = online(factory, 2, 1, algorithm=made("rtrl"))
    assert oracle.relative_deviation(found, reference(factory, 2)) < 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["gru", "two_layers", "plain_input_weight", "lstm", "plain_readout"])
def test_rtrl_is_backpropagation_at_the_exit_too(model):
    found = online(ALL[model], 2, 1, algorithm=made("rtrl", signal="exit"))
    assert oracle.relative_deviation(found, reference(ALL[model], 2)) < 1e-12


def test_rtrl_needs_no_marked_weight():
    @cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "R": array(1, N, N)})
    def unmarked(self, x):
        self.h.value = jnp.tanh(self.h.value @ self.R.value + x @ self.W.value)
        return self.h.value

    learner = ea.compile(unmarked(), "rtrl", inputs(batch=2)[0], batch_size=2)
    assert trusts(learner) == {"R": "exact", "W": "exact"}
    assert not learner.report.diagnostics  # nothing is left out
    assert oracle.relative_deviation(online(unmarked, 2, 1, algorithm=ea.RTRL), reference(unmarked, 2)) < 1e-12


def test_rtrl_says_how_much_memory_it_would_need():
    with pytest.raises(ea.CompilationError, match=r"8 hidden values: [\d,]+ bytes, more than the limit of 100\. Raise"):
        compiled(EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=made("rtrl", influence_limit=100))


# SnAp and coupling

RING = 6


def ring():
    """A tanh network whose units read their left neighbour (and themselves), and drive from a dense weight."""
    rows = np.concatenate([np.arange(RING), np.arange(RING)])
    cols = np.concatenate([(np.arange(RING) + 1) % RING, np.arange(RING)])
    order = np.lexsort((cols, rows))
    structure = u.sparse.COO((jnp.ones(2 * RING), rows[order], cols[order]), shape=(RING, RING))

    @cell({"h": (RING,)}, lambda: {"R": 2 * array(4, 2 * RING), "W": array(5, IN, RING)})
    def model(self, x):
        recurrent = sparse_matmul(self.h.value, self.R.value, sparse_mat=structure)
        self.h.value = jnp.tanh(recurrent + matmul(x, self.W.value))
        return self.h.value

    return model


RING_MODEL = ring()


@pytest.mark.thorough
def test_snap_on_a_directed_ring_falls_monotonically_to_round_off():
    xs = inputs(steps=10, batch=2)
    expected = oracle.bptt_param_gradients(RING_MODEL, xs, batch_size=2)
    errors = [
        oracle.relative_deviation(
            oracle.chunked_online_param_gradients(
                RING_MODEL, xs, algo_factory=lambda m, n=n: ea.SnAp(m, n), chunk_size=1, batch_size=2
            ),
            expected,
        )
        for n in range(1, RING + 1)
    ]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-14


def test_snap_follows_only_the_positions_of_the_pattern():
    xs = inputs(batch=2)
    for n in (1, 2, 3):
        learner = compiled(RING_MODEL, xs[0], 2, algorithm=made("snap", n=n))
        lanes = () if n == 1 else (n,)
        assert [t["weight"].shape for (t,) in learner.traces.value.values()] == [
            (*lanes, 2, 2 * RING),
            (*lanes, 2, IN, RING),
        ]


def test_snap_reports_exact_once_the_pattern_is_saturated():
    xs = inputs(batch=2)
    grades = [trusts(compiled(RING_MODEL, xs[0], 2, algorithm=made("snap", n=n)))["R"] for n in (1, 5, 6)]
    assert grades == ["diagonal", "diagonal", "exact"]


def test_snap_does_not_report_exact_where_the_drive_mixes_positions():
    learner = compiled(DIAGONAL["normalised_drive"][0], inputs(batch=2)[0], 2, algorithm=made("snap", n=3))
    assert trusts(learner)["W"] == "diagonal"


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2])
def test_snap_takes_a_cell_of_width_128_that_reads_input_and_state_side_by_side_at_batch_16(n):
    width = 128

    @cell({"h": (width,)}, lambda: {"W": array(3, IN + width, width).astype(jnp.float32) / 8})
    def wide(self, x):
        joined = jnp.concatenate([x, self.h.value.astype(x.dtype)], -1)
        self.h.value = jnp.tanh(matmul(joined, self.W.value)).astype(self.h.value.dtype)
        return self.h.value

    xs = inputs(steps=3, batch=16)
    found = oracle.chunked_online_param_gradients(
        wide, xs, algo_factory=lambda m: ea.SnAp(m, n), chunk_size=1, batch_size=16
    )
    expected = oracle.bptt_param_gradients(wide, xs, batch_size=16)
    error = oracle.relative_deviation(found, expected)
    assert error < (0.2 if n == 1 else 1e-5)


@pytest.mark.parametrize("name", ["dense_tanh", "gru", "adaptive_spiking", "stacked_states"])
def test_the_coupled_jacobian_is_the_block_diagonal_of_the_whole(name):
    x = inputs(batch=2)[0]
    learner = compiled(ALL[name], x, 2)
    learner(x)
    program = learner.compiled_step
    states = read_states(program.captured)
    graph = learner.graph
    point = StepPoint(graph, *states, [x], evaluate_step(graph, *states, [x]))
    for g, jacobian in enumerate(coupled_jacobians(point)):
        if jacobian is None:
            continue
        whole = jax.jacrev(
            lambda own, g=g: point.advance((*point.states[:g], own, *point.states[g + 1 :]), states[0])[g]
        )
        dense = whole(point.states[g])
        for row, wanted in zip(jacobian.transition, dense, strict=True):
            for factor, block in zip(row, wanted, strict=True):
                np.testing.assert_allclose(
                    factor.reshape(-1), jnp.diagonal(block.reshape(factor.size, factor.size)), rtol=1e-12, atol=1e-15
                )


def test_own_coupling_brings_a_dense_recurrence_closer():
    factory = DIAGONAL["dense_tanh"][0]
    with_h, without = (online(factory, 2, 1, algorithm=made(n)) for n in ("ostl_recurrent", "ostl_feedforward"))
    expected = reference(factory, 2)
    assert oracle.relative_deviation(with_h, expected) < 0.8 * oracle.relative_deviation(without, expected)


# UORO


def test_uoro_is_unbiased():
    draws, xs = 20_000, inputs(steps=4, batch=2)

    def step(params, h, x):
        h = jnp.tanh(matmul(jnp.concatenate([x, h], -1), params["W"]) + x @ params["P"])
        return h, h

    params = {"W": array(0, IN + N, N), "P": array(1, IN, N)}
    learner = ea.functional.compile_step_function(step, params, jnp.zeros((2, N)), xs[0], algorithm="uoro")

    def loss_of(params, carry, x):
        carry, out = learner.apply(params, carry, x)
        return jnp.sum(out**2), carry

    def estimate(key):
        start = learner.init()
        start = start._replace(traces={**start.traces, "key": jax.random.key_data(key)})

        def body(carry, x):
            gradient, carry = jax.grad(loss_of, has_aux=True)(params, carry, x)
            return carry, gradient

        _, gradients = jax.lax.scan(body, start, xs)
        return jax.tree.map(lambda g: g.sum(0), gradients)

    samples = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(7), draws))

    def sequence(params):
        def body(h, x):
            h, out = step(params, h, x)
            return h, jnp.sum(out**2)

        return jax.lax.scan(body, jnp.zeros((2, N)), xs)[1].sum()

    expected = jax.grad(sequence)(params)
    for name, reference_gradient in expected.items():
        flat, wanted = np.asarray(samples[name]).reshape(draws, -1), np.asarray(reference_gradient).reshape(-1)
        directions = np.random.default_rng(0).normal(size=(8, wanted.size)) / np.sqrt(wanted.size)
        projected, target = flat @ directions.T, directions @ wanted
        error = projected.std(0) / np.sqrt(draws)
        assert np.all(np.abs(projected.mean(0) - target) < 4 * error), name
        assert np.all(error < 0.05 * np.linalg.norm(wanted)), name


def test_uoro_draws_new_signs_after_a_reset():
    learner = compiled(EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=made("uoro"))
    before = learner.traces.value["key"]
    learner(inputs(batch=2)[0])
    moved = learner.traces.value["key"]
    learner.reset_state()
    assert not np.array_equal(before, moved)
    np.testing.assert_array_equal(learner.traces.value["key"], moved)
    assert all(float(jnp.abs(w).max()) == 0.0 for w in learner.traces.value["weights"].values())


# e-prop


@cell({"v": (N,)}, lambda: {"W": 2 * array(0, IN, N), "R": array(2, N, 2)})
def spiking_readout(self, x):
    self.v.value = 0.8 * self.v.value + matmul(x, self.W.value)
    return matmul(spike(self.v.value - 0.3), self.R.value)


def eprop_by_hand(kappa, feedback):
    """``Σ_t (Bᵀ e_t ψ_t) ē_t`` with the read-out error ``e = 2y``, membrane leak 0.8 and triangular ``ψ``."""
    model = spiking_readout()
    w, r = np.asarray(model.W.value), np.asarray(model.R.value)
    b = r.T if feedback is None else np.asarray(feedback)
    v, trace, filtered = np.zeros((2, N)), np.zeros((2, IN)), np.zeros((2, IN))
    total = np.zeros_like(w)
    for x in np.asarray(inputs(batch=2)):
        v = 0.8 * v + x @ w
        trace = 0.8 * trace + x
        filtered = kappa * filtered + trace
        y = (v - 0.3 > 0) @ r
        signal = (2 * y) @ b * np.maximum(0.0, 1.0 - np.abs(v - 0.3))
        total += filtered.T @ signal
    return total


@pytest.mark.parametrize("kappa", [0.0, 0.6])
@pytest.mark.parametrize("seed", [None, 3])
def test_eprop_follows_the_paper_written_out_by_hand(kappa, seed):
    options = {} if seed is None else {"feedback": "random", "random_feedback_key": seed}
    found = online(spiking_readout, 2, 1, algorithm=made("eprop", kappa_filter_decay=kappa, **options))
    learner = compiled(spiking_readout, inputs(batch=2)[0], 2, algorithm=made("eprop", **options))
    feedback = None
    if seed is not None:
        readout = ea._feedback.find_readouts(learner.graph)[0]
        key = jax.random.split(jax.random.key(seed), 1)[0]
        feedback = learner.algorithm.signal.feedback.matrix(readout, key)
        assert feedback.shape == (2, N)
    np.testing.assert_allclose(found[("W",)], eprop_by_hand(kappa, feedback), rtol=1e-12)


def test_random_feedback_is_folded():
    xs = inputs(batch=2)
    algorithm = made("eprop", feedback="random", random_feedback_key=3, kappa_filter_decay=0.5)
    fast, slow = (compiled(spiking_readout, xs[0], 2, algorithm=algorithm, kernels=k) for k in ("auto", "reference"))
    assert largest_error(list(folded(fast, xs).values()), list(folded(slow, xs).values())) < 1e-12


def test_random_feedback_leaves_the_readout_its_own_gradient():
    options = {"feedback": "random", "random_feedback_key": 3}
    found = online(spiking_readout, 2, 1, algorithm=made("eprop", **options))
    expected = reference(spiking_readout, 2)
    oracle.assert_param_gradients_close(found, expected, atol=0.0, rtol=1e-12, keys=[("R",)])
    oracle.assert_gradients_differ({"W": found[("W",)]}, {"W": expected[("W",)]})
    learner = compiled(spiking_readout, inputs(batch=2)[0], 2, algorithm=made("eprop", **options))
    assert trusts(learner) == {"W": "feedback", "R": "exact"}


def test_random_feedback_without_a_marked_readout_is_refused():
    with pytest.raises(ea.CompilationError, match=r"needs a read-out.*Mark the read-out inside the model"):
        compiled(
            EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=made("eprop", feedback="random", random_feedback_key=0)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feedback": "random"}, "needs random_feedback_key"),
        ({"random_feedback_key": 1}, "have no effect with feedback='symmetric'"),
        ({"kappa_filter_decay": 1.0}, r"kappa_filter_decay must lie in \[0, 1\), got 1.0"),
    ],
)
def test_an_option_of_eprop_that_means_nothing_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        ea.EProp(EXACT["leaky"](), **options)


# OTTT


@pytest.mark.parametrize("signal", SIGNALS)
def test_ottt_is_exact_for_weights_where_every_state_decays_by_the_leak(signal):
    found, expected = online(EXACT["leaky"], 2, 1, algorithm=made("ottt", signal=signal)), reference(EXACT["leaky"], 2)
    oracle.assert_param_gradients_close(found, expected, atol=0.0, rtol=1e-13, keys=[("W",)])


# three factors


def signals_of(model_name="leaky"):
    """The derivative of the loss by the new state, when the output is the state and the loss its square."""
    model = compiled(EXACT[model_name], inputs(batch=2)[0], 2)
    return [2 * model(x) for x in inputs(batch=2)]


def modulated(learner, xs, modulators, window=1):
    def call(t):
        x, m = xs[t : t + window], jnp.stack(modulators[t : t + window])
        if window == 1:
            return jnp.sum(learner(x[0], modulator=m[0]) ** 2)
        return jnp.sum(learner(MultiStepData(x), modulator=MultiStepData(m)) ** 2)

    return tree_sum([gradient_of(learner, lambda t=t: call(t))[0] for t in range(0, len(xs), window)])


@pytest.mark.parametrize("window", [1, 3])
def test_a_modulator_that_is_the_derivative_of_the_loss_gives_the_gradient_of_the_loss(window):
    learner = compiled(EXACT["leaky"], inputs(batch=2)[0], 2, algorithm=made("three_factor"))
    found = modulated(learner, inputs(batch=2), signals_of(), window)
    expected = {".".join(p): g for p, g in reference(EXACT["leaky"], 2).items()}
    assert largest_error(found, expected) < 1e-13


def test_the_modulator_is_an_argument_under_jit_and_takes_the_place_of_the_loss():
    x = inputs(batch=2)[0]
    learner = compiled(EXACT["leaky"], x, 2, algorithm=made("three_factor"))
    states = learner.param_states

    @brainstate.transform.jit
    def step(reward):
        return brainstate.transform.grad(lambda: 123.0 * learner(x, modulator=reward).sum(), grad_states=states)()

    found = []
    for reward in (jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]), jnp.array([0.0, 0.0])):
        learner.reset_state()
        found.append(step(reward)[("W",)])
    np.testing.assert_allclose(found[0], jnp.outer(x[0], jnp.ones(N)), rtol=1e-14)
    np.testing.assert_allclose(found[1], 2 * jnp.outer(x[1], jnp.ones(N)), rtol=1e-14)
    np.testing.assert_array_equal(found[2], 0.0)


def test_a_modulated_sequence_is_folded():
    xs, modulators = inputs(batch=2), jnp.stack(signals_of())
    fast, slow = (
        compiled(EXACT["leaky"], xs[0], 2, algorithm=made("three_factor"), kernels=k) for k in ("auto", "reference")
    )

    def gradient(learner):
        loss = lambda x, m: oracle.sum_of_squares(learner(x, modulator=m))  # noqa: E731
        return learner.etrace_grad(xs, modulators, step_fn=loss, reduction="sum")

    assert largest_error(list(gradient(fast).values()), list(gradient(slow).values())) < 1e-13


def test_untraced_parameters_follow_the_loss_beside_a_modulator():
    x = inputs(batch=2)[0]
    learner = compiled(EXACT["marked_readout"], x, 2, algorithm=made("three_factor"))
    plain = compiled(EXACT["marked_readout"], x, 2)
    found, expected = (
        gradient_of(one, lambda one=one, kw=kw: jnp.sum(one(x, **kw) ** 2))[0]
        for one, kw in ((learner, {"modulator": 0.0}), (plain, {}))
    )
    grades = trusts(learner)
    for name, gradient in found.items():
        if grades[name] == "modulated":
            np.testing.assert_array_equal(gradient, 0.0)
        else:
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-13)
    assert set(grades.values()) == {"modulated", "exact"}


def test_a_pure_step_function_takes_a_modulator_too():
    def step(params, h, x):
        h = 0.7 * h + matmul(x, params["W"])
        return h, h

    xs, params = inputs(batch=2), {"W": array(0, IN, N)}
    learner = ea.functional.compile_step_function(step, params, jnp.zeros((2, N)), xs[0], algorithm="three_factor")
    reward = jnp.array([1.0, -2.0])

    @jax.jit
    def gradient(reward):
        return jax.grad(lambda p: learner.apply(p, learner.init(), xs[0], modulator=reward)[1].sum())(params)["W"]

    np.testing.assert_allclose(gradient(reward), jnp.einsum("bi,b,o->io", xs[0], reward, jnp.ones(N)), rtol=1e-13)
    every = MultiStepData(jnp.tile(reward, (len(xs), 1)))
    windowed = jax.grad(lambda p: learner.apply_window(p, learner.init(), xs, modulator=every)[1].sum())(params)["W"]
    trace, total = jnp.zeros((2, IN)), 0.0
    for x in xs:
        trace = 0.7 * trace + x
        total += jnp.einsum("bi,b,o->io", trace, reward, jnp.ones(N))
    np.testing.assert_allclose(windowed, total, rtol=1e-13)


def test_a_sequence_may_take_over_what_an_algorithm_keeps():
    def step(params, h, x):
        h = 0.7 * h + matmul(x, params["W"])
        return h, h

    x, params = inputs(batch=2)[0], {"W": array(0, IN, N)}
    learner = ea.functional.compile_step_function(step, params, jnp.zeros((2, N)), x, algorithm="uoro")
    first, _ = learner.apply(params, learner.init(), x)
    second = learner.init(after=first)
    np.testing.assert_array_equal(second.traces["key"], first.traces["key"])
    assert float(jnp.abs(second.traces["weights"]["W"]).max()) == 0.0


def test_a_modulator_by_group_and_its_mistakes():
    x = inputs(batch=2)[0]
    learner = compiled(EXACT["leaky"], x, 2, algorithm=made("three_factor"))
    learner(x, modulator={"h": jnp.ones((2, N))})
    with pytest.raises(TypeError, match=r"needs a modulator with every call"):
        learner(x)
    with pytest.raises(ValueError, match=r"names the groups \['g'\]; there are h"):
        learner(x, modulator={"g": 1.0})
    with pytest.raises(ValueError, match=r"modulator has shape \(3,\); the group h has positions of shape \(2, 4\)"):
        learner(x, modulator=jnp.ones(3))
    with pytest.raises(TypeError, match=r"D_RTRL takes no modulator"):
        compiled(EXACT["leaky"], x, 2)(x, modulator=1.0)


# DNI


def windows_of(learner, xs, window, maps):
    """The gradients of consecutive windows, each with its own maps."""
    found = []
    for t, after in zip(range(0, len(xs), window), maps, strict=True):
        if after is not None:
            learner.traces.value = after
        found.append(gradient_of(learner, lambda t=t: learner(MultiStepData(xs[t : t + window])).sum())[0])
    return tree_sum(found)


@cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "P": array(1, IN, N)})
def linear(self, x):
    self.h.value = 0.7 * self.h.value + matmul(x, self.W.value) + x @ self.P.value
    return self.h.value


def test_dni_with_the_true_synthetic_gradient_is_backpropagation_for_every_parameter():
    xs, window = inputs(batch=2), 3
    learner = compiled(linear, xs[0], 2, algorithm=made("dni"))
    (zero,) = learner.traces.value.values()
    later = sum(0.7**k for k in range(1, window + 1))  # of the sum of outputs, by the state before the window
    true = {"h": {**zero, "bias": jnp.full(N, later)}}
    found = windows_of(learner, xs, window, [true, {"h": zero}])
    expected = oracle.bptt_param_gradients(linear, xs, loss_fn=jnp.sum, batch_size=2)
    assert largest_error(found, {".".join(p): g for p, g in expected.items()}) < 1e-13
    assert set(trusts(learner).values()) == {"bootstrapped"}


def test_dni_that_predicts_zero_is_truncated_backpropagation():
    xs = inputs(batch=2)
    learner = compiled(linear, xs[0], 2, algorithm=made("dni"))
    found = windows_of(learner, xs, 3, [None, None])
    plain = compiled(linear, xs[0], 2)
    truncated = []
    for t in (0, 3):
        plain.reset_state()  # forget the traces, keep the state
        truncated.append(gradient_of(plain, lambda t=t: plain(MultiStepData(xs[t : t + 3])).sum())[0])
    assert largest_error(found, tree_sum(truncated)) < 1e-13


def test_training_the_synthetic_gradient_brings_dni_closer_to_backpropagation():
    xs = jnp.broadcast_to(inputs(batch=2)[0], (24, 2, IN))
    learner = compiled(EXACT["leaky"], xs[0], 2, algorithm=made("dni"))
    errors = ea.train_synthetic_gradient(learner, xs, chunk_size=2, lr=0.05, epochs=300)
    assert errors[-1] < 0.8 * errors[0]
    expected = {".".join(p): g for p, g in oracle.bptt_param_gradients(EXACT["leaky"], xs, batch_size=2).items()}

    def deviation(maps):
        brainstate.nn.init_all_states(learner.model, batch_size=2)
        learner.traces.value = maps
        parts = [
            gradient_of(learner, lambda t=t: jnp.sum(learner(MultiStepData(xs[t : t + 2])) ** 2))[0]
            for t in range(0, 24, 2)
        ]
        return oracle.relative_deviation(tree_sum(parts), expected)

    trained = learner.traces.value
    assert deviation(trained) < 0.7 * deviation(jax.tree.map(jnp.zeros_like, trained))


def test_a_reset_keeps_what_the_synthetic_gradient_has_learned():
    xs = inputs(batch=2)
    learner = compiled(EXACT["leaky"], xs[0], 2, algorithm=made("dni"))
    ea.train_synthetic_gradient(learner, xs)
    before = learner.traces.value
    learner.reset_state()
    assert largest_error(learner.traces.value, before) == 0.0


def test_only_dni_has_a_synthetic_gradient_to_train():
    with pytest.raises(TypeError, match="takes a DNI learner, got D_RTRL"):
        ea.train_synthetic_gradient(compiled(EXACT["leaky"], inputs(batch=2)[0], 2), inputs(batch=2))


# the table


@pytest.mark.parametrize("name", ea.ALGORITHMS)
def test_every_claim_says_when_what_at_which_cost_and_from_where(name):
    claim = ea.ALGORITHMS[name]
    assert all((claim.exact_when, claim.otherwise, claim.memory, claim.time, claim.source))
    assert issubclass(claim.learner, ea.Learner)
    assert claim.learner.__doc__


@pytest.mark.parametrize("name", ["D_RTRL", "e-prop", "OSTL-Recurrent", "SnAp", "Three_Factor", "ES_D_RTRL", "rtrl"])
def test_compile_takes_the_names_in_any_case(name):
    options = {"decay_or_rank": 0.9} if name.startswith("ES") else {}
    learner = ea.compile(EXACT["leaky"](), name, inputs(batch=2)[0], batch_size=2, **options)
    assert learner.is_compiled


def test_compile_takes_a_learner_that_is_made_already():
    model, x = EXACT["leaky"](), inputs(batch=2)[0]
    learner = ea.SnAp(model, 1)
    assert ea.compile(model, learner, x, batch_size=2) is learner
    assert learner.is_compiled
    with pytest.raises(ValueError, match="of another model"):
        ea.compile(EXACT["leaky"](), learner, x, batch_size=2)
    with pytest.raises(TypeError, match="takes no options; got strict"):
        ea.compile(model, learner, x, batch_size=2, strict=True)


def test_the_report_counts_the_memory_of_every_algorithms_traces():
    x = inputs(batch=2)[0]
    for name in ea.ALGORITHMS:
        learner = compiled(EXACT["leaky"], x, 2, algorithm=made(name))
        rows = {row.name: row.trace_bytes for row in learner.report.parameters}
        assert (rows["W"] > 0) == (name != "dni"), name
        assert facts(EXACT["leaky"], 2)[0].keys() == rows.keys()
