"""How the tests build, run and compare."""

import functools
import warnings

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import etp_algorithms as ea
from etp_algorithms import oracle

from .models import inputs

STEPS = 6


def quietly(fn, *args, **kwargs):
    """``fn(...)`` without the compiler's warnings, for models whose approximation is the subject."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ea.CompilationWarning)
        return fn(*args, **kwargs)


def initialised(factory, batch=None):
    """A model with its states initialised."""
    model = factory()
    brainstate.nn.init_all_states(model, **({} if batch is None else {"batch_size": batch}))
    return model


def compiled(factory, x, batch=None, algorithm=ea.D_RTRL, **options):
    """A learner compiled for ``x``, whether the compiler warns or not."""
    learner = algorithm(initialised(factory, batch), **options)
    quietly(learner.compile_graph, x)
    return learner


@functools.cache
def reference(factory, batch, steps=STEPS):
    """Backpropagation through time, once for all tests of a model."""
    xs = inputs(steps=steps, batch=batch)
    oracle.assert_model_is_live(factory, xs, batch_size=batch)
    return oracle.bptt_param_gradients(factory, xs, batch_size=batch)


@functools.cache
def online(factory, batch, window, steps=STEPS, algorithm=ea.D_RTRL):
    """The learner's gradient in windows."""
    xs = inputs(steps=steps, batch=batch)
    return quietly(
        oracle.chunked_online_param_gradients,
        factory,
        xs,
        algo_factory=algorithm,
        chunk_size=window,
        batch_size=batch,
    )


@functools.cache
def facts(factory, batch):
    """``(trust by parameter, relations)`` of a model, compiled once for all tests."""
    learner = compiled(factory, inputs(batch=batch)[0], batch)
    return trusts(learner), relation_set(learner)


def trusts(learner):
    """The trust of every parameter array, by name."""
    return {row.name: row.trust.value for row in learner.report.parameters}


def relation_set(learner):
    """The relations as ``(primitive, parameters, groups)``, sorted."""
    graph = learner.graph
    return sorted(
        (
            r.primitive.name,
            ",".join(sorted({graph.step.parameters[n].name for o in r.operands.values() for n in o.parameters})),
            ",".join(graph.hidden_groups[link.group].name for link in r.links),
        )
        for r in graph.hidden_param_op_relations
    )


def gradient_of(learner, loss):
    """``(gradients by dotted name, value)`` of a function that calls the learner."""
    fn = brainstate.transform.grad(loss, grad_states=learner.param_states, return_value=True)
    gradients, value = fn()
    return {".".join(map(str, path)): g for path, g in gradients.items()}, value


def tree_sum(trees):
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), trees)


def largest_error(found, wanted):
    """The largest entry of the difference, relative to the largest entry wanted."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) / max(float(np.max(np.abs(np.asarray(b)))), 1e-300)
        for a, b in pairs
    )
