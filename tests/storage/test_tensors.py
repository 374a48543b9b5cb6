"""A file of tensors gives back what was written, and nothing that was changed since."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lexforge.storage.tensors import read_tensors, write_tensors


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """bfloat16, which NumPy lacks, a scalar, a view, no rows, and two names of one tensor."""
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "half": base.bfloat16(),
        "scalar": torch.tensor(7),
        "view": base.T[::2],
        "empty": torch.zeros(0, 4),
        "base": base,
        "again": base,
    }
    write_tensors(tmp_path / "file", "test", {"step": 3}, tensors)
    fields, found = read_tensors(tmp_path / "file", "test")
    assert fields == {"step": 3}
    torch.testing.assert_close(found, tensors, rtol=0, atol=0)


def test_a_file_that_was_changed_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The caller adds which file it is, and what to do."""
    file, link = tmp_path / "file", tmp_path / "link"
    write_tensors(file, "test", {}, {"a": torch.ones(2)})
    link.symlink_to(file)
    for path, format_name, reason in (
        (file, "other", "describes 'test' version 4; expected 'other'"),
        (link, "test", "it is a link"),
        (tmp_path / "missing", "test", "No such file"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_tensors(path, format_name)
    whole = file.read_bytes()
    for damaged, reason in ((whole[:-1] + b"\x01", "checksum"), (whole[:-4], "incomplete")):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=reason):
            read_tensors(file, "test")
    save_file({"a": torch.ones(2)}, file)
    with pytest.raises(ValueError, match="it has no manifest of a test"):
        read_tensors(file, "test")
