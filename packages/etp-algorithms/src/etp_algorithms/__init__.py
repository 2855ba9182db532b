"""Online learning of recurrent and spiking networks: compile a model, run it, take gradients at any time."""

from etp_algorithms import functional, oracle
from etp_algorithms._algorithms._d_rtrl import D_RTRL, ParamDimVjpAlgorithm
from etp_algorithms._algorithms._pp_prop import ES_D_RTRL, IODimVjpAlgorithm, pp_prop
from etp_algorithms._compile import compile, compile_etrace_graph
from etp_algorithms._compiler._diagnostics import (
    CompilationError,
    CompilationWarning,
    Diagnostic,
    DiagnosticKind,
)
from etp_algorithms._compiler._graph import TraceGraph
from etp_algorithms._compiler._groups import HiddenGroup
from etp_algorithms._compiler._policy import ControlFlowPolicy
from etp_algorithms._compiler._relations import HiddenParamOpRelation
from etp_algorithms._compiler._trust import Trust
from etp_algorithms._inputs import MultiStepData, SingleStepData
from etp_algorithms._learner import EligibilityTrace, Learner
from etp_algorithms._report import ParameterReport, RelationReport, TrustReport

__all__ = [
    "D_RTRL",
    "ES_D_RTRL",
    "CompilationError",
    "CompilationWarning",
    "ControlFlowPolicy",
    "Diagnostic",
    "DiagnosticKind",
    "EligibilityTrace",
    "HiddenGroup",
    "HiddenParamOpRelation",
    "IODimVjpAlgorithm",
    "Learner",
    "MultiStepData",
    "ParamDimVjpAlgorithm",
    "ParameterReport",
    "RelationReport",
    "SingleStepData",
    "TraceGraph",
    "Trust",
    "TrustReport",
    "compile",
    "compile_etrace_graph",
    "functional",
    "oracle",
    "pp_prop",
]
