"""Online learning of recurrent and spiking networks: compile a model, run it, take gradients at any time."""

from etp_algorithms import functional, oracle
from etp_algorithms._algorithms._config import ETraceConfig
from etp_algorithms._algorithms._d_rtrl import D_RTRL, ParamDimVjpAlgorithm
from etp_algorithms._algorithms._dni import DNI
from etp_algorithms._algorithms._eprop import EProp
from etp_algorithms._algorithms._ostl import OSTLFeedforward, OSTLRecurrent
from etp_algorithms._algorithms._ottt import OTTT
from etp_algorithms._algorithms._pp_prop import ES_D_RTRL, IODimVjpAlgorithm, pp_prop
from etp_algorithms._algorithms._rtrl import RTRL
from etp_algorithms._algorithms._snap import SnAp
from etp_algorithms._algorithms._table import ALGORITHMS, AlgorithmClaim
from etp_algorithms._algorithms._three_factor import ThreeFactor
from etp_algorithms._algorithms._train_synthetic_gradient import train_synthetic_gradient
from etp_algorithms._algorithms._uoro import UORO
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
from etp_algorithms._compiler._transitions import GroupJacobian
from etp_algorithms._compiler._trust import ParameterTrust, Trust
from etp_algorithms._engine import LearningSignal, TraceAlgorithm
from etp_algorithms._inputs import MultiStepData, SingleStepData
from etp_algorithms._learner import EligibilityTrace, Learner
from etp_algorithms._report import ParameterReport, RelationReport, TrustReport
from etp_algorithms._step import StepPoint

__all__ = [
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
    "functional",
    "oracle",
    "pp_prop",
    "train_synthetic_gradient",
]
