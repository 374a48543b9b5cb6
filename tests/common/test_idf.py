"""Document frequencies and their inverse under a model's tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from lexforge.common.idf import corpus_idf, document_frequency

TEXTS = ["sort the list", "sort sort a list", "search the index of documents", ""]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path):
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def test_document_frequency_equals_a_count_by_hand(tokenizer) -> None:
    """A token counts once a text, whatever its repeats, and special tokens do not count."""
    frequency = document_frequency(TEXTS, tokenizer)
    assert frequency.shape == (len(tokenizer),)
    ids = tokenizer.get_vocab()
    counted = {
        word: int(frequency[ids[word]]) for word in ("sort", "list", "the", "a", "of", "graph", "[CLS]")
    }
    assert counted == {"sort": 2, "list": 2, "the": 2, "a": 1, "of": 1, "graph": 0, "[CLS]": 0}


def test_document_frequency_equals_a_naive_loop(tokenizer) -> None:
    """Batches must join without a text lost or counted twice."""
    texts = [f"{first} {second}" for first in TEXTS for second in TEXTS] * 70  # more than one batch of 1,024
    naive = [0] * len(tokenizer)
    for text in texts:
        for token in set(tokenizer.tokenize(text)):
            naive[tokenizer.convert_tokens_to_ids(token)] += 1
    assert document_frequency(texts, tokenizer).tolist() == naive


def test_texts_are_cut_as_the_model_cuts_them(tokenizer) -> None:
    """What the encoder never sees must not count: 4 tokens, of which [CLS] and [SEP] are two."""
    ids = tokenizer.get_vocab()
    frequency = document_frequency(["sort the list", "the list sort"], tokenizer, max_seq_length=4)
    assert [int(frequency[ids[word]]) for word in ("sort", "the", "list")] == [1, 2, 1]


def test_idf_equals_numbers_worked_by_hand(tokenizer) -> None:
    """Of 4 texts "sort" stands in 2, "a" in 1, "graph" in none."""
    idf = corpus_idf(TEXTS, tokenizer)
    ids = tokenizer.get_vocab()
    assert idf.dtype == np.float32
    assert idf.shape == (len(tokenizer),)
    expected = {"sort": math.log(2.0), "a": math.log(10 / 3), "graph": math.log(10.0)}
    for word, value in expected.items():
        assert idf[ids[word]] == pytest.approx(value, rel=1e-6)  # float32 holds 7 digits
    assert corpus_idf(["the"] * 50, tokenizer)[ids["the"]] > 0


@pytest.mark.parametrize(
    ("texts", "length", "message"),
    [
        ([], None, "at least one text"),
        (["a", None], None, "text 1 is not a string: None"),
        (["a", float("nan")], None, "text 1 is not a string: nan"),
        (["a"], 2, "max_seq_length 2 leaves no room"),
    ],
)
def test_wrong_input_is_refused(tokenizer, texts: list, length: int | None, message: str) -> None:
    """An empty corpus would give the same idf to every term, and none an effect."""
    with pytest.raises(ValueError, match=message):
        corpus_idf(texts, tokenizer, length)


def test_a_padded_output_has_entries_beyond_the_tokenizer(tokenizer) -> None:
    """Checkpoints padded to a multiple of 64 are wider than their tokenizer; no text holds the rest."""
    size = len(tokenizer) + 3
    assert document_frequency(TEXTS, tokenizer, vocabulary_size=size)[-3:].tolist() == [0, 0, 0]
    assert corpus_idf(TEXTS, tokenizer, vocabulary_size=size).shape == (size,)
    with pytest.raises(ValueError, match=r"vocabulary_size must be at least .* received 5"):
        document_frequency(TEXTS, tokenizer, vocabulary_size=5)
