"""What the flat namespace holds: for each package, the names that are reachable as ``etp.NAME``.

Adding a public name to a package is one line here; tests/test_public_api.py holds the two together.
"""

NAMES: dict[str, tuple[str, ...]] = {
    "etp_core": (
        "BATCHED_PRIMITIVES",
        "ETPPrimitive",
        "ETP_PRIMITIVES",
        "ETP_RULES_DT_TO_T",
        "ETP_RULES_INIT_DRTRL",
        "ETP_RULES_INIT_PP",
        "ETP_RULES_XY_TO_DW",
        "ETP_RULES_YW_TO_W",
        "FastPathRules",
        "MissingRuleError",
        "PluginWarning",
        "RegistrationError",
        "RelationLostWarning",
        "RuleCheckError",
        "get_fast_path_rules",
        "load_plugins",
        "register_primitive",
    ),
    "etp_ops": (
        "conv",
        "einsum",
        "element_wise",
        "embedding",
        "etp_conv_p",
        "etp_einsum_p",
        "etp_elemwise_p",
        "etp_emb_p",
        "etp_emb_v_p",
        "etp_gmm_p",
        "etp_gmv_p",
        "etp_lora_mm_p",
        "etp_lora_mv_p",
        "etp_mm_p",
        "etp_mv_p",
        "etp_sp_mm_p",
        "etp_sp_mv_p",
        "grouped_matmul",
        "lora_matmul",
        "matmul",
        "sparse_matmul",
    ),
    "etp_algorithms": (
        "ALGORITHMS",
        "AlgorithmClaim",
        "CompilationError",
        "CompilationWarning",
        "ControlFlowPolicy",
        "DNI",
        "D_RTRL",
        "Diagnostic",
        "DiagnosticKind",
        "EProp",
        "ES_D_RTRL",
        "ETraceConfig",
        "EligibilityTrace",
        "GroupJacobian",
        "HiddenGroup",
        "HiddenParamOpRelation",
        "IODimVjpAlgorithm",
        "Learner",
        "LearningSignal",
        "MultiStepData",
        "OSTLFeedforward",
        "OSTLRecurrent",
        "OTTT",
        "ParamDimVjpAlgorithm",
        "ParameterReport",
        "ParameterTrust",
        "RTRL",
        "RelationReport",
        "SingleStepData",
        "SnAp",
        "StepPoint",
        "ThreeFactor",
        "TraceAlgorithm",
        "TraceGraph",
        "Trust",
        "TrustReport",
        "UORO",
        "compile",
        "compile_etrace_graph",
        "pp_prop",
        "train_synthetic_gradient",
    ),
}

MODULES: dict[str, str] = {
    "functional": "etp_algorithms.functional",
    "nn": "etp_ops.nn",
    "oracle": "etp_algorithms.oracle",
    "pc": "mujou_pc",
    "testing": "etp_core.testing",
}

# How to install what a plain `pip install etp-suite` leaves out.
INSTALL: dict[str, str] = {"mujou_pc": "etp-suite[pc]"}

POPULATED_BY: dict[str, tuple[str, ...]] = {
    name: ("etp_ops",)
    for name in NAMES["etp_core"]
    if name.startswith("ETP_RULES_") or name in ("ETP_PRIMITIVES", "BATCHED_PRIMITIVES", "get_fast_path_rules")
}
"""The views of the registry, and the package whose import fills it: through ``etp`` they are never empty."""
