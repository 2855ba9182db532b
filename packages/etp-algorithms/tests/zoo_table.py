"""The table of the documentation: every model of the zoo, its trust, and its gradient beside backpropagation's.

python -m tests.zoo_table        (in packages/etp-algorithms)
"""

from collections.abc import Iterator

import numpy as np

from etp_algorithms import oracle

from .helpers import compiled, online, reference, trusts
from .models import DIAGONAL, EXACT, inputs
from .spiking_models import SPIKING

HEAD = ("model", "trust", "deviation, windows of 1", "of 3", "cosine, windows of 1", "of 3")


def zoo():
    """Every model by name: hand-written, spiking, approximated."""
    return {
        **EXACT,
        **{name: row[0] for name, row in SPIKING.items()},
        **{name: row[0] for name, row in DIAGONAL.items()},
    }


def row_of(name, factory) -> tuple[str, ...]:
    """One row; raises if what is promised exact is not."""
    grades = trusts(compiled(factory, inputs()[0], 2))
    expected, by_step, by_three = reference(factory, 2), online(factory, 2, 1), online(factory, 2, 3)
    deviations = [oracle.relative_deviation(found, expected) for found in (by_step, by_three)]
    cosines = [oracle.cosine_similarity(found, expected) for found in (by_step, by_three)]
    if set(grades.values()) == {"exact"}:
        assert max(deviations) < 1e-7, name
        assert np.min(cosines) > 1 - 1e-12, name
        return (name, "exact", *(f"{d:.0e}" for d in deviations), "1", "1")
    told = ", ".join(f"{parameter} {grade}" for parameter, grade in grades.items())
    return (name, told, *(f"{d:.3f}" for d in deviations), *(f"{c:.4f}" for c in cosines))


def table() -> Iterator[str]:
    """The table as lines of Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for name, factory in zoo().items():
        yield f"| {' | '.join(row_of(name.replace('_', ' '), factory))} |"


if __name__ == "__main__":
    print(*table(), sep="\n")
