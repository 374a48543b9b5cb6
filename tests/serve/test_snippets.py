"""Snippets: the part with the most weight, cut where words end, with every word marked that matched."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lexforge.common.types import Passage
from lexforge.corpus import MatchedTerm
from lexforge.serve.snippets import WIDTH, Snippet, Snippets


def terms(**scores: float) -> list[MatchedTerm]:
    """Terms of a query; a name that begins with `x_` is one of the expansion."""
    return [MatchedTerm(name.removeprefix("x_"), score, name[:2] != "x_") for name, score in scores.items()]


def words(snippet: Snippet) -> list[tuple[str, bool]]:
    """The marked words, with what their marks say of them."""
    return [(snippet.text[start:end], own) for start, end, own in snippet.marks]


def encoder(tokenizer: Tokenizer, max_seq_length: int | None = None) -> Any:
    """What snippets need of an encoder."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return SimpleNamespace(tokenizer=fast, max_seq_length=max_seq_length)


def test_a_short_text_is_shown_whole_with_its_words_marked(tiny_splade: Any) -> None:
    """Nothing is cut, and a word of the expansion is told from one of the query."""
    passage = Passage("Sort", "Sort the list, then SEARCH the list.", "d")
    snippet = Snippets(tiny_splade).cut(passage, terms(list=2.0, x_search=1.0, tree=5.0))
    assert snippet.text == passage.text
    assert words(snippet) == [("list", True), ("SEARCH", False), ("list", True)]


def test_a_part_of_a_word_marks_the_whole_word(tiny_splade: Any) -> None:
    """`##ing` alone tells a reader nothing; a word is the query's own if one of its parts is."""
    cut = Snippets(tiny_splade).cut
    passage = Passage("", "a searching tree, index_key", "d")
    assert words(cut(passage, [MatchedTerm("##ing", 1.0, False)])) == [("searching", False)]
    for is_first_own in (True, False):
        both = [MatchedTerm("search", 1.0, is_first_own), MatchedTerm("##ing", 1.0, not is_first_own)]
        assert words(cut(passage, both)) == [("searching", True)]
    assert words(cut(passage, terms(key=1.0))) == [("key", True)]  # no letter joins it to what stands before


def test_what_is_no_word_is_not_marked(tiny_splade: Any) -> None:
    """A full stop and an unknown word match by their tokens, which says nothing to a reader."""
    matched = [MatchedTerm(name, 1.0, True) for name in (".", "(", ">", "[UNK]", "[SEP]", "🌲", "tree")]
    snippet = Snippets(tiny_splade).cut(Passage("", "tree 木 [SEP] tree", "d"), matched)
    assert words(snippet) == [("tree", True), ("tree", True)]
    backend = Tokenizer(models.WordLevel({term.term: n for n, term in enumerate(matched)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    snippet = Snippets(encoder(backend)).cut(Passage("", "tree. (🌲) > tree", "d"), matched)
    assert words(snippet) == [("tree", True), ("🌲", True), ("tree", True)]


def test_the_heaviest_part_of_a_long_text_is_cut_where_words_end(tiny_splade: Any) -> None:
    """The beginning of a text seldom says why it was found."""
    tiny_splade.max_seq_length = None
    text = "token " * 100 + "a tree and a graph " + "number " * 100 + "the list " + "number " * 100
    snippet = Snippets(tiny_splade).cut(Passage("", text, "d"), terms(tree=1.0, x_graph=0.5, list=1.4))
    assert words(snippet) == [("tree", True), ("graph", False)]
    assert snippet.text[0] == snippet.text[-1] == "…"
    inner = snippet.text[1:-1]
    assert f" {inner} " in text
    assert WIDTH - 10 <= len(inner) <= WIDTH
    middle = sum(snippet.marks[0][:2]) / 2
    assert 100 < middle < 200, "what stands around the words is shown, too"


def test_a_term_counts_once_however_often_it_occurs(tiny_splade: Any) -> None:
    """Ten times the same word is one match for the model, whose pooling takes the largest weight."""
    tiny_splade.max_seq_length = None
    text = "list " * 10 + "number " * 80 + "tree graph " + "number " * 80
    snippet = Snippets(tiny_splade).cut(Passage("", text, "d"), terms(list=1.0, tree=0.6, graph=0.6))
    assert words(snippet) == [("tree", True), ("graph", True)]
    first = Snippets(tiny_splade).cut(Passage("", text, "d"), terms(list=1.0, tree=0.5, graph=0.5))
    assert words(first)[0] == ("list", True), "of parts with equal weight, the first is shown"


def test_no_other_part_has_more_weight(tiny_splade: Any) -> None:
    """Against a naive loop over every part, with random texts and weights."""
    tiny_splade.max_seq_length = None
    snippets = Snippets(tiny_splade)
    vocabulary = "sort list array search index query document vector".split()
    rng = np.random.default_rng(0)
    for _ in range(30):
        text = " ".join(rng.choice([*vocabulary, *["and"] * 60], 300))
        scores = dict(zip(vocabulary, rng.random(len(vocabulary)).tolist(), strict=True))
        snippet = snippets.cut(Passage("", text, "d"), terms(**scores))
        starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
        best = 0.0
        for start in starts:  # the words that fit into a part which begins here
            part = text[start : start + WIDTH + 1].rpartition(" ")[0].split()
            best = max(best, sum(scores[word] for word in set(part) & set(vocabulary)))
        shown = sum(scores[word] for word in {word for word, _ in words(snippet)})
        assert shown >= best - 1e-9
        assert len(snippet.text) <= WIDTH + 2


def test_the_title_is_read_and_not_shown(tiny_splade: Any) -> None:
    """The model reads title and text in one; places count from the beginning of the text."""
    cut = Snippets(tiny_splade).cut
    passage = Passage(" tree list ", "list of a tree", "d")
    snippet = cut(passage, terms(tree=1.0))
    assert (snippet.text, words(snippet)) == ("list of a tree", [("tree", True)])
    assert cut(Passage("tree", "", "d"), terms(tree=1.0)) == ("", [])
    assert cut(Passage("", "  tree\n", "d"), terms(tree=1.0)) == ("tree", [(0, 4, True)])


def test_a_word_of_the_title_is_no_word_of_the_text(tiny_splade: Any) -> None:
    """It would stand before the first character, and the part there would be shown for nothing."""
    tiny_splade.max_seq_length = None
    text = "number " * 100 + "sort the list " + "number " * 100
    snippet = Snippets(tiny_splade).cut(Passage("a tree", text, "d"), terms(tree=5.0, list=1.0))
    assert words(snippet) == [("list", True)]


def test_only_what_the_model_has_read_is_marked(tiny_splade: Any) -> None:
    """A word behind the model's last token added nothing to the score."""
    tiny_splade.max_seq_length = 4
    snippet = Snippets(tiny_splade).cut(Passage("", "a tree and the tree", "d"), terms(tree=1.0))
    assert snippet.marks == [(2, 6, True)]


def test_places_count_code_points(tiny_splade: Any) -> None:
    """A tree is one character here and two units in JavaScript; accents may be characters of their own."""
    passage = Passage("", "🌲🌲 cafe\u0301 (tree) شجرة tree", "d")
    snippet = Snippets(tiny_splade).cut(passage, terms(tree=1.0))
    assert [snippet.text[start:end] for start, end, _ in snippet.marks] == ["tree", "tree"]
    assert snippet.marks[0][0] == passage.text.index("tree")


def test_scripts_without_spaces_are_marked_by_the_token() -> None:
    """There the letters around a token belong to other words; an accent still belongs to its letter."""
    letters = "検索の木を見る가나กิ"
    backend = Tokenizer(models.WordLevel({letter: n for n, letter in enumerate(["?", *letters])}, "?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    cut = Snippets(encoder(backend)).cut
    assert words(cut(Passage("", "検索の木を見る", "d"), terms(木=1.0))) == [("木", True)]
    assert words(cut(Passage("", "가나 다", "d"), terms(가=1.0))) == [("가나", True)]
    assert words(cut(Passage("", "กิก", "d"), terms(ก=1.0))) == [("กิ", True), ("ก", True)]
    long = cut(Passage("", "検索の木を見る" * 100, "d"), terms(木=1.0))
    assert WIDTH - 10 < len(long.text) <= WIDTH + 2


@pytest.mark.parametrize("pre_tokenizer", ["byte-level", "metaspace"])
def test_a_space_before_a_word_is_no_part_of_it(pre_tokenizer: str) -> None:
    """RoBERTa's and XLM-R's tokenizers make one token of a space and the word behind it."""
    texts = ["the tree and the list of the tree"] * 20
    backend = Tokenizer(models.BPE())
    if pre_tokenizer == "byte-level":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        mark = "Ġ"
    else:
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        mark = "▁"
    from tokenizers.trainers import BpeTrainer

    backend.train_from_iterator(texts, BpeTrainer(vocab_size=300, show_progress=False))
    model = encoder(backend)
    term = f"{mark}tree"
    assert term in model.tokenizer.get_vocab()
    snippet = Snippets(model).cut(Passage("the", "tree and the  tree", "d"), [MatchedTerm(term, 1.0, True)])
    assert words(snippet) == [("tree", True), ("tree", True)]


def test_a_text_without_any_border_is_cut_all_the_same(tiny_splade: Any) -> None:
    """Data in base64 has words of thousands of letters."""
    snippet = Snippets(tiny_splade).cut(Passage("", "a" * 5000, "d"), terms(tree=1.0))
    assert snippet == ("a" * WIDTH + "…", [])
    marked = Snippets(tiny_splade).cut(Passage("", "tree " + "a" * 5000, "d"), terms(tree=1.0))
    assert words(marked) == [("tree", True)]


def test_a_tokenizer_without_places_marks_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Tokenizers that are written in Python do not say where a token stands."""
    model: Any = SimpleNamespace(tokenizer=object(), max_seq_length=8)
    with caplog.at_level(logging.WARNING, logger="lexforge"):
        snippets = Snippets(model)
    assert "no words are marked" in caplog.text
    assert snippets.cut(Passage("", "a tree", "d"), terms(tree=1.0)) == ("a tree", [])


def test_the_encoder_keeps_its_own_tokenizer(tiny_splade: Any) -> None:
    """Snippets are cut beside a search: to share a tokenizer fails with `Already borrowed`."""
    before = tiny_splade.tokenizer(["a " * 40], truncation=True, max_length=8)["input_ids"]
    snippets = Snippets(tiny_splade)
    snippets.cut(Passage("", "a tree", "d"), terms(tree=1.0))
    assert tiny_splade.tokenizer.backend_tokenizer.truncation is not None
    assert tiny_splade.tokenizer(["a " * 40], truncation=True, max_length=8)["input_ids"] == before
