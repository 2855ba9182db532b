"""The reference, from the list of public names.

``.. public-api:: etp_core`` documents a package and its public modules, name by name in the order of ``__all__``.
Objects are shown under the name they are imported by, not the private module that defines them.
"""

import importlib
import inspect
from pathlib import Path
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_config_value("public_api_file", "", "env", str)
    app.add_directive("public-api", PublicApi)
    app.connect("builder-inited", _give_public_names)
    app.connect("autodoc-process-docstring", _drop_docstring_of_type)
    return {"parallel_read_safe": True}


class PublicApi(SphinxDirective):
    """A section for each public module of a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write ``automodule`` and one ``auto...`` directive for each name."""
        package = self.arguments[0]
        modules = [m for m in _modules(self.config.public_api_file) if m == package or m.startswith(f"{package}.")]
        return [node for module in modules for node in self._module(module, top=module == package)]

    def _module(self, module: str, *, top: bool) -> list[nodes.Node]:
        content = f".. automodule:: {module}\n   :no-members:\n\n"
        public = importlib.import_module(module)
        kinds = {name: _kind(getattr(public, name)) for name in public.__all__}
        content += "\n\n".join(f".. auto{kind}:: {module}.{name}" for name, kind in kinds.items() if kind != "module")
        parsed = self.parse_text_to_nodes(content)
        if top:
            return parsed
        section = nodes.section("", nodes.title(text=module), *parsed, ids=[nodes.make_id(module)])
        self.state.document.note_explicit_target(section)
        return [section]


def _modules(file: str) -> list[str]:
    return list(dict.fromkeys(line.rpartition(".")[0] for line in Path(file).read_text().split()))


def _kind(public: object) -> str:
    if isinstance(public, type):
        return "exception" if issubclass(public, BaseException) else "class"
    if isinstance(public, ModuleType):
        return "module"  # has a section of its own
    return "function" if inspect.isroutine(public) or hasattr(public, "__wrapped__") else "data"


def _give_public_names(app: Sphinx) -> None:
    for module in _modules(app.config.public_api_file):
        public = importlib.import_module(module)
        for name in public.__all__:
            member = getattr(public, name)
            private = getattr(member, "__module__", None) or ""
            if _kind(member) != "data" and any(part.startswith("_") for part in private.split(".")):
                member.__module__ = module


def _drop_docstring_of_type(
    _app: Sphinx, what: str, _name: str, documented: object, _options: object, lines: list[str]
) -> None:
    """A constant or an alias without a comment of its own would show what its class says."""
    if what == "data" and documented.__doc__ == getattr(documented, "__origin__", type(documented)).__doc__:
        lines.clear()
