"""A user of braintrace 0.2 changes one import: what works, what warns, and what says how to go on."""

import re
import warnings

import pytest

import etp
from etp._renamed import RENAMED, REPLACED
from etp_core.arguments import advice_of, taken_by

from .layout import ROOT

THEIRS = (ROOT / "tests" / "braintrace_names.txt").read_text().split()
CALLS = [
    line.rstrip(")").partition("(")[::2]
    for line in (ROOT / "tests" / "braintrace_signatures.txt").read_text().splitlines()
]
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


def found(name):
    """What ``etp.NAME`` is, past a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(etp.nn if name.startswith("nn.") else etp, name.removeprefix("nn."))


def has(made, attribute):
    return hasattr(made, attribute) or attribute in getattr(made, "__dataclass_fields__", {})


@pytest.mark.parametrize(
    ("call", "arguments"), [(c, a) for c, a in CALLS if a], ids=lambda text: text.partition(",")[0]
)
def test_every_argument_of_braintrace_is_taken_or_says_what_to_write(call, arguments):
    owner, _, attribute = call.removeprefix("nn.").partition(".")
    made = found(f"nn.{owner}" if call.startswith("nn.") else owner)
    if attribute and not has(made, attribute):
        return  # the attribute itself says what to write, see below
    made = getattr(made, attribute) if attribute else made
    known = advice_of(made)
    assert set(arguments.split(", ")) <= {*taken_by(made), *known.renamed, *known.replaced}


@pytest.mark.parametrize("call", [call for call, _ in CALLS if re.fullmatch(r"\w+\.\w+", call) and "nn." not in call])
def test_every_attribute_of_braintrace_is_here_or_says_what_to_use(call):
    owner, attribute = call.split(".")
    if not has(made := found(owner), attribute):
        blank = object.__new__(made)
        with pytest.raises(AttributeError, match=f"has no attribute '{attribute}'; "):
            getattr(blank, attribute)


def test_the_migration_page_has_a_row_for_what_is_gone():
    taken = [(a, taken_by(found(c))) for c, a in CALLS if a and "." not in c]
    missing = {name for arguments, ours in taken for name in arguments.split(", ") if name not in ours}
    members = [call.split(".") for call, _ in CALLS if re.fullmatch(r"\w+\.\w+", call) and "nn." not in call]
    missing |= {attribute for owner, attribute in members if not has(found(owner), attribute)}
    assert sorted(name for name in missing if not re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE)) == []
