"""Compiling takes time in proportion to the model."""

import re
import time

import brainstate
import jax
import jax.numpy as jnp

import etp_algorithms as ea
from etp_algorithms._compiler._capture import capture_module
from etp_algorithms._compiler._graph import compile_step
from etp_ops import element_wise, matmul

from .helpers import compiled, initialised
from .models import IN, N, array, cell, inputs


def deep(layers, width=N):
    """LSTM layers without recurrent weight: about 15 equations a layer."""
    hidden = {f"{name}{n}": (width,) for n in range(layers) for name in "ch"}

    @cell(hidden, lambda: {f"W{n}": array(n, width if n else IN, 4 * width) for n in range(layers)})
    def model(self, x):
        for n in range(layers):
            c, h = getattr(self, f"c{n}"), getattr(self, f"h{n}")
            i, f, g, o = jnp.split(matmul(x, getattr(self, f"W{n}").value), 4, -1)
            c.value = jax.nn.sigmoid(f) * c.value + jax.nn.sigmoid(i) * jnp.tanh(g)
            h.value = jax.nn.sigmoid(o) * jnp.tanh(c.value) + 0.1 * h.value
            x = h.value
        return x

    return model


def seconds_of_passes(layers):
    step = capture_module(initialised(deep(layers), 2), inputs()[0]).step
    compile_step(step)  # numpy and JAX warm up once
    start = time.process_time()
    compile_step(step)
    return len(step.equations), time.process_time() - start


def test_a_step_of_two_thousand_equations_is_compiled_in_under_two_seconds():
    equations, seconds = seconds_of_passes(160)
    assert equations >= 2000
    assert seconds < 2.0


def test_the_work_of_the_passes_grows_with_the_equations(monkeypatch):
    """Counted in equations visited, which no other load on the machine changes."""
    from etp_algorithms._compiler import _positions

    visited = []
    links = _positions.PositionAnalysis.links

    def counting(self, equation):
        visited.append(equation)
        return links(self, equation)

    monkeypatch.setattr(_positions.PositionAnalysis, "links", counting)
    counts = {}
    for layers in (10, 20, 40):
        step = capture_module(initialised(deep(layers), 2), inputs()[0]).step
        visited.clear()
        compile_step(step)
        counts[layers] = len(visited) / len(step.equations)
    assert counts[40] < 1.1 * counts[20] < 1.21 * counts[10]


def test_the_equations_of_a_gradient_grow_with_the_layers():
    def equations(layers):
        learner = compiled(deep(layers), inputs()[0], 2)
        gradient = brainstate.transform.grad(lambda x: jnp.sum(learner(x) ** 2), grad_states=learner.param_states)
        closed = brainstate.transform.make_jaxpr(gradient)(inputs()[0])[0]
        return str(closed).count(" = ")

    two, four, eight = map(equations, (2, 4, 8))
    assert abs((eight - four) - 2 * (four - two)) <= 0.02 * eight


def distinct_kernels(compiled_program):
    """The kernels that XLA's CPU back-end compiles: equal fusions once, anything else every time."""
    bodies, kernels = {}, set()
    for computation in re.split(r"\n(?=\S)", compiled_program.as_text()):
        head, _, body = computation.partition("{")
        renamed = re.sub(r"%?[\w\-]+\.[\w.\-]+|%[\w.\-]+|metadata=\{[^}]*\}", "_", body)
        bodies[head.split(" ")[0].lstrip("%")] = renamed
        if head.startswith("ENTRY"):
            entry = body
    for line in entry.splitlines():
        called = re.search(r"calls=%?([\w.\-]+)", line)
        if called:
            kernels.add(bodies[called[1]])
        elif re.search(r" (concatenate|copy|dot|reduce|transpose|while|call)\(", line):
            kernels.add(line)
    return len(kernels)


def test_a_deep_gradient_compiles_little_more_than_backpropagation():
    """Counted in kernels; wide enough that XLA leaves a concatenation of four gates a kernel of its own."""
    model = deep(6, width=32)

    def kernels(call, states):
        gradient = brainstate.transform.grad(lambda x: jnp.sum(call(x) ** 2), grad_states=states)
        stateful = brainstate.transform.StatefulFunction(gradient, return_only_write=False)
        stateful.make_jaxpr(inputs()[0])
        closed = stateful.get_jaxpr(inputs()[0])
        return distinct_kernels(jax.jit(jax.extend.core.jaxpr_as_fun(closed)).lower(*closed.in_avals).compile())

    plain, learner = initialised(model, 2), compiled(model, inputs()[0], 2)
    ordinary = kernels(plain.update, plain.states(brainstate.ParamState))
    assert kernels(learner, learner.param_states) <= 1.5 * ordinary


def test_the_program_of_a_window_does_not_grow_with_its_length():
    learner = compiled(deep(2), inputs()[0], 2)

    def equations(steps):
        xs = ea.MultiStepData(jnp.zeros((steps, 2, IN)))
        gradient = brainstate.transform.grad(lambda: jnp.sum(learner(xs) ** 2), grad_states=learner.param_states)
        return str(brainstate.transform.make_jaxpr(gradient)()[0]).count(" = ")

    assert equations(10) == equations(1000)


def test_the_second_call_traces_nothing():
    traced = []

    @cell({"h": (N,)}, lambda: {"W": array(0, IN, N)})
    def model(self, x):
        traced.append(x)
        self.h.value = 0.5 * self.h.value + matmul(x, self.W.value)
        return self.h.value

    learner = compiled(model, inputs()[0], 2)
    learner(inputs()[0])
    count = len(traced)
    learner(inputs()[1])
    learner(ea.MultiStepData(inputs()))
    assert len(traced) == count


def test_long_inner_loops_are_compiled_once_whatever_their_length():
    def model(substeps):
        @cell({"h": (N,)}, lambda: {"W": array(0, IN, N), "u": array(1, N)})
        def euler(self, x):
            def substep(_, h):
                return h + 0.01 * (matmul(x, self.W.value) - h * element_wise(self.u.value))

            self.h.value = jax.lax.fori_loop(0, substeps, substep, self.h.value)

        return euler

    sizes = [len(compiled(model(n), inputs()[0], 2).graph.step.equations) for n in (20, 200, 2000)]
    assert sizes[0] == sizes[1] == sizes[2]
