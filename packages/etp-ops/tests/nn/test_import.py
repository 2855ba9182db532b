import subprocess
import sys


def test_the_operators_do_without_brainstate():
    code = "import sys, etp_ops; sys.exit('brainstate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
