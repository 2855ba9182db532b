"""Calls that do not fit say what to write."""

import inspect
import warnings

import pytest

from etp_core.arguments import Advice, advice_of, advised, nearest, no_attribute, taken_by

ADVICE = Advice(
    needed={"decay": "a float in [0, 1)"},
    renamed={"speed": "rate"},
    replaced={"tau": "give decay=exp(-dt / tau)"},
    surplus="Other options go by name.",
)


@advised(ADVICE)
def leak(x, decay, *, rate=1.0):
    return x, decay, rate


class Base:
    @advised(Advice(replaced={"fast": "it is always fast"}))
    def __init__(self, x, *, kept=1):
        self.x, self.kept = x, kept


@advised(Advice(needed={"decay": "a float in [0, 1)"}))
class Child(Base):
    def __init__(self, x, decay, **options):
        super().__init__(x, **options)
        self.decay = decay


def test_a_call_that_fits_is_unchanged():
    assert leak(1, 2, rate=3) == (1, 2, 3)
    assert str(inspect.signature(leak)) == "(x, decay, *, rate=1.0)"
    child = Child(1, decay=2, kept=3)
    assert (child.x, child.decay, child.kept) == (1, 2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: leak(1), "leak needs decay: a float in [0, 1)."),
        (lambda: leak(decay=1), "leak needs x."),
        (lambda: leak(1, 2, tau=3), "leak takes no tau: give decay=exp(-dt / tau)."),
        (
            lambda: leak(1, 2, 3),
            "leak takes 2 by position (x, decay), got 3; by name it takes rate. Other options go by",
        ),
        (lambda: leak(1, 2, decay=3), "leak got decay twice, by position and by name; give it once."),
        (lambda: leak(1, 2, rat=3), "leak takes no 'rat'; did you mean rate? It takes x, decay, rate."),
        (lambda: leak(1, 2, colour=3), "leak takes no 'colour'. It takes x, decay, rate."),
        (lambda: leak(1, tau=3), "leak takes no tau: give decay=exp(-dt / tau).\nleak needs decay: a float in [0, 1)."),
        (lambda: Child(1), "Child needs decay: a float in [0, 1)."),
        (lambda: Child(1, 2, fast=True), "Child takes no fast: it is always fast."),
        (lambda: Child(1, 2, kep=3), "Child takes no 'kep'; did you mean kept? It takes x, decay, kept."),
        (lambda: Child(1, 2, 3), "Child takes 2 by position (x, decay), got 3; by name it takes kept."),
    ],
)
def test_one_that_does_not_says_what_to_write(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_another_name_works_and_warns_at_the_call():
    with pytest.warns(DeprecationWarning, match="leak: speed is called rate"):
        assert leak(1, 2, speed=3) == (1, 2, 3)
    with pytest.raises(TypeError, match="leak takes no 'speed'"):
        leak(1, 2, speed=3, rate=4)


def test_an_error_inside_the_function_stays_what_it_is():
    @advised(ADVICE)
    def broken(x):
        return len(x)

    with warnings.catch_warnings(), pytest.raises(TypeError, match="has no len"):
        broken(1)


def test_advice_and_names_of_a_class_include_its_bases():
    assert set(advice_of(Child).replaced) == {"fast"}
    assert set(advice_of(Child).needed) == {"decay"}
    assert taken_by(Child) == ("x", "decay", "kept")
    assert taken_by(leak) == ("x", "decay", "rate")


def test_the_nearest_words_are_found_in_any_case():
    assert nearest("D_RTLR", ["pp_prop", "d_rtrl"]) == "; did you mean d_rtrl?"
    assert nearest("decay", ["decay_or_rank", "delay"]) == "; did you mean delay or decay_or_rank?"
    assert nearest("colour", ["pp_prop"]) == ""


def test_a_missing_attribute_says_what_to_use():
    error = no_attribute(leak, "speed", {"speed": "use rate"})
    assert (str(error), error.name, error.obj) == ("'function' has no attribute 'speed'; use rate", "speed", leak)
