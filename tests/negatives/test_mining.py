"""Negatives that a model mines once: what is mined, that ranks agree, and that a file is read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.data import RetrievalData, validate_columns
from lexforge.models import build_splade
from lexforge.negatives import NegativeRule, mine_once, mining, rankings, rows_of_judgements
from lexforge.retrieval import BM25Index

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
BEST = NegativeRule(choice="top", last_rank=3)


def retrieval_data() -> RetrievalData:
    """Forty documents of four words; twelve queries with a positive each, and one of them with two."""
    rng = np.random.default_rng(0)
    corpus = {f"d{i}": " ".join(rng.choice(WORDS, 3)) + f" {WORDS[i % 14]}" for i in range(40)}
    texts = {f"q{i}": f"{WORDS[i]} {WORDS[i + 1]}" for i in range(12)}
    judged = {f"q{i}": {f"d{i}": 1} for i in range(12)}
    judged["q0"]["d39"] = 1
    return RetrievalData("words", corpus, texts, {"train": judged})


def best_by(scores: np.ndarray) -> list[str]:
    """The text of the best document of each row that is no positive of its query."""
    data = retrieval_data()
    scores[range(12), range(12)] = -np.inf
    scores[0, 39] = -np.inf
    best = [list(data.corpus.values())[place] for place in scores.argmax(1)]
    return [best[0], *best]  # the first query has two positives, and so two rows


def test_the_best_ranked_by_a_sparse_model_are_written(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """Beside a naive product of dense vectors; the rows are those of every other source of negatives."""
    data = retrieval_data()
    rows = mine_once(tiny_splade, data, BEST, tmp_path / "mined.jsonl")
    documents = tiny_splade.encode(list(data.corpus.values()), convert_to_sparse_tensor=False)
    queries = tiny_splade.encode(list(data.queries.values()), convert_to_sparse_tensor=False)
    assert [row["negative_1"] for row in rows] == best_by((queries @ documents.T).numpy())
    assert validate_columns(rows) == ("anchor", "positive", "negative_1")
    without = [{name: row[name] for name in ("anchor", "positive", "relevant")} for row in rows]
    assert without == rows_of_judgements(data)


def test_a_dense_model_mines_with_its_own_index(tiny_dense: SentenceTransformer, tmp_path: Path) -> None:
    """Its vectors are compared by cosine, as its evaluation does."""
    pytest.importorskip("faiss", reason="faiss-cpu has no wheel for this machine")
    data = retrieval_data()
    rows = mine_once(tiny_dense, data, BEST, tmp_path / "mined.jsonl")
    documents = tiny_dense.encode(list(data.corpus.values()), normalize_embeddings=True)
    queries = tiny_dense.encode(list(data.queries.values()), normalize_embeddings=True)
    assert [row["negative_1"] for row in rows] == best_by(queries @ documents.T)


def test_a_file_that_is_there_is_read_and_nothing_is_mined(
    tiny_splade: SparseEncoder, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """A resumed run has other weights than the one that mined, and must train on the same rows."""
    file = tmp_path / "mined.jsonl"
    rows = mine_once(tiny_splade, retrieval_data(), BEST, file)
    written = file.read_bytes()
    assert mine_once(tiny_dense, retrieval_data(), BEST, file) == rows
    assert file.read_bytes() == written


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """The rows that a rank has, and the error of a rule that no corpus of forty documents can follow."""
    model = build_splade(checkpoint, max_seq_length=32, device="cpu")
    rows = mine_once(model, retrieval_data(), BEST, folder / "mined.jsonl")
    with pytest.raises(ValueError, match="received per_row=40"):
        mine_once(model, retrieval_data(), NegativeRule(per_row=40), folder / "failed.jsonl")
    return {"rows": rows}


def test_two_ranks_mine_what_one_does(
    on_ranks: Callable[..., list[Any]], tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """Ranks that mined differently would draw different batches of the same rows. An error reaches both."""
    ranks = on_ranks("on_each_rank")
    alone = mine_once(tiny_splade, retrieval_data(), BEST, tmp_path / "alone.jsonl")
    assert ranks[0]["rows"] == ranks[1]["rows"] == alone


def test_rankings_do_not_depend_on_the_blocks(monkeypatch) -> None:
    """A split of millions of queries is searched in blocks, each of which ranks its own queries."""
    data = retrieval_data()
    search = BM25Index.build(list(data.corpus.values()), list(data.corpus)).search
    (whole,) = rankings(search, data.queries, 5)
    monkeypatch.setattr(mining, "QUERIES", 5)
    blocks = list(rankings(search, data.queries, 5))
    assert [len(block) for block in blocks] == [5, 5, 2]
    assert {query: found for block in blocks for query, found in block.items()} == whole
