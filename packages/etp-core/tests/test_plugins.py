"""Kernel providers are loaded once, on first need; a broken one warns with its name and is skipped."""

import threading
import warnings
from importlib.metadata import EntryPoint

import pytest

from etp_core import PluginWarning, _plugins, get_fast_path_rules, load_plugins, register_primitive

calls = []


def good():
    calls.append("good")


def broken():
    raise RuntimeError("no such device")


def curious():
    """A provider that looks up kernels while it is being loaded."""
    primitive = register_primitive("plugins_curious", lambda x, w: x @ w, replace=True)
    calls.append(get_fast_path_rules(primitive))


@pytest.fixture(autouse=True)
def providers(monkeypatch):
    calls.clear()
    monkeypatch.setattr(_plugins, "_loaded", [])
    monkeypatch.setattr(_plugins, "_done", threading.Event())

    def install(*entries):
        found = [_Entry(name, function) for name, function in entries]
        monkeypatch.setattr(_plugins, "entry_points", lambda group: found if group == "etp_core.kernels" else [])

    return install


class _Entry(EntryPoint):
    def __new__(cls, name, function):
        return super().__new__(cls)

    def __init__(self, name, function):
        super().__init__(name, "module:function", "etp_core.kernels")
        vars(self)["load"] = (lambda: function) if callable(function) else _raise_import_error


def _raise_import_error():
    raise ImportError("gone")


def test_providers_load_once(providers):
    providers(("one", good))
    assert load_plugins() == load_plugins() == ("one",)
    assert calls == ["good"]


def test_the_first_lookup_of_a_kernel_loads_them(providers):
    providers(("one", good))
    get_fast_path_rules(register_primitive("plugins_lookup", lambda x, w: x @ w, replace=True))
    assert calls == ["good"]


@pytest.mark.parametrize("function", [broken, None], ids=["raises", "cannot be imported"])
def test_a_broken_provider_warns_with_its_name_and_the_others_load(providers, function):
    providers(("bad", function), ("good", good))
    with pytest.warns(PluginWarning, match=r"'bad' of an unknown distribution could not be loaded and is skipped"):
        assert load_plugins() == ("good",)


def test_a_broken_provider_warns_once(providers):
    providers(("bad", broken))
    with pytest.warns(PluginWarning):
        load_plugins()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_plugins() == ()


def test_a_provider_may_look_up_kernels_while_it_loads(providers):
    providers(("curious", curious))
    assert load_plugins() == ("curious",)
    assert calls == [None]


def test_without_providers_nothing_is_loaded(providers):
    providers()
    assert load_plugins() == ()
