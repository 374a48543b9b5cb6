"""The calibration of the bias: its solver against naive counts, and a saved model with the wanted numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.models import build_inference_free, restrict_output_vocabulary
from lexforge.models.structure import splade_decoders
from lexforge.models.vocabulary import BANNED_BIAS
from lexforge.training import calibrate_active_terms, term_calibration, term_sample
from lexforge.training.term_calibration import calibrate_on_samples
from lexforge.training.term_thresholds import Logits, TooShallowError, solve_thresholds

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
QUERIES = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[6:]]
DOCUMENTS = [f"the {a} of a {b} is in the {c}" for a, b, c in zip(WORDS, WORDS[3:], WORDS[5:], strict=False)]
SIZE = 30


def logits(seed: int, texts: int, favoured: range) -> Logits:
    """Random logits of every term in every text; some terms have higher ones."""
    values = np.random.default_rng(seed).normal(size=(texts, SIZE))
    values[:, list(favoured)] += 1.5
    return Logits(np.tile(np.arange(SIZE), texts), values.ravel(), texts)


def naive_mean(rows: Logits, thresholds: np.ndarray) -> float:
    count = 0
    for term, value in zip(rows.terms, rows.values, strict=True):
        count += value > thresholds[term]
    return count / rows.texts


@pytest.mark.parametrize(("query_terms", "document_terms"), [(9, 12), (12, 12), (14, 10), (9.5, 13.25)])
def test_the_solver_meets_both_numbers(query_terms: float, document_terms: float) -> None:
    """Naive counts: documents exactly, each query left out to one term; the thresholds have the documented
    form.
    """
    queries, documents = logits(0, 40, range(16)), logits(1, 80, range(14, 30))
    found = solve_thresholds(queries, documents, query_terms, document_terms, SIZE)
    assert naive_mean(documents, found.thresholds) == found.document_terms == document_terms
    assert found.query_terms == pytest.approx(query_terms, abs=1.5 / queries.texts)

    # The contrast by hand: each side is cut where it alone has its number.
    active = [
        rows.values.reshape(rows.texts, SIZE) >= sorted(rows.values)[-round(wanted * rows.texts)]
        for rows, wanted in ((queries, query_terms), (documents, document_terms))
    ]
    totals = [int(side.sum()) for side in active]

    def contrast(left_out: int | None = None) -> np.ndarray:
        rows = [row for place, row in enumerate(active[0]) if place != left_out]
        q, d = np.sum(rows, axis=0) / totals[0], active[1].sum(axis=0) / totals[1]
        return (q - d) / (q + d + 1e-3)

    slope, level = np.polyfit(contrast(), found.thresholds, 1)
    np.testing.assert_allclose(found.thresholds, level + slope * contrast(), atol=1e-9)
    alone = naive_mean(queries, np.full(SIZE, documents.level(document_terms, np.zeros(SIZE))))
    assert (slope > 0) == (alone > query_terms)  # terms that are typical of queries become harder if too many
    left_out = [
        np.sum(row > level + slope * contrast(place))
        for place, row in enumerate(queries.values.reshape(queries.texts, SIZE))
    ]
    assert found.query_terms == pytest.approx(np.mean(left_out), abs=1 / queries.texts)


def test_queries_that_are_not_in_the_sample_have_the_number() -> None:
    """Each query has terms of its own, which the sample makes look typical of all queries: with the sample
    at the wanted number, other queries had a tenth too few.
    """
    size, random = 2000, np.random.default_rng(0)

    def draw(texts: int, typical_of_queries: float = 0) -> Logits:
        values = random.normal(size=(texts, size))
        values[np.arange(texts)[:, None], random.integers(0, size, (texts, 8))] += 4  # its own
        values[:, :100] += typical_of_queries
        return Logits(np.tile(np.arange(size), texts), values.ravel(), texts)

    documents, queries, others = draw(300), draw(100, 1), draw(200, 1)
    thresholds = solve_thresholds(queries, documents, 20, 10, size).thresholds
    assert queries.mean_active(thresholds) > 22
    assert others.mean_active(thresholds) == pytest.approx(20, rel=0.03)

    # Other queries cannot have 30, but those of the sample can, and others come near with them.
    found = solve_thresholds(queries, documents, 30, 10, size)
    assert queries.mean_active(found.thresholds) == pytest.approx(30, abs=0.02)
    assert found.query_terms == pytest.approx(others.mean_active(found.thresholds), rel=0.03)
    assert 26 < found.query_terms < 28

    # Queries without any terms that are typical of them come no nearer to 20 by their own terms.
    found = solve_thresholds(draw(100), documents, 20, 10, size)
    assert found.thresholds.min() == found.thresholds.max()


def test_numbers_out_of_reach_leave_the_terms_as_they_stand_to_each_other() -> None:
    """The nearest would be 14 of 29 wanted query terms, with thresholds that differ by 3."""
    queries, documents = logits(0, 40, range(16)), logits(1, 80, range(14, 30))
    thresholds = solve_thresholds(queries, documents, 29, 12, SIZE).thresholds
    assert thresholds.min() == thresholds.max()
    assert naive_mean(documents, thresholds) == 12


def test_too_few_logits_are_told() -> None:
    """The caller then looks deeper; a threshold from nothing would be a number out of the air."""
    rows = logits(0, 4, range(0))
    with pytest.raises(TooShallowError, match="120 logits in all; wanted are 30 per text"):
        rows.level(SIZE, np.zeros(SIZE))


def mean_active(model: SparseEncoder, texts: list[str]) -> float:
    vectors = model.encode(texts, convert_to_sparse_tensor=False)
    return float((vectors > 0).sum(dim=1).float().mean())


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("shift", [-40.0, 0.0, 40.0], ids=["empty", "as it is", "dense"])
def test_the_saved_model_has_the_wanted_number(
    tiny_checkpoint: Path, tmp_path: Path, activation: str, shift: float
) -> None:
    """From every term active and from none, read back by plain sentence-transformers with equal vectors;
    a term that is forbidden stays so.
    """
    transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
    pooling = SpladePooling("max", activation_function=activation)  # type: ignore[arg-type]
    model = SparseEncoder(modules=[transformer, pooling], device="cpu")
    bias = transformer.model.get_output_embeddings().bias
    with torch.no_grad():
        bias += shift
    restrict_output_vocabulary(model, [7, 30])
    reached = calibrate_active_terms(model, [], DOCUMENTS, document_terms=20)
    assert reached == {"document": 20.0}
    assert mean_active(model, DOCUMENTS) == 20.0
    assert bias[[7, 30]].tolist() == [BANNED_BIAS, BANNED_BIAS]
    model.save_pretrained(str(tmp_path / "model"))
    plain = SparseEncoder(str(tmp_path / "model"), device="cpu")
    ours, theirs = (m.encode(DOCUMENTS, convert_to_sparse_tensor=False) for m in (model, plain))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


def test_queries_and_documents_get_a_number_each(tiny_splade: SparseEncoder) -> None:
    """One bias serves both: terms that are typical of one side are moved against those of the other."""
    natural = mean_active(tiny_splade, QUERIES) / mean_active(tiny_splade, DOCUMENTS)
    wanted = {"query_terms": 24 * natural * 0.8, "document_terms": 24}
    reached = calibrate_active_terms(tiny_splade, QUERIES, DOCUMENTS, **wanted)
    assert mean_active(tiny_splade, DOCUMENTS) == pytest.approx(24, abs=1.5 / len(DOCUMENTS))
    assert mean_active(tiny_splade, QUERIES) == pytest.approx(wanted["query_terms"], abs=1.5 / len(QUERIES))
    assert reached["query"] == pytest.approx(wanted["query_terms"], abs=1.5 / len(QUERIES))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_number_told_is_that_of_the_rounded_bias(tiny_splade: SparseEncoder, dtype: torch.dtype) -> None:
    """A bias in half precision takes another shift than the one that was computed; the report must not tell
    the number that only the exact shift would give.
    """
    model = tiny_splade.to(dtype)
    with torch.no_grad():
        splade_decoders(model)[0].bias += 3  # where bfloat16 has steps of .016
    reached = calibrate_active_terms(model, QUERIES, DOCUMENTS, query_terms=17, document_terms=19)
    assert reached["document"] == pytest.approx(mean_active(model, DOCUMENTS), rel=1e-6)
    reached = calibrate_active_terms(model, QUERIES, DOCUMENTS, query_terms=23)
    assert reached["query"] == pytest.approx(mean_active(model, QUERIES), rel=1e-6)


def test_numbers_that_exclude_each_other_are_told(
    tiny_splade: SparseEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    """The same texts cannot have 5 terms as queries and 30 as documents: a warning says what they have, and
    one shift for all terms brings the documents to their number."""
    bias = splade_decoders(tiny_splade)[0].bias
    before = bias.detach().double()
    with caplog.at_level(logging.WARNING):
        calibrate_active_terms(tiny_splade, DOCUMENTS, DOCUMENTS, query_terms=5, document_terms=30)
    assert "a query has 30.0 active terms on average, and 5 were wanted" in caplog.text
    assert mean_active(tiny_splade, DOCUMENTS) == 30.0
    shifts = bias.detach().double() - before
    assert float(shifts.max() - shifts.min()) < 1e-6


def test_a_number_that_costs_much_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Ten texts with a term each share one weak term: with it a query has two terms, and FLOPS rise from .1
    to 1.1, where twice the terms explain .2.
    """
    texts = Logits(
        terms=np.array([*range(10), *[20] * 10]), values=np.array([1.0] * 10 + [-0.5] * 10), texts=10
    )
    thresholds = np.zeros(SIZE)
    term_calibration._warn_of_cost(texts, texts, thresholds, 1)
    assert not caplog.text
    thresholds[20] = -1
    term_calibration._warn_of_cost(texts, texts, thresholds, 1)
    assert (
        "2.0 active terms per query make a search expensive: the FLOPS of the sample are 1.10" in caplog.text
    )
    assert "a query has 1.0 terms, and the FLOPS are 0.10" in caplog.text


def test_a_model_without_a_bias_to_shift_is_refused(tiny_splade: SparseEncoder) -> None:
    """Each of these would leave another number than the one asked for, without a word."""
    with pytest.raises(ValueError, match="received None for both"):
        calibrate_active_terms(tiny_splade, QUERIES, DOCUMENTS)
    free = build_inference_free(tiny_splade, np.ones(len(tiny_splade.tokenizer)))
    with pytest.raises(ValueError, match=r"inference-free .* received query_terms=4"):
        calibrate_active_terms(free, QUERIES, DOCUMENTS, query_terms=4)
    assert calibrate_active_terms(free, [], DOCUMENTS, document_terms=9) == {"document": 9.0}
    tiny_splade.max_active_dims = 5
    with pytest.raises(ValueError, match="max_active_dims=5"):
        calibrate_active_terms(tiny_splade, QUERIES, DOCUMENTS, document_terms=4)
    tiny_splade.max_active_dims = None
    tiny_splade[0].model.get_output_embeddings().bias = None
    with pytest.raises(ValueError, match="no bias"):
        calibrate_active_terms(tiny_splade, QUERIES, DOCUMENTS, document_terms=4)


def test_rows_of_every_kind_give_the_same_bias(tiny_checkpoint: Path) -> None:
    """A data set, a stream and several by name hold the same texts, whatever the columns are called; a label
    is no text and a repeated text counts once.
    """
    rows = Dataset.from_dict({"question": QUERIES[:6] * 2, "answer": DOCUMENTS[:6] * 2, "label": [1.0] * 12})
    biases = []
    for given in (rows, rows.to_iterable_dataset(), {"a": rows, "b": rows.select(range(6))}):
        transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
        model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
        reached = calibrate_on_samples(
            model, given, ["label"], query_terms=None, document_terms=15, batch_size=8, seed=0
        )
        assert reached == {"document": 15.0}
        assert mean_active(model, DOCUMENTS[:6]) == 15.0
        biases.append(transformer.model.get_output_embeddings().bias.detach())
    torch.testing.assert_close(biases[1], biases[0], rtol=0, atol=0)
    torch.testing.assert_close(biases[2], biases[0], rtol=0, atol=0)


def test_the_sample_is_of_the_given_texts_and_filled_up_with_rows(
    tiny_splade: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough given texts are the sample alone; too few are all in it, each text once; else the rows."""
    rows = Dataset.from_dict({"anchor": QUERIES[:6], "positive": DOCUMENTS[:6]})
    wanted = {"query_terms": None, "document_terms": 15, "batch_size": 8, "seed": 0}
    given = DOCUMENTS[6:]
    monkeypatch.setattr(term_sample, "FEW", len(given))
    calibrate_on_samples(tiny_splade, rows, texts={"document": given, "query": []}, **wanted)
    assert mean_active(tiny_splade, given) == pytest.approx(15, abs=1.5 / len(given))
    assert mean_active(tiny_splade, DOCUMENTS[:6]) != pytest.approx(15, abs=0.1)

    monkeypatch.setattr(term_sample, "FEW", 100)
    calibrate_on_samples(tiny_splade, rows, texts={"document": DOCUMENTS[4:]}, **wanted)
    assert mean_active(tiny_splade, DOCUMENTS) == pytest.approx(15, abs=1.5 / len(DOCUMENTS))
    monkeypatch.setattr(term_sample, "FEW", 1)  # where there are none, there is nothing to fill up
    calibrate_on_samples(tiny_splade, rows, texts={"query": QUERIES}, **wanted)
    assert mean_active(tiny_splade, DOCUMENTS[:6]) == pytest.approx(15, abs=1.5 / 6)


def test_many_rows_are_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a large set stay on the disk; those that are read lie all over it."""
    monkeypatch.setattr(term_sample, "SAMPLE", 5)
    rows = Dataset.from_dict({"anchor": [str(row) for row in range(100)], "positive": ["text"] * 100})
    texts = term_sample._texts_of_rows(rows, ())
    assert texts == {"query": [str(row) for row in range(0, 100, 5)], "document": ["text"]}
