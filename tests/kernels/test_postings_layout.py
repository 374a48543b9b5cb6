"""Joined parts, the documents given back, and arrays that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.kernels.postings import segments_of, top_k
from lexforge.kernels.postings_layout import Postings, check_postings, documents_of, frozen, join_postings


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


def build_postings(documents: sparse.csr_array, *blocks: int) -> Postings:
    return join_postings(list(segments_of(documents, *blocks)))


def test_the_documents_come_back_in_their_order() -> None:
    """The stored order is another one: a permutation applied twice, or backwards, swaps documents."""
    dense = np.random.default_rng(0).integers(0, 4, (70, 9))
    parts = [build_postings(csr(dense[a:b]), 4, 5) for a, b in ((0, 33), (33, 33), (33, 34), (34, 70))]
    joined = join_postings(parts)
    check_postings(joined, 70, 9)
    assert (documents_of(joined).toarray() == dense).all()


@pytest.mark.parametrize("block_size", [0, -4, 2.0, "4"])
def test_a_block_size_that_is_none(block_size) -> None:
    """It is a field of the manifest; the arrays' own refusals are tested with files, in test_inverted.py."""
    postings = build_postings(csr([[1.0]]))._replace(block_size=block_size)
    with pytest.raises(ValueError, match="block_size must be an integer"):
        check_postings(postings, 1, 1)


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "dense_starts",
            lambda array: np.where(array >= 0, LARGEST, array),
            "a row of bounds must end within",
        ),
        ("dense_starts", lambda array: array + 1, "a row of bounds must end within"),
        ("offsets", lambda array: overflowing(array), "offsets must ascend from 0 to"),
        ("starts", lambda array: array[:0], "starts must ascend from 0 to 70"),
        (
            "positions",
            lambda array: np.where(array == 69, 70, array),
            "positions must hold each of 0 to 69 once",
        ),
    ],
)
def test_an_index_out_of_its_array_is_refused(name: str, change, message: str) -> None:
    """The compiled search checks no index: one that passed would read foreign memory, or end the process."""
    dense = np.random.default_rng(0).integers(0, 4, (70, 9))
    postings = build_postings(csr(dense), 4)
    check_postings(postings, 70, 9)
    array = getattr(postings, name)
    changed = change(array).astype(array.dtype)
    assert not np.array_equal(changed, array)
    with pytest.raises(ValueError, match=message):
        check_postings(postings._replace(**{name: changed}), 70, 9)


def test_a_term_that_does_not_exist_is_refused_where_it_is_read() -> None:
    """To read all terms when an index is opened takes seconds for millions of documents."""
    dense = np.random.default_rng(0).integers(0, 4, (70, 9))
    queries, message = csr(np.ones((3, 9))), "a term must be below 9; received 65535"
    postings = build_postings(csr(dense), 4)
    terms = np.where(postings.terms == 8, 65_535, postings.terms)
    damaged = postings._replace(terms=frozen(terms, np.uint16))
    with pytest.raises(ValueError, match=message):
        check_postings(postings._replace(terms=terms.astype(np.uint32)), 70, 9)
    check_postings(damaged, 70, 9)
    whole, found = top_k(queries, postings, 5, "pruned"), top_k(queries, damaged, 5, "pruned")
    assert (found[1] <= whole[1]).all()  # the postings of the term are lost, and no foreign memory was read
    with pytest.raises(ValueError, match=message):
        top_k(queries, damaged, 5, "exhaustive")
    with pytest.raises(ValueError, match=message):
        documents_of(damaged)


def overflowing(starts: np.ndarray) -> np.ndarray:
    """Starts whose differences, taken in 64 bits, are all 0 or more."""
    changed = starts.copy()
    changed[1:4] = LARGEST, -LARGEST - 1, -1
    with np.errstate(over="ignore"):
        assert (np.diff(changed) >= 0).all()
    return changed
