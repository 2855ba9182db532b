"""Arguments without a default and how to choose them, and those of braintrace 0.2 that are gone here, as data."""

from collections.abc import Mapping

from etp_core.arguments import Advice

__all__ = [
    "COMPILE",
    "CONFIG",
    "CONTROL_FLOW",
    "DRIVING",
    "GRAPH",
    "GRAPH_ATTRIBUTES",
    "LEARNERS",
    "LEARNER_ATTRIBUTES",
    "REPORT_ATTRIBUTES",
    "TRAINING",
]

_MODEL = "a brainstate.nn.Module whose update() is one step"
_EXACT = "it is not needed; control flow is followed exactly where it can be, and strict=True raises where it cannot"
_OF_ALGORITHM = "the algorithm says it now: OSTLRecurrent(model), SnAp(model, n), or ETraceConfig(recurrence_scope=...)"
_UNPERTURBED = "nothing is perturbed, the signal sits on the states"
_SPARSE = "it is not needed: couplings are followed as a sparse pattern; only RTRL has a limit, influence_limit="
_BY_PATH = "learner.param_states, learner.hidden_states and learner.other_states are by path"

LEARNERS: Mapping[str, Advice] = {
    "Learner": Advice(
        needed={
            "model": _MODEL,
            "algorithm": "a trace algorithm, for example ETraceConfig(...).algorithm(); or use a class such as D_RTRL",
        },
        replaced={
            "chunked_trace": "it is not needed; windows (MultiStepData) and sequences (etrace_grad) are taken whole",
            "config": "give the ETraceConfig in place of the class: compile(model, ETraceConfig(...), x)",
            "fast_solve": "kernels='auto' uses closed forms where they apply, kernels='reference' never does",
            "graph_executor": "a learner compiles its step itself: learner.compile_graph(x)",
            "random_feedback_key": (
                "use EProp(model, feedback='random', random_feedback_key=key) or "
                "ETraceConfig(learning_signal='random_feedback', key=key)"
            ),
            "snap_max_jacobian_elements": _SPARSE,
        },
    ),
    "DNI": Advice(
        replaced={
            "synthesizer": (
                "the learner has its own, an affine map per hidden group; train_synthetic_gradient(learner, xs) fits it"
            ),
            "trace_dtype": "no trace is kept",
        }
    ),
    "OSTLFeedforward": Advice(
        replaced={"decay_or_rank": "with a decay it is pp_prop(model, decay_or_rank)"},
        surplus="With a decay it is pp_prop(model, decay_or_rank).",
    ),
    "OTTT": Advice(
        needed={
            "leak": (
                "the decay of the membranes per step, a float in [0, 1): exp(-dt / tau) of the neurons, for example "
                "leak=0.9 for dt = 1 ms and tau = 10 ms"
            )
        }
    ),
    "ThreeFactor": Advice(replaced={"modulator": "give it with every call: learner(x, modulator=m)"}),
    "UORO": Advice(replaced={"projection_eps": "it is not needed; what keeps the norms from zero is fixed"}),
    "pp_prop": Advice(
        needed={
            "decay_or_rank": (
                "the decay of its two filters per step, a float in [0, 1), or a rank r >= 1 for (r - 1) / (r + 1). "
                "Take exp(-dt / tau) of the slowest state that matters: 0.9 remembers some ten steps, "
                "decay_or_rank=0.99 a hundred; D_RTRL needs none"
            )
        }
    ),
}
"""Of the constructors of learners, by the name of the class; a class has its bases' too."""

COMPILE = Advice(
    needed={
        "model": _MODEL,
        "algorithm": "a learner class such as D_RTRL, the name of one in ALGORITHMS, or an ETraceConfig",
    }
)

GRAPH = Advice(
    needed={"model": _MODEL},
    replaced={
        "include_hidden_perturb": _UNPERTURBED,
        "include_output_bypass": _UNPERTURBED,
        "include_recurrent_mixing": _OF_ALGORITHM,
        "snap_max_jacobian_elements": _SPARSE,
        "sparse_n": _OF_ALGORITHM,
    },
)

CONTROL_FLOW = Advice(
    replaced={
        "cond": _EXACT,
        "etp_in_control_flow": _EXACT,
        "fixpoint_iteration_limit": "equation_limit bounds the size of a step, nesting_limit the depth of its nesting",
        "scan_descent": _EXACT,
        "while_hidden": _EXACT,
    }
)

CONFIG = Advice(
    replaced={
        "update_schedule": "the call says it: learner(x) is a step, learner(MultiStepData(xs)) a window",
        "window_size": "the call says it: learner(MultiStepData(xs)), or etrace_grad(..., chunk_size=K)",
    }
)

DRIVING = Advice(
    needed={
        "step_fn": (
            "a function that gets the slices of one step, calls the learner once and returns the loss, for example "
            "lambda x, y: ((learner(x) - y) ** 2).mean()"
        )
    }
)

TRAINING = Advice(
    needed={"learner": "a compiled DNI", "inputs": "the inputs of one sequence, time leading"},
    replaced={
        "batch_size": "the learner has that which it was compiled for; inputs have shape (T, B, ...)",
        "optimizer": "it is plain gradient descent on a mean squared error, at the rate lr=",
        "reset": "a sequence starts from the states that the model has, and leaves them as they were",
    },
)

LEARNER_ATTRIBUTES: Mapping[str, str] = {
    "attach_synthesizer": "DNI has its predictor inside; train_synthetic_gradient(learner, xs) fits it",
    "decay": "learner.algorithm.decay_x and learner.algorithm.decay_f",
    "executor": "learner.graph, learner.report",
    "get_etrace_of": "learner.traces.value holds the traces by relation, learner.state_dict() all of them by name",
    "group_signal_shapes": "learner.graph.hidden_groups have a varshape and a num_state each",
    "init_etrace_state": "learner.compile_graph(x) and learner.reset_state() zero the traces",
    "path_to_states": _BY_PATH,
    "show_graph": "print(learner.report)",
    "state_id_to_path": _BY_PATH,
}
"""Attributes of braintrace's algorithms that a :class:`Learner` does not have."""

REPORT_ATTRIBUTES: Mapping[str, str] = {
    "counts": "count what report.diagnostics has of each kind",
    "dynamic_states": "report.groups names the hidden groups; learner.hidden_states are the states by path",
    "etrace_weights": "[row for row in report.parameters if row.operators]",
    "excluded_weights": "[row for row in report.parameters if not row.operators], each with its reasons",
    "graph": "learner.graph",
    "hidden_groups": "report.groups names them; learner.graph.hidden_groups are the groups",
    "show": "print(report)",
    "to_str": "str(report)",
}
"""Attributes of braintrace's report that a :class:`TrustReport` does not have."""

GRAPH_ATTRIBUTES: Mapping[str, str] = {
    "call_hidden_perturb": _UNPERTURBED,
    "dict": "a TraceGraph is a frozen dataclass, read its attributes; learner.report.to_dict() is plain data",
    "explain": "learner.report['name'].reasons says it for a parameter, learner.report.diagnostics for all",
    "hid_path_to_group": "[group for group in graph.hidden_groups if path in group.hidden_paths]",
    "hidden_perturb": _UNPERTURBED,
    "module_info": "graph.step has the equations and the role of every input and output",
}
"""Attributes of braintrace's graph that a :class:`TraceGraph` does not have."""
