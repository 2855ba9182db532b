"""The safetensors format with torch alone: a JSON header, then the bytes of every tensor.

Layout: https://github.com/huggingface/safetensors#format
"""

import ctypes
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

__all__ = ["read_safetensors", "write_safetensors"]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and text to an open file.

    Raises:
        ValueError: a tensor has a dtype that the format does not know.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} is {tensor.dtype}, which cannot be saved; one of {list(NAMES)} can")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(_bytes(tensor))


def read_safetensors(data: bytearray) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the text of a file's bytes.

    Raises:
        ValueError: ``data`` is not a whole file of this format.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size].decode())
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(data, 8 + size, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a whole safetensors file of {len(data)} bytes: {error}") from error
    return tensors, metadata


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _tensor(data: bytearray, base: int, entry: Mapping[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype = DTYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    # A copy, because the offset of a tensor in the file need not be a multiple of its element size.
    part = data[base + begin : base + end]
    return torch.frombuffer(part, dtype=dtype).reshape(entry["shape"])
