"""Timings of whole-sequence gradients and streaming steps with pytest-benchmark, beside backpropagation.

``nox -s timings`` times them; with ``--benchmark-disable`` each runs once, small. ``gradients.py`` compares case by
case, also with another library.
"""

import sys
from pathlib import Path

import pytest

import etp

sys.path.insert(0, str(Path(__file__).parent))  # its neighbours are scripts, which import one another by name
import gradient_cases

CASES = ("bptt", "D_RTRL", "D_RTRL exit stream", "pp_prop exit")


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    gradient_cases.use_kernels()


@pytest.mark.parametrize("family", ["rnn", "lif"])
@pytest.mark.parametrize("case", CASES)
def test_gradient(benchmark, family, case):
    width, batch, steps = (256, 16, 100) if benchmark.enabled else (8, 2, 3)
    built = gradient_cases.build(etp, case, family=family, width=width, batch=batch, steps=steps)
    benchmark.group = family
    benchmark(built.run, 1)
