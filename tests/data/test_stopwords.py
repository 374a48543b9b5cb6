"""Stop words under tokenizers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from lexforge.data.stopwords import PARTICLES, check_language, stopword_ids, stopword_summary


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


def test_a_file_takes_the_place_of_a_language(tokenizer, tmp_path: Path) -> None:
    """Its name is a path or a string that ends in .txt, and its lines are the words."""
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


def test_korean_particles_as_continuations_of_word_pieces() -> None:
    """Without them "--language ko" penalises no particle that a text holds: they follow a noun."""
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] 서울 은 ##은 ##에서 ##가 ##울 ##구".split()
    made = BertTokenizer(vocab={word: number for number, word in enumerate(words)}, strip_accents=False)
    assert made.tokenize("서울은 서울에서") == ["서울", "##은", "서울", "##에서"]
    found = made.convert_ids_to_tokens(stopword_ids(made, "ko"))
    assert found == ["은", "##은", "##에서", "##가"]
    assert made.convert_ids_to_tokens(stopword_ids(made, "en")) == []


def test_particles_as_continuations_of_sentence_pieces() -> None:
    """In XLM-R's vocabulary the particle is the piece without the word mark; "▁은" begins a word."""
    pieces = ["▁서울", "은", "▁은", "에서", "▁東京", "東京", "は", "까지", "울", "▁"]
    made = sentence_piece(pieces)
    assert made.tokenize("서울은 서울에서") == ["▁서울", "은", "▁서울", "에서"]
    assert set(made.convert_ids_to_tokens(stopword_ids(made, "ko"))) >= {"은", "▁은", "에서", "까지"}
    assert not set(made.convert_ids_to_tokens(stopword_ids(made, "ko"))) & {"▁서울", "울", "▁東京", "は"}
    japanese = set(made.convert_ids_to_tokens(stopword_ids(made, "ja")))
    assert "は" in japanese
    assert not japanese & {"▁東京", "東京", "은"}


def test_particles_of_byte_level_tokens() -> None:
    """The vocabulary spells "은" as three other characters, one for each byte."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelt = {word: to_bytes.pre_tokenize_str(word)[0][0] for word in ("은", "에서", "서울")}
    made = byte_level_bpe([*spelt.values()])
    assert made.tokenize("서울은") == [spelt["서울"], spelt["은"]]
    ids = stopword_ids(made, "ko")
    assert set(made.convert_tokens_to_ids([spelt["은"], spelt["에서"]])) <= set(ids)
    assert made.convert_tokens_to_ids(spelt["서울"]) not in ids


def test_a_file_and_another_language_bring_no_particles(tmp_path: Path) -> None:
    """The list is added for the languages that attach particles and for nothing else."""
    made = sentence_piece(["▁서울", "은", "▁은", "▁"])
    (tmp_path / "words.txt").write_text("서울\n", encoding="utf-8")
    assert made.convert_ids_to_tokens(stopword_ids(made, tmp_path / "words.txt")) == ["▁서울"]
    assert stopword_ids(made, "en") == []


def test_the_summary_says_the_number_of_ids_and_ten_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """A language that finds next to nothing in a vocabulary must be seen once, before a day of training."""
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"##{word}" for word in PARTICLES["ko"])]
    made = BertTokenizer(vocab={word: number for number, word in enumerate(words)}, strip_accents=False)
    with caplog.at_level("INFO", logger="lexforge"):
        ids = stopword_ids(made, "ko")
    count = len(PARTICLES["ko"])
    assert len(ids) == count
    assert caplog.messages == []  # each rank looks them up, and the recipe prints the summary
    head, _, examples = stopword_summary(made, ids, "ko").partition(", such as ")
    assert head == f"stop words (ko): {count} ids"
    assert len(examples.split()) == 10
    assert set(examples.split()) <= set(words)
    assert stopword_summary(made, [], "ko") == "stop words (ko): 0 ids"


def test_a_language_without_stop_words_is_refused() -> None:
    """It was found unknown after the encoder had been built."""
    check_language("ko")
    with pytest.raises(ValueError, match="xx"):
        check_language("xx")
