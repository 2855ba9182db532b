"""What an import brings in, asked in a fresh interpreter."""

import subprocess
import sys

import pytest

JAX = {"jax", "jaxlib", "brainunit", "brainstate", "brainevent"}


def loaded_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import etp", {*JAX, "numpy", "torch"}),
        ("import etp; dir(etp); hasattr(etp, 'no_such_name')", {*JAX, "numpy", "torch"}),
        ("import etp_core", {"brainstate", "brainevent", "torch", "etp_ops"}),
        ("import etp; etp.ETPPrimitive", {"torch", "etp_algorithms", "etp_ops"}),
        ("import etp_ops", {"brainstate", "torch", "etp_algorithms"}),
        ("import etp_algorithms", {"torch", "etp_ops", "etp_fastpath"}),
        ("import etp_fastpath", {"torch", "etp_algorithms"}),
        ("import mujou_pc", {*JAX, "etp_core", "torch._dynamo"}),
        ("import etp; etp.pc", {*JAX, "etp_core"}),
    ],
)
def test_import_leaves_out(statement, absent):
    assert not loaded_after(statement) & absent


def test_a_missing_part_says_how_to_install_it():
    program = "import sys; sys.modules['mujou_pc'] = None; import etp; etp.pc"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "ImportError: etp.pc needs 'mujou_pc', which is not installed: pip install \"etp-suite[pc]\""
    )


@pytest.mark.parametrize("statement", ["import mujou_pc", "import etp; etp.pc"])
def test_predictive_coding_without_torch_says_how_to_install_it(statement):
    program = f"import sys; sys.modules['torch'] = None; {statement}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    assert (
        run.stderr.splitlines()[-1] == "ImportError: mujou_pc needs PyTorch, which is not installed: pip install torch"
    )


def test_the_registry_seen_through_the_namespace_holds_every_operator():
    listing = (
        "import etp\n"
        "for p in sorted(etp.ETP_PRIMITIVES, key=lambda p: p.name):\n"
        "    print(p.name + (' [batched]' if p in etp.BATCHED_PRIMITIVES else ''))\n"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "etp_conv [batched]",
        "etp_einsum [batched]",
        "etp_elemwise",
        "etp_emb [batched]",
        "etp_emb_v",
        "etp_gmm [batched]",
        "etp_gmv",
        "etp_lora_mm [batched]",
        "etp_lora_mv",
        "etp_mm [batched]",
        "etp_mv",
        "etp_sp_mm [batched]",
        "etp_sp_mv",
    ]
