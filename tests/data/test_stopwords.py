"""Stop words under tokenizers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lexforge.data.stopwords import stopword_ids


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
    with pytest.raises(ValueError, match=r"no stop words for the language 'xx'; pass one of \['af'"):
        stopword_ids(tokenizer, "xx")
    (tmp_path / "words.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no word"):
        stopword_ids(tokenizer, tmp_path / "words.txt")
    with pytest.raises(FileNotFoundError):
        stopword_ids(tokenizer, tmp_path / "nowhere.txt")
