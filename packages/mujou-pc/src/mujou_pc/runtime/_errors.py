"""What can go wrong in a network, as exceptions that say where."""

__all__ = ["NetworkError", "SpecError", "StuckError", "WiringError"]


class WiringError(ValueError):
    """A network was put together wrongly; raised while it is built, with the ends named."""


class SpecError(TypeError, ValueError):
    """A message does not fit the spec of the port it was given to."""


class NetworkError(RuntimeError):
    """A hook of a node raised, so the whole run stopped.

    The exception of the hook is the ``__cause__``.

    Args:
        node: path of the node in the network, such as ``"layer0"``.
        hook: name of the hook that raised, such as ``"on_update"``.
        cause: what it raised.
    """

    def __init__(self, node: str, hook: str, cause: BaseException) -> None:
        super().__init__(
            f"node {node!r} raised {type(cause).__name__} in {hook}: {cause}. The run has stopped; "
            "the traceback of the cause is above."
        )
        self.node = node
        self.hook = hook
        self.__cause__: BaseException | None = cause


class StuckError(TimeoutError):
    """``stop`` waited its whole timeout and some hooks had still not returned.

    Args:
        nodes: for each stuck node its path and the hook it is in.
        timeout: how long ``stop`` waited, in seconds.
    """

    def __init__(self, nodes: dict[str, str], timeout: float) -> None:
        stuck = ", ".join(f"{path!r} in {hook}" for path, hook in nodes.items())
        super().__init__(
            f"the run did not stop within {timeout} s: still running are {stuck}. Every other node has stopped; "
            "make these hooks return, or give stop a longer timeout."
        )
        self.nodes = nodes
