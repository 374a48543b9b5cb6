"""What a sparse model adds to the words of a text, against a naive count, and what it is worth."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from encoded_batches import batches_of
from sentence_transformers import SparseEncoder

from lexforge.corpus import encode
from lexforge.corpus.own_tokens import expansion_share, keep_own_terms
from lexforge.evaluation import RetrievalEvaluator
from tests.evaluation.test_evaluator import data


def naive_own_terms(model: SparseEncoder, texts: list[str]) -> np.ndarray:
    """One text at a time, one term at a time."""
    vectors = model.encode(texts, convert_to_sparse_tensor=False).numpy()
    for row, text in enumerate(texts):
        room = model.max_seq_length - 2  # beside [CLS] and [SEP]
        own = model.tokenizer.convert_tokens_to_ids(model.tokenizer.tokenize(text)[:room])
        own += [model.tokenizer.cls_token_id, model.tokenizer.sep_token_id]
        for term in range(vectors.shape[1]):
            if term not in own:
                vectors[row, term] = 0
    return vectors


def test_own_terms_are_the_tokens_that_the_model_reads(tiny_splade: SparseEncoder) -> None:
    """A repeated token is one term, and a token beyond the limit of the model is none."""
    texts = ["sort the list", "sort sort sort", "index " * 60 + "query", ""]
    vectors = encode(tiny_splade, texts, "document")
    own = keep_own_terms(tiny_splade, vectors, texts)
    expected = naive_own_terms(tiny_splade, texts)
    np.testing.assert_allclose(own.toarray(), expected, rtol=1e-5)
    active = sum(vectors.toarray()[row, term] > 0 for row in range(4) for term in range(vectors.shape[1]))
    assert expansion_share(own, vectors) == pytest.approx(1 - np.count_nonzero(expected) / active)


def test_the_evaluator_measures_the_search_without_expansion(tiny_splade: SparseEncoder) -> None:
    """Against a dense product of the naive vectors; the model itself is measured as before."""
    from lexforge.evaluation import score_run

    sample = data()
    evaluator = RetrievalEvaluator(**sample)
    before = evaluator.evaluate(tiny_splade)
    found = evaluator.evaluate_own_terms(tiny_splade)
    queries = naive_own_terms(tiny_splade, evaluator.query_texts)
    documents = naive_own_terms(tiny_splade, evaluator.document_texts)
    scores = queries @ documents.T  # [queries, documents]
    run = {
        query: {evaluator.document_ids[place]: float(row[place]) for place in np.flatnonzero(row)}
        for query, row in zip(evaluator.query_ids, scores, strict=True)
    }
    expected = score_run(run, evaluator.qrels, ["nDCG@10"]).mean["nDCG@10"]
    assert found["nDCG@10"] == pytest.approx(expected, abs=1e-6)
    assert found["nDCG@10"] != before.metrics["nDCG@10"]
    assert found["document_active_dims"] == pytest.approx(np.count_nonzero(documents) / len(documents))
    assert 0 < found["query_expansion"] < 1
    assert evaluator.evaluate(tiny_splade).run == before.run


def test_a_closer_look_takes_the_vectors_of_its_own_model(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """Nothing is encoded twice, and queries of one model never meet documents of another from the cache."""
    evaluator = RetrievalEvaluator(**data(), cache_dir=tmp_path)
    other = copy.deepcopy(tiny_splade)
    other[0].model.get_output_embeddings().bias.data += 0.5
    evaluator.evaluate(other)  # its documents are in the folder now
    evaluator.evaluate(tiny_splade)
    first = evaluator.vectors(tiny_splade)
    batches = batches_of(tiny_splade)
    assert evaluator.vectors(tiny_splade)[0] is first[0]
    assert batches == []
    queries, documents = evaluator.vectors(other)
    for found, texts, kind in (
        (queries, evaluator.query_texts, "query"),
        (documents, evaluator.document_texts, "document"),
    ):
        np.testing.assert_allclose(found.toarray(), encode(other, texts, kind).toarray(), rtol=1e-5)
