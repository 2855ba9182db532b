"""A user of braintrace 0.2 changes one import: what works, what warns, and what says how to go on."""

import re
import warnings

import pytest

import etp
from etp._renamed import RENAMED, REPLACED

from .layout import ROOT

THEIRS = (ROOT / "tests" / "braintrace_names.txt").read_text().split()
PAGE = (ROOT / "docs" / "guides" / "coming-from-braintrace.md").read_text()


@pytest.mark.parametrize("name", [name for name in THEIRS if name not in {*RENAMED, *REPLACED, "nn"}])
def test_a_name_of_braintrace_is_here_under_the_same_name(name):
    module = etp.nn if name.startswith("nn.") else etp
    assert getattr(module, name.removeprefix("nn.")) is not None


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_one_is_given_and_warns_once_with_the_new_name(name):
    vars(etp).pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"etp.{name} is called etp.{RENAMED[name]}"):
        given = getattr(etp, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(etp, name) is given is getattr(etp, RENAMED[name])


@pytest.mark.parametrize("name", REPLACED)
def test_one_without_a_counterpart_says_what_to_use(name):
    with pytest.raises(AttributeError, match=re.escape(REPLACED[name])):
        getattr(etp, name)


def test_what_a_remedy_names_exists():
    for remedy in REPLACED.values():
        for name in re.findall(r"etp\.(\w+)", remedy):
            assert name in [*etp.__all__, "__version__"], remedy


@pytest.mark.parametrize("name", THEIRS)
def test_the_migration_page_has_a_row_for(name):
    assert f"`{name.removeprefix('nn.')}`" in PAGE


def test_the_lists_hold_names_of_braintrace_and_none_of_ours():
    assert {*RENAMED, *REPLACED} <= set(THEIRS)
    assert not {*RENAMED, *REPLACED} & set(etp.__all__)
