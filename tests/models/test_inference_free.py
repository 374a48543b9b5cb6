"""The inference-free query side: a lookup on queries, the same encoder on documents, stock files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.models import build_inference_free, build_splade
from lexforge.models.prompts import encode_kind

TEXTS = ["sort a list list", "한국 서울 검색", "zzz ♥ index"]


def dense(embeddings) -> np.ndarray:
    return embeddings.to_dense().cpu().numpy()


@pytest.fixture
def encoder(tiny_checkpoint: Path) -> SparseEncoder:
    return build_splade(tiny_checkpoint, similarity="dot", device="cpu")


def weights_of(encoder: SparseEncoder) -> np.ndarray:
    return np.random.default_rng(0).random(len(encoder.tokenizer)).astype(np.float32) + 0.1


def test_queries_are_looked_up_and_documents_encoded(encoder: SparseEncoder) -> None:
    """The oracle for a query is a loop over its distinct tokens."""
    weights = weights_of(encoder)
    documents = dense(encoder.encode(TEXTS, show_progress_bar=False))
    model = build_inference_free(encoder, weights)
    expected = np.zeros((len(TEXTS), len(weights)), dtype=np.float32)
    for row, text in zip(expected, TEXTS, strict=True):
        for token in encoder.tokenizer.tokenize(text):
            term = encoder.tokenizer.convert_tokens_to_ids(token)
            row[term] = 0.0 if token == "[UNK]" else weights[term]
    np.testing.assert_array_equal(dense(model.encode_query(TEXTS, show_progress_bar=False)), expected)
    np.testing.assert_array_equal(dense(model.encode_document(TEXTS, show_progress_bar=False)), documents)


def test_saved_in_stock_classes(encoder: SparseEncoder, tmp_path: Path) -> None:
    """Plain sentence-transformers loads both sides to the same embeddings and the same similarity."""
    encoder.similarity_fn_name = "cosine"
    model = build_inference_free(encoder, weights_of(encoder))
    model.save_pretrained(str(tmp_path))
    assert "lexforge" not in (tmp_path / "modules.json").read_text()
    assert "lexforge" not in json.dumps(json.loads((tmp_path / "router_config.json").read_text()))
    loaded = SparseEncoder(str(tmp_path), device="cpu")
    assert loaded.similarity_fn_name == "cosine"
    for side in ("encode_query", "encode_document"):
        first, second = (dense(getattr(one, side)(TEXTS, show_progress_bar=False)) for one in (model, loaded))
        np.testing.assert_allclose(second, first, atol=1e-5)  # fused and plain sum in another order
    rebuilt = build_splade(tmp_path, max_seq_length=20, device="cpu")  # training can go on from it
    np.testing.assert_allclose(
        dense(rebuilt.encode_document(TEXTS, show_progress_bar=False)),
        dense(loaded.encode_document(TEXTS, show_progress_bar=False)),
        atol=1e-5,
    )


def test_documents_keep_the_prompt_and_the_limit_of_the_encoder(encoder: SparseEncoder) -> None:
    """An index of the encoder's documents can be searched with the new queries, which have no prompt."""
    encoder.prompts = {"query": "search ", "passage": "file "}
    encoder.max_active_dims = 5
    expected = dense(encode_kind(encoder, TEXTS, "document", show_progress_bar=False))
    model = build_inference_free(encoder, weights_of(encoder))
    found = dense(model.encode_document(TEXTS, show_progress_bar=False))
    np.testing.assert_array_equal(found, expected)
    assert (found > 0).sum(axis=1).tolist() == [5, 5, 5]
    search = encoder.tokenizer.convert_tokens_to_ids("search")
    assert not dense(model.encode_query(TEXTS, show_progress_bar=False))[:, search].any()


@pytest.mark.parametrize("trainable", [True, False])
def test_the_lookup_trains_only_if_asked(encoder: SparseEncoder, trainable: bool) -> None:
    """idf is a fixed table by default; the optimizer must not find it."""
    model = build_inference_free(encoder, weights_of(encoder), trainable=trainable)
    lookup = model[0].sub_modules["query"][0]
    assert lookup.weight.requires_grad is trainable


def test_the_callers_weights_stay(encoder: SparseEncoder) -> None:
    """The special tokens' zeros are written to a copy."""
    weights = weights_of(encoder)
    before = weights.copy()
    build_inference_free(encoder, weights)
    np.testing.assert_array_equal(weights, before)


@pytest.mark.parametrize("fault", ["short", "matrix", "nan", "negative"])
def test_weights_that_cannot_be(encoder: SparseEncoder, fault: str) -> None:
    """One finite weight >= 0 a term; the message says what came."""
    weights = weights_of(encoder)
    if fault == "short":
        weights = weights[:-1]
    elif fault == "matrix":
        weights = weights[None]
    else:
        weights[7] = np.nan if fault == "nan" else -1.0
    with pytest.raises(ValueError, match=r"query_weights must be \[\d+\], finite and >= 0; received shape"):
        build_inference_free(encoder, weights)


def test_an_asymmetric_encoder(encoder: SparseEncoder) -> None:
    """A Router in a Router could not tell which side is meant."""
    asymmetric = build_inference_free(encoder, weights_of(encoder))
    with pytest.raises(ValueError, match="has a Router already"):
        build_inference_free(asymmetric, weights_of(encoder))


def test_a_padded_decoder(encoder: SparseEncoder) -> None:
    """sentence-transformers loads the lookup with the tokenizer's size: a longer one never loads."""
    encoder[0].model.resize_token_embeddings(len(encoder.tokenizer) + 3)
    with pytest.raises(ValueError, match=r"the tokenizer has \d+ terms and the decoder \d+"):
        build_inference_free(encoder, weights_of(encoder))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")  # torch, in `similarity`
@pytest.mark.parametrize("inference_free", [True, False])
def test_the_model_card_shows_the_way_of_queries_and_of_documents(
    inference_free: bool, encoder: SparseEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """People copy it: `encode` would send queries through the encoder of documents. The code of the card is
    run, and must print what the card says.
    """
    model = build_inference_free(encoder, weights_of(encoder)) if inference_free else encoder
    model.save_pretrained(str(tmp_path))
    code = (tmp_path / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert "model.encode_query(queries)" in code
    assert "model.encode_document(documents)" in code
    assert "model.encode(" not in code
    exec(code.replace('"sparse_encoder_model_id"', repr(str(tmp_path))), {})
    shown = [
        line.removeprefix("# ") for line in code.splitlines() if line.startswith(("# torch", "# tensor"))
    ]
    assert len(shown) == 2
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == shown[0]
    numbers = [
        float(number) for number in printed[-1].removeprefix("tensor([[").removesuffix("]])").split(",")
    ]
    expected = [float(number) for number in shown[1].removeprefix("tensor([[").removesuffix("]])").split(",")]
    assert numbers == pytest.approx(expected, rel=1e-3)  # printed with other numbers of digits


def test_the_examples_of_a_trained_model_are_queries_and_documents_of_its_data(
    encoder: SparseEncoder, tmp_path: Path
) -> None:
    """Not three sentences about the weather, and no query among the documents."""
    model = build_inference_free(encoder, weights_of(encoder))
    rows = [{"anchor": f"query {word}", "positive": f"document {word}"} for word in "abcdefghijkl"]
    model.model_card_data.set_widget_examples(Dataset.from_list(rows))
    model.save_pretrained(str(tmp_path))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    queries, documents = card.split("queries = [\n")[1].split("]\ndocuments = [\n")
    assert [line.split()[0] for line in queries.splitlines()] == ["'query"]
    assert [line.split()[0] for line in documents.split("]\n")[0].splitlines()] == ["'document"] * 3
