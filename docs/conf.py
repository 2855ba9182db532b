"""Sphinx: MyST pages, notebooks that run in the build, and the reference from docstrings."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "etp-suite"
author = "The etp-suite authors"
copyright = f"2026, {author}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "public_api",
    "sphinx-mathjax-offline",  # the site asks nothing of other hosts
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
suppress_warnings = ["toc.empty_glob"]  # a section may have no page yet

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_render_markdown_format = "myst"  # tables that cells make are tables
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_default_options = {"members": True, "undoc-members": True, "no-value": True}
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Our own public names have to resolve; private ones and those of other projects are not looked up.
OURS = "etp|etp_core|etp_ops|etp_algorithms|etp_fastpath|mujou_pc"
nitpick_ignore_regex = [(r"py:.*", rf"(?!({OURS})\b).*"), (r"py:.*", rf"({OURS})\.(.*\.)?_.*")]

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"

public_api_file = str(ROOT / "tests" / "public_api.txt")
