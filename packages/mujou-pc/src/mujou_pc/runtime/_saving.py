"""A run in one file: safetensors, with all that is not a tensor as JSON in its header."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mujou_pc.runtime._run import Run
from mujou_pc.runtime._safetensors import read_safetensors, write_safetensors
from mujou_pc.runtime._timer import Timestamp

__all__ = ["load", "save"]

HEADER = "mujou_pc"


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Save the state of a run, also in the middle of a stream.

    The file appears whole or not at all: it is written beside ``path`` and then takes its name, so a crash leaves
    the old one.

    Args:
        run: the run; it stands still while its state is copied, and goes on while the file is written.
        path: the file.

    Example:
        >>> import tempfile
        >>> from mujou_pc import testing
        >>> from mujou_pc.runtime import Node
        >>> run = testing.run(Node(period=0.01))
        >>> run.sleep(0.05)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(run, f"{folder}/run")
        ...     resumed = testing.run(Node(period=0.01))
        ...     load(resumed, f"{folder}/run")
        >>> resumed.timer.now() == run.timer.now()
        True
    """
    tensors: dict[str, Tensor] = {}
    tree = _to_json(run.state_dict(), "", tensors)
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write_safetensors(file, tensors, {HEADER: json.dumps(tree)})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def load(run: Run, path: str | os.PathLike[str]) -> None:
    """Go on from a saved run.

    Args:
        run: a run of the same network; dtype and device may differ.
        path: the file that ``save`` wrote.

    Raises:
        ValueError: the file is of another network (names the differing keys), or is no such file. Nothing was changed.
    """
    tensors, metadata = read_safetensors(bytearray(Path(path).read_bytes()))
    if HEADER not in metadata:
        raise ValueError(f"{path} holds tensors, but not the state of a run: give a file that save wrote")
    run.load_state_dict(_from_json(json.loads(metadata[HEADER]), tensors))


# In JSON a tensor is {"$tensor": its name} and a Timestamp {"$ns": its nanoseconds}; a dict stays one.
def _to_json(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        prefix = f"{path}/" if path else ""
        return {name: _to_json(inner, f"{prefix}{name}", tensors) for name, inner in value.items()}
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, Timestamp):
        return {"$ns": value.ns}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the state {path} is a {type(value).__name__}, which cannot be saved: keep tensors, numbers and text"
    )


def _from_json(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$tensor"}:
        return tensors[value["$tensor"]]
    if value.keys() == {"$ns"}:
        return Timestamp(value["$ns"])
    return {name: _from_json(inner, tensors) for name, inner in value.items()}


def _sync_directory(directory: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
