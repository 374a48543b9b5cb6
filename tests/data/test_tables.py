"""An error about a row names the line of its file, as an editor shows it."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from lexforge.data import (
    DataError,
    SourceOptions,
    check_source,
    load_documents,
    load_label_sets,
    load_sts,
    load_texts,
    load_training_data,
)
from lexforge.settings import MultiLabelOptions, StsOptions

datasets = pytest.importorskip("datasets")


def write(path: Path, text: str) -> Path:
    content = text.encode()
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


MULTILINE = 'query,positive\nask,"a text\nof three\nlines"\n\n  \n"again","more ""words"""\n,wrong\nend,\n'
LONG = f'query,positive\nask,"{"word " * 40_000}\nend"\n,wrong\n'
OBJECTS = '{"query": "ask", "positive": "a text"}\n\n{"query": "ask", "positive": null}\n'
WRONG_ROWS = {
    "cells of several lines": ("x.csv", MULTILINE, "{}:8: "),
    "lines that end as on Windows": ("x.csv", MULTILINE.replace("\n", "\r\n"), "{}:8: "),
    "a byte order mark": ("x.csv", "\ufeff" + MULTILINE, "{}:8: "),
    "a long cell": ("x.csv", LONG, "{}:4: "),
    "compressed": ("x.csv.gz", MULTILINE, "{}:8: "),
    "compressed by zstd": ("x.csv.zst", MULTILINE, "{}:8: "),
    "a column for the split": ("x.csv", "split,query,positive\ndev,a,b\ntrain,a,b\n\ndev,,c\n", "{}:5: "),
    "tabs": ("x.tsv", 'query\tpositive\n"ask\ta text\n\n\twrong\n', "{}:4: "),
    "tabs and no header": ("x.tsv", "ask\ta text\n\n\twrong\n", "{}:3: "),
    "JSON lines": ("x.jsonl", OBJECTS, "{}:3: "),
    "compressed JSON lines": ("x.jsonl.gz", OBJECTS, "{}:3: "),
    "a JSON array has no lines": (
        "x.json",
        '[{"query": "ask", "positive": "a text"},\n{"query": " ", "positive": "a text"}]\n',
        "{}, row 2 (counted from 1): ",
    ),
    "objects over several lines": (
        "x.json",
        '{"query": "ask",\n"positive": "a text"}\n{"query": " ",\n"positive": "a text"}\n',
        "{}, row 2 (counted from 1): ",
    ),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_wrong_row_is_named_by_its_line(name: str, tmp_path: Path) -> None:
    """A reader opens the file at this line; the number of a record is another one after blank lines."""
    file, text, place = WRONG_ROWS[name]
    path = write(tmp_path / file, text)
    with pytest.raises(DataError) as raised:
        load_training_data(str(path), [])
    assert str(raised.value).startswith(place.format(path))


@pytest.mark.parametrize("name", ["a/log[1].csv", "a[1]/log.csv", "a/log[1].csv.gz", "a/l*?.jsonl"])
def test_a_name_is_no_pattern(name: str, tmp_path: Path) -> None:
    """Browsers name a second download `log[1].csv`; another file was read for it, or none was found."""
    for other in ("log1.csv", "long.jsonl"):
        write(tmp_path / "a" / other, "query,positive\nother,wrong\n")
    json_lines = name.endswith("jsonl")
    path = write(tmp_path / name, OBJECTS.splitlines()[0] if json_lines else "query,positive\nask,a text\n")
    (found,) = load_training_data(str(path), []).training_rows()
    assert found == {"anchor": "ask", "positive": "a text"}


@pytest.mark.parametrize("header", [",query,positive", "query,positive,", "query,positive,,"])
def test_a_column_without_a_name_is_left_alone(header: str, tmp_path: Path) -> None:
    """pandas writes its index so, and spreadsheets end their lines with a delimiter."""
    row = header.replace("query", "ask").replace("positive", "a text")
    path = write(tmp_path / "rows.csv", f"{header}\n{row}\n")
    (found,) = load_training_data(str(path), []).training_rows()
    assert found == {"anchor": "ask", "positive": "a text"}


def test_a_column_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    """The second one would be lost."""
    path = write(tmp_path / "rows.csv", "query,positive,negative,negative\nask,a text,one,two\n")
    with pytest.raises(DataError, match=r"rows\.csv:1: the name of a column stands there twice: 'negative'"):
        load_training_data(str(path), [])


def test_an_empty_cell_in_marks_is_no_blank_line(tmp_path: Path) -> None:
    """pandas writes an empty text of a single column so; the error named the line of a later row."""
    path = write(tmp_path / "x.csv", 'text\none\n\n  \n""\ntwo\nthree\n')
    with pytest.raises(DataError, match=r"x\.csv:5: the text in 'text' is blank"):
        load_texts(str(path))


def test_a_changed_file_of_the_old_size_and_time_is_not_read_from_the_cache(tmp_path: Path) -> None:
    """Its rows would be those of the old file, and the lines in messages those of the new one."""
    file = write(tmp_path / "texts.csv", "id,text\n1,aa\n2,bb\n")
    assert len(load_texts(str(file))) == 2
    status = file.stat()
    write(file, "id,text\n1,aa or b\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    with pytest.raises(DataError, match=r"texts\.csv: 1 rows were found, and 2 are in the cache; touch"):
        load_texts(str(file))


def test_marks_behind_a_backslash_are_told(tmp_path: Path) -> None:
    """Spark and MySQL write them so; the text was garbled in silence."""
    text = 'query,positive\n"a ""b"" \\""c",C:\\\n"x\\","say \\"hi\\" twice"\n'
    path = write(tmp_path / "x.csv", text)
    assert load_training_data(str(path), []).notes[0].startswith(f"{path}:3: a quotation mark stands behind")
    path = write(tmp_path / "y.csv", text.replace('\\"hi\\"', "hi"))
    assert load_training_data(str(path), []).notes == ()


def test_lines_that_end_with_a_carriage_return_alone_are_refused(tmp_path: Path) -> None:
    """Old spreadsheets write them, and the error of the reader named no file."""
    path = write(tmp_path / "rows.csv", "query,positive\rask,a text\r")
    with pytest.raises(DataError, match=r"rows\.csv:1: the line cannot be cut into cells: new-line"):
        load_training_data(str(path), [])


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("rows.csv", "UTF-8"),
        ("rows.csv", "utf-8-sig"),
        ("rows.csv", "utf-16-le"),
        ("rows.jsonl", "utf-8-sig"),
        ("rows.jsonl", "utf-16-le"),
    ],
)
def test_a_mark_before_a_named_encoding_is_no_part_of_the_rows(
    encoding: str, name: str, tmp_path: Path
) -> None:
    """Excel writes it, and Python leaves it where the byte order is named; the file was unreadable, or no
    column was called `query`.
    """
    text = "query,positive\nask,a text\n" if name.endswith("csv") else OBJECTS.splitlines()[0]
    (tmp_path / name).write_bytes(f"\ufeff{text}\n".encode(encoding.removesuffix("-sig")))
    options = SourceOptions(encoding=encoding)
    check_source(str(tmp_path / name), [], options)
    (found,) = load_training_data(str(tmp_path / name), [], options).training_rows()
    assert found == {"anchor": "ask", "positive": "a text"}


@pytest.mark.parametrize("names", ["text1\ttext2\tsimilarity", "left\tright\tscore"])
def test_the_header_of_scored_pairs_with_tabs_is_recognised(names: str, tmp_path: Path) -> None:
    """As that of the same rows with commas is; names that nobody knows are given."""
    path = write(tmp_path / "pairs.tsv", f"{names}\none\ttwo\t1.5\n")
    first, second, score = names.split("\t")
    options = StsOptions(sentence1_column=first, sentence2_column=second, score_column=score)
    for chosen in (options, StsOptions())[: 1 + names.startswith("text1")]:
        assert load_sts(str(path), None, chosen)["train"] == [
            {"sentence1": "one", "sentence2": "two", "score": 1.5}
        ]


@pytest.mark.parametrize("load", [load_sts, load_label_sets])
def test_tabs_without_names_of_columns_are_told_as_such(load: Callable[[str], Any], tmp_path: Path) -> None:
    """The error named columns `anchor` and `positive`, which the file does not hold."""
    path = write(tmp_path / "x.tsv", "a ship\tsea\nan oak\tland\n")
    with pytest.raises(DataError, match=r"x\.tsv:1: expected the names of .*; received \['a ship', 'sea'\]"):
        load(str(path))
    assert load_label_sets(str(path), None, MultiLabelOptions(text_column="anchor", labels_column="positive"))


def test_a_folder_names_the_file_of_the_row(tmp_path: Path) -> None:
    """A folder has one file for each split; the split alone does not say which."""
    write(tmp_path / "set" / "train.csv", "query,positive\nask,a text\n")
    path = write(tmp_path / "set" / "validation.jsonl", OBJECTS)
    with pytest.raises(DataError) as raised:
        load_training_data(str(tmp_path / "set"), ["dev"])
    assert str(raised.value).startswith(f"{path}:3: the positive is missing")


def test_a_parquet_file_without_rows_or_of_another_kind_is_named(tmp_path: Path) -> None:
    """The check of the options named no file, and `datasets` spoke of a batch size of 0."""
    empty, other = tmp_path / "empty.parquet", write(tmp_path / "other.parquet", "PAR1, or not")
    parquet.write_table(pyarrow.table({"query": [], "positive": []}), empty)
    for path, message in ((empty, "holds no row"), (other, "cannot be read as parquet: Parquet magic")):
        for read in (load_training_data, check_source):
            with pytest.raises(DataError) as raised:
                read(str(path), [])
            assert str(raised.value).startswith(f"{path} {message}")


def test_a_row_of_parquet_is_counted_from_one(tmp_path: Path) -> None:
    """There is no line to name."""
    rows = [{"query": "ask", "positive": text, "split": "dev"} for text in ("a text", "more", " ")]
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([rows[0] | {"split": "train"}, *rows[1:]]), path)
    with pytest.raises(DataError) as raised:
        load_training_data(str(path), [])
    assert str(raised.value).startswith(f"{path}, row 3 (counted from 1): ")


def test_rows_of_other_kinds_are_named_alike(tmp_path: Path) -> None:
    """Scored sentences and sets of labels come from the same tables."""
    path = write(tmp_path / "sts.csv", 'sentence1,sentence2,score\n"a\nb",c,1\nd,e,much\n')
    with pytest.raises(DataError) as raised:
        load_sts(str(path))
    assert str(raised.value) == f"{path}:4: the score must be a finite number; received 'much'"
    path = write(tmp_path / "labels.csv", 'text,labels\n"a\nship","[""sea""]"\na mill,corn\n')
    with pytest.raises(DataError) as raised:
        load_label_sets(str(path), ["train"])
    expected = "'labels' must hold a JSON list of names, or one as Python writes it; received 'corn'"
    assert str(raised.value) == f"{path}:4: {expected}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.csv",
            b'query,positive\n"ask\nmore",a text\n\nask,a text,of three\n',
            "5: expected 2 cells, as in the first line; received ['ask', 'a text', 'of three']",
        ),
        ("x.csv", b'query,positive\n"ask\nmore",a text\nask,\xff\n', "4: not UTF-8"),
        (
            "x.csv",
            b'query,positive\n"ask\nmore",a text\nask,"a text\nagain,b\n',
            "4: a quoted cell begins here and does not end",
        ),
        ("x.jsonl", OBJECTS.encode() + b'{"query": "ask"\n', "4: expected a JSON object; received '{"),
        ("x.jsonl", b'{"query": "ask"\n' + OBJECTS.encode(), "1: expected a JSON object; received '{"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    """The readers of `datasets` count records from 0, or say nothing of a place."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        load_training_data(str(path), [])
    assert str(raised.value).removeprefix(f"{path}:").strip().startswith(message)


@pytest.mark.parametrize(("ending", "codec"), [(".jsonl", "utf-8"), (".csv", "utf-8"), (".csv", "utf-16")])
def test_a_download_that_was_cut_is_told(tmp_path: Path, ending: str, codec: str) -> None:
    """In any encoding, with the file; a part of the rows is not all of them."""
    rows = [json.dumps({"anchor": f"query {n}", "positive": f"text {n * n}"}) for n in range(500)]
    if ending == ".csv":
        rows = ["anchor,positive", *(f"query {n},text {n * n}" for n in range(500))]
    path = tmp_path / f"rows{ending}.gz"
    whole = gzip.compress("\n".join(rows).encode(codec))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"{path.name}.*broken gzip data"):
        load_training_data(str(path), [])


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"date": "2021-01-01"}, {"title": "late", "date": "n.d."}),
        (
            {"title": None, "meta": None, "site": {"lang": "en"}, "tags": []},
            {"title": "late", "meta": {"lang": "en"}, "site": {"lang": "en", "name": "a"}, "tags": ["a"]},
        ),
        ({"year": 2001, "hash": 1}, {"year": "unknown", "hash": 2**80}),
    ],
)
def test_a_column_may_come_or_change_late_in_json_lines(
    first: dict[str, object], last: dict[str, object], tmp_path: Path
) -> None:
    """`datasets` fixes the columns by the first ten megabytes, and refused longer files for their length."""
    texts = {f"a{n}": f"number {n} {'word ' * 300_000}" for n in range(8)}
    rows = [{"_id": name, "text": text} | first for name, text in texts.items()]
    rows.append({"_id": "b", "text": "the last"} | last)
    path = write(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = load_documents(str(path))
    assert [*found] == [*texts, "b"]
    assert found["b"].endswith("the last")
    assert ("late" in found["b"]) == ("title" in last)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst", "array.json", "several lines.json"])
def test_texts_that_look_like_dates_stay_texts(name: str, tmp_path: Path) -> None:
    """`datasets` made a time of the id 2021-01-01, and of an answer that is a date."""
    rows = [
        {"_id": f"2021-01-0{n}", "title": f"2020-12-3{n}", "text": f"the cat {n}", "seen": ["2021-01-01"]}
        for n in (0, 1)
    ]
    lines = "\n".join(json.dumps(row, indent=1 if "several" in name else None) for row in rows)
    path = write(tmp_path / name, json.dumps(rows) if "array" in name else lines)
    found = load_documents(str(path))
    assert found == {"2021-01-00": "2020-12-30 the cat 0", "2021-01-01": "2020-12-31 the cat 1"}


@pytest.mark.parametrize("name", ["rows.jsonl", "array.json"])
def test_texts_that_look_like_json_stay_texts_beside_lists(name: str, tmp_path: Path) -> None:
    """`datasets` read the texts of such a column again: 1984 was a number, and "To be" lost its marks."""
    texts = ["1984", "null", '"To be"', '["a", "b"]']
    rows = [{"query": f"q{n}", "positive": text} for n, text in enumerate([["one", "2"], *texts])]
    lines = "\n".join(map(json.dumps, rows))
    path = write(tmp_path / name, json.dumps(rows) if "array" in name else lines)
    assert load_training_data(str(path), []).training_rows()["positive"] == ["one", "2", *texts]


@pytest.mark.parametrize("content", ["[]", "[\n]\n", " \n"])
def test_an_array_without_rows_is_named(content: str, tmp_path: Path) -> None:
    """An export that found nothing; `datasets` said that an instruction corresponds to no data."""
    path = write(tmp_path / "rows.json", content)
    for load in (load_documents, load_label_sets, lambda source: load_training_data(source, [])):
        with pytest.raises(DataError, match=f"^{path} holds no row$"):
            load(str(path))


@pytest.mark.parametrize("orient", ["columns", "index", "split", "table"])
def test_a_table_of_pandas_in_one_object_is_named_as_such(orient: str, tmp_path: Path) -> None:
    """The error asked for a name of the query column, and proposed to adapt a model to documents alone."""
    path = tmp_path / "rows.json"
    pandas.DataFrame({"query": ["ask", "say"], "positive": ["a text", "b"]}).to_json(path, orient=orient)
    check_source(str(path), [])  # leaves it to the loader
    for load in (load_documents, load_label_sets, load_sts, lambda source: load_training_data(source, [])):
        with pytest.raises(DataError, match="one JSON object, which is no row: expected an array of rows"):
            load(str(path))


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz"])
def test_a_carriage_return_alone_ends_no_row(name: str, tmp_path: Path) -> None:
    """pandas ended the row there, so that half of a text was trained on, and the rest was a bad row."""
    mark = "\t" if "tsv" in name else ","
    content = f"query{mark}positive\nask{mark}one\rtwo\nsay{mark}three\r\nname{mark}\n"
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}:4: the positive is blank"):
        load_training_data(str(path), [])
    rows = load_training_data(str(path), [], SourceOptions(bad_rows="skip")).training_rows()
    assert rows["positive"] == ["one\rtwo", "three"]


@pytest.mark.parametrize("indent", [None, 1])
def test_the_own_form_of_squad_is_named_as_such(indent: int | None, tmp_path: Path) -> None:
    """Its rows are nested in one object; the error asked for a query column among `version` and `data`."""
    paragraph = {"context": "a text", "qas": [{"id": "1", "question": "ask", "answers": []}]}
    squad = {"version": "1.1", "data": [{"title": "b", "paragraphs": [paragraph]}]}
    path = write(tmp_path / "train-v1.1.json", json.dumps(squad, indent=indent))
    check_source(str(path), [])  # leaves it to the loader
    message = "no row: .* a row for each question .* received the fields \\['version', 'data'\\]"
    for load in (load_documents, lambda source: load_training_data(source, [])):
        with pytest.raises(DataError, match=message):
            load(str(path))


def test_an_array_on_one_long_line_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas and `json.dump` write one line; the check before a run refused it, of 16 MiB, for its length."""
    monkeypatch.setattr("lexforge.data.lines.MAX_LINE_BYTES", 100)
    rows = [{"query": f"q{n}", "positive": f"a text of some words {n}"} for n in range(9)]
    path = write(tmp_path / "rows.json", json.dumps(rows))
    check_source(str(path), [])
    assert len(load_training_data(str(path), []).training_rows()) == 9


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_line_of_null_is_no_row(name: str, tmp_path: Path) -> None:
    """The reader of pyarrow crashes the process at such a line where it comes first, as jq may write it."""
    path = write(tmp_path / name, f"null\n{OBJECTS}")
    with pytest.raises(DataError, match=re.escape(f"{path}:1: expected a JSON object; received 'null'")):
        load_training_data(str(path), [])


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("rows.jsonl", [2**63 + 1, 2**63 + 2, 1]),
        ("rows.jsonl", [2**64 + 1, 2**64 + 2, "a"]),
        ("array.json", [2**63 + 1, None, 2**63 + 2]),
    ],
)
def test_integers_beyond_64_bits_keep_their_digits(name: str, ids: list[object], tmp_path: Path) -> None:
    """Hashes are such ids; `datasets` rounded them to floats, so that two of them became equal."""
    rows = [{"id": key, "text": f"text {place}"} for place, key in enumerate(ids)]
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name == "array.json" else "\n".join(map(json.dumps, rows)))
    found = load_documents(str(path), SourceOptions(bad_rows="skip"))
    assert found == {str(row["id"]): row["text"] for row in rows if row["id"] is not None}
