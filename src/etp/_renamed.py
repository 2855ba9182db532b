"""Names of braintrace 0.2 that have another name here, or none, so that a changed import says what to write."""

RENAMED: dict[str, str] = {
    "CompilationRecord": "Diagnostic",
    "CompilationReport": "TrustReport",
    "ETraceAlgorithm": "Learner",
    "ETraceGraph": "TraceGraph",
    "ETraceVjpAlgorithm": "Learner",
    "NotSupportedError": "CompilationError",
    "RandomProjectionVjpAlgorithm": "UORO",
}
"""The same thing under another name: it is given, with a warning."""

_EXECUTOR = "a learner holds its compiled step itself: learner.graph, learner.report"
_PARTS = "etp.compile_etrace_graph(model, x) gives groups, relations and diagnostics in one value"
_LEGACY = "keep the weight in a brainstate.ParamState and use the operator"

REPLACED: dict[str, str] = {
    "ConvOp": f"{_LEGACY} etp.conv",
    "DiagnosticLevel": "a Diagnostic has its level as a string, 'info' or 'warning'",
    "ETraceGraphExecutor": _EXECUTOR,
    "ETraceOp": f"{_LEGACY} that fits, etp.matmul or a sibling",
    "ETraceParam": f"{_LEGACY} that fits, etp.matmul or a sibling",
    "ETraceVjpGraphExecutor": _EXECUTOR,
    "ETraceVmap": "etp.compile(..., vmap=True, batch_size=B) gives an ordinary Learner",
    "ElemWiseOp": f"{_LEGACY} etp.element_wise",
    "ElemWiseParam": f"{_LEGACY} etp.element_wise",
    "FakeETraceParam": "use the array itself with plain JAX operations",
    "FakeElemWiseParam": "use the array itself with plain JAX operations",
    "FixedRandomFeedback": "etp.EProp(model, feedback='random', random_feedback_key=key) draws the matrices",
    "GradExpon": "average gradients with an optimizer, for example optax.ema",
    "HiddenPerturbation": "the signal sits on the states themselves, there is nothing to perturb",
    "KappaFilter": "etp.EProp(model, kappa_filter_decay=kappa), or etp.ETraceConfig(trace_filter='kappa', kappa=kappa)",
    "LoraOp": f"{_LEGACY} etp.lora_matmul",
    "MatMulOp": f"{_LEGACY} etp.matmul",
    "ModuleInfo": _PARTS,
    "NonTempParam": "use a brainstate.ParamState with plain JAX operations",
    "SequenceDriverMixin": "every Learner has etrace_grad and etrace_evolve",
    "SpMatMulOp": f"{_LEGACY} etp.sparse_matmul",
    "SyntheticGradient": "etp.DNI has its predictor inside; etp.train_synthetic_gradient fits it",
    "__version_info__": "split etp.__version__ at its dots",
    "add_hidden_perturbation_from_minfo": "the signal sits on the states themselves, there is nothing to perturb",
    "add_hidden_perturbation_in_module": "the signal sits on the states themselves, there is nothing to perturb",
    "extract_module_info": _PARTS,
    "find_hidden_groups_from_minfo": _PARTS,
    "find_hidden_groups_from_module": _PARTS,
    "find_hidden_param_op_relations_from_minfo": _PARTS,
    "find_hidden_param_op_relations_from_module": _PARTS,
}
"""What has no counterpart of its own: the attribute error says what to do instead."""
