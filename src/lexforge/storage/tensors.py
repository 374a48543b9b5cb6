"""Named tensors in a safetensors file that also holds its format, some fields and a checksum."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lexforge.storage.files import write_file
from lexforge.storage.manifest import METADATA, pack_manifest, unpack_manifest


def write_tensors(
    path: Path, format_name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write tensors to a file beside its place and rename it; equal input gives equal bytes.

    Args:
        path: The file; what it held is replaced.
        format_name: Name of the format; `read_tensors` accepts its own only.
        fields: What else the reader needs, in JSON types.
        tensors: The tensors by name, of any shape and dtype, on any device.

    Raises:
        OSError: If the file cannot be written; the error names it.
    """
    # Clones, because safetensors refuses tensors that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    manifest = pack_manifest(format_name, fields, _parts(copies))
    write_file(path, lambda beside: _write(copies, beside, manifest))


def read_tensors(path: Path, format_name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_tensors` wrote, and check it.

    Args:
        path: The file.
        format_name: Name of the format.

    Returns:
        The fields, and the tensors by name, on the CPU.

    Raises:
        ValueError: If the file is missing, a link, cut, altered or of another format. The message says why,
            and not which file it is.
    """
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            manifest = (file.metadata() or {}).get(METADATA)
        return unpack_manifest(manifest, format_name, _parts(tensors)), tensors
    except (SafetensorError, ValueError, TypeError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error


def _write(tensors: dict[str, Tensor], path: Path, manifest: str) -> None:
    """Write a safetensors file.

    Raises:
        OSError: If it cannot be written; safetensors tells the number of the error in its message only.
    """
    try:
        save_file(tensors, path, metadata={METADATA: manifest})
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
        raise


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The bytes of each tensor under a name with dtype and shape, so that these are checked too."""
    return {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}": tensor.reshape(-1).view(torch.uint8).numpy()
        for name, tensor in tensors.items()
    }
