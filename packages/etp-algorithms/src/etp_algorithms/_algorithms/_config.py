"""The axes behind the algorithms: one choice on each makes an algorithm, with or without a name."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from etp_algorithms._advice import CONFIG
from etp_algorithms._algorithms._dni import SyntheticGradients
from etp_algorithms._algorithms._param_dim_traces import ParamDimTraces
from etp_algorithms._algorithms._pp_prop import FactorisedTraces
from etp_algorithms._algorithms._recursion import Recursion, TemporalRecursion, check_decay
from etp_algorithms._algorithms._rtrl import InfluenceMatrix
from etp_algorithms._algorithms._snap import NeighbourTraces
from etp_algorithms._algorithms._uoro import RankOneInfluence
from etp_algorithms._engine import LearningSignal, SignalPlace, TraceAlgorithm
from etp_algorithms._feedback import RandomFeedback, key_data_of
from etp_core.arguments import advised

__all__ = ["ETraceConfig"]

Factorization = Literal["per_param", "io_factorized", "random_projection", "full"]
Scope = Literal["diagonal", "coupled", "sparse_n", "full"]
Credit = Literal["symmetric", "random_feedback", "modulatory", "bootstrapped"]
Filter = Literal["none", "kappa"]


@advised(CONFIG)
@dataclass(frozen=True)
class ETraceConfig:
    """A point in the space of algorithms; a combination that means nothing is an error.

    Attributes:
        trace_factorization: what is stored: a trace ``"per_param"``, filters of input and output
            (``"io_factorized"``), a random projection of rank one, or the ``"full"`` influence matrix.
        temporal_recursion: how a trace moves on: by the ``"jacobian"`` of the states, by a ``"scalar_leak"``, or not at
            all (``"none"``). For ``"io_factorized"`` it is that of the output side; the input side always leaks.
        recurrence_scope: what the Jacobian contains: ``"diagonal"``, nothing through marked operators; ``"coupled"``,
            each position's own coupling; ``"sparse_n"``, neighbours within ``sparse_n`` steps; ``"full"``, everything.
            None for the one scope that the factorisation has, or ``"diagonal"``.
        learning_signal: the derivative of the loss (``"symmetric"``), the same with random matrices in the read-outs
            (``"random_feedback"``), a modulator, or a synthetic gradient beyond the window (``"bootstrapped"``).
        trace_filter: a ``"kappa"`` filter over the traces, or ``"none"``.
        signal: at the ``"entry"`` of a window or at the ``"exit"`` of every step; None for the exit where a filter or a
            modulator asks for it, else the entry.
        decay: of ``"scalar_leak"``; for ``"io_factorized"`` a pair, of the input and the output side.
        kappa: decay of the filter.
        sparse_n: steps of ``"sparse_n"``.
        key: an int seed or a JAX random key for random feedback or projection.
        feedback_scale: standard deviation of random feedback.
        trace_dtype: the dtype in which traces are stored.

    Raises:
        ValueError: an unknown choice, a coefficient out of range, missing or without effect, or choices that do not go
            together.
        TypeError: a coefficient of another type.

    Example:
        >>> from etp_algorithms import ETraceConfig
        >>> ETraceConfig(temporal_recursion="scalar_leak", decay=0.9).algorithm().name
        'ETraceConfig(scalar_leak, 0.9)'
    """

    trace_factorization: Factorization = "per_param"
    temporal_recursion: Recursion = "jacobian"
    recurrence_scope: Scope | None = None
    learning_signal: Credit = "symmetric"
    trace_filter: Filter = "none"
    signal: SignalPlace | None = None
    decay: float | tuple[float, float] | None = None
    kappa: float | None = None
    sparse_n: int | None = None
    key: Any = None
    feedback_scale: float | None = None
    trace_dtype: Any = None

    def __post_init__(self) -> None:
        self._check_words()
        scope, place = self.recurrence_scope, self.signal
        if scope is None:
            whole = self.trace_factorization in ("random_projection", "full")
            object.__setattr__(self, "recurrence_scope", "full" if whole else "diagonal")
        if place is None:
            outside = self.trace_filter == "kappa" or self.learning_signal == "modulatory"
            object.__setattr__(self, "signal", "exit" if outside else "entry")
        self._check_scope()
        self._check_recursion()
        self._check_signal()
        self._check_coefficients()

    def replace(self, **changes: Any) -> "ETraceConfig":
        """The same with other choices; what was derived is derived again unless it is given."""
        return replace(self, **{"recurrence_scope": None, "signal": None, **changes})

    def describe(self) -> str:
        """The choices that differ from the defaults, in words of the axes."""
        base = {f.name: f.default for f in fields(self)}
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != base[f.name]}
        plain = {"recurrence_scope": "diagonal", "signal": "entry"}
        words = [str(v) for k, v in chosen.items() if plain.get(k) != v and k not in ("key", "trace_dtype")]
        return f"ETraceConfig({', '.join(words)})"

    def algorithm(self, *, use_kernels: bool = True) -> TraceAlgorithm:
        """The trace algorithm at this point."""
        name, place = self.describe(), self.signal or "entry"
        feedback = None
        if self.learning_signal == "random_feedback":
            feedback = RandomFeedback(key_data_of(self.key), self.feedback_scale)
        signal = LearningSignal(place, feedback, self.learning_signal == "modulatory")
        if self.learning_signal == "bootstrapped":
            return SyntheticGradients(name=name)
        if self.trace_factorization == "full":
            return InfluenceMatrix(signal=signal, name=name)
        if self.trace_factorization == "random_projection":
            return RankOneInfluence(key_data_of(42 if self.key is None else self.key), signal, name)
        if self.trace_factorization == "io_factorized":
            assert isinstance(self.decay, tuple)
            return FactorisedTraces(self.decay[0], self.decay[1], self.trace_dtype, signal, name)
        if self.recurrence_scope == "sparse_n":
            assert self.sparse_n is not None
            return NeighbourTraces(self.sparse_n, self.trace_dtype, signal, name)
        leak = self.decay if isinstance(self.decay, (int, float)) else 0.0
        coupled = self.recurrence_scope == "coupled"
        recursion = TemporalRecursion(self.temporal_recursion, coupled, float(leak), self.kappa or 0.0)
        return ParamDimTraces(self.trace_dtype, use_kernels, signal, recursion, name)

    def _check_words(self) -> None:
        allowed = {
            "trace_factorization": get_args(Factorization),
            "temporal_recursion": get_args(Recursion),
            "recurrence_scope": (*get_args(Scope), None),
            "learning_signal": get_args(Credit),
            "trace_filter": get_args(Filter),
            "signal": (*get_args(SignalPlace), None),
        }
        for axis, words in allowed.items():
            if getattr(self, axis) not in words:
                raise ValueError(f"{axis} must be one of {', '.join(map(repr, words))}; got {getattr(self, axis)!r}.")

    def _check_scope(self) -> None:
        whole = self.trace_factorization in ("random_projection", "full")
        if whole != (self.recurrence_scope == "full"):
            raise ValueError(
                f"recurrence_scope={self.recurrence_scope!r} does not go with trace_factorization="
                f"{self.trace_factorization!r}: 'random_projection' and 'full' take the whole Jacobian, the others "
                f"'diagonal', 'coupled' or 'sparse_n'."
            )
        if self.trace_factorization == "io_factorized" and self.recurrence_scope != "diagonal":
            raise ValueError("trace_factorization='io_factorized' takes recurrence_scope='diagonal' only.")

    def _check_recursion(self) -> None:
        if self.temporal_recursion == "jacobian":
            return
        if self.recurrence_scope != "diagonal":
            raise ValueError(
                f"temporal_recursion={self.temporal_recursion!r} replaces the Jacobian, so recurrence_scope="
                f"{self.recurrence_scope!r} would have no effect; use 'diagonal'."
            )
        if self.trace_factorization == "io_factorized" and self.temporal_recursion == "scalar_leak":
            raise ValueError(
                "trace_factorization='io_factorized' leaks on both sides already; take temporal_recursion='jacobian', "
                "or 'none' for an output side without memory."
            )

    def _check_signal(self) -> None:
        whole = self.trace_factorization in ("random_projection", "full")
        if self.trace_filter == "kappa":
            if self.trace_factorization != "per_param" or self.recurrence_scope == "sparse_n":
                raise ValueError("trace_filter='kappa' takes trace_factorization='per_param', 'diagonal' or 'coupled'.")
            if self.signal != "exit":
                raise ValueError("trace_filter='kappa' stands for a read-out after the step: use signal='exit'.")
        if self.learning_signal == "modulatory":
            if whole:
                raise ValueError("learning_signal='modulatory' takes traces of marked weights, not of all parameters.")
            if self.signal != "exit":
                raise ValueError("learning_signal='modulatory' credits every step at its end: use signal='exit'.")
        if self.learning_signal == "random_feedback" and whole:
            raise ValueError("learning_signal='random_feedback' takes 'per_param' or 'io_factorized' traces.")
        if self.learning_signal == "bootstrapped":
            if not _is_plain(self):
                raise ValueError("learning_signal='bootstrapped' keeps no trace, so no other axis has an effect.")
            if self.signal != "entry":
                raise ValueError("learning_signal='bootstrapped' takes signal='entry'.")

    def _check_coefficients(self) -> None:
        takes_decay = self.temporal_recursion == "scalar_leak" or self.trace_factorization == "io_factorized"
        needs = {
            "decay": takes_decay,
            "kappa": self.trace_filter == "kappa",
            "sparse_n": self.recurrence_scope == "sparse_n",
        }
        for name, needed in needs.items():
            if needed and getattr(self, name) is None:
                raise ValueError(f"{self.describe()} needs {name}.")
            if not needed and getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect here; leave it out.")
        if self.trace_factorization == "io_factorized":
            pair = self.decay if isinstance(self.decay, (tuple, list)) else (self.decay, self.decay)
            if len(pair) != 2:
                raise ValueError(f"a pair of decays is (input, output); got {len(pair)} values.")
            x, f = (check_decay("decay", value) for value in pair)
            if self.temporal_recursion == "none":
                if isinstance(self.decay, (tuple, list)) and f:
                    raise ValueError(
                        f"temporal_recursion='none' has no memory on the output side; its decay {f} is lost."
                    )
                f = 0.0
            object.__setattr__(self, "decay", (x, f))
        elif self.decay is not None:
            check_decay("decay", self.decay)
        if self.kappa is not None:
            check_decay("kappa", self.kappa)
        takes_key = self.learning_signal == "random_feedback" or self.trace_factorization == "random_projection"
        if self.learning_signal == "random_feedback" and self.key is None:
            raise ValueError("learning_signal='random_feedback' needs key, an int seed or a JAX random key.")
        if not takes_key and self.key is not None:
            raise ValueError("key has no effect here; leave it out.")
        if self.feedback_scale is not None and self.learning_signal != "random_feedback":
            raise ValueError("feedback_scale has no effect without random feedback; leave it out.")


def _is_plain(config: ETraceConfig) -> bool:
    """Whether all axes but the learning signal have their first value."""
    chosen = (config.trace_factorization, config.temporal_recursion, config.recurrence_scope, config.trace_filter)
    return chosen == ("per_param", "jacobian", "diagonal", "none")
