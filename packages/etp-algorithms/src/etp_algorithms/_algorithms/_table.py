"""The algorithms as data: what each one promises, and what it costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from etp_algorithms._algorithms._d_rtrl import D_RTRL
from etp_algorithms._algorithms._dni import DNI
from etp_algorithms._algorithms._eprop import EProp
from etp_algorithms._algorithms._ostl import OSTLFeedforward, OSTLRecurrent
from etp_algorithms._algorithms._ottt import OTTT
from etp_algorithms._algorithms._pp_prop import pp_prop
from etp_algorithms._algorithms._rtrl import RTRL
from etp_algorithms._algorithms._snap import SnAp
from etp_algorithms._algorithms._three_factor import ThreeFactor
from etp_algorithms._algorithms._uoro import UORO
from etp_algorithms._learner import Learner

__all__ = ["ALGORITHMS", "AlgorithmClaim"]


@dataclass(frozen=True, slots=True)
class AlgorithmClaim:
    """What one algorithm promises.

    Costs are in ``B`` samples, ``w`` weights, ``I`` inputs, ``O`` outputs and ``S`` states per position.

    Attributes:
        learner: the learner class.
        exact_when: when its gradient equals backpropagation through time, whatever the window.
        otherwise: what it leaves out.
        memory: of the traces.
        time: per step, beyond the step itself.
        source: the paper.
    """

    learner: Callable[..., Learner]
    exact_when: str
    otherwise: str
    memory: str
    time: str
    source: str


ALGORITHMS: Mapping[str, AlgorithmClaim] = {
    "d_rtrl": AlgorithmClaim(
        D_RTRL,
        "recurrence is position by position",
        "recurrence through marked operators and other mixing is left out of the traces",
        "B·w·S",
        "B·w·S²",
        "Wang et al., 2024 (D-RTRL); Murray, eLife 2019",
    ),
    "pp_prop": AlgorithmClaim(
        pp_prop,
        "the whole sequence is one window",
        "the trace of a weight is a product of two filters",
        "B·(I + O·S)",
        "B·(I + O·S²)",
        "Wang et al., 2024 (ES-D-RTRL)",
    ),
    "eprop": AlgorithmClaim(
        EProp,
        "as D_RTRL, with symmetric feedback and no filter",
        "credit of each step's own loss; random feedback replaces the read-outs' transposes",
        "B·w·S, doubled by the filter",
        "B·w·S²",
        "Bellec et al., Nature Communications 2020",
    ),
    "ostl_feedforward": AlgorithmClaim(
        OSTLFeedforward,
        "layers of position-wise neurons without recurrent weights, one layer's memory at a time",
        "recurrent weights are left out of the traces",
        "B·w·S",
        "B·w·S²",
        "Bohnstingl et al., IEEE TNNLS 2022, without H",
    ),
    "ostl_recurrent": AlgorithmClaim(
        OSTLRecurrent,
        "as D_RTRL",
        "of recurrent weights each position's own coupling is kept",
        "B·w·S",
        "B·w·S² and one derivative per colour of the pattern",
        "Bohnstingl et al., IEEE TNNLS 2022, with H",
    ),
    "snap": AlgorithmClaim(
        SnAp,
        "n steps of the pattern reach every position, in one group",
        "influence beyond n steps of the pattern is left out",
        "B·w·K·S for K positions within reach",
        "B·w·K²·S² and one derivative per colour of the pattern",
        "Menick et al., ICLR 2021",
    ),
    "uoro": AlgorithmClaim(
        UORO,
        "in the mean, always",
        "one random direction at a time: unbiased, with high variance",
        "h + w",
        "two derivatives of the step",
        "Tallec and Ollivier, ICLR 2018",
    ),
    "rtrl": AlgorithmClaim(
        RTRL,
        "always, marked weights or not",
        "nothing",
        "h·w, h with the batch",
        "h²·w and one derivative per hidden value",
        "Williams and Zipser, Neural Computation 1989",
    ),
    "ottt": AlgorithmClaim(
        OTTT,
        "every state decays by the leak and is fed with one constant; for weights, not biases",
        "the Jacobian of the states is replaced by the leak",
        "B·I",
        "B·I",
        "Xiao et al., NeurIPS 2022",
    ),
    "three_factor": AlgorithmClaim(
        ThreeFactor,
        "the modulator is the derivative of the loss, and as D_RTRL",
        "the modulator takes the place of the loss",
        "B·w·S",
        "B·w·S²",
        "Frémaux and Gerstner, Frontiers in Neural Circuits 2016",
    ),
    "dni": AlgorithmClaim(
        DNI,
        "the synthetic gradient is the true one",
        "later steps enter by a prediction that is learned along",
        "(O·S)² per hidden group",
        "B·(O·S)² per window",
        "Jaderberg et al., ICML 2017",
    ),
}
"""Every algorithm by name; :func:`compile` takes these names in any case."""
