import importlib

import pytest

import etp
from etp._names import MODULES, NAMES

from .public_api import FILE, PACKAGES, public_modules, public_names

# Public names of a package that are not in the flat namespace, each with its reason.
NOT_FLAT: dict[str, set[str]] = {
    "etp_core": set(),
    "etp_ops": set(),
    "etp_algorithms": set(),
}


def test_the_public_api_is_what_public_api_txt_says():
    written = set(FILE.read_text().split())
    found = set(public_names())
    assert found == written, (
        f"new: {sorted(found - written)}; gone: {sorted(written - found)}. "
        "If this is meant: nox -s api, and a line in that package's CHANGELOG."
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_module_lists_its_names_and_has_them(package):
    for name in public_modules(package):
        module = importlib.import_module(name)
        assert len(module.__all__) == len(set(module.__all__)), name
        missing = [public for public in module.__all__ if not hasattr(module, public)]
        assert not missing, f"{name}.__all__ lists {missing}, which it does not have"


@pytest.mark.parametrize("package", NOT_FLAT)
def test_the_flat_namespace_has_every_public_name_of(package):
    public = set(importlib.import_module(package).__all__)
    flat = set(NAMES[package]) | {name for name, module in MODULES.items() if module == f"{package}.{name}"} & public
    assert flat == public - NOT_FLAT[package], "edit src/etp/_names.py"


def test_no_two_packages_give_the_same_flat_name():
    flat = [*MODULES, *(name for names in NAMES.values() for name in names)]
    assert len(flat) == len(set(flat))


@pytest.mark.parametrize("name", etp.__all__)
def test_every_flat_name_resolves_to_the_object_of_its_package(name):
    if name in MODULES:
        assert getattr(etp, name) is importlib.import_module(MODULES[name])
    else:
        (package,) = (package for package, names in NAMES.items() if name in names)
        assert getattr(etp, name) is getattr(importlib.import_module(package), name)


def test_an_unknown_flat_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'etp' has no attribute 'D_RTLR'"):
        _ = etp.D_RTLR
