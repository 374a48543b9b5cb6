"""The curve of a model, against models that are really trimmed or limited and evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.common.types import Passage
from lexforge.evaluation import RetrievalEvaluator
from lexforge.models import build_inference_free
from lexforge.sparsity import document_levels, trim_documents, trimming_curve

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
CORPUS = {
    f"d{n}": f"the {a} of a {b} in the {c}"
    for n, (a, b, c) in enumerate(zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[5:] + WORDS[:5], strict=True))
}
QUERIES = {f"q{n}": f"{a} {b}" for n, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))}
QRELS = {f"q{n}": {f"d{n}": 2, f"d{(n + 5) % len(CORPUS)}": 1} for n in range(len(QUERIES))}
TASK = RetrievalEvaluator(QUERIES, CORPUS, QRELS, metrics=["nDCG@10", "R@100"])
NUMBERS = [4, 30, 100]


def encoder(checkpoint: Path) -> SparseEncoder:
    transformer = Transformer(str(checkpoint), transformer_task="fill-mask", max_seq_length=32)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")


def evaluated(model: SparseEncoder) -> dict[str, float]:
    result = RetrievalEvaluator(QUERIES, CORPUS, QRELS, latency_queries=0).evaluate(model)
    sparsity = {name: value for name, value in result.sparsity.items() if name != "index_bytes"}
    return {name: result.metrics[name] for name in ("nDCG@10", "R@100")} | sparsity


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_a_point_is_what_an_evaluation_of_such_a_model_gives(tiny_checkpoint: Path, similarity: str) -> None:
    """The corpus is encoded once for the whole curve, so each point must be checked against its own model."""
    model = encoder(tiny_checkpoint)
    model.similarity_fn_name = similarity
    levels = document_levels(model, list(CORPUS.values()), NUMBERS)
    points = trimming_curve(model, TASK, levels)
    own = points[0].measures["document_active_dims"]
    assert [(point.setting, point.wanted) for point in points] == [("as it is", None)] + [
        (setting, number)
        for number in NUMBERS
        for setting in ("level", "max_active_dims", "threshold")
        if setting != "threshold" or number < own
    ]
    assert 30 < own < 100  # some numbers take terms away, one adds some
    terms = {}
    for point in points:
        other = encoder(tiny_checkpoint)
        other.similarity_fn_name = similarity
        if point.setting == "level":
            assert point.wanted is not None
            trim_documents(other, list(CORPUS.values()), point.wanted)
            terms[point.wanted] = point.measures
            assert point.measures["document_active_dims"] == pytest.approx(levels.reached[point.wanted])
        elif point.setting == "max_active_dims":
            other.max_active_dims = point.wanted
        elif point.setting == "threshold":  # the terms of the level, with other weights
            assert point.wanted is not None
            for name in ("document_active_dims", "query_active_dims", "flops"):
                assert point.measures[name] == pytest.approx(terms[point.wanted][name])
            continue
        found = dict(point.measures)
        assert found.pop("search_queries_per_s") > 0
        assert found == pytest.approx(evaluated(other), abs=1e-9)


def test_the_queries_of_an_inference_free_model_stay(tiny_splade: SparseEncoder) -> None:
    """Only the documents are trimmed; a limit of terms cuts the queries too."""
    model = build_inference_free(tiny_splade, np.linspace(0.1, 2, len(tiny_splade.tokenizer)))
    levels = document_levels(model, list(CORPUS.values()), [1, 9])
    points = trimming_curve(model, TASK, levels)
    queries = {(p.setting, p.wanted): p.measures["query_active_dims"] for p in points}
    assert queries["level", 1] == queries["level", 9] == queries["threshold", 1] == queries["as it is", None]
    assert queries["max_active_dims", 1] == 1 < queries["as it is", None]


def test_a_document_is_as_good_as_its_best_passage(tiny_splade: SparseEncoder) -> None:
    """An index holds passages, whose terms are counted; judgements name documents."""
    passages = {key: Passage("", text, f"d{int(key[1:]) // 2}") for key, text in CORPUS.items()}
    qrels = {query: {f"d{int(query[1:]) // 2}": 1} for query in QUERIES}
    task = RetrievalEvaluator(QUERIES, passages, qrels, metrics=["nDCG@10", "R@100"], latency_queries=0)
    whole, *others = trimming_curve(
        tiny_splade, task, document_levels(tiny_splade, list(CORPUS.values()), [9])
    )
    result = task.evaluate(tiny_splade)
    assert whole.measures["nDCG@10"] == pytest.approx(result.metrics["nDCG@10"])
    assert whole.measures["document_active_dims"] == pytest.approx(result.sparsity["document_active_dims"])
    assert {point.measures["R@100"] for point in others} == {1.0}, "there are fewer documents"
