"""The splits of rows of texts: one file, a folder of files, and a folder that `save_to_disk` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from beir_folders import write_lines

from lexforge.data import DataError, load_documents, load_retrieval_data, load_training_data

datasets = pytest.importorskip("datasets")

ROWS = [{"query": f"ask {place}", "positive": f"text {place}"} for place in range(12)]


def sizes(source: Path) -> dict[str, int]:
    data = load_retrieval_data(str(source))
    return {split: len(data.split(split)) for split in data.splits}


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(",".join(cells) + "\n" for cells in [rows[0], *(row.values() for row in rows)]))
    return path


def test_splits_come_from_a_column(tmp_path: Path) -> None:
    """One file with a column is a layout that people have; `validation` is dev."""
    marked = [row | {"split": ("train", "validation", "test")[i % 3]} for i, row in enumerate(ROWS)]
    expected = {"train": 4, "dev": 4, "test": 4}
    assert sizes(write_lines(tmp_path / "rows.jsonl", marked)) == expected
    assert sizes(write_csv(tmp_path / "rows.csv", marked)) == expected
    datasets.Dataset.from_list(marked).save_to_disk(tmp_path / "saved")
    assert sizes(tmp_path / "saved") == expected


def test_a_row_without_a_split_is_one_of_train(tmp_path: Path) -> None:
    """Many mark the rows of test alone; the others must not vanish from training."""
    marked: list[dict] = [row | {"split": ("", "test", "train")[i % 3]} for i, row in enumerate(ROWS)]
    assert sizes(write_csv(tmp_path / "rows.csv", marked)) == {"train": 8, "test": 4}
    half: list[dict] = [row | ({"split": "test"} if i % 2 else {}) for i, row in enumerate(ROWS)]
    assert sizes(write_lines(tmp_path / "rows.jsonl", half)) == {"train": 6, "test": 6}


def test_a_row_of_another_split_than_its_file_is_refused(tmp_path: Path) -> None:
    """Rows that a column `split` marks as test were trained on where the folder was given."""
    marked = [row | {"split": "test" if i == 3 else "train"} for i, row in enumerate(ROWS)]
    file = write_lines(tmp_path / "set" / "train.jsonl", marked)
    with pytest.raises(DataError, match=r"train\.jsonl:4: the row names the split 'test', and its"):
        load_retrieval_data(str(tmp_path / "set"))
    assert sizes(file) == {"train": 11, "test": 1}
    write_lines(
        file, [row | {"split": name} for row, name in zip(ROWS, ("train", "", "fold 2"), strict=False)]
    )
    assert sizes(tmp_path / "set") == {"train": 3}


def test_dev_and_validation_are_one_split(tmp_path: Path) -> None:
    """One of them would be lost in silence."""
    part = datasets.Dataset.from_list(ROWS[:2])
    datasets.DatasetDict({"dev": part, "validation": part}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="hold the split 'dev' twice"):
        load_retrieval_data(str(tmp_path / "saved"))


def test_splits_come_from_names_of_files(tmp_path: Path) -> None:
    """A folder may hold files of several types, with the numbers of shards in their names."""
    write_lines(tmp_path / "folder" / "train-00000-of-00001.jsonl", ROWS[:8])
    write_csv(tmp_path / "folder" / "test.csv", ROWS[:4])
    assert sizes(tmp_path / "folder") == {"test": 4, "train": 8}
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "validation": datasets.Dataset.from_list(ROWS[:2])}
    ).save_to_disk(tmp_path / "saved")
    assert sizes(tmp_path / "saved") == {"train": 12, "dev": 2}


@pytest.mark.parametrize("name", ["Dev.csv", "valid.csv", "val-00000-of-00001.csv"])
def test_other_names_of_dev_are_no_other_files(name: str, tmp_path: Path) -> None:
    """The file was left out without a word, and dev was missing or held out of train."""
    (tmp_path / "folder").mkdir()
    write_csv(tmp_path / "folder" / "Train.csv", ROWS[:8])
    write_csv(tmp_path / "folder" / name, ROWS[:4])
    assert sizes(tmp_path / "folder") == {"train": 8, "dev": 4}


def test_tables_of_a_folder_that_are_not_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the rows lay in a file of another name, and nobody was told."""
    for name in ("train.jsonl", "training.jsonl", "more.csv.gz"):
        write_lines(tmp_path / name, ROWS)
    assert sizes(tmp_path) == {"train": 12}
    told = f"{tmp_path}: tables that are not read, because no split begins their names: 2, namely "
    assert caplog.messages == [f"{told}more.csv.gz, training.jsonl"]


def test_nothing_is_written_into_a_saved_folder(tmp_path: Path) -> None:
    """It is the user's, and a read-only one could not be trained on; the cache still knows other rows."""
    for number in (12, 7):
        saved = tmp_path / f"saved{number}"
        datasets.Dataset.from_list(ROWS[:number]).save_to_disk(saved)
        before = sorted(saved.iterdir())
        assert sizes(saved) == sizes(saved) == {"train": number}
        assert sorted(saved.iterdir()) == before
    assert len([*(tmp_path / "cache" / "lexforge" / "tables").iterdir()]) == 2


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    """Reading one of two shards would train on half of the data, silently."""
    for shard in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"):
        write_lines(tmp_path / "folder" / shard, ROWS)
    with pytest.raises(
        DataError, match=r"train-00000-of-00002\.jsonl and .* are both the split 'train'; hf:/"
    ):
        load_retrieval_data(str(tmp_path / "folder"))
    assert len(load_training_data(f"hf:{tmp_path / 'folder'}", []).training_rows()) == len(ROWS)


@pytest.mark.parametrize("table", ["test_results.csv", "train.jsonl.gz", "dev-log.tsv", "state.json"])
def test_texts_beside_a_table_are_refused_where_documents_are_read(table: str, tmp_path: Path) -> None:
    """A table among many texts has the name of a split by chance; it was read, and the texts were not."""
    (tmp_path / table).touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("a text, because it lies below the top")
    with pytest.raises(DataError) as raised:
        load_documents(str(tmp_path))
    assert str(raised.value) == (
        f"{tmp_path} holds {table}, as a folder of rows does, and texts such as notes/README.md: give the "
        "table itself, or a folder of one kind"
    )


def test_notes_about_rows_and_training_data_are_not_affected(tmp_path: Path) -> None:
    """Data sets have a README and a licence, and whoever trains on rows may keep texts beside them."""
    folder = write_lines(tmp_path / "folder" / "train.jsonl", ROWS).parent
    for name in ("README.md", "license.txt", "CHANGELOG.rst"):
        (folder / name).write_text("about the rows")
    assert len(load_documents(str(folder))) == 12
    (folder / "thoughts.txt").write_text("more")
    assert sizes(folder) == {"train": 12}
