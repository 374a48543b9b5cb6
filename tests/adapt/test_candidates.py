"""Pools of candidates, their scores in an index, and rows over the range of the teachers' scores."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.adapt import candidate_pools, listed_rows, scores_in_index
from lexforge.corpus import encode
from lexforge.retrieval import BM25Index, build_exact

TEXTS = {"a": "sort the list", "b": "open the file", "c": "hash of a key"}


def test_rankings_take_turns_and_the_own_document_comes_first() -> None:
    """Each ranking gives its best, then its second best; a document that both hold counts once."""
    first, second = {"q": dict.fromkeys("abcd", 1.0)}, {"q": dict.fromkeys("bxyz", 1.0), "r": {"m": 1.0}}
    assert candidate_pools([first, second], ["q", "r", "s"], {"q": "o"}, 6) == {
        "q": ["o", "a", "b", "x", "c", "y"],
        "r": ["m"],
        "s": [],
    }


def test_a_row_compares_documents_over_the_whole_range() -> None:
    """The best one, and one of each further part of the ranking, in its order, with its score."""
    names = [f"d{i}" for i in range(20)]
    scores = {f"q{i}": {name: float(-place) for place, name in enumerate(names)} for i in range(50)}
    texts = {name: f"text {name}" for name in names}
    rows = listed_rows(texts, scores, {f"q{i}": f"query {i}" for i in range(50)}, 4)
    assert len(rows) == 50
    drawn = set()
    for number, row in enumerate(rows):
        assert list(row) == ["anchor", "positive", "negative_1", "negative_2", "negative_3", "label"]
        assert row["anchor"] == f"query {number}"
        places = [int(row[column].removeprefix("text d")) for column in list(row)[1:-1]]
        assert row["label"] == [float(-place) for place in places]
        assert places[0] == 0
        assert [place // 5 for place in places] == [0, 1, 2, 3]
        drawn.add(tuple(places))
    assert len(drawn) > 20  # at random
    assert rows == listed_rows(texts, scores, {f"q{i}": f"query {i}" for i in range(50)}, 4)


def test_a_query_that_teaches_nothing_has_no_row() -> None:
    """Too few candidates, or equal scores of all of them."""
    scores = {"few": {"a": 1.0}, "even": {"a": 1.0, "b": 1.0}, "good": {"a": 1.0, "b": 2.0}}
    rows = listed_rows({"a": "A", "b": "B"}, scores, dict.fromkeys(scores, "query"), 2)
    assert rows == [{"anchor": "query", "positive": "B", "negative_1": "A", "label": [2.0, 1.0]}]


def test_bm25_teaches_by_all_its_scores() -> None:
    """A ranking ends after some documents, and those behind it share words with the query too."""
    texts = {f"d{number}": "sort the list " + "again " * number for number in range(30)} | {"e": "a tree"}
    bm25 = BM25Index.build(list(texts.values()), list(texts))
    queries = {"q": "sort list list", "r": "tree again"}
    pools = {"q": ["e", "d29", "d0", "d14"], "r": ["d0", "e", "d29"]}
    found = scores_in_index(bm25.index, bm25.query_vectors(list(queries.values())), pools)
    everything = bm25.search(list(queries.values()), len(texts)).to_run(list(queries))
    assert {query: list(scores) for query, scores in found.items()} == pools
    for query, scores in found.items():
        for key, score in scores.items():
            assert score == pytest.approx(everything[query].get(key, 0.0), rel=1e-5)  # sums of float32
    assert found["q"]["e"] == found["r"]["d0"] == 0  # no word in common
    assert found["q"]["d0"] > found["q"]["d14"] > found["q"]["d29"] > 0


@pytest.mark.parametrize("encoder", ["tiny_splade", "tiny_dense"])
def test_the_start_teaches_by_its_vectors(encoder: str, request) -> None:
    """Each candidate has the product of its vector and the query's, whatever the order of the pools."""
    model = request.getfixturevalue(encoder)
    documents = encode(model, list(TEXTS.values()), "document")
    index = build_exact(documents, list(TEXTS), "dot")
    pools = {"q": ["c", "a"], "r": ["b", "c", "a"], "s": []}
    vectors = encode(model, ["list of files", "tree", "key"], "query")
    found = scores_in_index(index, vectors, pools)
    expected = vectors @ documents.T
    expected = expected if isinstance(expected, np.ndarray) else expected.toarray()
    assert {key: list(pool) for key, pool in found.items()} == pools
    for row, pool in enumerate(found.values()):
        for key, score in pool.items():
            assert score == pytest.approx(expected[row]["abc".index(key)], rel=1e-5)
