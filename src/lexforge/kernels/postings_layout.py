"""The arrays of an inverted index: what they hold, how parts are joined, and which are refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


class Postings(NamedTuple):
    """An inverted index as flat arrays, read-only; S segments, B blocks, V terms, P postings.

    Args:
        block_size: Documents a block; a segment's last block can hold fewer.
        positions: `[N] int64`, the position of the document at each place of the stored order.
        starts: `[S + 1] int64`, each segment's first document in the stored order.
        first_blocks: `[S + 1] int64`, each segment's first block.
        offsets: `[N + 1] int64`, each document's postings, in the stored order.
        terms: `[P] uint16` or `uint32`, ascending in a document.
        weights: `[P] float32`, > 0; or `uint8`, multiples of the term's scale.
        scales: `[S, V] float32`, a term's largest weight in the segment by 255, rounded up; 0: no document.
        dense_starts: `[S, V] int64`, a frequent term's row in `dense`, a level a block; -1 for the others.
        dense: `[...] uint8`.
        list_starts: `[S, V + 1] int64`, the other terms' ranges in the two below.
        list_blocks: `[L] uint16`, a block of the segment.
        list_levels: `[L] uint8`: no weight of the term in the block is above level * scale.
    """

    block_size: int
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    first_blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    terms: NDArray[np.unsignedinteger]
    weights: NDArray[np.float32] | NDArray[np.uint8]
    scales: NDArray[np.float32]
    dense_starts: NDArray[np.int64]
    dense: NDArray[np.uint8]
    list_starts: NDArray[np.int64]
    list_blocks: NDArray[np.uint16]
    list_levels: NDArray[np.uint8]

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.positions)

    @property
    def num_terms(self) -> int:
        """Number of terms (columns)."""
        return self.scales.shape[1]


# The arrays of one kind, by dtype and dimensions; terms and weights have two kinds each.
_KINDS = {
    "positions": ("<i8", 1),
    "starts": ("<i8", 1),
    "first_blocks": ("<i8", 1),
    "offsets": ("<i8", 1),
    "scales": ("<f4", 2),
    "dense_starts": ("<i8", 2),
    "dense": ("|u1", 1),
    "list_starts": ("<i8", 2),
    "list_blocks": ("<u2", 1),
    "list_levels": ("|u1", 1),
}


def frozen(array: NDArray, dtype: Any) -> NDArray:
    """A contiguous read-only view: one compiled kernel serves arrays in memory and memory-mapped ones."""
    view: NDArray = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view


def of_arrays(block_size: int, **arrays: Any) -> Postings:
    """Postings of arrays, frozen, of the dtypes that the compiled search expects."""
    made = {
        name: frozen(np.asarray(array), _KINDS[name][0] if name in _KINDS else array.dtype)
        for name, array in arrays.items()
    }
    return Postings(block_size, **made)


def starts_of(counts: NDArray) -> NDArray[np.int64]:
    """Where each of some runs starts, and where the last one ends."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


def check_postings(postings: Postings, documents: int, terms: int) -> None:
    """Refuse arrays from a file that the compiled search could not read safely, whose indices nothing checks.

    Args:
        postings: What was read.
        documents: Number of documents expected.
        terms: Number of terms expected.

    Raises:
        ValueError: An array of another kind, size or order than `Postings` says.
    """
    kinds = {name: (getattr(postings, name).dtype.str, getattr(postings, name).ndim) for name in _KINDS}
    term_kind, weight_kind = postings.terms.dtype.str, postings.weights.dtype.str
    if kinds != _KINDS or term_kind not in ("<u2", "<u4") or weight_kind not in ("<f4", "|u1"):
        raise ValueError(f"arrays of the kinds {kinds}, terms {term_kind}, weights {weight_kind}")
    if not isinstance(postings.block_size, int) or not 1 <= postings.block_size < 2**31:
        raise ValueError(f"block_size is {postings.block_size!r}")
    _check_starts("starts", postings.starts, documents)
    sizes = np.diff(postings.starts)
    segments = len(sizes)
    blocks = -(-sizes // postings.block_size)
    shapes = [postings.scales.shape, postings.dense_starts.shape, postings.list_starts.shape]
    if shapes != [(segments, terms), (segments, terms), (segments, terms + 1)]:
        raise ValueError(f"arrays of the shapes {shapes} for {segments} segments and {terms} terms")
    if not np.array_equal(postings.first_blocks, starts_of(blocks)):
        raise ValueError("first_blocks do not fit starts")
    if not np.array_equal(np.sort(postings.positions), np.arange(documents)):
        raise ValueError(f"positions are not those of {documents} documents, each once")
    if len(postings.offsets) != documents + 1 or postings.terms.shape != postings.weights.shape:
        raise ValueError(f"{len(postings.offsets)} offsets for {documents} documents, or too few weights")
    _check_starts("offsets", postings.offsets, len(postings.terms))
    if len(postings.list_blocks) != len(postings.list_levels):
        raise ValueError(f"{len(postings.list_blocks)} blocks and {len(postings.list_levels)} levels")
    _check_starts("list_starts", postings.list_starts.reshape(-1), len(postings.list_blocks))
    last_rows = len(postings.dense) - blocks[:, None]  # no sum: it could overflow
    if ((postings.dense_starts >= 0) & (postings.dense_starts > last_rows)).any():
        raise ValueError("a row of bounds ends behind them")
    if len(postings.terms) and int(postings.terms.max()) >= terms:
        raise ValueError(f"a posting of term {postings.terms.max()}; there are {terms} terms")


def _check_starts(name: str, starts: NDArray[np.int64], last: int) -> None:
    if not len(starts) or starts[0] != 0 or starts[-1] != last or (starts[1:] < starts[:-1]).any():
        raise ValueError(f"{name} do not ascend from 0 to {last}")


def join_postings(parts: list[Postings]) -> Postings:
    """The postings of the parts' documents one after the other.

    Args:
        parts: At least one, of equal block size, number of terms and kind of impacts.

    Returns:
        The postings; positions go on from part to part.
    """
    parts = [part for part in parts if part.num_documents] or parts[:1]
    if len(parts) == 1:
        return parts[0]

    def chained(name: str) -> NDArray:
        return np.concatenate([getattr(part, name) for part in parts])

    def shifted(name: str, lengths: list[int]) -> NDArray:
        firsts = starts_of(np.array(lengths))
        return np.concatenate(
            [getattr(part, name) + first for part, first in zip(parts, firsts, strict=False)]
        )

    def ends(name: str) -> NDArray:
        """Starts of the parts as starts of the whole: each part's last is the next one's first."""
        lasts = starts_of(np.array([getattr(part, name)[-1] for part in parts]))
        starts = [getattr(part, name)[:-1] + last for part, last in zip(parts, lasts, strict=False)]
        return np.append(np.concatenate(starts), lasts[-1])

    rows = starts_of(np.array([len(part.dense) for part in parts]))
    dense_starts = [
        np.where(part.dense_starts >= 0, part.dense_starts + row, -1)
        for part, row in zip(parts, rows, strict=False)
    ]
    names = ("terms", "weights", "scales", "dense", "list_blocks", "list_levels")
    return of_arrays(
        parts[0].block_size,
        positions=shifted("positions", [part.num_documents for part in parts]),
        dense_starts=np.concatenate(dense_starts),
        list_starts=shifted("list_starts", [len(part.list_blocks) for part in parts]),
        **{name: ends(name) for name in ("starts", "first_blocks", "offsets")},
        **{name: chained(name) for name in names},
    )


def documents_of(postings: Postings) -> sparse.csr_array:
    """The document matrix that the postings hold, 8-bit impacts as the weights they stand for.

    Args:
        postings: The documents.

    Returns:
        CSR `[N, V] float32`, rows by position.
    """
    weights = postings.weights
    if weights.dtype == np.uint8:
        segments = np.repeat(np.arange(len(postings.starts) - 1), np.diff(postings.offsets[postings.starts]))
        weights = weights * postings.scales[segments, postings.terms]
    shape = (postings.num_documents, postings.num_terms)
    stored = sparse.csr_array((weights, postings.terms.astype(np.int64), postings.offsets), shape=shape)
    return stored[np.argsort(postings.positions)]
