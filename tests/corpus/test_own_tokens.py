"""The tokens of texts as an encoder reads them: how many there are, and how many it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from lexforge.corpus import count_tokens, own_tokens, token_limit, unknown_share, unknown_shares
from lexforge.models import build_dense, build_lexical_backbone


def test_tokens_are_counted_beyond_the_limit_of_the_model(tiny_splade) -> None:
    """Passages are divided by this count, so a text must not look as long as the model reads of it."""
    long = "sort the list " * 100
    counts = count_tokens(tiny_splade, ["sort", long, ""])
    assert counts == [3, len(tiny_splade.tokenizer.tokenize(long)) + 2, 2]
    assert counts[1] > tiny_splade.max_seq_length


def test_the_prompt_of_documents_is_counted(tiny_splade) -> None:
    """The model reads it before each passage, so the end of a full passage was never read."""
    tiny_splade.prompts["passage"] = "parse the list "
    assert count_tokens(tiny_splade, ["", "sort"]) == [5, 6]


def test_a_tokenizer_without_a_limit_cuts_nothing(tiny_splade) -> None:
    """transformers says 1e30, which overflowed in every search of such a model."""
    tiny_splade.max_seq_length = int(1e30)
    assert token_limit(tiny_splade) is None
    assert len(own_tokens.own_tokens(tiny_splade, "sort list " * 99)) == 198


def test_a_shorter_length_of_documents_counts(tiny_splade) -> None:
    """sentence-transformers cuts documents there, so the rest of each passage was never encoded."""
    tiny_splade[0].document_length = 6
    assert token_limit(tiny_splade) == 6


def test_tokens_that_the_model_does_not_know_are_counted(
    tiny_splade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of another language reads one token for every word."""
    assert unknown_share(tiny_splade, ["sort the list", "open the file"]) == 0
    assert unknown_share(tiny_splade, ["☃ ☃ list"]) == pytest.approx(2 / 3)
    assert unknown_share(tiny_splade, [""]) == 0
    monkeypatch.setattr(own_tokens, "SAMPLE", 2)
    assert unknown_share(tiny_splade, ["☃", *["list"] * 9]) == pytest.approx(1 / 2)


def test_each_route_has_its_own_tokenizer(tiny_dense, tmp_path: Path) -> None:
    """The tokenizer of queries was asked about documents: those of another language seemed unknown."""
    korean = build_dense(build_lexical_backbone(["나무 구름", "구름 바다"] * 5, tmp_path / "backbone"))
    router = Router.for_query_document(list(tiny_dense.children()), list(korean.children()))
    model = SentenceTransformer(modules=[router], device="cpu")
    assert unknown_share(model, ["나무 바다"]) == 0
    assert unknown_share(model, ["☃"]) == 1
    assert unknown_shares(model, ["나무 바다", "sort the list"], "query").tolist() == [1, 0]
