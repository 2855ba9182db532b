"""Ports, and the channels that join them: each holds the latest message, and nobody waits."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from mujou_pc.runtime._errors import WiringError
from mujou_pc.runtime._spec import Spec, freeze
from mujou_pc.runtime._timer import Timestamp

__all__ = ["AnyPort", "Channel", "Message", "MultiPort", "Port", "Slot"]

Received = TypeVar("Received")
Sent = TypeVar("Sent")


class Message(NamedTuple):
    """What was sent, and when.

    Args:
        value: the frozen message.
        time: the moment it was sent; ``Timestamp(ns=0)`` when nothing was sent yet.
    """

    value: Any
    time: Timestamp


def no_copy() -> TypeError:
    """What a part of a network answers to ``copy`` and ``pickle``."""
    return TypeError(
        "a network and its joined nodes cannot be copied or pickled: build another network and give its run the state "
        "of this one's (run.load_state_dict, or save and load)"
    )


class Slot:
    """One direction of a channel.

    Its message is replaced as a whole, in one store, so a reader never sees parts of two.
    """

    __slots__ = ("listeners", "message", "spec")

    listeners: tuple[Callable[[Message], None], ...]
    message: Message
    spec: Spec

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.listeners = ()
        self.clear()

    def clear(self) -> None:
        """Forget what was sent."""
        self.message = Message(self.spec.zero(), Timestamp(ns=0))

    def __reduce__(self) -> NoReturn:
        raise no_copy()

    def put(self, message: Message) -> None:
        """Replace the message."""
        self.message = message
        for listener in self.listeners:
            listener(message)


class _End(Generic[Received, Sent]):
    """What ``Port`` and ``MultiPort`` have in common: the specs, and slots in and out for each peer."""

    _now: Callable[[], Timestamp] | None

    def __init__(self, *, receives: Spec | None = None, sends: Spec | None = None) -> None:
        self.receives = receives
        self.sends = sends
        self.name = "port"
        self._in: tuple[Slot, ...] = ()
        self._out: tuple[Slot, ...] = ()
        self._peers = 0
        self._now = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} receives={self.receives} sends={self.sends}>"

    def send(self, value: Sent, *, fresh: bool = False) -> None:
        """Send ``value`` to every peer, in place of what was sent before.

        Args:
            value: the message.
            fresh: nobody else holds its tensors or their memory, as with what ``functional`` returns: they
                travel without a copy.

        Raises:
            SpecError: ``value`` does not fit ``sends``.
            RuntimeError: the port sends nothing, or its node is not in a run.
        """
        if self.sends is None:
            raise RuntimeError(f"{self.name} sends nothing: it was made without sends=")
        if self._now is None:
            raise RuntimeError(f"{self.name} is not in a run: start one with run(root) or testing.run(root)")
        message = Message(freeze(self.sends, value, self.name, fresh), self._now())
        for slot in self._out:
            slot.put(message)

    def _attach(self, incoming: Slot | None, outgoing: Slot | None) -> None:
        self._peers += 1
        self._in += () if incoming is None else (incoming,)
        self._out += () if outgoing is None else (outgoing,)

    def _detach(self, incoming: Slot | None, outgoing: Slot | None) -> None:
        self._peers -= 1
        self._in = tuple(slot for slot in self._in if slot is not incoming)
        self._out = tuple(slot for slot in self._out if slot is not outgoing)


class Port(_End[Received, Sent]):
    """A port with one peer.

    Args:
        receives: spec of what comes in; None: nothing does.
        sends: spec of what goes out; None: nothing does.

    Example:
        >>> from mujou_pc.runtime import IntSpec
        >>> Port(sends=IntSpec())
        <Port port receives=None sends=int>
    """

    def read(self) -> Received:
        """The latest value received; the zero of the spec before the first. Read-only: others read the same one."""
        return (self._in or self._nothing())[0].message.value

    def latest(self) -> Message:
        """The latest message received, with the moment it was sent."""
        return (self._in or self._nothing())[0].message

    def _nothing(self) -> NoReturn:
        raise RuntimeError(f"{self.name} has nothing to read: it receives nothing, or is joined to no peer")


class MultiPort(_End[Received, Sent]):
    """A port with any number of peers, none included. What is sent goes to all of them.

    Example:
        >>> from mujou_pc.runtime import IntSpec
        >>> MultiPort(receives=IntSpec()).read()
        ()
    """

    def read(self) -> tuple[Received, ...]:
        """The latest value from each peer, in the order they were joined; zeros from those that have not sent."""
        return tuple([slot.message.value for slot in self._in])


AnyPort = Port[Any, Any] | MultiPort[Any, Any]


class Channel:
    """Joins two ports, in both directions.

    Raises:
        WiringError: one end sends what the other does not receive, or is a ``Port`` that has a peer already.

    Example:
        >>> from mujou_pc.runtime import IntSpec
        >>> Channel(Port(sends=IntSpec()), Port(receives=IntSpec())).name
        'port->port'
    """

    def __init__(self, first: AnyPort, second: AnyPort) -> None:
        _check_fit(first, second)
        _check_fit(second, first)
        for end, other in ((first, second), (second, first)):
            if isinstance(end, Port) and end._peers:
                raise WiringError(
                    f"cannot join {first.name} and {second.name}: {end.name} is a Port and has a peer already; "
                    f"make it a MultiPort, or leave out the join with {other.name}"
                )
        self.name: str = f"{first.name}->{second.name}"
        self.ends: tuple[AnyPort, AnyPort] = (first, second)
        self.forward: Slot | None = None if first.sends is None else Slot(first.sends)
        self.back: Slot | None = None if second.sends is None else Slot(second.sends)
        first._attach(self.back, self.forward)
        second._attach(self.forward, self.back)

    def clear(self) -> None:
        """Forget what was sent either way."""
        for slot in self.slots().values():
            slot.clear()

    def slots(self) -> dict[str, Slot]:
        """The directions in which something is sent."""
        both = {"forward": self.forward, "back": self.back}
        return {name: slot for name, slot in both.items() if slot is not None}

    def detach(self) -> None:
        """Part the two ports."""
        first, second = self.ends
        first._detach(self.back, self.forward)
        second._detach(self.forward, self.back)


def _check_fit(sender: AnyPort, receiver: AnyPort) -> None:
    if sender.sends != receiver.receives:
        raise WiringError(
            f"cannot join {sender.name} and {receiver.name}: {sender.name} sends {sender.sends}, "
            f"but {receiver.name} receives {receiver.receives}; give both ends the same spec"
        )
