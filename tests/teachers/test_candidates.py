"""The scores of candidates by every teacher, and the average of several teachers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lexforge.common.similarity import Similarity
from lexforge.retrieval import BM25Index
from lexforge.teachers import average_in_spreads, candidate_scorer, load_teacher

TEXTS = {"a": "sort the list", "b": "open the file", "c": "hash of a key"}
QUERIES = {"q": "list of files", "r": "tree"}
POOLS = {"q": ["b", "a"], "r": ["c", "a"]}


def vector(text: str, kind: str) -> np.ndarray:
    raw = np.random.default_rng(sum(f"{kind} {text}".encode())).normal(size=4)
    return (raw / np.linalg.norm(raw)).astype(np.float32)


def test_embeddings_score_by_their_dot_product_and_are_computed_once(tmp_path: Path) -> None:
    """Each text has the vector of its kind, in half precision; the second call encodes nothing."""

    class Vectors:
        name = "vectors"
        similarity: Similarity = "cosine"

        def __init__(self) -> None:
            self.asked: list[str] = []

        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            self.asked += texts
            return np.stack([vector(text, kind) for text in texts])

    teacher = Vectors()
    for _ in range(2):
        found = candidate_scorer(teacher, QUERIES, TEXTS, tmp_path)(POOLS)
        assert sorted(teacher.asked) == sorted([*QUERIES.values(), *TEXTS.values()])
    assert {query: list(scores) for query, scores in found.items()} == POOLS
    for query, scores in found.items():
        left = vector(QUERIES[query], "query").astype(np.float16).astype(float)
        for key, score in scores.items():
            right = vector(TEXTS[key], "document").astype(np.float16)
            assert score == pytest.approx(float(left @ right), abs=1e-6)  # float32 sums


def test_pairs_are_scored_when_they_are_asked_for_and_once(tmp_path: Path) -> None:
    """A cross-encoder costs by the pair: only candidates count, and none twice."""

    class Lengths:
        name = "lengths"

        def __init__(self) -> None:
            self.asked: list[tuple[str, str]] = []

        def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            self.asked += pairs
            return np.array([len(query) + len(document) / 100 for query, document in pairs])

        def length(self, pair: tuple[str, str]) -> int:
            return len(pair[1])

    teacher = Lengths()
    score = candidate_scorer(teacher, QUERIES, TEXTS, tmp_path)
    assert not teacher.asked
    expected = {
        query: {key: pytest.approx(len(QUERIES[query]) + len(TEXTS[key]) / 100) for key in pool}
        for query, pool in POOLS.items()
    }
    assert score(POOLS) == expected
    assert sorted(teacher.asked) == sorted(
        (QUERIES[q], TEXTS[key]) for q, pool in POOLS.items() for key in pool
    )
    assert candidate_scorer(teacher, QUERIES, TEXTS, tmp_path)({"q": ["a"]}) == {
        "q": {"a": expected["q"]["a"]}
    }
    assert len(teacher.asked) == 4
    # A pool may be empty; embeddings allow that all are, and pairs ended in "received no pair to score".
    assert candidate_scorer(teacher, QUERIES, TEXTS, tmp_path)({"q": []}) == {"q": {}}


def test_bm25_scores_candidates_as_its_index_does() -> None:
    """It keeps nothing; weights have 16 bits."""
    texts = list(TEXTS.values())
    found = candidate_scorer(load_teacher("bm25", texts), {"q": "the list"}, TEXTS)({"q": ["c", "b", "a"]})
    run = BM25Index.build(texts, list(TEXTS)).search(["the list"], 3).to_run(["q"])
    for key, score in found["q"].items():
        assert score == pytest.approx(run["q"].get(key, 0.0), rel=2e-3)


def test_teachers_are_averaged_in_units_of_their_spread() -> None:
    """Scores times ten or plus five are the same teacher; one that scores all equally counts nothing."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 5))
    one, other = ({"q": dict(zip("abcde", row.tolist(), strict=True))} for row in scores)
    scaled = {"q": {key: 10 * value + 5 for key, value in one["q"].items()}}
    even = {"q": dict.fromkeys("abcde", 0.1)}  # whose mean is rounded
    units = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)
    found = average_in_spreads([scaled, other])
    assert list(found["q"].values()) == pytest.approx(units.mean(axis=0).tolist())
    assert list(average_in_spreads([one, even])["q"].values()) == pytest.approx((units[0] / 2).tolist())
    whole = average_in_spreads([{"q": {"a": 1, "b": 3}}])  # grades are whole numbers
    assert whole == {"q": {"a": -1.0, "b": 1.0}}
    with pytest.raises(ValueError, match="at least one teacher is needed; received none"):
        average_in_spreads([])
    with pytest.raises(ValueError, match="the same candidates; those of 'q' differ"):
        average_in_spreads([one, {"q": {"a": 1.0}}])


def test_models_teach_by_their_scores(tiny_splade, tiny_dense, tmp_path, monkeypatch) -> None:
    """A dense one by embeddings, a sparse one by pairs; what was computed is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    queries, pools = {"q": "list of files", "r": "tree"}, {"q": ["b", "a"], "r": ["c", "a"]}
    for model, tolerance in (
        (tiny_dense, 2e-3),
        (tiny_splade, 1e-4),
    ):  # embeddings are kept in half precision
        folder = tmp_path / type(model).__name__
        model.save_pretrained(str(folder))
        teacher = load_teacher(str(folder), list(TEXTS.values()))
        found = candidate_scorer(teacher, queries, TEXTS)(pools)
        similarity = model.similarity(
            model.encode_query(list(queries.values())), model.encode_document(list(TEXTS.values()))
        )
        for row, (query, pool) in enumerate(pools.items()):
            for key in pool:
                assert found[query][key] == pytest.approx(
                    float(similarity[row]["abc".index(key)]), rel=tolerance
                )
