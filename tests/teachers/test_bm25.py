"""BM25 as a teacher gives the scores of the index, whatever the texts and wherever they come from."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.retrieval import BM25Index
from lexforge.teachers import BM25Teacher, bm25
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


def test_tokens_do_not_meet_in_a_column() -> None:
    """By the hashes of tokens 3 % of the scores of a real collection were far off."""
    corpus = [" ".join(f"w{first + step}" for step in range(150)) for first in range(0, 6000, 150)]
    queries = [" ".join(f"w{word}" for word in range(first, 6000, 401)) for first in range(20)]
    teacher, index = BM25Teacher.fit(corpus), BM25Index.build(corpus, [str(n) for n in range(len(corpus))])
    vectors = [
        teacher.lookup(*texts).astype(np.float32) for texts in ((queries, "query"), (corpus, "document"))
    ]
    hits = index.search(queries, len(corpus))
    expected = np.zeros((len(queries), len(corpus)))
    for row, (names, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
        expected[row, [int(name) for name in names]] = scores
    np.testing.assert_allclose(vectors[0] @ vectors[1].T, expected, rtol=2e-3)


def test_frequent_tokens_have_columns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large corpus only rare tokens share columns, in one order on all ranks."""
    monkeypatch.setattr(bm25, "WIDTH", 80)
    words = [f"w{number}" for number in range(100)]
    teacher = BM25Teacher.fit([" ".join(words), " ".join(words[20:]), " ".join(words[20:])])
    columns = teacher.lookup(words, "query").argmax(axis=1).tolist()
    assert sorted(columns[20:]) == list(range(80))
    assert sorted(columns[:20]) == list(range(40, 60))


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
