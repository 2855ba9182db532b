"""Everything at once, as one flat and lazy namespace.

``import etp`` loads neither JAX nor torch: a name brings in its package when it is first used.

    import etp

    etp.matmul    # etp_ops.matmul
    etp.D_RTRL    # etp_algorithms.D_RTRL
    etp.nn        # a module: etp_ops.nn; etp.oracle and etp.testing likewise
    etp.pc        # mujou_pc; needs `pip install "etp-suite[pc]"`

A name of braintrace 0.2 that is called otherwise here works with a ``DeprecationWarning``; one that has no counterpart
says what to use instead.
"""

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from etp._names import INSTALL, MODULES, NAMES, POPULATED_BY
from etp._renamed import RENAMED, REPLACED

if TYPE_CHECKING:
    import etp_algorithms
    import etp_core
    import etp_ops
    import mujou_pc as pc
    from etp_algorithms import *
    from etp_algorithms import functional as functional
    from etp_algorithms import oracle as oracle
    from etp_core import *
    from etp_core import testing as testing
    from etp_ops import *
    from etp_ops import nn as nn

    __all__ = ["functional", "nn", "oracle", "pc", "testing"]
    __all__ += etp_core.__all__
    __all__ += etp_ops.__all__
    __all__ += etp_algorithms.__all__
    __version__: str
else:
    _MODULE_OF = {name: module for module, names in NAMES.items() for name in names}
    __all__ = sorted([*_MODULE_OF, *MODULES])

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF and name not in MODULES:
            return _under_another_name(name)
        module_name = MODULES.get(name) or _MODULE_OF[name]
        try:
            for needed in POPULATED_BY.get(name, ()):
                import_module(needed)
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            requirement = INSTALL.get(module_name, "etp-suite")
            raise ImportError(
                f'etp.{name} needs {error.name!r}, which is not installed: pip install "{requirement}"'
            ) from error
        value = module if name in MODULES else getattr(module, name)
        globals()[name] = value
        return value

    def _under_another_name(name: str) -> object:
        if name == "__version__":
            value = import_module("importlib.metadata").version("etp-suite")
        elif name in RENAMED:
            value = __getattr__(RENAMED[name])
            warnings.warn(f"etp.{name} is called etp.{RENAMED[name]}", DeprecationWarning, stacklevel=3)
        else:
            remedy = f"; {REPLACED[name]}" if name in REPLACED else ""
            message = f"module 'etp' has no attribute {name!r}{remedy}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        globals()[name] = value  # so that it warns once
        return value

    def __dir__() -> list[str]:
        return __all__
