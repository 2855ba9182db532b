"""What importing the package does not do."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["etp_core", "etp_core.testing", "etp_core.jaxpr", "etp_core.units"])
def test_import_pulls_in_neither_brainstate_nor_torch(module):
    code = f"import sys, {module}; print([m for m in ('brainstate', 'torch', 'etp_ops') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
