"""What a call says when its arguments do not fit: what came, what is taken, and the remedy.

For authors of packages that share these words; users of ETP never need it.
"""

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = ["Advice", "advice_of", "advised", "nearest", "no_attribute", "taken_by"]

_Made = TypeVar("_Made", bound=Callable[..., Any])
_NOTHING: Mapping[str, str] = MappingProxyType({})
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Advice:
    """What there is to say about the arguments of one callable.

    Attributes:
        needed: for arguments without a default: what they are, and how to choose them.
        renamed: other names of arguments, and their names here; they work, with a ``DeprecationWarning``.
        replaced: arguments that others take and this one does not, and what to do instead.
        surplus: what to do if there are more arguments by position than it takes.
    """

    needed: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    renamed: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    replaced: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    surplus: str = ""

    def __or__(self, other: "Advice") -> "Advice":
        """Both; where they differ, that of ``other``."""
        return Advice(
            {**self.needed, **other.needed},
            {**self.renamed, **other.renamed},
            {**self.replaced, **other.replaced},
            other.surplus or self.surplus,
        )


def advised(advice: Advice) -> Callable[[_Made], _Made]:
    """A decorator of functions and classes: calls that do not fit raise a ``TypeError`` with this advice.

    Calls that fit are unchanged, and so is what ``inspect.signature`` says.

    Example:
        >>> from etp_core.arguments import Advice, advised
        >>> @advised(Advice(needed={"decay": "a float in [0, 1)"}, replaced={"tau": "give decay=exp(-dt / tau)"}))
        ... def leak(*, decay): ...
        >>> leak(decay=0.9, tau=10.0)
        Traceback (most recent call last):
            ...
        TypeError: leak takes no tau: give decay=exp(-dt / tau).
        >>> leak()
        Traceback (most recent call last):
            ...
        TypeError: leak needs decay: a float in [0, 1).
    """

    def decorate(made: _Made) -> _Made:
        constructed: Any = made
        if not isinstance(constructed, type):
            return _advised_function(made, advice)
        constructed.__init__ = _advised_function(constructed.__init__, advice)
        return made

    return decorate


def advice_of(made: Callable[..., Any]) -> Advice:
    """The advice that a callable was given; that of a class includes its bases'."""
    own = (getattr(function, "__advice__", Advice()) for function in reversed(_functions(made)))
    return functools.reduce(Advice.__or__, own, Advice())


def taken_by(made: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments that a callable takes; a class passes options it does not know on to its bases."""
    names: dict[str, None] = {}
    for function in _functions(made):
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        optional = [p for p in parameters if not names or p.default is not p.empty]
        names.update(dict.fromkeys(p.name for p in optional if p.kind in _NAMED))
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return tuple(names)


def nearest(word: str, known: Sequence[str]) -> str:
    """``"; did you mean ...?"`` with what resembles ``word`` or begins with it, in any case; empty if nothing does."""
    by_case = {name.lower(): name for name in reversed(known)}
    close = difflib.get_close_matches(word.lower(), by_case, n=3, cutoff=0.6)
    close += [name for name in by_case if len(word) > 2 and name.startswith(word.lower()) and name not in close]
    found = [by_case[match] for match in close]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def no_attribute(owner: object, name: str, replaced: Mapping[str, str]) -> AttributeError:
    """The error of an attribute that ``owner`` does not have, with what to use instead, if ``replaced`` knows."""
    remedy = f"; {replaced[name]}" if name in replaced else ""
    return AttributeError(f"{type(owner).__name__!r} has no attribute {name!r}{remedy}", name=name, obj=owner)


def _functions(made: Callable[..., Any]) -> list[Any]:
    if not isinstance(made, type):
        return [made]
    return [vars(base)["__init__"] for base in made.__mro__[:-1] if "__init__" in vars(base)]


def _advised_function(function: Any, advice: Advice) -> Any:
    signature = inspect.signature(function)
    constructs = function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        made = type(args[0]) if constructs else checked
        for old in [name for name in options if name in advice.renamed and name not in signature.parameters]:
            new = advice.renamed[old]
            if new not in options:
                warnings.warn(f"{made.__name__}: {old} is called {new}", DeprecationWarning, stacklevel=2)
                options[new] = options.pop(old)
        try:
            for name in options:
                if name in advice.replaced and name not in signature.parameters:
                    raise TypeError(name)
            signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError("\n".join(_complaints(made, signature, advice, args, options)) or str(error)) from None
        return function(*args, **options)

    checked.__dict__["__advice__"] = advice
    return checked


def _complaints(
    made: Any, signature: inspect.Signature, advice: Advice, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with a call, a line for each argument."""
    name = made.__name__
    parameters = list(signature.parameters.values())
    hidden = int("self" in signature.parameters)
    places = [p.name for p in parameters if p.kind in _BY_PLACE]
    taken = taken_by(made)
    if len(args) > len(places) and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        shown = ", ".join(places[hidden:]) or "none"
        named = ", ".join(n for n in taken if n not in places)
        yield (
            f"{name} takes {len(places) - hidden} by position ({shown}), got {len(args) - hidden}; by name it takes "
            f"{named or 'none'}.{f' {advice.surplus}' if advice.surplus else ''}"
        )
    for option in options:
        if option in advice.replaced and option not in signature.parameters:
            yield f"{name} takes no {option}: {advice.replaced[option]}."
        elif option not in taken:
            guess = nearest(option, taken) or "."
            yield f"{name} takes no {option!r}{guess} It takes {', '.join(taken) or 'no arguments'}."
        elif option in places[: len(args)]:
            yield f"{name} got {option} twice, by position and by name; give it once."
    for n, parameter in enumerate(parameters):
        given = parameter.name in options or n < len(args)
        if parameter.kind in _BY_PLACE + _NAMED and parameter.default is parameter.empty and not given:
            what = advice.needed.get(parameter.name)
            yield f"{name} needs {parameter.name}{f': {what}' if what else ''}."
