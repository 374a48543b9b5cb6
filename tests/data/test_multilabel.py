"""Label sets: names to multi-hot lists, the file reader, and the embedded set."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lexforge.data import DataError, load_label_sets, load_texts, multi_hot
from lexforge.data import multilabel as module
from lexforge.data.retrieval_data import RetrievalData
from lexforge.settings import MultiLabelOptions, TableOptions

ROWS = [
    {"id": "a", "text": " one \u2028 line ", "labels": ["x", "y"], "split": "train"},
    {"id": "b", "text": "two", "labels": [], "split": "train"},
    {"id": "c", "text": "three", "labels": ["z", "x", "z"], "split": "test", "source": "unread"},
]


def write(path: Path, rows: list) -> Path:
    text = "".join(
        (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_names_become_columns_in_the_order_of_the_names() -> None:
    """By hand; a label given twice is one label."""
    assert multi_hot([["b"], [], ["c", "a", "c"]], ["a", "b", "c"]) == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert multi_hot([], ["a"]) == []


@pytest.mark.parametrize(
    ("sets", "names", "message"),
    [
        ([["a"], ["a", "d"]], ["a", "b"], r"row 1: unknown label 'd'; the 2 known labels are 'a', 'b'"),
        ([["d"]], [f"l{i}" for i in range(12)], r"the 12 known labels are 'l0',.*'l9' and 2 more"),
        (["a"], ["a"], "row 0: expected a list of label names; received the text 'a'"),
        ([["a"]], ["a", "b", "a"], r"received several times: \['a'\]"),
    ],
)
def test_an_unknown_label_is_an_error(sets, names, message: str) -> None:
    """A misspelt label must not become a text without it."""
    with pytest.raises(DataError, match=message):
        multi_hot(sets, names)


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz"])
def test_reads_plain_and_gzipped_lines(tmp_path: Path, name: str) -> None:
    """Label names of all splits, sorted; lines end at line feeds alone; other fields are not read."""
    data = load_label_sets(str(write(tmp_path / name, ROWS)))
    assert data.name == "set"
    assert data.label_names == ("x", "y", "z")
    assert data.columns("train") == {"text": ["one \u2028 line", "two"], "label": [[1, 1, 0], [0, 0, 0]]}
    assert data.columns("test")["label"] == [[1, 0, 1]]
    assert data.split("test")[0].labels == ("z", "x")
    with pytest.raises(ValueError, match=r"no split 'dev'; its splits are \['train', 'test'\]"):
        data.split("dev")


def test_a_sample_is_drawn_from_each_split(tmp_path: Path) -> None:
    """Measuring a part must not change the columns, and the same seed draws the same texts."""
    rows = [{"id": str(i), "text": f"t{i}", "labels": ["x"], "split": "ab"[i % 2]} for i in range(40)]
    data = load_label_sets(str(write(tmp_path / "set.jsonl", rows)))
    drawn = data.sample(5, seed=1)
    ids = {split: [int(row.id) for row in texts] for split, texts in drawn.splits.items()}
    assert all(len(found) == 5 and found == sorted(found) for found in ids.values())
    assert drawn.label_names == data.label_names
    assert data.sample(5, seed=1).splits == drawn.splits != data.sample(5, seed=2).splits
    assert data.sample(100).splits == data.splits
    with pytest.raises(ValueError, match="received 0"):
        data.sample(0)


def test_a_row_without_id_and_split(tmp_path: Path) -> None:
    """It is one of train and gets an id of its own; an id may be a number."""
    rows = [{"text": "t", "labels": ["x"]}, {"id": 4, "text": "u", "labels": ["y"], "split": "test"}]
    data = load_label_sets(str(write(tmp_path / "set.jsonl", rows)))
    assert [row.id for row in data.split("train")] == ["train-0"]
    assert [row.id for row in data.split("test")] == ["4"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"expected a JSON object; received '\{'"),
        ("[1]", r"expected a JSON object; received '\[1\]'"),
        ({**ROWS[1], "id": ["d"]}, r"'id' must be a string; received \['d'\]"),
        ({**ROWS[1], "id": "d", "text": None}, "'text' must be a string"),
        ({**ROWS[1], "id": "d", "text": " "}, "'d' has no text"),
        ({**ROWS[1], "id": "a"}, "'a' occurs a second time"),
        ({**ROWS[1], "id": "d", "labels": "x"}, "'labels' must be a list of names; received 'x'"),
        ({**ROWS[1], "id": "d", "labels": [" "]}, r"'labels' must be a list of names; received \[' '\]"),
        ({**ROWS[1], "id": "d", "labels": [1]}, r"'labels' must be a list of names; received \[1\]"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, row, message: str) -> None:
    """The user opens the file at that line."""
    path = write(tmp_path / "set.jsonl", [*ROWS, row])
    with pytest.raises(DataError, match=rf"set\.jsonl:4: .*{message}"):
        load_label_sets(str(path))


def test_a_file_that_holds_no_label(tmp_path: Path) -> None:
    """Nothing could be learnt."""
    with pytest.raises(DataError, match="no text with a label"):
        load_label_sets(str(write(tmp_path / "set.jsonl", ROWS[1:2])))
    (tmp_path / "blank.csv").write_text("text,labels\none,\ntwo,\n")  # a blank cell is no mistake
    with pytest.raises(DataError, match=r"blank\.csv holds no text with a label"):
        load_label_sets(str(tmp_path / "blank.csv"))


def test_docstrings_are_labelled_with_where_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most frequent homes of the training split; ties by name; texts without one are left out."""
    names = {
        "train": ["scipy.stats.a", "scipy.stats._b.c", "scipy.linalg.d", "json.e"],
        "test": ["scipy.f", "csv.g"],
    }
    documents = {name: f"document {name}" for split in names.values() for name in split}
    source = RetrievalData(
        "docstrings",
        documents,
        {f"query:{name}": f"query {name}" for name in documents},
        {split: {f"query:{name}": {name: 1} for name in found} for split, found in names.items()},
    )
    monkeypatch.setattr(module, "load_docstrings", lambda: source)
    monkeypatch.setattr(module, "TOPICS", 3)
    data = module.load_docstring_topics()
    assert data.label_names == ("b", "scipy", "stats")  # b, json and linalg occur once each
    assert [row.labels for row in data.split("train")] == [
        ("scipy", "stats"),
        ("scipy", "stats", "b"),
        ("scipy",),
    ]
    assert [row.text for row in data.split("test")] == ["query scipy.f document scipy.f"]


@pytest.mark.parametrize(("name", "labels"), [("goemotions", 28), ("reuters21578", 118), ("kote", 44)])
def test_real_files(shared_folder: Path, name: str, labels: int) -> None:
    """Empty label lists, a label named twice, Korean names: as published."""
    data = load_label_sets(str(shared_folder / "data" / "multilabel" / f"{name}.jsonl.gz"))
    assert len(data.label_names) == labels
    assert set(data.splits) == {"train", "dev", "test"}


# Labels of tables.

SETS = [("a", "b"), ("b",), (), ("a", "b", "c")]


def table(path: Path, header: str, cells: list[str]) -> str:
    lines = [f'text {place},"{cell}"' for place, cell in enumerate(cells)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["a|b", "b", "", " a | b|c"], "the names in the column 'labels' with '|' between them"),
        (["a;b", "b", "", "a; b;c"], "the names in the column 'labels' with ';' between them"),
        (["a,b", "b", "", "a, b, c"], "the names in the column 'labels' with ',' between them"),
        (
            ['[""a"", ""b""]', '[""b""]', "[]", '[""a"", ""b"", ""c""]'],
            "the list in the column 'labels'",
        ),
        (["['a', 'b']", "['b']", "[]", "['a','b', 'c']"], "the list in the column 'labels'"),
    ],
)
def test_cells_of_labels_are_recognised(cells: list[str], form: str, tmp_path: Path) -> None:
    """Published tables agree on no form; what was recognised is told, because a name may hold a comma."""
    data = load_label_sets(table(tmp_path / "x.csv", "text,labels", cells), ["train"])
    assert [row.labels for row in data.split("train")] == SETS
    assert data.notes == (f"{tmp_path}/x.csv: the labels of a text are {form}",)


@pytest.mark.parametrize(
    "cell",
    [
        "{'a', 'b'}",
        "('a', 'b')",
        "array(['a', 'b'], dtype=object)",
        '{""choices"": [""a"", ""b""]}',
        '[""a""]',
    ],
)
def test_several_names_in_brackets_are_no_names_with_commas(cell: str, tmp_path: Path) -> None:
    """They became labels such as `{'a'`, where pandas wrote sets, or Label Studio its choices."""
    path = table(tmp_path / "x.csv", "text,labels", ["b", cell])
    with pytest.raises(DataError, match=r"x\.csv:3: 'labels' must hold names with a mark"):
        load_label_sets(path)


def test_a_text_with_a_row_for_each_label_is_told(tmp_path: Path) -> None:
    """Its rows teach that it lacks the labels of the others, and nothing said so."""
    path = tmp_path / "x.csv"
    path.write_text("text,labels\nwheat fell,wheat\nrain,weather\nwheat fell,grain\n")
    told = "  repeated texts, each with the labels of its own row: 1, namely line 4"
    assert load_label_sets(str(path)).notes[-1] == told


@pytest.mark.parametrize("names", ["Text,Labels,ID,Split", "Text,a,b,c,ID,Split"])
def test_capital_letters_of_the_columns_do_not_matter(names: str, tmp_path: Path) -> None:
    """Spreadsheets write them, and the split of a row must not be lost."""
    cells = ["a|b", "b", "", "a|b|c"] if "Labels" in names else ["1,1,0", "0,1,0", "0,0,0", "1,1,1"]
    rows = [f"text {place},{cell},{place + 7},test" for place, cell in enumerate(cells)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([names, *rows]) + "\n")
    data = load_label_sets(str(path))
    assert [row.id for row in data.split("test")] == ["7", "8", "9", "10"]
    assert [row.labels for row in data.split("test")] == SETS
    assert "not read" not in data.notes[0]


def test_a_mark_inside_names_is_no_separator(tmp_path: Path) -> None:
    """The first mark that occurs counts, so names may hold the later ones."""
    source = table(tmp_path / "x.csv", "text,labels", ["joy, love|anger", "joy, love"])
    assert load_label_sets(source, ["train"]).label_names == ("anger", "joy, love")
    source = table(tmp_path / "y.csv", "text,labels", ["joy", "anger"])
    assert load_label_sets(source, ["train"]).notes[0].endswith("are the names in the column 'labels'")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_columns_of_0_and_1_are_labels(form: str, tmp_path: Path) -> None:
    """The form of scikit-learn and of GoEmotions; a column of other values is told and not read."""
    rows = [
        {"text": f"text {place}", "author": "me", **{name: int(name in names) for name in "abc"}}
        for place, names in enumerate(SETS)
    ]
    path = tmp_path / f"x.{form}"
    if form == "csv":
        lines = [",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))]
        path.write_text("\n".join(lines) + "\n")
    elif form == "jsonl":
        write(path, rows)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = load_label_sets(str(path), ["train"])
    assert [row.labels for row in data.split("train")] == SETS
    assert data.notes == (
        f"{path}: the labels of a text are its columns with a 1 (3, namely a, b, c); "
        "not read: 1, namely author",
    )


@pytest.mark.parametrize("cells", ["True False", "TRUE FALSE", "true false"])
def test_columns_of_truth_values_are_labels(cells: str, tmp_path: Path) -> None:
    """pandas writes True, spreadsheets TRUE and JSON true; only the first was taken for a label."""
    yes, no = cells.split()
    (tmp_path / "x.csv").write_text(f"text,a,b\none,{yes},{no}\ntwo,{no},{no}\n")
    data = load_label_sets(str(tmp_path / "x.csv"), ["train"])
    assert [row.labels for row in data.split("train")] == [("a",), ()]


@pytest.mark.parametrize("cell", ["['a' 'b']", "['a', b]", "['a', __import__('os')]", "[" * 5000, "['a'"])
def test_only_what_python_writes_is_read_as_its_list(cell: str, tmp_path: Path) -> None:
    """NumPy writes no commas, which Python would read as the one name "ab"; and no cell is run."""
    with pytest.raises(
        DataError, match="must hold a JSON list of names, or one as Python writes it; received"
    ):
        load_label_sets(table(tmp_path / "x.csv", "text,labels", ["['a', 'b']", cell]))


def test_a_label_that_the_first_line_leaves_out_is_no_other_column(tmp_path: Path) -> None:
    """The labels of a set were those of its first line; the others were left out in silence."""
    rows = [{"text": "a", "x": 1}, {"text": "b", "x": 0, "y": 1}, {"text": "c", "x": 0, "y": 1}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        DataError, match=r"x\.jsonl:1: 'y' must hold 0 or 1 \(a blank cell does not count as 0\)"
    ):
        load_label_sets(str(tmp_path / "x.jsonl"))


def test_numbers_of_classes_become_their_names(tmp_path: Path) -> None:
    """Sets of the hub, such as go_emotions, hold numbers, and the names stand in their features."""
    import datasets

    labels = datasets.Sequence(datasets.ClassLabel(names=["joy", "anger"]))
    features = datasets.Features({"text": datasets.Value("string"), "labels": labels})
    rows = {"text": ["a good day", "a loud day", "a day"], "labels": [[0], [1, 0], []]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "emotions")
    loaded = load_label_sets(str(tmp_path / "emotions"))
    assert [row.labels for row in loaded.splits["train"]] == [("joy",), ("anger", "joy"), ()]
    rows["labels"][0] = [-1]  # no label, by the custom of the hub
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "partly")
    with pytest.raises(
        DataError, match=r"row 1 .*'labels' must hold numbers of classes from 0 to 1; received"
    ):
        load_label_sets(str(tmp_path / "partly"))
    skipped = load_label_sets(str(tmp_path / "partly"), options=MultiLabelOptions(bad_rows="skip"))
    assert len(skipped.splits["train"]) == 2


def test_a_blank_cell_among_0_and_1_is_told_apart(tmp_path: Path) -> None:
    """It may mean that nobody has looked; whoever means 0 must hear that it is not read so."""
    path = tmp_path / "x.csv"
    path.write_text("text,a,b\none,1,0\ntwo,,1\nthree,0,1\n")
    expected = r"x\.csv:3: 'a' must hold 0 or 1 \(a blank cell does not count as 0\); received ''"
    with pytest.raises(DataError, match=expected):
        load_label_sets(str(path))


@pytest.mark.parametrize("codec", ["cp1252", "utf-16"])
def test_plain_texts_in_another_encoding(
    codec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As rows are; a named encoding was not looked at, and zero bytes became texts."""
    path = tmp_path / "x.txt"
    path.write_bytes("schön\nhäßlich\n".encode(codec))
    for options in (None, TableOptions(encoding=codec)):
        assert load_texts(str(path), options=options) == [(None, "schön"), (None, "häßlich")]
    assert caplog.messages == [f"{path} was read with the encoding {codec} (--encoding names another)"]
    with pytest.raises(ValueError, match=r"--delimiter ; would be ignored: a \.txt file has one"):
        load_texts(str(path), options=TableOptions(delimiter=";"))
    path.write_bytes("ask\nagain\n".encode("utf-16-le"))  # without its mark it is valid UTF-8
    with pytest.raises(DataError, match=r"x\.txt:1: not UTF-8: the byte 0x00"):
        load_texts(str(path))


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """And `bad_rows="skip"` leaves such rows out."""
    rows = ["id,text,split,a,b", "1,one,train,0,1", "2,two,train,2,0", "3,,train,1,0", "1,four,train,1,1"]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([*rows, "5,five,train,x,1", "6,six,train,1,0"]) + "\n")
    with pytest.raises(DataError) as raised:
        load_label_sets(str(path), ["train"])
    assert str(raised.value) == (
        f"{path}:3: 'a' must hold 0 or 1; received '2'\nIn all 4 of 6 rows of {path} are bad:\n"
        "  wrong values: 2, namely line 3 ('2'), line 6 ('x')\n  blank texts: 1, namely line 4\n"
        "  repeated ids: 1, namely line 5 (1)"
    )
    data = load_label_sets(str(path), ["train"], MultiLabelOptions(bad_rows="skip"))
    assert [row.id for row in data.split("train")] == ["1", "6"]
    assert f"{path}: 4 of 6 rows are bad and left out:" in data.notes
    lines = [*ROWS[:2], {**ROWS[0], "id": "d", "text": 5}, {**ROWS[0], "id": "e", "labels": {}}]
    with pytest.raises(DataError, match=r"set\.jsonl:3: 'text' must be a string; received 5\nIn all 2 of 4"):
        load_label_sets(str(write(tmp_path / "set.jsonl", lines)), ["train"])


def test_white_space_makes_no_other_label(tmp_path: Path) -> None:
    """Names in lists had their white space kept, those between `|` had not."""
    rows = [{**ROWS[0], "labels": ["x", "x ", " y"]}, *ROWS[1:]]
    data = load_label_sets(str(write(tmp_path / "set.jsonl", rows)), ["train"])
    assert data.split("train")[0].labels == ("x", "y")


def test_other_delimiters_and_encodings(tmp_path: Path) -> None:
    """The tables of labels are read as those of pairs."""
    path = tmp_path / "x.csv"
    path.write_bytes("text;labels\nschön;grün|rot\nhäßlich;rot\n".encode("cp1252"))
    data = load_label_sets(str(path), ["train"])
    assert data.label_names == ("grün", "rot")
    assert "the delimiter ';'" in data.notes[0]
    assert "cp1252" in data.notes[0]


def test_texts_of_bad_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only blank ones were; a text that is none, or is missing, stopped `lexforge predict` all the same."""
    lines = [
        {"id": 1, "text": " one "},
        {"text": None},
        {"id": 3},
        {"text": " "},
        {"text": "three"},
    ]
    path = str(write(tmp_path / "x.jsonl", lines))
    with pytest.raises(DataError, match=r"x\.jsonl:2: 'text' must be a string; received None\nIn all 3 of 5"):
        load_texts(path)
    assert load_texts(path, options=TableOptions(bad_rows="skip")) == [("1", "one"), (None, "three")]
    assert caplog.messages[0] == f"{path}: 3 of 5 rows are bad and left out:"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_texts_keep_the_order_of_their_file(tmp_path: Path, form: str) -> None:
    """`predict` divided a table by its splits, and its lines stood beside other rows than their own."""
    rows = [("one", "train"), ("two", "test"), ("three", "train")]
    if form == "csv":
        path = write(tmp_path / "x.csv", ["text,split", *map(",".join, rows)])
    else:
        path = write(tmp_path / "x.jsonl", [{"text": text, "split": split} for text, split in rows])
    assert [text for _, text in load_texts(str(path))] == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["notes.md", "missing.txt"])
def test_other_files_of_texts_are_refused_and_txt_is_named(tmp_path: Path, name: str) -> None:
    """The error listed tables and the hub alone, and not the form that the manual names first."""
    (tmp_path / "notes.md").write_text("one\n")
    with pytest.raises((DataError, FileNotFoundError), match="; expected hf:") as caught:
        load_texts(str(tmp_path / name))
    assert caught.value.__notes__ == ["a .txt file with one text per line is taken too"]


def test_the_ids_of_pandas_keep_their_digits(tmp_path: Path) -> None:
    """It makes 3.0 of 3 where another id is missing, and the labels that `predict` wrote fitted no row."""
    import pyarrow
    from pyarrow import parquet

    nan = float("nan")
    columns = {
        "id": [1.0, nan, 3.0, nan],
        "text": ["one", "two", "three", "four"],
        "labels": [["x"], [], [], []],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    source = str(tmp_path / "x.parquet")
    assert load_texts(source) == [("1", "one"), (None, "two"), ("3", "three"), (None, "four")]
    rows = load_label_sets(source).splits["train"]
    assert [row.id for row in rows] == ["1", "train-1", "3", "train-3"]


def test_a_blank_id_is_none(tmp_path: Path) -> None:
    """Of the rows of a CSV file without an id, all but the first were refused as repeated."""
    path = write(tmp_path / "x.csv", ["id,text,labels", "7,one,x", ",two,x", ",three,x"])
    assert load_texts(str(path)) == [("7", "one"), (None, "two"), (None, "three")]
    assert [row.id for row in load_label_sets(str(path)).splits["train"]] == ["7", "train-1", "train-2"]


def test_blank_lines_of_texts_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is put beside the texts line by line shifts there, which the number of texts does not say."""
    (tmp_path / "x.txt").write_text("one\n\ntwo\n \nthree\n")
    assert load_texts(str(tmp_path / "x.txt")) == [(None, "one"), (None, "two"), (None, "three")]
    assert caplog.messages == [
        f"{tmp_path / 'x.txt'}: 5 rows, among them",
        "  blank lines, which are left out: 2, namely line 2, line 4",
    ]
    with pytest.raises(
        ValueError, match=r"a \.txt file has no columns; received --text-column body with .*x"
    ):
        load_texts(str(tmp_path / "x.txt"), "body")
