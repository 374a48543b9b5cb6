"""BM25 as a teacher gives the scores of the index, whatever the texts and wherever they come from."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.retrieval import BM25Index
from lexforge.teachers import BM25Teacher
from lexforge.teachers.bm25 import WIDTH

ENGLISH = ["Sort a list, sort it twice.", "Search the index of a list", "A graph!", "tree of the graph", ""]
KOREAN = ["목록을 정렬한다", "색인을 검색한다", "그래프 탐색"]


@pytest.mark.parametrize(
    ("corpus", "queries"),
    [(ENGLISH, ["sort the list list", "graph tree", "unknown"]), (KOREAN, ["정렬", "색인 검색"])],
    ids=["words", "bigrams"],
)
def test_products_are_the_scores_of_the_index(corpus: list[str], queries: list[str]) -> None:
    """The two have one formula, and the vectors only round."""
    teacher = BM25Teacher.fit(corpus)
    scores = teacher.lookup(queries, "query").astype(np.float32) @ teacher.lookup(
        corpus, "document"
    ).T.astype(np.float32)
    ids = [str(number) for number in range(len(corpus))]
    run = BM25Index.build(corpus, ids).search(queries, len(corpus)).to_run(queries)
    expected = [[run[query].get(name, 0.0) for name in ids] for query in queries]
    assert any(any(row) for row in expected)
    np.testing.assert_allclose(scores, expected, rtol=2e-3)


def test_a_text_outside_the_corpus_has_a_vector() -> None:
    """Rows of texts and mined negatives need no entry in a cache."""
    teacher = BM25Teacher.fit(ENGLISH)
    vectors = teacher.lookup(["a sorted list", "zebra"], "document")
    assert vectors.shape == (2, WIDTH)
    assert vectors.dtype == np.float16
    assert vectors[0].any()
    assert not vectors[1].any(), "a token that the corpus lacks tells nothing"
    assert not teacher.lookup(["zebra", ""], "query").any()


def test_a_corpus_without_a_token_and_an_unknown_kind_are_refused() -> None:
    """Means over nothing would be NaN, and a wrong kind would give wrong scores."""
    with pytest.raises(ValueError, match="received 2 texts without any"):
        BM25Teacher.fit(["", "?!"])
    with pytest.raises(ValueError, match="'query' or 'document'; received 'title'"):
        BM25Teacher.fit(ENGLISH).lookup(["sort"], "title")  # type: ignore[arg-type]
