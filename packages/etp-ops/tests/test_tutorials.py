"""What the tutorials print, from a fresh process."""

import subprocess
import sys

LISTING = """
import etp_ops
from etp_core import (
    BATCHED_PRIMITIVES, ETP_PRIMITIVES, ETP_RULES_DT_TO_T, ETP_RULES_INIT_DRTRL, ETP_RULES_INIT_PP, ETP_RULES_XY_TO_DW
)
print("All ETP primitives:")
for p in sorted(ETP_PRIMITIVES, key=lambda p: p.name):
    batched_tag = " [batched]" if p in BATCHED_PRIMITIVES else ""
    print(f"  {p.name}{batched_tag}")
for rules in (ETP_RULES_DT_TO_T, ETP_RULES_XY_TO_DW, ETP_RULES_INIT_DRTRL, ETP_RULES_INIT_PP):
    assert [p.name for p in sorted(rules.keys(), key=lambda p: p.name)] == sorted(p.name for p in ETP_PRIMITIVES)
"""
PRINTED = """All ETP primitives:
  etp_conv [batched]
  etp_einsum [batched]
  etp_elemwise
  etp_emb [batched]
  etp_emb_v
  etp_gmm [batched]
  etp_gmv
  etp_lora_mm [batched]
  etp_lora_mv
  etp_mm [batched]
  etp_mv
  etp_sp_mm [batched]
  etp_sp_mv
"""
TWINS = """
import etp_ops
from etp_core import ETP_PRIMITIVES, get_fast_path_rules
print({p.name: p.batched_twin.name for p in sorted(ETP_PRIMITIVES, key=lambda p: p.name) if p.batched_twin})
print([p.name for p in ETP_PRIMITIVES if p.gradient_enabled])
print([get_fast_path_rules(p) for p in (etp_ops.etp_sp_mm_p, etp_ops.etp_conv_p, etp_ops.etp_lora_mm_p)])
"""
IMPORT = "import sys, etp_ops; print([m for m in ('brainstate', 'brainevent', 'torch', 'numba') if m in sys.modules])"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_listing_of_primitives_prints_identically():
    assert run(LISTING) == PRINTED


def test_twins_transparency_and_missing_closed_forms_are_as_documented():
    twins, transparent, fast = run(TWINS).splitlines()
    pairs = {"emb_v": "emb", "gmv": "gmm", "lora_mv": "lora_mm", "mv": "mm", "sp_mv": "sp_mm"}
    assert twins == str({f"etp_{a}": f"etp_{b}" for a, b in pairs.items()})
    assert transparent == "['etp_elemwise']"
    assert fast == "[None, None, None]"


def test_the_operators_need_no_optional_package():
    assert run(IMPORT).strip() == "[]"
