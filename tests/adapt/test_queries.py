"""Texts that stand for queries: what each origin takes, how they are mixed and held out; and real queries."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from lexforge.adapt import PseudoQuery, hold_out, pseudo_queries, read_queries
from lexforge.adapt.queries import QUERY_ORIGINS
from lexforge.common.types import DataError, Passage
from lexforge.settings import TableOptions

TEXT = (
    "The river floods. It was seen by many that the sedimentary bedrock fractured! "
    "Then it rained again and again and again."
)


def passages(number: int) -> dict[str, Passage]:
    """Passages of common words and one rare word each."""
    return {
        f"d{i}": Passage(
            f"Report {i}", f"The river is long here. Then term{i} zinc{i} fell. It rained.", f"d{i}"
        )
        for i in range(number)
    }


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("title", "Floods of the valley"),
        ("sentence", "The river floods."),
        ("salient", "It was seen by many that the sedimentary bedrock fractured!"),
    ],
)
def test_each_origin_takes_its_part_of_the_passage(origin, expected: str) -> None:
    """The salient sentence is the one with the rarest words, and never the first one."""
    library = {"a": Passage("Floods of  the\nvalley", TEXT, "a")}
    library |= {f"b{i}": Passage("", "It rained again and was seen by many then.", f"b{i}") for i in range(9)}
    found = [one for one in pseudo_queries(library, 50) if (one.passage, one.origin) == ("a", origin)]
    assert [one.text for one in found] == [expected]


def test_the_marks_of_a_table_are_no_query() -> None:
    """A row of it may begin with more marks than a query has words."""
    row = f"Start here now. {'| ' * 40}word and more words."
    library = {f"b{i}": Passage("", row, f"b{i}") for i in range(3)}
    found = pseudo_queries(library, 20)
    assert {one.text for one in found if one.origin in ("sentence", "salient")} == {"Start here now."}


def test_keywords_are_the_rare_words_in_the_order_of_the_text() -> None:
    """Words that stand in every passage say nothing of one of them."""
    library = passages(40)
    found = [one for one in pseudo_queries(library, 160, seed=3) if one.origin == "keywords"]
    assert len(found) == 40
    rare = 0
    for one in found:
        words = one.text.split()
        own = library[one.passage].joined.lower().replace(".", "").split()
        places = [own.index(word) for word in words]
        assert 2 <= len(words) <= 5
        assert places == sorted(places)
        rare += sum(word.startswith(("term", "zinc")) for word in words)
    assert rare > 0.8 * len(found)  # two of the ten words that are drawn from


def test_origins_and_passages_have_equal_parts() -> None:
    """A few queries come of as many passages, and of all origins; the same seed gives the same ones."""
    found = pseudo_queries(passages(200), 100)
    assert len(found) == len({one.passage for one in found}) == 100
    counts = Counter(one.origin for one in found)
    # All passages have the same first sentence, which is one query however often it occurs.
    assert counts["sentence"] == 1
    assert all(counts[origin] >= 25 for origin in QUERY_ORIGINS if origin != "sentence")
    assert found == pseudo_queries(passages(200), 100)
    assert found != pseudo_queries(passages(200), 100, seed=1)


def test_passages_that_give_nothing_are_passed_over() -> None:
    """No title, one word, numbers alone: fewer queries, and no blank one."""
    library = {
        "a": Passage("", "Word", "a"),
        "b": Passage("", "two words", "b"),
        "c": Passage("x", "...", "c"),
    }
    assert {one.text for one in pseudo_queries(library, 50)} == {"two words"}
    long = {"a": Passage("", "word " * 500, "a")}
    assert all(len(one.text.split()) <= 32 for one in pseudo_queries(long, 50))


def test_other_scripts_have_sentences_and_keywords() -> None:
    """Full-width stops end a sentence without white space after them, and Chinese and Japanese have no spaces
    between words; a sentence without a comma was no query.
    """
    library = {
        "a": Passage("川の氾濫", "川が氾濫した。岩盤が割れた。", "a"),
        "b": Passage("", "강이 넘쳤다. 암반이 갈라졌다.", "b"),
        "c": Passage("山", "・・・・\n川だ。", "c"),  # too short, and marks alone
    }
    found = {(one.passage, one.origin, one.text) for one in pseudo_queries(library, 50)}
    assert {
        ("a", "title", "川の氾濫"),
        ("a", "sentence", "川が氾濫した。"),
        ("a", "salient", "岩盤が割れた。"),
        ("b", "sentence", "강이 넘쳤다."),
        ("b", "salient", "암반이 갈라졌다."),
    } <= found
    assert not any(passage == "c" for passage, _, _ in found)


def test_keywords_are_whole_words() -> None:
    """Those of Hindi were letters, and so a single word was long enough for a query."""
    library = {"a": Passage("हिन्दी", "भाषा विज्ञान की पुस्तक यहाँ है।", "a")}
    found = {one.origin: one.text for one in pseudo_queries(library, 50)}
    assert set(found["keywords"].split()) <= set("हिन्दी भाषा विज्ञान की पुस्तक यहाँ है".split())
    assert "title" not in found


def test_a_long_sentence_without_spaces_is_cut() -> None:
    """A query is no paragraph: 64 letters of Chinese say about what 32 words of English do."""
    library = {"a": Passage("iPhoneの使い方", "水" * 500, "a")}
    found = {one.text for one in pseudo_queries(library, 50)}
    assert found >= {"iPhoneの使い方", "水" * 64}
    assert all(text.count("水") <= 64 for text in found)  # also in keywords


def numbered(documents: int, passages: int, queries: int) -> tuple[list[PseudoQuery], dict[str, Passage]]:
    """So many documents of so many passages, each of which gives so many queries, in a fixed random order."""
    library = {
        f"d{document}#{part}": Passage("", "text", f"d{document}")
        for document in range(documents)
        for part in range(passages)
    }
    taken = [PseudoQuery(f"{key} {n}", "sentence", key) for key in library for n in range(queries)]
    random.Random(0).shuffle(taken)
    return taken, library


def documents_of(queries: list[PseudoQuery], library: dict[str, Passage]) -> set[str]:
    return {library[one.passage].document for one in queries}


def test_a_gate_and_training_share_no_document() -> None:
    """Trained on the first sentence of a passage, a model finds the passage by its title too."""
    taken, library = numbered(documents=30, passages=3, queries=4)
    held, trained = hold_out(taken, library, 500, 1000)
    assert len(held) == 36  # a tenth of 360, of three documents of twelve queries each
    assert len(trained) == 324
    assert len(documents_of(held, library)) == 3
    assert not documents_of(held, library) & documents_of(trained, library)
    assert held == [one for one in taken if one in held]  # still in random order
    assert hold_out(taken, library, 30, 50)[0] == held[:30]  # no more than the gate measures
    assert len(hold_out(taken, library, 30, 50)[1]) == 50


def test_what_training_does_not_want_is_held_out() -> None:
    """Queries that were taken for the gate cost nothing more, and a gate of few queries sees little."""
    taken, library = numbered(documents=30, passages=3, queries=4)
    assert hold_out(taken, library, 500, 0) == (taken, [])
    held, trained = hold_out(taken, library, 500, 60)
    assert (len(held), len(trained)) == (300, 60)


def test_a_book_is_held_out_by_its_passages() -> None:
    """One document cannot be on both sides, and of a few the gate would see one."""
    for documents, passages in ((1, 40), (19, 3)):
        taken, library = numbered(documents, passages, queries=4)
        held, trained = hold_out(taken, library, 500, 1000)
        assert len(held) == len(taken) // 10
        assert not {one.passage for one in held} & {one.passage for one in trained}
        assert documents_of(held, library) & documents_of(trained, library)


def test_a_large_document_leaves_the_others_whole() -> None:
    """A book among leaflets would be most of the gate, or all that is not trained on."""
    taken, library = numbered(documents=30, passages=3, queries=4)
    library |= {f"book#{part}": Passage("", "text", "book") for part in range(200)}
    taken += [PseudoQuery(f"book {part}", "sentence", f"book#{part}") for part in range(200)]
    random.Random(1).shuffle(taken)
    held, trained = hold_out(taken, library, 500, 1000)
    assert len(held) == 56
    assert len(trained) > 490
    assert documents_of(held, library) & documents_of(trained, library) <= {"book"}
    assert not {one.passage for one in held} & {one.passage for one in trained}
    assert sum(one.passage.startswith("book") for one in trained) > 140


def test_no_more_is_held_out_than_leaves_training_its_queries() -> None:
    """The second of two large documents took most of what a short training had asked for."""
    sizes = {"large": 300, "second": 250} | {f"small {number}": 3 for number in range(30)}
    library = {f"{name} {n}": Passage("", "", name) for name, size in sizes.items() for n in range(size)}
    taken = [PseudoQuery(f"query of {key}", "sentence", key) for key in library]
    random.Random(0).shuffle(taken)
    held, trained = hold_out(taken, library, 500, 140)
    assert len(trained) == 140
    assert len(held) >= len(taken) // 10


def test_two_queries_are_held_out_of_the_fewest() -> None:
    """The least that a paired test compares, of the fewest queries that the command takes."""
    taken, library = numbered(documents=20, passages=1, queries=1)
    held, trained = hold_out(taken, library, 500, 6400)
    assert (len(held), len(trained)) == (2, 18)


def test_real_queries_are_read_line_by_line(tmp_path: Path) -> None:
    """A log repeats queries and has blank lines."""
    file = tmp_path / "log.txt"
    file.write_text("how  to fly\n\nhow to fly\n 서울 \n", encoding="utf-8")
    assert read_queries(file) == ["how to fly", "서울"]
    file.write_text("\n \n")
    with pytest.raises(DataError, match=r"log\.txt holds no query; expected one per line"):
        read_queries(file)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_queries(tmp_path / "none.txt")
    file.write_bytes(b"tea\ncaf\xe9\nmilk\n")
    with pytest.raises(DataError, match=r"log\.txt:2: not UTF-8: the byte 0xe9; .* such as --encoding cp"):
        read_queries(file)
    assert read_queries(file, TableOptions(bad_rows="skip")) == ["tea", "milk"]
    assert read_queries(file, TableOptions(encoding="cp1252")) == ["tea", "café", "milk"]


@pytest.mark.parametrize("name", ["log.jsonl", "log.json", "LOG.CSV", "log.tsv", "log.parquet", "log.csv.gz"])
def test_a_table_is_no_file_of_queries(name: str, tmp_path: Path) -> None:
    """Its lines were taken for queries, braces and numbers and all."""
    (tmp_path / name).write_bytes(b'{"query": "how to fly"}\n')
    with pytest.raises(DataError, match=r"is a table \(\.\w+\); expected a text file with one query"):
        read_queries(tmp_path / name)
