"""A file of vectors: equal input gives equal bytes, and only its owner reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import sparse

from lexforge.corpus.vector_file import read_vectors, write_vectors

DENSE = np.arange(6, dtype=np.float32).reshape(2, 3)
SPARSE = sparse.csr_array(np.array([[0, 1.5, 0], [2, 0, 0.25], [0, 0, 0]], np.float32))


@pytest.mark.parametrize("vectors", [DENSE, SPARSE, DENSE[:, ::2], SPARSE[:0]], ids=str)
def test_what_is_packed_is_read(vectors: Any, tmp_path: Path) -> None:
    """Both kinds, a view that is not contiguous, and no rows at all."""
    path = tmp_path / "vectors.safetensors"
    write_vectors(path, vectors, "owner", lengths=np.array([3, 1]))
    found, arrays = read_vectors(path, "owner")
    assert found.shape == vectors.shape
    assert found.dtype == np.float32
    assert abs(found - vectors).sum() == 0
    assert arrays["lengths"].tolist() == [3, 1]


def packed(vectors: Any, owner: str, folder: Path) -> bytes:
    write_vectors(folder / "packed.safetensors", vectors, owner)
    return (folder / "packed.safetensors").read_bytes()


def test_equal_vectors_are_equal_bytes(tmp_path: Path) -> None:
    """Columns out of order and weights in two pieces are the same vector; a resumed corpus compares bytes."""
    indptr, columns = np.array([0, 1, 4, 4]), np.array([1, 2, 0, 2])
    pieces = sparse.csr_array((np.array([1.5, 0.125, 2, 0.125], np.float32), columns, indptr), shape=(3, 3))
    assert packed(pieces, "owner", tmp_path) == packed(SPARSE.copy(), "owner", tmp_path)
    assert packed(SPARSE, "owner", tmp_path) != packed(SPARSE, "another", tmp_path)


def test_only_whole_files_of_the_owner_are_read(tmp_path: Path) -> None:
    """Each refusal says why; which file it was is added by who reads it."""
    path, link = tmp_path / "vectors.safetensors", tmp_path / "link.safetensors"
    write_vectors(path, DENSE, "owner")
    link.symlink_to(path)
    for file, owner, reason in (
        (path, "another", "must belong to 'another'; it belongs to 'owner'"),
        (link, "owner", "link"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_vectors(file, owner)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ValueError, match="checksum"):
        read_vectors(path, "owner")
    save_file({"dense": DENSE}, path, metadata={"block": "0" * 64})  # as version 0.1 wrote it
    with pytest.raises(ValueError, match="it has no manifest of a lexforge-vectors-2"):
        read_vectors(path, "owner")
    path.write_bytes(packed(DENSE, "owner", tmp_path)[:-4])
    with pytest.raises(ValueError, match="incomplete"):
        read_vectors(path, "owner")
    with pytest.raises(ValueError, match="No such file"):
        read_vectors(tmp_path / "missing", "owner")


def test_columns_that_no_memory_holds_are_refused_even_with_good_checksums(tmp_path: Path) -> None:
    """A column without a weight takes no byte in the file, but hundreds in an index: a terabyte for 2^31."""
    path = tmp_path / "vectors.safetensors"
    write_vectors(path, sparse.csr_array((3, 2**31), dtype=np.float32), "owner")
    with pytest.raises(ValueError, match="it declares 2,147,483,648 columns; at most 4,194,304 are read"):
        read_vectors(path, "owner")
