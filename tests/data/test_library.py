"""Any source as passages that fit an encoder."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lexforge.common.types import Passage
from lexforge.data import DataError, SourceOptions, load_documents, load_library
from lexforge.data.passages import Cutter


def words(texts: Sequence[str]) -> list[int]:
    """Two special tokens and one for each word."""
    return [len(text.split()) + 2 for text in texts]


def corpus(folder: Path, *records: dict[str, object], name: str = "corpus.jsonl") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder / name)


def cut(text: str, limit: int, title: str = "") -> list[str]:
    ((*parts,),) = Cutter(words, limit).cut([(title, text)])
    return [part.text for part in parts]


def test_beir_gives_titles_and_the_texts_that_are_searched(tmp_path: Path) -> None:
    """A title is repeated on each passage; without cutting, the texts are those of every other command."""
    records = [
        {"_id": "a", "title": "T", "text": "body"},
        {"_id": "b", "text": " x "},
        {"_id": "c", "title": None, "text": "y"},
    ]
    file = corpus(tmp_path / "set", *records)
    library = load_library(str(tmp_path / "set"))
    assert library.notes == []
    assert library.passages == {
        "a": Passage("T", "body", "a"),
        "b": Passage("", "x", "b"),
        "c": Passage("", "y", "c"),
    }
    assert library.texts == load_documents(file) == {"a": "T body", "b": "x", "c": "y"}
    assert load_library(file).passages == library.passages
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(Path(file).read_bytes()))
    assert load_library(f"{tmp_path}/corpus.jsonl.gz").passages == library.passages


def test_formats_without_titles_give_blank_ones(tmp_path: Path) -> None:
    """Positives and negatives of rows are documents, and so are MS MARCO's passages."""
    (tmp_path / "rows.csv").write_text("frage,antwort\nq1,one\nq2,two\n")
    options = SourceOptions(query_column="frage", positive_column="antwort")
    library = load_library(f"{tmp_path}/rows.csv", options)
    assert [passage.text for passage in library.passages.values()] == ["one", "two"]
    assert all(passage == Passage("", passage.text, key) for key, passage in library.passages.items())
    (tmp_path / "collection.tsv").write_text("7\tpassage seven\n8\tpassage eight\n")
    assert load_library(str(tmp_path)).texts == {"7": "passage seven", "8": "passage eight"}


@pytest.mark.parametrize("own", [True, False])
def test_a_hub_set_gives_its_titles(own: bool, tmp_path: Path) -> None:
    """Documents on the hub need neither queries nor judgements here, nor a configuration of their own."""
    folder = tmp_path / "hub"
    corpus(folder, {"_id": "a", "title": "T", "text": "body"}, name="corpus.jsonl")
    name = "corpus" if own else "default"
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {name}\n  data_files: corpus.jsonl\n---\n"
    )
    assert load_library(f"hf:{folder}").passages == {"a": Passage("T", "body", "a")}


def test_files_are_cut_and_what_was_left_out_is_told(tmp_path: Path) -> None:
    """The notes are the only place where a user learns that a file is not searched."""
    (tmp_path / "guide.md").write_text("# Heat pumps\n\none two three\n\nfour five\n\nsix seven eight nine")
    (tmp_path / "short.txt").write_text("body")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "bad.txt").write_bytes(b"\0")
    library = load_library(str(tmp_path), count_tokens=words, max_tokens=9)
    assert library.passages == {
        "guide.md#1": Passage("Heat pumps", "one two three\n\nfour five", "guide.md"),
        "guide.md#2": Passage("Heat pumps", "six seven eight nine", "guide.md"),
        "latin.txt": Passage("latin", "é", "latin.txt"),
        "short.txt": Passage("short", "body", "short.txt"),
    }
    assert library.texts["guide.md#2"] == "Heat pumps six seven eight nine"
    assert library.notes == [
        "files that could not be read: 1, namely bad.txt (binary)",
        "files that are not UTF-8, read in the encoding that fits: 1, namely latin.txt (cp1252)",
        "documents cut into 2 passages of at most 9 tokens: 1, namely guide.md",
    ]


def test_cuts_stand_at_the_best_border_that_is_near_enough() -> None:
    """A passage that ends inside a sentence asks and answers half of a question."""
    assert cut("a b.\n\nc d.\n \ne f g", 6) == ["a b.\n\nc d.", "e f g"]
    assert cut("a b c. d e! f (g?) h", 6) == ["a b c.", "d e! f (g?)", "h"]
    assert cut("a b c\nd e\nf g h i", 6) == ["a b c", "d e", "f g h i"]
    assert cut("a b c d e f g", 5) == ["a b c", "d e f", "g"]
    assert cut("a b c d e f g", 5, "t") == ["a b", "c d", "e f", "g"]
    assert cut("a  b", 4) == ["a  b"]


def test_sentences_without_spaces_are_cut() -> None:
    """Chinese and Japanese have no space between sentences, and a closing mark belongs to its sentence."""

    def characters(texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    text = "彼は「来た。」と言った。次。『本当？』"
    ((*parts,),) = Cutter(characters, 8).cut([("", text)])
    assert [part.text for part in parts] == ["彼は「来た。」", "と言った。次。", "『本当？』"]


def test_a_long_title_stands_once() -> None:
    """A title of a whole paragraph would leave no room for the text, and must not be lost."""
    ((*parts,),) = Cutter(words, 6).cut([("a b c", "d e f")])
    assert [(part.title, part.text) for part in parts] == [("", "a b c"), ("", "d e f")]
    ((*parts,),) = Cutter(words, 6).cut([("a b", "d e f")])
    assert [(part.title, part.text) for part in parts] == [("a b", "d e"), ("a b", "f")]


def test_a_word_that_is_too_long_is_cut(tmp_path: Path) -> None:
    """Its end would not be searched: of a path, of base64, or of a language without spaces."""

    def letters(texts: Sequence[str]) -> list[int]:
        return list(map(len, texts))

    title = "a long title"
    source = corpus(tmp_path / "set", {"_id": "d", "title": title, "text": "x" * 30 + " word"})
    library = load_library(source, count_tokens=letters, max_tokens=15, keep_all=True)
    texts = [passage.text for passage in library.passages.values()]
    assert (texts[0], "".join(texts[1:]), max(map(len, texts))) == (title, "x" * 30 + "word", 15)
    assert library.notes == [
        f"documents cut into {len(texts)} passages of at most 15 tokens: 1, namely d",
        "titles of more than half of 15 tokens, which stand once in the text: 1, namely d",
    ]
    chinese = corpus(tmp_path / "zh", {"_id": "d", "text": "黑" * 20 + "猫" * 20})
    passages = load_library(chinese, count_tokens=letters, max_tokens=15).passages
    assert "".join(passage.text for passage in passages.values()) == "黑" * 20 + "猫" * 20
    assert max(len(passage.text) for passage in passages.values()) <= 15


def merging(texts: Sequence[str]) -> list[int]:
    """A tokenizer that needs fewer tokens for neighbours than for each."""
    return [1 + (len(text) + 2) // 3 for text in texts]


def greedy(texts: Sequence[str]) -> list[int]:
    """A tokenizer that needs more tokens for a text than for its parts, which none should."""
    return [len(text.split()) + (len(text) // 10) ** 2 for text in texts]


TEXTS = st.text(st.sampled_from(list("ab. \n!?。」é\t\u2028\xa0\x1c")), max_size=200) | st.text(max_size=60)


@settings(max_examples=400, deadline=None)
@given(
    documents=st.lists(st.tuples(st.just("") | st.text("xy ", max_size=12), TEXTS), max_size=4),
    limit=st.integers(4, 30),
    count=st.sampled_from([words, merging, greedy]),
)
@example(documents=[("xxxxxxxxx", "0000\r00000")], limit=4, count=greedy)  # the space ends in the middle
def test_cutting_loses_no_word_and_keeps_the_limit(documents, limit, count) -> None:
    """Both promises, for every text and also for tokenizers whose numbers do not add up."""
    cuts = Cutter(count, limit).cut(documents)
    assert len(cuts) == len(documents)
    for (title, text), parts in zip(documents, cuts, strict=True):
        assert parts
        (first, *_) = parts
        moved = bool(title.strip()) and not first.title
        assert {part.title for part in parts} == ({""} if moved else {title})
        expected = f"{title} {text}" if moved else text
        found = "".join("".join(part.text.split()) for part in parts)
        assert found == "".join(expected.split())
        # A word is cut behind this mark, and where it does not fit alone.
        whole = "。" not in text and all(
            count([f"{first.title} {word}".strip()])[0] <= limit for word in expected.split()
        )
        assert not whole or [word for part in parts for word in part.text.split()] == expected.split()
        for part in parts:
            tokens = count([f"{part.title} {part.text}".strip()])[0]
            assert tokens <= limit or len(part.text.strip()) <= 1
        if count([f"{title} {text}".strip()])[0] <= limit:
            assert len(parts) == 1


def test_each_text_is_counted_a_few_times_and_many_in_one_call(tmp_path: Path) -> None:
    """Tokenizers take most of the time, and are far slower text by text."""
    calls: list[list[str]] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(list(texts))
        return words(texts)

    records = [{"_id": f"s{n}", "title": "T", "text": f"short {n}"} for n in range(2000)]
    records += [{"_id": f"l{n}", "text": "\n\n".join(f"w{n} " * 9 for _ in range(9))} for n in range(100)]
    source = corpus(tmp_path / "set", *records)
    characters = sum(len(str(record["text"])) for record in records)
    load_library(source, count_tokens=count, max_tokens=20)
    assert sum(len(text) for texts in calls for text in texts) < 4 * characters
    assert len(calls) < 12
    assert max(map(len, calls)) <= 1024


def test_blank_and_repeated_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    """A thousand copies of a page would be a thousand wrong negatives of each other."""
    records = [
        {"_id": f"d{n}", "title": "T", "text": "the  same\ntext" if n % 2 else "the same text "}
        for n in range(10_000)
    ]
    source = corpus(
        tmp_path / "set", *records, {"_id": "e", "title": " ", "text": "\u200b"}, {"_id": "f", "text": "x"}
    )
    library = load_library(source, count_tokens=words, max_tokens=50)
    assert list(library.passages) == ["d0", "f"]
    assert library.documents == {*(record["_id"] for record in records), "e", "f"}
    assert library.notes == [
        "blank texts, which were left out: 1, namely e",
        "texts that repeat an earlier one, which were left out: 9,999, such as "
        "d1 (as d0), d2 (as d0), d3 (as d0)",
    ]
    everything = load_library(source, count_tokens=words, max_tokens=50, keep_all=True)
    assert list(everything.passages) == [f"d{n}" for n in range(10_000)] + ["e", "f"]
    assert everything.notes == []


def test_rows_whose_title_is_their_id_are_no_copies(tmp_path: Path) -> None:
    """A catalogue with a placeholder for a text lost all products but one, as if they were files."""
    lines = ["id,title,text", *(f"{name},{name},No description." for name in ("Red mug", "Blue mug", "a_b"))]
    (tmp_path / "products.csv").write_text("\n".join(lines))
    assert list(load_library(str(tmp_path / "products.csv")).passages) == ["Red mug", "Blue mug", "a_b"]


def test_a_copy_under_another_name_is_repeated(tmp_path: Path) -> None:
    """The name of a file is its title where it has no other, and says nothing of the text."""
    for name, text in {"a_b": "the same", "c": "the same", "d": "# Title\n\nthe same"}.items():
        (tmp_path / f"{name}.md").write_text(text)
    library = load_library(str(tmp_path))
    assert list(library.passages) == ["a_b.md", "d.md"]
    assert library.notes == [
        "texts that repeat an earlier one, which were left out: 1, namely c.md (as a_b.md)"
    ]


def test_one_document_is_enough_and_none_is_an_error(tmp_path: Path) -> None:
    """A source may hold one book; one without any text is a mistake that must be told here."""
    assert len(load_library(corpus(tmp_path / "one", {"_id": "d", "text": "x"})).passages) == 1
    source = corpus(tmp_path / "blank", {"_id": "d", "text": " "})
    with pytest.raises(DataError) as raised:
        load_library(source)
    assert str(raised.value) == f"{source} holds no text; blank texts, which were left out: 1, namely d"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no file; expected .*documents \(a folder of"):
        load_library(str(tmp_path / "empty"))


def test_ids_must_be_there_and_differ_also_from_those_of_parts(tmp_path: Path) -> None:
    """Negatives and judgements name texts by id: two texts under one id are a silent error."""
    long = {"_id": "a", "text": "one two three four"}
    for records, message in (
        ([long, long], r"corpus.jsonl:2: the id 'a' occurs a second time"),
        ([{"_id": "", "text": "x"}], r"corpus.jsonl:1: the id is empty"),
        ([{"_id": 1, "text": "x"}], r"corpus.jsonl:1: '_id' must be a string"),
        ([{"_id": "a#2", "text": "x"}, long], "'a#2' has the id that a part of the long document 'a' gets"),
        ([long, {"_id": "a#2", "text": "x"}], "'a#2' has the id that a part of the long document 'a' gets"),
    ):
        with pytest.raises(DataError, match=message):
            load_library(corpus(tmp_path / "set", *records), count_tokens=words, max_tokens=5)
    whole = corpus(tmp_path / "set", long, {"_id": "a#2", "text": "x"})
    assert list(load_library(whole, count_tokens=words, max_tokens=6).passages) == ["a", "a#2"]


def test_a_limit_needs_a_tokenizer_and_room(tmp_path: Path) -> None:
    """A limit that nothing counts would be no limit."""
    source = corpus(tmp_path / "set", {"_id": "d", "text": "x"})
    with pytest.raises(ValueError, match="max_tokens and count_tokens belong together"):
        load_library(source, max_tokens=5)
    with pytest.raises(ValueError, match="max_tokens and count_tokens belong together"):
        load_library(source, count_tokens=words)
    with pytest.raises(ValueError, match="must be above 2, the special tokens of a text; received 2"):
        load_library(source, count_tokens=words, max_tokens=2)


@pytest.mark.parametrize(
    "unit",
    [
        "One sentence of a book, with words. ",
        "word ",
        "A line of a table\n",
        "x",
        ".",
        "これは文です。",
        " \n",
    ],
)
def test_megabytes_take_time_in_proportion(unit: str, tmp_path: Path) -> None:
    """A step that is quadratic takes an hour here; 60 s are for slow machines, and a fast one needs 2."""
    size = 4_000_000 if unit.startswith("One") else 1_000_000
    path = tmp_path / "book.txt"
    path.write_text("begin " + unit * (size // len(unit.encode())))
    start = time.process_time()
    library = load_library(str(path), count_tokens=words, max_tokens=200)
    assert time.process_time() - start < 60
    assert library.passages


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_file_of_documents_needs_no_queries(tmp_path: Path, ending: str) -> None:
    """People have a table of documents; the names of its columns say which are id, title and text."""
    rows = [{"id": n, "title": ["", "Cats"][n % 2], "text": f"text {n}", "rank": n} for n in range(3)]
    file = tmp_path / f"x.{ending}"
    table = Dataset.from_list(rows)
    if ending == "parquet":
        table.to_parquet(str(file))
    elif ending == "jsonl":
        table.to_json(str(file))
    else:
        table.to_csv(str(file), sep="\t" if ending == "tsv" else ",", index=False)
    library = load_library(str(file))
    assert library.texts == load_documents(str(file)) == {"0": "text 0", "1": "Cats text 1", "2": "text 2"}
    file = tmp_path / "bare.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert load_library(str(file)).texts == {"1": "one", "2": "two"}


def test_columns_of_documents_as_people_write_them(tmp_path: Path) -> None:
    """Titles were lost in silence, and pandas made 3.0 of the id 3."""
    file = tmp_path / "x.csv"
    file.write_text("Doc ID,Headline,Body Text,Rank\n7,Cats,purr,1\n")
    library = load_library(str(file))
    assert library.texts == {"7": "Cats purr"}
    assert library.notes == [f"{file}: columns that are not read: 1, namely Rank"]
    file = tmp_path / "x.parquet"
    Dataset.from_dict({"id": [3.0, None, 5.0], "text": ["one", "two", "three"]}).to_parquet(str(file))
    library = load_library(str(file), SourceOptions(bad_rows="skip"))
    assert library.texts == {"3": "one", "5": "three"}
    assert library.notes[1:] == ["  blank ids: 1, namely row 2 (counted from 1)"]
    Dataset.from_dict({"id": [2.0**60, 1.0], "text": ["one", "two"]}).to_parquet(str(file))
    with pytest.raises(DataError, match=f"the id {2**60} may be rounded: write ids as texts"):
        load_library(str(file))
    file = tmp_path / "x.jsonl"
    file.write_text('{"words": "one"}\n')
    with pytest.raises(DataError, match=r"expected a column of documents, named one of \['text', .*queries"):
        load_library(str(file))


def test_a_csv_file_of_texts_alone_needs_no_delimiter(tmp_path: Path) -> None:
    """Its one name was refused for want of a delimiter, which the file does not need."""
    file = tmp_path / "x.csv"
    for name in ("text", '"Content"', "\ufeffbody"):
        file.write_text(f'{name}\none\n"two, and\nthree"\n')
        assert load_library(str(file)).texts == {"1": "one", "2": "two, and\nthree"}


def test_ids_and_texts_with_tabs_need_no_header(tmp_path: Path) -> None:
    """MS MARCO's collection is such a file; its ids were taken for queries, and lost in silence."""
    file = tmp_path / "passages.tsv"
    file.write_text('7\tone "text"\n8\tanother\n')
    library = load_library(str(file))
    assert library.texts == load_documents(str(file)) == {"7": 'one "text"', "8": "another"}
    assert library.notes == [f"{file} has no header: its columns were taken for ids and texts"]
    file.write_text("7\tone\na query\tanother\n")
    library = load_library(str(file))
    assert [*library.texts.values()] == ["one", "another"]
    assert "7" not in library.texts
    assert library.notes == [f"{file} has no header: its columns were taken for queries and answers"]
    file.write_text("7\tone\n7\tanother\n")
    with pytest.raises(DataError, match="has no header, and a column of ids, such as '7'"):
        load_library(str(file))


def test_all_bad_documents_of_a_table_are_counted_at_once(tmp_path: Path) -> None:
    """One row a run was refused, whatever `--bad-rows` said, and good rows were not counted."""
    file = tmp_path / "x.jsonl"
    rows = [
        {"id": "a", "text": "one"},
        {"id": "b", "text": 7},
        {"text": "three"},
        {"id": "a", "text": "four"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    lines = [
        "  no JSON object: 1, namely line 5 ('broken')",
        "  wrong values: 1, namely line 2 (7)",
        "  blank ids: 1, namely line 3",
        "  repeated ids: 1, namely line 4 (a)",
    ]
    with pytest.raises(DataError) as refused:
        load_library(str(file))
    assert str(refused.value).split("\n")[1:] == [f"In all 4 of 5 rows of {file} are bad:", *lines]
    library = load_library(str(file), SourceOptions(bad_rows="skip"))
    assert library.texts == {"a": "one"}
    assert library.notes == [f"{file}: 4 of 5 rows are bad and left out:", *lines]


def test_an_id_is_a_text_or_a_number(tmp_path: Path) -> None:
    """MongoDB exports `{"$oid": "5f"}`, and the id became what Python prints for it."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"_id": {"$oid": "5f"}, "text": "one"}\n')
    with pytest.raises(
        DataError, match=r"x\.jsonl:1: an id must be a text or a number; received {'\$oid': '5f'}"
    ):
        load_library(str(file))
