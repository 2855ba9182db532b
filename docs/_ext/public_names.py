"""Hold the reference to the public API.

Objects are shown under the public name they are imported by, not the private module that defines them,
and a name of ``public_names_file`` without an entry is a warning.
"""

import importlib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_config_value("public_names_file", "", "env", str)
    app.connect("config-inited", _give_public_names)
    app.connect("env-check-consistency", _check_that_all_are_documented)
    return {"parallel_read_safe": True}


def _public_names(app: Sphinx) -> list[tuple[str, str]]:
    names = Path(app.config.public_names_file).read_text().split()
    return [(module, name) for module, _, name in (line.rpartition(".") for line in names)]


def _give_public_names(app: Sphinx, _config: object) -> None:
    for module, name in _public_names(app):
        public = getattr(importlib.import_module(module), name)
        if isinstance(public, type) or callable(public):
            private = str(getattr(public, "__module__", ""))
            if any(part.startswith("_") for part in private.split(".")):
                try:
                    public.__module__ = module
                except AttributeError:  # an instance without a dictionary keeps its own
                    continue


def _check_that_all_are_documented(app: Sphinx, env: BuildEnvironment) -> None:
    objects = env.get_domain("py").objects
    for module, name in _public_names(app):
        if f"{module}.{name}" not in objects:
            logger.warning("%s.%s is public but not in docs/reference", module, name)
