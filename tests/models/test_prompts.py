"""Queries and documents are encoded with the prompts that a model was saved with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from lexforge.models.prompts import column_prompts, encode_kind, saved_prompt


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_the_document_prompt_is_found_under_each_of_its_names(
    name: str, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """The oracle is the plain encoding of the text with its prompt before it. sentence-transformers itself
    passes over "passage", under which E5 saves its prompt, for an empty prompt that it adds.
    """
    plain = {text: tiny_dense.encode(text) for text in ("search sort a list", "file sort a list")}
    tiny_dense.prompts = {"query": "search ", name: "file "}
    tiny_dense.save(str(tmp_path))
    model = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(
        encode_kind(model, ["sort a list"], "query")[0], plain["search sort a list"], atol=1e-5
    )  # float32
    np.testing.assert_allclose(
        encode_kind(model, ["sort a list"], "document")[0], plain["file sort a list"], atol=1e-5
    )  # float32


def test_a_model_without_prompts_encodes_both_kinds_alike(tiny_dense: SentenceTransformer) -> None:
    """No prompt is made up."""
    query, document = (encode_kind(tiny_dense, ["sort a list"], kind) for kind in ("query", "document"))
    np.testing.assert_array_equal(query, document)
    np.testing.assert_array_equal(query, tiny_dense.encode(["sort a list"]))


@pytest.mark.parametrize("kind", ["query", "document", None])
@pytest.mark.parametrize("default", [None, "task"])
def test_the_saved_prompt_is_the_one_that_encoding_puts_first(
    kind: str | None, default: str | None, tiny_dense: SentenceTransformer
) -> None:
    """The oracle is the model's own method: training and search must see the same text."""
    tiny_dense.prompts = {"query": "search ", "document": "file ", "task": "sort "}
    tiny_dense.default_prompt_name = default
    method = {"query": tiny_dense.encode_query, "document": tiny_dense.encode_document}.get(
        kind or "", tiny_dense.encode
    )
    text = saved_prompt(tiny_dense, kind) + "sort a list"  # type: ignore[arg-type]
    np.testing.assert_allclose(tiny_dense.encode(text, prompt=""), method("sort a list"), atol=1e-6)


def test_a_single_text_and_an_unknown_kind_are_refused(tiny_dense: SentenceTransformer) -> None:
    """The characters of the text would be encoded, and a query of a mistyped kind as a document."""
    with pytest.raises(TypeError, match="expected a list of texts; received the single text 'sort'"):
        encode_kind(tiny_dense, "sort", "query")
    with pytest.raises(ValueError, match=r"one of \('query', 'document'\); received 'passage'"):
        encode_kind(tiny_dense, ["sort"], "passage")


def test_each_column_gets_the_prompt_of_its_kind(tiny_dense: SentenceTransformer) -> None:
    """Pairs of sentences are neither queries nor documents: `model.encode` measures them. A model whose
    queries are trained without their prompt would be searched otherwise than it was trained.
    """
    tiny_dense.prompts = {"query": "q ", "passage": "p ", "document": "", "task": "t "}
    tiny_dense.default_prompt_name = "task"
    columns = ["anchor", "positive", "negative_2", "text", "sentence1"]
    assert list(column_prompts(tiny_dense, columns).values()) == ["q ", "p ", "p ", "p ", "t "]
    for columns in (["query", "document", "neg"], ["question", "answer", "hard_negative"]):
        assert list(column_prompts(tiny_dense, columns).values()) == ["q ", "p ", "p "]
    tiny_dense.prompts = {}
    tiny_dense.default_prompt_name = None
    assert column_prompts(tiny_dense, columns) == {}
