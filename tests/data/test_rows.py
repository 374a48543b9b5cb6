"""Training rows as a data set and as a file: the columns come back, and broken files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset

from lexforge.common.text_identity import text_identity
from lexforge.data import (
    DataError,
    load_retrieval_data,
    read_training_rows,
    rows_to_dataset,
    validate_columns,
    write_training_rows,
)
from lexforge.negatives import rows_of_judgements


def test_a_data_set_of_rows_is_that_of_datasets() -> None:
    """The oracle is `Dataset.from_list`; a checked column of the wrong type is refused."""
    rows = [{"anchor": "a", "positive": text, "relevant": [1, 2], "label": [0.5]} for text in ("b", "c", "d")]
    made = rows_to_dataset(rows)
    assert made.to_list() == Dataset.from_list(rows).to_list()
    assert made.column_names == Dataset.from_list(rows).column_names
    assert validate_columns(made) == ("anchor", "positive")
    for wrong in ([["1"]] * 3, [[1.5]] * 3, [1, 2, 3], [[1], None, [2]], [[1], [None], [2]]):
        with pytest.raises(DataError, match="column 'relevant': expected a list of identities"):
            validate_columns(made.remove_columns("relevant").add_column("relevant", wrong))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_columns_come_back_from_a_file(name: str, tmp_path: Path) -> None:
    """The trainer's columns in their order, whatever the text holds."""
    rows = [
        {"anchor": "a question", "positive": 'a "quote"', "negative_1": "line\nbreak 한국", "negative_2": ""}
    ]
    write_training_rows(tmp_path / name, rows)
    assert read_training_rows(tmp_path / name) == rows
    assert list(read_training_rows(tmp_path / name)[0]) == list(rows[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no row"),
        (b'{"anchor": "a", "positive": "b"}\n{"anchor"\n', "rows.jsonl:2: not a JSON object"),
        (b'{"anchor": "a", "positive": "b"}\n{"anchor": "a"}\n', r"rows\.jsonl:2 has the columns"),
        (b'{"anchor": "a", "negative_1": "b"}\n', "expected the text columns"),
        (b'{"anchor": "a", "positive": 3}\n', r"column 'positive', .*rows\.jsonl:1: expected text"),
    ],
)
def test_a_broken_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    """With its name and the line."""
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_training_rows(tmp_path / "rows.jsonl")
    with pytest.raises(FileNotFoundError):
        read_training_rows(tmp_path / "other.jsonl")


def test_a_file_holds_the_judged_documents_of_an_anchor_once(tmp_path: Path) -> None:
    """With hundreds of relevant documents per query, their lists would outgrow the texts many times."""
    rows = [
        {"anchor": "a", "positive": "x", "relevant": [1, 2]},
        {"anchor": "b", "positive": "z", "relevant": [3]},
        {"anchor": "a", "positive": "y", "relevant": [1, 2]},
        {"anchor": "b", "positive": "w", "relevant": [4]},
        {"anchor": "b", "positive": "v", "relevant": [4]},
    ]
    write_training_rows(tmp_path / "rows.jsonl", rows)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert ["relevant" in line for line in lines] == [True, True, False, True, False]
    assert read_training_rows(tmp_path / "rows.jsonl") == rows
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]) + '\n{"anchor": "c", "positive": "x"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2 has the columns"):
        read_training_rows(tmp_path / "rows.jsonl")


def test_lines_may_be_shuffled(tmp_path: Path) -> None:
    """`shuf` puts a row before the one that holds the list of their anchor, and the file was refused."""
    rows = [{"anchor": "a", "positive": text, "relevant": [1, 2, 3]} for text in "xyz"]
    write_training_rows(tmp_path / "rows.jsonl", rows)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(reversed(lines)))
    assert read_training_rows(tmp_path / "rows.jsonl") == rows[::-1]


@pytest.mark.slow
def test_the_column_of_many_judged_documents_stays_small(shared_folder: Path, tmp_path: Path) -> None:
    """In nfcorpus-lc a query has up to 1,358 relevant documents, and each of its rows names them all."""
    data = load_retrieval_data(str(shared_folder / "data" / "nfcorpus-lc"), ["train"])
    rows = rows_of_judgements(data)
    assert len(rows) == sum(grade > 0 for grades in data.split("train").values() for grade in grades.values())
    assert len({id(row["relevant"]) for row in rows}) <= len(data.split("train"))  # one list per query
    for row in rows:
        assert text_identity(row["positive"]) in row["relevant"]
    dataset = rows_to_dataset(rows)
    assert dataset.data.nbytes < 400 * 2**20  # 30.6 million identities of 8 bytes, and the texts
    assert validate_columns(dataset) == ("anchor", "positive")
    write_training_rows(tmp_path / "rows.jsonl", rows)
    assert (tmp_path / "rows.jsonl").stat().st_size < 200 * 2**20  # the texts are 130 MB; all lists 600 MB
    again = read_training_rows(tmp_path / "rows.jsonl")
    assert again == rows
