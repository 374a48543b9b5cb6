"""Exact top-k over postings, against a plain loop over every query and document."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from lexforge.kernels import postings as postings_module
from lexforge.kernels.postings import exhaustive_pays, segments_of, top_k
from lexforge.kernels.postings_layout import Postings, join_postings

COMPILED = ["pruned", "exhaustive"]
TILES = st.sampled_from([1, 5, 64, 150, 4096])  # documents of the exhaustive search at a time


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


def build_postings(documents: sparse.csr_array, *blocks: int, **named: int) -> Postings:
    return join_postings(list(segments_of(documents, *blocks, **named)))


def naive_hits(queries, documents, k: int) -> list[list[tuple[int, np.float32]]]:
    """Every pair scored term by term in float32; zero scores left out; Python's stable sort for the order."""
    result = []
    for query in np.asarray(queries, np.float32):
        scored = []
        for position, document in enumerate(np.asarray(documents, np.float32)):
            score = np.float32(0)
            for one, other in zip(query, document, strict=True):
                if one and other:
                    score = np.float32(score + np.float32(one * other))
            if score > 0:
                scored.append((position, score))
        result.append(sorted(scored, key=lambda hit: -hit[1])[:k])
    return result


def found(queries, postings, k: int, impl: str) -> list[list[tuple[int, np.float32]]]:
    positions, scores, counts = top_k(csr(queries), postings, k, impl)
    return [
        list(zip(row[:count].tolist(), values[:count], strict=True))
        for row, values, count in zip(positions, scores, counts, strict=True)
    ]


def tiles_of(documents: int) -> mock._patch:
    """The exhaustive search with small tiles: real ones would hold all documents of a test."""
    return mock.patch.object(postings_module, "TILE", documents)


weights = st.sampled_from([0, 0, 0, 1, 2, 3])
matrices = st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(1, 6)).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.int8, (shape[0], shape[2]), elements=weights),
        hnp.arrays(np.int8, (shape[1], shape[2]), elements=weights),
    )
)


@pytest.mark.parametrize("impl", [*COMPILED, "auto", "reference"])
@settings(max_examples=60, deadline=None)
@given(
    data=matrices,
    blocks=st.sampled_from([(1, 3), (2, 1), (4, 65536), (7, 2), (64, 9)]),
    tile=TILES,
    k=st.integers(1, 45),
)
def test_equals_the_plain_loop_with_ties(impl: str, data, blocks: tuple[int, int], tile: int, k: int) -> None:
    """Small whole weights tie at every rank: the order must be score, then position, in any blocking."""
    queries, documents = data
    postings = build_postings(csr(documents), *blocks)
    with tiles_of(tile):
        assert found(queries, postings, k, impl) == naive_hits(queries, documents, k)


@pytest.mark.parametrize("order", ["best first", "best last", "mixed", "best in the middle"])
@pytest.mark.parametrize("k", [5, 40, 300])
def test_many_segments_in_any_order_of_their_documents(order: str, k: int) -> None:
    """The k-th score is guessed from the first segments, and wrongly where these hold the best hits."""
    rng = np.random.default_rng(0)
    documents = np.where(rng.random((800, 12)) < 0.5, rng.random((800, 12)), 0).astype(np.float32)
    asked = rng.random((20, 12)).astype(np.float32)
    totals = documents.sum(axis=1)
    places = {
        "best first": np.argsort(-totals),
        "best last": np.argsort(totals),
        "mixed": np.arange(800),
        "best in the middle": np.roll(np.argsort(-totals), 400),
    }[order]
    postings = build_postings(csr(documents[places]), 2, 10)  # 40 segments of 20 documents
    assert found(asked, postings, k, "pruned") == found(asked, postings, k, "reference")


@pytest.mark.parametrize("queries", [1, 9])
def test_a_segment_of_more_blocks_than_the_cache_holds(queries: int) -> None:
    """Rows and lists go on in the next stretch; one query is divided among the threads, within a stretch."""
    rng = np.random.default_rng(0)
    shares = np.array(
        [0.5, 0.4, 0.3, 0.3, 0.2, 0.2, *[0.02] * 14]
    )  # six terms with rows, fourteen with lists
    documents = np.where(rng.random((13_001, 20)) < shares, rng.random((13_001, 20)), 0).astype(np.float32)
    asked = rng.random((queries, 20)).astype(np.float32)
    postings = build_postings(csr(documents), 1)
    for k in (3, 200):
        assert found(asked, postings, k, "pruned") == found(asked, postings, k, "reference")


@pytest.mark.parametrize("impl", COMPILED)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    blocks=st.sampled_from([(1, 65536), (2, 65536), (2, 150), (4, 100), (64, 3)]),
    k=st.sampled_from([1, 2, 7, 60, 100, 300, 599, 600, 601, 900]),
    queries=st.sampled_from([1, 5]),
    tile=TILES,
)
def test_hundreds_of_documents_equal_a_stable_sort(
    impl: str, seed: int, blocks: tuple[int, int], k: int, queries: int, tile: int
) -> None:
    """The first sweep of the pruned search leaves blocks out, and the hits of the exhaustive one are cut down
    again and again: neither may lose a tie."""
    rng = np.random.default_rng(seed)
    share = rng.random(9)
    documents = np.where(rng.random((600, 9)) < share, rng.choice([51, 102, 255], (600, 9)), 0)
    documents[rng.integers(600)] = 255
    asked = rng.integers(0, 3, (queries, 9))
    scores = (asked @ documents.T).astype(np.float32)
    postings = build_postings(csr(documents), *blocks)
    expected = []
    for row in scores:
        order = np.argsort(-row, kind="stable")[:k]
        expected.append([(int(place), row[place]) for place in order if row[place] > 0])
    with tiles_of(tile):
        assert found(asked, postings, k, impl) == expected


@pytest.mark.parametrize("impl", COMPILED)
@pytest.mark.parametrize("block_size", [3, 50, 1000])
def test_scores_are_the_float32_sums_to_the_last_bit(impl: str, block_size: int) -> None:
    """Blocks and threads must not change the order of additions, or two machines rank differently."""
    rng = np.random.default_rng(3)
    documents = rng.gamma(1, 1, (160, 30)) * (rng.random((160, 30)) < 0.4)
    queries = rng.gamma(1, 1, (20, 30)) * (rng.random((20, 30)) < 0.4)
    postings = build_postings(csr(documents), block_size)
    with tiles_of(60):
        assert found(queries, postings, 25, impl) == naive_hits(queries, documents, 25)


@pytest.mark.parametrize("impl", COMPILED)
def test_many_equal_scores_keep_the_first_documents(impl: str) -> None:
    """The stored order is not that of the positions: of equal scores the first found are not the hits."""
    documents = np.random.default_rng(11).permutation(np.repeat(np.eye(9), 100, axis=0))
    queries = np.ones((3, 9))
    postings = build_postings(csr(documents))
    for k in (1, 30, 899):
        with tiles_of(128):
            assert found(queries, postings, k, impl) == [[(place, 1) for place in range(k)]] * 3


@pytest.mark.parametrize("impl", COMPILED)
def test_many_queries_on_one_thread_and_on_all(impl: str) -> None:
    """Queries are cut into chunks by the number of threads; every chunk must be searched, once."""
    rng = np.random.default_rng(5)
    documents, queries = rng.integers(0, 3, (300, 12)), rng.integers(0, 3, (101, 12))
    postings = build_postings(csr(documents), 64)
    threads = numba.get_num_threads()
    with tiles_of(50):
        everything = found(queries, postings, 9, impl)
        try:
            numba.set_num_threads(1)
            assert found(queries, postings, 9, impl) == everything
        finally:
            numba.set_num_threads(threads)
    assert everything == found(queries, postings, 9, "reference")


@pytest.mark.parametrize("impl", COMPILED)
def test_memory_mapped_arrays_are_searched_by_the_same_kernel(impl: str, tmp_path: Path) -> None:
    """An index on disk is read-only, and must not compile everything again at the first search."""
    rng = np.random.default_rng(17)
    queries, documents = rng.integers(0, 3, (5, 12)), rng.integers(0, 3, (200, 12))
    postings = build_postings(csr(documents))
    arrays = []
    for name, array in postings._asdict().items():
        if name != "block_size":
            np.save(tmp_path / f"{name}.npy", array)
            arrays.append(np.asarray(np.load(tmp_path / f"{name}.npy", mmap_mode="r")))
    expected = found(queries, postings, 50, impl)
    kernel = {"pruned": postings_module.search, "exhaustive": postings_module.arrange}[impl]
    compiled = len(kernel.__wrapped__.signatures)
    assert found(queries, Postings(postings.block_size, *arrays), 50, impl) == expected
    assert len(kernel.__wrapped__.signatures) == compiled


@pytest.mark.parametrize("impl", COMPILED)
def test_joined_parts_equal_one_build(impl: str) -> None:
    """Positions and offsets of a later part are shifted; an error there swaps documents."""
    documents = np.random.default_rng(7).integers(0, 3, (90, 8))
    queries = np.eye(8)
    parts = [build_postings(csr(documents[a:b]), 16) for a, b in ((0, 0), (0, 33), (33, 34), (34, 90))]
    joined = join_postings(parts)
    assert joined.num_documents == 90
    assert found(queries, joined, 90, impl) == naive_hits(queries, documents, 90)


@pytest.mark.parametrize("impl", COMPILED)
def test_scores_beyond_float32_are_infinite_and_still_ordered(impl: str) -> None:
    """An overflow must not turn into NaN, which compares false with everything."""
    postings = build_postings(csr([[1e30, 0], [3e38, 3e38], [0, 1]]))
    assert found([[3e38, 3e38]], postings, 3, impl)[0] == [(0, np.inf), (1, np.inf), (2, np.float32(3e38))]


@pytest.mark.parametrize("impl", COMPILED)
def test_no_document_no_query_no_hit(impl: str) -> None:
    """Empty input has a defined, empty result."""
    assert found(np.ones((2, 4)), build_postings(csr(np.zeros((0, 4)))), 5, impl) == [[], []]
    assert found(np.zeros((2, 4)), build_postings(csr(np.ones((3, 4)))), 5, impl) == [[], []]
    assert found(np.zeros((0, 4)), build_postings(csr(np.ones((3, 4)))), 5, impl) == []
    assert found([[0], [1]], build_postings(csr([[0], [1], [0]])), 5, impl) == [[], [(1, 1)]]


def test_the_faster_search_is_chosen() -> None:
    """To arrange all documents for one call pays for many hits of many queries only; a single query never
    waits for it. Where they stay arranged, many hits are enough."""
    measured = {(832, 1000, 131_072, 1): True, (832, 30, 131_072, 1): False, (32, 1000, 131_072, 1): False}
    measured |= {(832, 100, 262_144, 2): True, (208, 1000, 262_144, 2): True, (208, 100, 262_144, 2): False}
    measured |= {(832, 100, 262_144, 4): True, (832, 10, 262_144, 4): False, (32, 300, 262_144, 4): False}
    measured |= {(1, 1000, 131_072, 1): False, (1, 1000, 262_144, 2): False, (208, 1000, 1_048_576, 2): False}
    assert {point: exhaustive_pays(*point, kept=False) for point in measured} == measured
    measured = {(32, 1000, 43_113, 1): True, (1, 1000, 43_113, 1): True, (208, 100, 43_113, 1): False}
    assert {point: exhaustive_pays(*point, kept=True) for point in measured} == measured


def test_an_unknown_implementation_is_refused() -> None:
    """An explicit request never falls back."""
    with pytest.raises(ValueError, match=r"impl must be one of .*; received 'fast'"):
        top_k(csr([[1]]), build_postings(csr([[1]])), 1, impl="fast")


@pytest.mark.parametrize(("block_size", "segments"), [(1, 1), (4, 2)])
def test_large_corpora_get_short_segments(block_size: int, segments: int) -> None:
    """The score of the first segment prunes those after it; blocks of one document are faster in one."""
    documents = sparse.csr_array(np.ones((4 * 8192 + 1, 1), np.float32))
    assert len(build_postings(documents, block_size).starts) - 1 == segments


@pytest.mark.slow
@pytest.mark.parametrize("impl", COMPILED)
def test_a_large_vocabulary_finds_the_same(impl: str) -> None:
    """XLM-R has 250,002 terms, whose ids take 32 bits: loops of their own, which no other test compiles."""
    rng = np.random.default_rng(0)
    documents, queries = csr(rng.integers(0, 4, (300, 40))), csr(rng.integers(0, 4, (5, 40)))
    terms = np.sort(rng.choice(250_002, 40, replace=False))

    def spread(matrix: sparse.csr_array) -> sparse.csr_array:
        parts = (matrix.data, terms[matrix.indices], matrix.indptr)
        return sparse.csr_array(parts, shape=(matrix.shape[0], 250_002))

    wide = build_postings(spread(documents))
    assert wide.terms.itemsize == 4
    narrow = build_postings(documents)
    for one, other in zip(
        top_k(spread(queries), wide, 20, impl), top_k(queries, narrow, 20, impl), strict=True
    ):
        np.testing.assert_array_equal(one, other)
