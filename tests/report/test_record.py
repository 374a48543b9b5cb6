"""What a run leaves for its page, against loops over dense vectors."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lexforge.evaluation import RetrievalEvaluator, read_run, read_scores
from lexforge.report import RunRecord
from lexforge.report import term_statistics as module
from lexforge.report.searches import QUERIES
from lexforge.report.term_statistics import is_punctuation, term_statistics

CORPUS = {
    "d0": "sort a list",
    "d1": "search an index " + "for a document " * 60,
    "d2": "train a model",
    "d3": "read a file " + "川" * 400,
}
TEXTS = {"q0": "sort list", "q1": "search index", "q2": "train model", "q3": "unjudged"}
QRELS = {"q0": {"d0": 2, "d3": 0}, "q1": {"d1": 1}, "q2": {"d0": 1, "d2": 1}}


def record_of(model: Any, folder: Path) -> tuple[RunRecord, dict[str, Any], RetrievalEvaluator]:
    """The record of a run that found the same before and after training, and its explorer."""
    evaluator = RetrievalEvaluator(TEXTS, CORPUS, QRELS)
    record = RunRecord(folder)
    record.add("initial", evaluator.evaluate(model))
    record.add("trained", evaluator.evaluate(model))
    stop_words = model.tokenizer.convert_tokens_to_ids(["a", "list"]) if hasattr(model, "decode") else ()
    record.look_closer(model, evaluator, stop_words)
    return record, json.loads((folder / "explorer.json").read_text()), evaluator


def test_the_explorer_explains_each_score(tiny_splade: Any, tmp_path: Path) -> None:
    """The terms that are shown for a hit are products of weights, and together they are its score."""
    _, explorer, evaluator = record_of(tiny_splade, tmp_path)
    queries, documents = (vectors.toarray() for vectors in evaluator.vectors(tiny_splade))
    names = tiny_splade.tokenizer.convert_ids_to_tokens(range(queries.shape[1]))
    assert [query["id"] for query in explorer["queries"]] == ["q0", "q1", "q2"]
    for row, query in enumerate(explorer["queries"]):
        weights = {names[term]: float(queries[row, term]) for term in np.flatnonzero(queries[row])}
        own = set(tiny_splade.tokenizer.tokenize(query["text"]))
        assert {term for term, _ in query["own"]} == own & weights.keys()
        assert set(query["lost"]) == own - weights.keys()
        assert query["expansion_terms"] == len(weights.keys() - own)
        for term, weight in query["own"] + query["expansion"]:
            assert weight == pytest.approx(weights[term], abs=1e-4)
        for hit in query["hits"]:
            products = queries[row] * documents[evaluator.document_ids.index(hit["id"])]
            expected = sorted((float(p) for p in products[products > 0]), reverse=True)
            assert [value for _, value in hit["terms"]] == pytest.approx(expected[:12], abs=1e-4)
            assert hit["score"] == pytest.approx(sum(expected), abs=1e-3)
            assert hit["grade"] == QRELS[query["id"]].get(hit["id"], 0)
        assert [document for document, _ in query["initial"]] == [hit["id"] for hit in query["hits"]][:5]
    assert explorer["queries"][2]["relevant"] == 2
    assert explorer["texts"]["d0"] == "sort a list"
    assert len(explorer["texts"]["d1"]) <= 320
    assert explorer["texts"]["d1"].endswith("…")
    assert explorer["texts"]["d3"] == f"read a file {'川' * 306} …"


def test_runs_and_values_of_each_query_are_written_at_once(tiny_splade: Any, tmp_path: Path) -> None:
    """A page of a run that goes on has the start to compare with; the measures come at the end of the run."""
    record, _, evaluator = record_of(tiny_splade, tmp_path)
    assert read_run(tmp_path / "run.trec").keys() == QRELS.keys()
    assert read_run(tmp_path / "initial.trec") == read_run(tmp_path / "run.trec")
    assert read_scores(tmp_path / "trained.scores.json").mean == evaluator.evaluate(tiny_splade).metrics
    assert not (tmp_path / "metrics.json").exists()
    assert list(record.metrics) == ["initial", "trained"]


def test_a_dense_model_has_searches_without_terms(tiny_dense: Any, tmp_path: Path) -> None:
    """Its dimensions have no names; the hits are there all the same."""
    _, explorer, _ = record_of(tiny_dense, tmp_path)
    assert not (tmp_path / "terms.json").exists()
    assert all("own" not in query and "terms" not in query["hits"][0] for query in explorer["queries"])
    assert len(explorer["queries"][0]["hits"]) == len(CORPUS)


def test_many_queries_make_no_larger_explorer(tiny_dense: Any, tmp_path: Path) -> None:
    """A test split of 300 queries: the sample has 200, the one that training has changed among them."""
    texts = {f"q{number}": f"text {number}" for number in range(300)}
    evaluator = RetrievalEvaluator(texts, CORPUS, {query: {"d0": 1} for query in texts}, latency_queries=0)
    record = RunRecord(tmp_path)
    trained = evaluator.evaluate(tiny_dense)
    record.add("trained", trained)
    changed = {name: dict(values) for name, values in trained.per_query.items()}
    changed["nDCG@10"]["q166"] -= 5.0
    record.add("initial", type(trained)(trained.metrics, trained.run, changed, {}, {}))
    record.look_closer(tiny_dense, evaluator)
    names = [query["id"] for query in json.loads((tmp_path / "explorer.json").read_text())["queries"]]
    assert len(set(names)) == QUERIES
    assert {"q0", "q166", "q299"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name[1:]))


def test_term_statistics_equal_a_loop(tiny_splade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number that the page shows of the vocabulary, over random vectors that are counted in blocks."""
    monkeypatch.setattr(module, "BLOCK", 7)
    random = np.random.default_rng(0)
    width = len(tiny_splade.tokenizer)
    dense = np.where(random.random((30, width)) < 0.1, random.random((30, width)), 0).astype(np.float32)
    dense[3] = 0
    stop_words = [5, 6, 7, 8, 9, 10]
    found = term_statistics(tiny_splade, sparse.csr_array(dense[:4]), sparse.csr_array(dense), stop_words)
    assert found["vocabulary_size"] == width
    statistics = found["documents"]
    active = [int((row > 0).sum()) for row in dense]
    assert (statistics["texts"], statistics["min_active"], statistics["max_active"]) == (30, 0, max(active))
    assert statistics["mean_active"] == pytest.approx(np.mean(active), abs=0.01)
    assert statistics["empty"] == active.count(0)
    edges, counts = statistics["histogram"]["edges"], statistics["histogram"]["counts"]
    assert counts == [sum(low <= n < high for n in active) for low, high in pairwise(edges)]
    assert sum(counts) == 30
    frequency = {term: sum(row[term] > 0 for row in dense) for term in range(width)}
    assert statistics["dead_terms"] == sum(not n for n in frequency.values())
    assert found["queries"]["dead_terms"] == sum(not (dense[:4, term] > 0).any() for term in range(width))
    ids = {name: term for term, name in enumerate(tiny_splade.tokenizer.convert_ids_to_tokens(range(width)))}
    assert statistics["frequent"][0][1] == pytest.approx(max(frequency.values()) / 30, abs=1e-4)
    for name, share, weight, is_stop_word in statistics["frequent"]:
        weights = [row[ids[name]] for row in dense if row[ids[name]] > 0]
        assert share == pytest.approx(len(weights) / 30, abs=1e-4)
        assert weight == pytest.approx(np.mean(weights), abs=1e-4)
        assert is_stop_word == (ids[name] in stop_words)
    name, weight, _ = statistics["strong"][0]
    assert weight == pytest.approx(dense.sum(axis=0).max() / 30, abs=1e-4)
    assert ids[name] == dense.sum(axis=0).argmax()


def test_an_output_beyond_the_tokenizer_is_named_by_its_number(tiny_splade: Any) -> None:
    """A decoder may be padded; the page asks of each name whether it is punctuation."""
    width = len(tiny_splade.tokenizer) + 3
    vectors = np.zeros((2, width), dtype=np.float32)
    vectors[:, [7, width - 1]] = 1
    rows = sparse.csr_array(vectors)
    listed = term_statistics(tiny_splade, rows, rows)["documents"]["strong"]
    assert [name for name, _, _ in listed] == [
        tiny_splade.tokenizer.convert_ids_to_tokens(7),
        f"[{width - 1}]",
    ]
    assert not any(is_punctuation(name) for name, _, _ in listed)
