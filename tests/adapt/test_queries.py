"""Texts of documents that stand for queries: what each origin takes, how they are mixed, and real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lexforge.adapt import pseudo_queries, read_queries
from lexforge.adapt.queries import QUERY_ORIGINS
from lexforge.common.types import DataError, Passage

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
    """Full-width stops end a sentence without white space after them."""
    library = {
        "a": Passage("", "川が氾濫した。岩盤が割れた。", "a"),
        "b": Passage("", "강이 넘쳤다. 암반이 갈라졌다.", "b"),
    }
    found = {(one.origin, one.text) for one in pseudo_queries(library, 50)}
    assert ("sentence", "강이 넘쳤다.") in found
    assert ("salient", "암반이 갈라졌다.") in found


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
    file.write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"log\.txt:1"):
        read_queries(file)
