"""Pools of candidates, averaged teachers, and rows over the range of their scores."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.adapt import average_in_spreads, candidate_pools, listed_rows
from lexforge.adapt.scores import scores_by


def test_rankings_take_turns_and_the_own_document_comes_first() -> None:
    """Each ranking gives its best, then its second best; a document that both hold counts once."""
    first, second = {"q": dict.fromkeys("abcd", 1.0)}, {"q": dict.fromkeys("bxyz", 1.0), "r": {"m": 1.0}}
    assert candidate_pools([first, second], ["q", "r", "s"], {"q": "o"}, 6) == {
        "q": ["o", "a", "b", "x", "c", "y"],
        "r": ["m"],
        "s": [],
    }
    with pytest.raises(ValueError, match="at least 2 candidates, which are compared; received 1"):
        candidate_pools([first], ["q"], {}, 1)


def test_teachers_are_averaged_in_units_of_their_spread() -> None:
    """Scores times ten or plus five are the same teacher; one that scores all equally counts nothing."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 5))
    one, other = ({"q": dict(zip("abcde", row.tolist(), strict=True))} for row in scores)
    scaled = {"q": {key: 10 * value + 5 for key, value in one["q"].items()}}
    even = {"q": dict.fromkeys("abcde", 7.0)}
    units = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)
    found = average_in_spreads([scaled, other])
    assert list(found["q"].values()) == pytest.approx(units.mean(axis=0).tolist())
    assert list(average_in_spreads([one, even])["q"].values()) == pytest.approx((units[0] / 2).tolist())
    with pytest.raises(ValueError, match="at least one teacher is needed; received none"):
        average_in_spreads([])
    with pytest.raises(ValueError, match="the same candidates; those of 'q' differ"):
        average_in_spreads([one, {"q": {"a": 1.0}}])


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
    with pytest.raises(ValueError, match="at least 2 documents; received 1"):
        listed_rows({}, scores, {}, 1)


def test_teachers_by_name(tiny_splade, tmp_path, monkeypatch) -> None:
    """BM25 by its ranking, where a missing document has 0, and the start by its own vectors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = {"a": "sort the list", "b": "open the file", "c": "hash of a key"}
    queries, pools = {"q": "list of files"}, {"q": ["a", "b", "c"]}
    assert scores_by("bm25", None, {"bm25": {"q": {"a": 2.5}}}, pools, queries, texts) == {
        "q": {"a": 2.5, "b": 0.0, "c": 0.0}
    }
    found = scores_by("start", tiny_splade, {}, pools, queries, texts)
    query = tiny_splade.encode_query(["list of files"]).to_dense()
    documents = tiny_splade.encode_document(list(texts.values())).to_dense()
    assert list(found["q"].values()) == pytest.approx((query @ documents.T)[0].tolist(), rel=1e-4)
    with pytest.raises(ValueError, match="is no retriever yet, so it cannot teach"):
        scores_by("start", None, {}, pools, queries, texts)
