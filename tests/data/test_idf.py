"""Document frequencies, stop words and special tokens under a model's tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lexforge.data.idf import corpus_idf, document_frequency, stopword_ids

TEXTS = ["sort the list", "sort sort a list", "search the index of documents", ""]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path):
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def byte_level_bpe(words: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's: a space before a word is part of the token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary, merges = {"<s>": 0, **{letter: number + 1 for letter, number in letters.items()}}, []
    for word in words:
        piece = word[0]
        for letter in word[1:]:
            if piece + letter not in vocabulary:
                merges.append((piece, letter))
                vocabulary[piece + letter] = len(vocabulary)
            piece += letter
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def sentence_piece(words: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer like XLM-R's: "▁" marks the beginning of a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = [("<s>", 0.0), ("<unk>", 0.0), *((piece, -float(len(piece) < 3) - 2.0) for piece in words)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


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


def test_stop_words_of_word_pieces(tokenizer) -> None:
    """Whole words only: no "##s", no content word, and no [UNK] for a word the model does not know."""
    words = {tokenizer.convert_ids_to_tokens(token) for token in stopword_ids(tokenizer, "en")}
    assert {"the", "of", "and", "is", "with", "in", "for", "to", "a", "an"} <= words
    assert not words & {"##s", "##ing", "[UNK]", "[CLS]", "graph", "vector", "python", "document"}


def test_stop_words_of_byte_level_tokens(tmp_path: Path) -> None:
    """A word has two entries there, at the start of a text and after a space; both are the stop word."""
    tokenizer = byte_level_bpe(["Ġthe", "ĠThe", "Ġgraph", "the", "The", "theme"])
    (tmp_path / "words.txt").write_text("the\nabout\n", encoding="utf-8")
    ids = stopword_ids(tokenizer, tmp_path / "words.txt")
    assert {tokenizer.convert_ids_to_tokens(token) for token in ids} == {"the", "Ġthe", "The", "ĠThe"}


def test_stop_words_of_sentence_pieces(tmp_path: Path) -> None:
    """Only the entry that begins a word is the stop word; the same letters inside a word are not."""
    tokenizer = sentence_piece(["▁the", "the", "▁graph", "▁", "t", "h", "e"])
    (tmp_path / "words.txt").write_text("the\n", encoding="utf-8")
    ids = stopword_ids(tokenizer, tmp_path / "words.txt")
    assert [tokenizer.convert_ids_to_tokens(token) for token in ids] == ["▁the"]


def test_languages_and_files(tokenizer, tmp_path: Path) -> None:
    """Several languages add up, and a file takes the place of a language."""
    both = stopword_ids(tokenizer, ["en", "ko"])
    assert set(stopword_ids(tokenizer, "en")) | set(stopword_ids(tokenizer, "ko")) == set(both)
    path = tmp_path / "words.txt"
    path.write_text("graph\n\n한국\n", encoding="utf-8")
    expected = sorted(tokenizer.convert_tokens_to_ids(["graph", "한국"]))
    assert stopword_ids(tokenizer, path) == stopword_ids(tokenizer, str(path)) == expected


def test_unknown_languages_and_hollow_files_are_refused(tokenizer, tmp_path: Path) -> None:
    """No stop word at all would pass unnoticed."""
    with pytest.raises(ValueError, match=r"no stop words for the language 'xx'; there are \['af'"):
        stopword_ids(tokenizer, "xx")
    (tmp_path / "words.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no word"):
        stopword_ids(tokenizer, tmp_path / "words.txt")
    with pytest.raises(FileNotFoundError):
        stopword_ids(tokenizer, tmp_path / "nowhere.txt")


def test_a_padded_output_has_entries_beyond_the_tokenizer(tokenizer) -> None:
    """Checkpoints padded to a multiple of 64 are wider than their tokenizer; no text holds the rest."""
    size = len(tokenizer) + 3
    assert document_frequency(TEXTS, tokenizer, vocabulary_size=size)[-3:].tolist() == [0, 0, 0]
    assert corpus_idf(TEXTS, tokenizer, vocabulary_size=size).shape == (size,)
    with pytest.raises(ValueError, match="less than the"):
        document_frequency(TEXTS, tokenizer, vocabulary_size=5)
