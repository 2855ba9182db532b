"""Networks: parts that are joined, and groups: parts side by side. Both nest."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NoReturn

from torch import nn

from mujou_pc.runtime._errors import WiringError
from mujou_pc.runtime._node import Node
from mujou_pc.runtime._port import AnyPort, Channel, Port, no_copy

__all__ = ["Group", "Network", "Part", "channels", "walk"]


class Network:
    """Parts with names, the joins between their ports, and the ports they show to the outside.

    Args:
        parts: nodes, networks and groups by name.
        connect: pairs of ports to join.
        ports: the ports of the parts that this network shows to the outside, by name. Those of the root of a run are
            the host's to read and write.

    Raises:
        WiringError: a ``Port`` is neither joined nor shown, or is joined twice; two ends do not fit; a name is taken or
            not a plain name; a node is in two networks; two nodes share a module or a weight. The ends are named.

    Example:
        >>> from mujou_pc.runtime import IntSpec
        >>> first, second = Node(period=0.01), Node(period=0.01)
        >>> first.next, second.prev = Port(sends=IntSpec()), Port(receives=IntSpec())
        >>> network = Network({"first": first, "second": second}, connect=[(first.next, second.prev)])
        >>> [channel.name for channel in network.joined]
        ['first.next->second.prev']
    """

    def __init__(
        self,
        parts: Mapping[str, "Part"],
        *,
        connect: Iterable[tuple[AnyPort, AnyPort]] = (),
        ports: Mapping[str, AnyPort] = MappingProxyType({}),
    ) -> None:
        _check_names([*parts, *ports])
        inside = _claim(parts)
        joined: list[Channel] = []
        try:
            for first, second in connect:
                _check_inside(first, inside)
                _check_inside(second, inside)
                joined.append(Channel(first, second))
            _check_shown(ports, inside)
            _check_closed(inside, shown=list(ports.values()))
        except WiringError:
            for channel in joined:
                channel.detach()
            _release(parts)
            raise
        self.parts: Mapping[str, Part] = MappingProxyType(dict(parts))
        self.open_ports: Mapping[str, AnyPort] = MappingProxyType(dict(ports))
        self.joined: tuple[Channel, ...] = tuple(joined)
        self._placed = False

    def __reduce__(self) -> NoReturn:
        raise no_copy()


class Group:
    """Parts side by side, joined by nothing. It shows every open port of its parts, as ``part.port``.

    Args:
        parts: nodes, networks and groups by name.

    Raises:
        WiringError: as ``Network``.

    Example:
        >>> list(Group({"left": Node(period=0.01), "right": Node(period=0.02)}).parts)
        ['left', 'right']
    """

    def __init__(self, parts: Mapping[str, "Part"]) -> None:
        _check_names(list(parts))
        self.open_ports: Mapping[str, AnyPort] = MappingProxyType({port.name: port for port in _claim(parts)})
        self.parts: Mapping[str, Part] = MappingProxyType(dict(parts))
        self.joined: tuple[Channel, ...] = ()
        self._placed = False

    def __reduce__(self) -> NoReturn:
        raise no_copy()


Part = Node | Network | Group


def walk(part: Part, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node of ``part`` with its path, in the order they were given."""
    if isinstance(part, Node):
        yield path, part
        return
    for name, inner in part.parts.items():
        yield from walk(inner, f"{path}.{name}" if path else name)


def channels(part: Part, path: str = "") -> Iterator[tuple[str, Channel]]:
    """Every channel of ``part`` with a name of its own."""
    if isinstance(part, Node):
        return
    prefix = f"{path}." if path else ""
    for name, inner in part.parts.items():
        yield from channels(inner, prefix + name)
    for channel in part.joined:
        yield prefix + channel.name, channel


def open_ports(part: Part) -> Mapping[str, AnyPort]:
    """The ports of ``part`` that are not joined inside it, by name."""
    return part.ports() if isinstance(part, Node) else part.open_ports


def _check_names(names: list[str]) -> None:
    for name in names:
        if not name.replace("-", "_").isidentifier():
            raise WiringError(f"{name!r} is not a plain name: use letters, digits, '_' and '-'")
        if names.count(name) > 1:
            raise WiringError(f"the name {name!r} is given to both a part and a port: rename one of them")


def _claim(parts: Mapping[str, Part]) -> list[AnyPort]:
    """Take the parts into one network; the open ports, each named after its part."""
    for name, part in parts.items():
        if part._placed or sum(part is other for other in parts.values()) > 1:
            raise WiringError(f"{name!r} is already part of a network: make another {type(part).__name__} for this one")
    _check_shared_modules(parts)
    inside: list[AnyPort] = []
    for name, part in parts.items():
        part._placed = True
        for label, port in open_ports(part).items():
            port.name = f"{name}.{label}"
            inside.append(port)
    return inside


def _release(parts: Mapping[str, Part]) -> None:
    for part in parts.values():
        part._placed = False


def _check_shared_modules(parts: Mapping[str, Part]) -> None:
    owners: dict[object, str] = {}
    for name, part in parts.items():
        for path, node in walk(part, name):
            for thing, label in _learned_things(node):
                if owners.setdefault(thing, path) != path:
                    raise WiringError(
                        f"nodes {owners[thing]!r} and {path!r} share {label}: both would move it, each in its own "
                        "time; give each node a module of its own (copy.deepcopy)"
                    )


# A weight is known by its place in memory, because two Parameters may share one.
def _learned_things(node: Node) -> Iterator[tuple[object, str]]:
    for attribute, module in vars(node).items():
        if isinstance(module, nn.Module):
            for name, inner in module.named_modules(prefix=attribute):
                if any(True for _ in inner.parameters()) or any(True for _ in inner.buffers()):
                    yield id(inner), f"the module {name}"
            for name, parameter in module.named_parameters(prefix=attribute):
                place = parameter.data_ptr()
                yield (parameter.device, place) if place else id(parameter), f"the weight {name}"


def _check_inside(port: AnyPort, inside: list[AnyPort]) -> None:
    if not any(port is known for known in inside):
        raise WiringError(f"{port.name} is not an open port of any part of this network: name its node in parts")


def _check_shown(shown: Mapping[str, AnyPort], inside: list[AnyPort]) -> None:
    for name, port in shown.items():
        _check_inside(port, inside)
        if isinstance(port, Port) and port._peers:
            raise WiringError(f"{port.name} is joined inside the network, so it cannot be shown as {name!r} too")
        if sum(port is other for other in shown.values()) > 1:
            raise WiringError(f"{port.name} is shown under two names: keep one of them")


def _check_closed(inside: list[AnyPort], shown: list[AnyPort]) -> None:
    for port in inside:
        if isinstance(port, Port) and not port._peers and not any(port is other for other in shown):
            raise WiringError(f"{port.name} is joined to nothing: add a pair to connect=, or show it with ports=")
