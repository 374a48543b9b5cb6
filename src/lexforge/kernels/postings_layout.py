"""The arrays of an inverted index: what they hold, how parts are joined, written and checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


class Postings(NamedTuple):
    """An inverted index as flat, read-only arrays of N documents, S segments, V terms and P postings.

    Args:
        block_size: Documents per block; the last block of a segment can hold fewer.
        positions: `[N] int64`, the position of each document; the documents stand in the stored order.
        starts: `[S + 1] int64`, the first document of each segment in the stored order, and N.
        first_blocks: `[S + 1] int64`, the first block of each segment, and the number of blocks.
        offsets: `[N + 1] int64`, the first posting of each document in the stored order, and P.
        terms: `[P] uint16` or `uint32`, the term of each posting, ascending within a document.
        weights: `[P] float32` that are > 0.
        scales: `[S, V] float32`, the largest weight of a term in the segment divided by 255 and rounded up; 0
            if no document of the segment holds the term.
        dense_starts: `[S, V] int64`, where the row of a frequent term starts in `dense`; -1 for other terms.
        dense: `[R] uint8`, the rows of the frequent terms one after the other, one level per block.
        list_starts: `[S, V + 1] int64`, where the list of each other term starts in the next two arrays.
        list_blocks: `[L] uint16`, the number of a block within its segment.
        list_levels: `[L] uint8`; no weight of the term in the block is above level * scale.
    """

    block_size: int
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    first_blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    terms: NDArray[np.unsignedinteger]
    weights: NDArray[np.float32]
    scales: NDArray[np.float32]
    dense_starts: NDArray[np.int64]
    dense: NDArray[np.uint8]
    list_starts: NDArray[np.int64]
    list_blocks: NDArray[np.uint16]
    list_levels: NDArray[np.uint8]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.positions)

    @property
    def num_terms(self) -> int:
        """The number of terms (columns)."""
        return self.scales.shape[1]


# The dtype and the number of dimensions of each array. `terms`, which have one of two dtypes, are checked by
# themselves.
_DTYPES = {
    "positions": ("<i8", 1),
    "starts": ("<i8", 1),
    "first_blocks": ("<i8", 1),
    "offsets": ("<i8", 1),
    "weights": ("<f4", 1),
    "scales": ("<f4", 2),
    "dense_starts": ("<i8", 2),
    "dense": ("|u1", 1),
    "list_starts": ("<i8", 2),
    "list_blocks": ("<u2", 1),
    "list_levels": ("|u1", 1),
}


def frozen(array: NDArray, dtype: Any) -> NDArray:
    """Return a contiguous read-only view, as the compiled functions take it of any array."""
    view: NDArray = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view


def of_arrays(block_size: int, **arrays: Any) -> Postings:
    """Return postings of read-only arrays with the dtypes that the compiled search expects."""
    made = {
        name: frozen(np.asarray(array), _DTYPES[name][0] if name in _DTYPES else array.dtype)
        for name, array in arrays.items()
    }
    return Postings(block_size, **made)


def starts_of(counts: NDArray) -> NDArray[np.int64]:
    """Return where each of several runs of these lengths starts, and where the last one ends: `[n + 1]`."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


def check_postings(postings: Postings, documents: int, terms: int) -> None:
    """Refuse arrays from a file that the compiled search, which checks no index, could not read safely.

    Args:
        postings: What was read from the file.
        documents: The number of documents that the other files say.
        terms: The number of terms that the other files say.

    Raises:
        ValueError: If an array has another dtype, size or order than `Postings` says.
    """
    dtypes = {name: (getattr(postings, name).dtype.str, getattr(postings, name).ndim) for name in _DTYPES}
    term_dtype = postings.terms.dtype.str
    if dtypes != _DTYPES or term_dtype not in ("<u2", "<u4"):
        raise ValueError(f"the arrays have the wrong dtypes {dtypes}, terms {term_dtype}")
    if not isinstance(postings.block_size, int) or not 1 <= postings.block_size < 2**31:
        raise ValueError(
            f"block_size must be an integer from 1 to 2^31 - 1; received {postings.block_size!r}"
        )
    _check_starts("starts", postings.starts, documents)
    sizes = np.diff(postings.starts)
    segments = len(sizes)
    blocks = -(-sizes // postings.block_size)
    shapes = [postings.scales.shape, postings.dense_starts.shape, postings.list_starts.shape]
    if shapes != [(segments, terms), (segments, terms), (segments, terms + 1)]:
        raise ValueError(f"the arrays have the shapes {shapes} for {segments} segments and {terms} terms")
    if not np.array_equal(postings.first_blocks, starts_of(blocks)):
        raise ValueError("first_blocks must be the sums of the segments' blocks, and are not")
    held = np.zeros(documents, bool)
    if len(postings.positions) == documents:
        held[postings.positions[(postings.positions >= 0) & (postings.positions < documents)]] = True
    if not held.all():
        raise ValueError(f"positions must hold each of 0 to {documents - 1} once, and do not")
    if len(postings.offsets) != documents + 1 or postings.terms.shape != postings.weights.shape:
        raise ValueError(
            f"received {len(postings.offsets)} offsets for {documents} documents, and "
            f"{len(postings.weights)} weights for {len(postings.terms)} terms"
        )
    _check_starts("offsets", postings.offsets, len(postings.terms))
    if len(postings.list_blocks) != len(postings.list_levels):
        raise ValueError(
            f"the lists must hold one level per block; received {len(postings.list_blocks)} blocks and "
            f"{len(postings.list_levels)} levels"
        )
    _check_starts("list_starts", postings.list_starts.reshape(-1), len(postings.list_blocks))
    # The largest allowed start of a row. `start + blocks` is not computed, because it could overflow.
    last_rows = len(postings.dense) - blocks[:, None]  # [S, 1]
    if ((postings.dense_starts >= 0) & (postings.dense_starts > last_rows)).any():
        raise ValueError("a row of bounds must end within the array `dense`, and does not")
    # To read all terms of a large file takes long. The pruned search has a weight for whatever 16 bits can
    # say, and who else reads such terms checks those that it reads.
    if term_dtype != "<u2":
        check_terms(postings.terms, terms)


def check_terms(found: NDArray[np.unsignedinteger], terms: int) -> None:
    """Refuse terms of a file that lie outside the vocabulary.

    Args:
        found: Terms of postings.
        terms: The number of terms V.

    Raises:
        ValueError: If one is not below V.
    """
    if len(found) and int(found.max()) >= terms:
        raise ValueError(f"a term must be below {terms}; received {found.max()}")


def _check_starts(name: str, starts: NDArray[np.int64], last: int) -> None:
    """Refuse starts of runs that do not ascend from 0 to the length of the array.

    Raises:
        ValueError: If they do not.
    """
    if not len(starts) or starts[0] != 0 or starts[-1] != last or (starts[1:] < starts[:-1]).any():
        raise ValueError(f"{name} must ascend from 0 to {last}, and do not")


def join_postings(parts: list[Postings]) -> Postings:
    """Join parts to the postings of all their documents.

    Args:
        parts: At least one part; all have the same block size and number of terms.

    Returns:
        The postings; the positions of a part continue after those of the part before it.
    """
    parts = [part for part in parts if part.num_documents] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    chained = {name: np.concatenate([getattr(part, name) for part in parts]) for name in CHAINED}
    return of_arrays(parts[0].block_size, **_joined_starts(parts), **chained)


CHAINED = ("terms", "weights", "scales", "dense", "list_blocks", "list_levels")
"""The arrays that parts hold one after the other, unchanged: nearly all bytes of an index."""


def _joined_starts(parts: Sequence[Postings]) -> dict[str, NDArray]:
    """Join the arrays that count documents, blocks and postings, which go on counting in the next part.

    Args:
        parts: At least one part; of the arrays in `CHAINED` only the lengths are read.

    Returns:
        Name -> array, of all that are not in `CHAINED`.
    """

    def shifted(name: str, lengths: list[int]) -> NDArray:
        """Return the arrays of all parts, with the lengths of the parts before added to their values."""
        firsts = starts_of(np.array(lengths))
        return np.concatenate(
            [getattr(part, name) + first for part, first in zip(parts, firsts, strict=False)]
        )

    def ends(name: str) -> NDArray:
        """Return the starts of the whole; the last one of a part is the first one of the next part."""
        lasts = starts_of(np.array([getattr(part, name)[-1] for part in parts]))
        starts = [getattr(part, name)[:-1] + last for part, last in zip(parts, lasts, strict=False)]
        return np.append(np.concatenate(starts), lasts[-1])

    rows = starts_of(np.array([len(part.dense) for part in parts]))
    dense_starts = [
        np.where(part.dense_starts >= 0, part.dense_starts + row, -1)
        for part, row in zip(parts, rows, strict=False)
    ]
    return {
        "positions": shifted("positions", [part.num_documents for part in parts]),
        "dense_starts": np.concatenate(dense_starts),
        "list_starts": shifted("list_starts", [len(part.list_blocks) for part in parts]),
        **{name: ends(name) for name in ("starts", "first_blocks", "offsets")},
    }


class PostingsFiles:
    """Files of postings, one `.npy` per array, to which parts are added one at a time: memory holds one part.

    Used in a `with` block, at the end of which the files are complete: as if all parts had been joined.

    Args:
        directory: An existing folder without such files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts: list[Postings] = []  # with stand-ins for the arrays that are in the files
        self._empty: Postings | None = None  # the last part without documents
        self._files: dict[str, BinaryIO] = {}
        self._open = ExitStack()

    def __enter__(self) -> PostingsFiles:
        """Return this object."""
        return self

    def add(self, part: Postings) -> None:
        """Write a part behind those before it, which have the same block size and terms."""
        if part.num_documents:
            self._write(part)
        else:
            self._empty = part

    def _write(self, part: Postings) -> None:
        stand_ins: dict[str, Any] = {}
        for name in CHAINED:
            array = getattr(part, name)
            if name not in self._files:
                file = self._open.enter_context((self._directory / f"{name}.npy").open("wb"))
                self._files[name] = file
                _write_header(file, array.dtype, array.shape)
            array.tofile(self._files[name])
            stand_ins[name] = np.broadcast_to(array.dtype.type(0), array.shape)
        self._parts.append(part._replace(**stand_ins))

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the files, unless the block ended with an error, and close them."""
        with self._open:
            if error is not None:
                return
            if not self._parts and self._empty is not None:
                self._write(self._empty)
            for name, array in _joined_starts(self._parts).items():
                np.save(self._directory / f"{name}.npy", frozen(array, _DTYPES[name][0]), allow_pickle=False)
            for name, file in self._files.items():
                arrays = [getattr(part, name) for part in self._parts]
                file.seek(0)
                _write_header(file, arrays[0].dtype, (sum(map(len, arrays)), *arrays[0].shape[1:]))


def _write_header(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Write the header of an `.npy` file; numpy leaves room in it for a longer first dimension."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def documents_of(postings: Postings, places: NDArray[np.int64] | None = None) -> sparse.csr_array:
    """Return the documents that the postings hold.

    Args:
        postings: The postings.
        places: `[n]`, positions of documents; None takes all of them, in the order of their positions.

    Returns:
        CSR `[n, V] float32`.

    Raises:
        ValueError: If a term of the documents lies outside the vocabulary.
    """
    positions, offsets = postings.positions, postings.offsets
    if places is None:
        stored = np.argsort(positions)  # [n], where each document stands in the stored order
    else:  # of an index of millions only a few rows are sorted
        found = np.flatnonzero(np.isin(positions, places))
        found = found[np.argsort(positions[found])]
        stored = found[np.searchsorted(positions[found], places)]
    lengths = offsets[stored + 1] - offsets[stored]  # [n]
    starts = starts_of(lengths)  # [n + 1]
    taken = np.arange(starts[-1]) + np.repeat(offsets[stored] - starts[:-1], lengths)  # [postings of the n]
    terms, weights = postings.terms[taken].astype(np.int64), postings.weights[taken]
    check_terms(terms, postings.num_terms)
    return sparse.csr_array((weights, terms, starts), shape=(len(stored), postings.num_terms))
