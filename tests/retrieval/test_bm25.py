"""BM25: weights by hand and by bm25s itself, tokens, tie order."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from warm_processes import WarmProcesses

from lexforge.retrieval import BM25Index
from lexforge.retrieval.bm25 import tokens

TEXTS = ["A cat sat", "the dog", "cat Cat", "", "the dog ran over the other dog"]
IDS = ["a", "b", "c", "d", "e"]


def test_scores_equal_those_of_bm25s() -> None:
    """The index only searches what bm25s weighed: its own retrieval must give the same scores."""
    import bm25s

    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    texts = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(200)]
    queries = [" ".join(rng.choice(words, 4)) for _ in range(20)]
    model = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    model.index([text.split() for text in texts], show_progress=False)
    hits = BM25Index.build(texts, [str(i) for i in range(200)]).search(queries, 10)
    for query, scores in zip(queries, hits.scores, strict=True):
        expected = np.sort(model.get_scores(query.split()))[::-1][:10]
        np.testing.assert_allclose(scores, expected, rtol=1e-6)  # sums of four float32, in another order


def test_ties_stand_in_the_order_of_documents_and_repeated_words_count() -> None:
    """A set of tokens has another order in every process: the columns must not come from one."""
    index = BM25Index.build(["x y"] * 4 + ["z"], list("dcbae"))
    assert index.search(["y x"], 3).ids == [["d", "c", "b"]]
    once, twice = index.search(["x", "x X"], 1).scores
    assert twice[0] == 2 * once[0]


def test_a_query_of_unknown_words_finds_nothing() -> None:
    """A defined empty result, also between queries that find something."""
    index = BM25Index.build(TEXTS, IDS)
    assert index.search(["dog", "zebra", "", "ran"], 5).ids == [["e", "b"], [], [], ["e"]]
    assert index.search([], 5).ids == []


def test_the_vectors_of_queries_hold_counts() -> None:
    """Whoever scores chosen documents needs them: with the weights of the index they give BM25's scores."""
    index = BM25Index.build(TEXTS, IDS)
    queries = index.query_vectors(["cat Cat zebra the", ""])
    assert queries.shape == (2, index.index.num_terms)
    assert sorted(queries.data.tolist()) == [1, 2]  # the, and cat twice; no column for zebra
    scores = (queries @ index.index.vectors().T).toarray()
    hits = index.search(["cat Cat zebra the"], 5)
    found = dict(zip(hits.ids[0], hits.scores[0].tolist(), strict=True))
    np.testing.assert_allclose(scores[0], [found.get(key, 0.0) for key in IDS], rtol=1e-6)
    assert not scores[1].any()


def test_tokens() -> None:
    """Words are lower-cased; bigrams do not cross a word's edge; a word of one character is kept."""
    assert tokens("The U.S. 검색, naïve_x", "words") == ["the", "u", "s", "검색", "naïve_x"]
    assert tokens("검색엔진은 a 漢", "bigrams") == ["검색", "색엔", "엔진", "진은", "a", "漢"]
    assert tokens("", "bigrams") == []


def test_equal_words_match_in_each_form() -> None:
    """An accent may be a character of its own, as in names of files on macOS."""
    index = BM25Index.build(["cafe\u0301 menu", "caf menu", "हिन्दी भाषा", "हद"], list("abcd"))
    assert index.search(["caf\u00e9", "CAFE\u0301", "cafe", "हिन्दी", "ह"], 4).ids == [
        ["a"],
        ["a"],
        [],
        ["c"],
        [],
    ]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["한국어 문서 검색", "with some English"], "words"),
        (["한국어 문서 검색 질문 대답 서울", "an English"], "bigrams"),
        (["ひらがなとカタカナ"], "bigrams"),
        (["漢字文書檢索"], "bigrams"),
        (["plain english", "кириллица"], "words"),
        (["12 34", "x"], "words"),
    ],
)
def test_the_choice_of_tokens(texts: list[str], expected: str) -> None:
    """Words split at spaces do not match in Korean, Japanese and Chinese."""
    assert BM25Index.build(texts, [str(i) for i in range(len(texts))]).tokenize == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["", "..."], "ids": ["a", "b"]}, "received 2 documents without any"),
        ({"texts": [], "ids": []}, "received 0 documents without any"),
        ({"ids": ["a"]}, "received 1 ids for 5 documents"),
        ({"ids": ["a", "a", "b", "c", "d"]}, "'a', which an earlier"),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    """Wrong arguments must not become a baseline that is easy to beat."""
    with pytest.raises(ValueError, match=message):
        BM25Index.build(**{"texts": TEXTS, "ids": IDS, **arguments})


def test_it_is_quiet(capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture) -> None:
    """bm25s shows progress bars and sets its own logger to DEBUG when it is imported."""
    with caplog.at_level(logging.INFO):
        BM25Index.build(TEXTS, IDS).search(["cat"], 2)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_it_leaves_the_gpu_to_others(warm: WarmProcesses, tmp_path: Path) -> None:
    """bm25s searches by JAX when it is imported, and JAX then takes most of the memory of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").touch()
    (tmp_path / "jax" / "lax.py").write_text("print('JAX takes the GPU')\ntop_k = lambda *_: None\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]){}; "
        "from lexforge.retrieval import BM25Index; index = BM25Index.build(['a tree'], ['1']); "
        "assert index.search(['tree'], 1).ids == [['1']]; import jax; assert jax is sys.modules['jax']; "
        "import jax.lax"
    )
    for before in ("", "; import jax"):
        done = warm.completed("-c", code.format(before), tmp_path, forget=["bm25s", "jax", "lexforge"])
        assert (done.returncode, done.stdout) == (0, "JAX takes the GPU\n"), done.stderr
