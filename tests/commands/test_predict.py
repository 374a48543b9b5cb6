"""Labels of texts from the command line: the lines, the sources, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lexforge.commands import predict
from lexforge.corpus import LabelClassifier, load_label_classifier
from lexforge.settings import TableOptions


@pytest.fixture
def run(tmp_path: Path, tiny_dense) -> Path:
    """A run directory with a model and its classifier."""
    folder = tmp_path / "run" / "model"
    tiny_dense.save_pretrained(str(folder))
    vectors = tiny_dense.encode(["sort", "file"])
    LabelClassifier(tiny_dense, ("sorting", "files"), vectors, None, threshold=-1.0).save(folder)
    return folder.parent


def test_each_line_of_a_text_file_is_labelled(run: Path, tmp_path: Path, capsys) -> None:
    """Blank lines are left out; the lines are those of the classifier in Python."""
    texts = tmp_path / "texts.txt"
    texts.write_text("sort a list\n\n  open the file \n", encoding="utf-8")
    predict.main(predict.Config(str(run), str(texts)))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = load_label_classifier(run).predict(["sort a list", "open the file"])
    assert [line["text"] for line in lines] == ["sort a list", "open the file"]
    for line, scores in zip(lines, expected, strict=True):
        assert line["labels"] == list(scores)
        assert line["scores"] == pytest.approx(list(scores.values()), abs=1e-6)
        assert "id" not in line


def test_rows_keep_their_ids_and_a_block_is_labelled_at_a_time(
    run: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """The file holds one line per row, in the order of the rows; a threshold replaces that of the run."""
    monkeypatch.setattr(predict, "BLOCK", 2)
    rows = tmp_path / "rows.csv"
    rows.write_text("id,body\na,sort a list\nb,open the file\nc,hash of a key\n", encoding="utf-8")
    output = tmp_path / "labelled.jsonl"
    predict.main(predict.Config(str(run), str(rows), output, text_column="body", threshold=2.0))
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["a", "b", "c"]
    assert all(line["labels"] == line["scores"] == [] for line in lines)
    assert "3 texts labelled" in capsys.readouterr().out


def test_a_table_with_tabs_has_the_column_that_is_named(run: Path, tmp_path: Path) -> None:
    """A header of unusual names was taken for a row. The output goes through a link, packed by its name."""
    rows, output = tmp_path / "rows.tsv", tmp_path / "labelled.jsonl.gz"
    rows.write_text("review\ttopics\nsort a list\tx\n", encoding="utf-8")
    (tmp_path / "target.gz").touch()
    output.symlink_to(tmp_path / "target.gz")
    predict.main(predict.Config(str(run), str(rows), output, text_column="review"))
    (line,) = gzip.decompress((tmp_path / "target.gz").read_bytes()).decode().splitlines()
    assert json.loads(line)["text"] == "sort a list"
    assert output.is_symlink()


@pytest.mark.parametrize(
    ("content", "change", "message"),
    [
        ("", {}, "texts.txt holds no text"),
        ("\n \n", {}, "texts.txt holds no text"),
        ("a", {"texts": "nowhere.txt"}, "nowhere.txt"),
        ("a", {"output": Path("no-such-folder/file")}, "no-such-folder"),
        ("a", {"output": Path()}, "must name a file"),
        ("a", {"threshold": float("nan")}, "threshold must be a number"),
        ("a", {"batch_size": 0}, "batch_size must be at least 1"),
        ("a", {"model": "./no-such-model"}, "no-such-model"),
    ],
)
def test_bad_input_is_one_clear_error(
    content: str, change: dict, message: str, run: Path, tmp_path: Path
) -> None:
    """What was received, and nothing is written."""
    texts = tmp_path / "texts.txt"
    texts.write_text(content, encoding="utf-8")
    with pytest.raises((ValueError, OSError), match=message):
        predict.main(predict.Config(**({"model": str(run), "texts": str(texts)} | change)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": " "}', r"rows\.jsonl:2.*'text' is blank"),
        ('{"text": 3}', r"rows\.jsonl:2.*must be a string; received 3"),
        ('{"body": "a"}', r"rows\.jsonl:2: 'text' must be a string; received None"),
    ],
)
def test_a_wrong_row_is_named(line: str, message: str, run: Path, tmp_path: Path) -> None:
    """File and line, before the model is loaded."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        predict.main(predict.Config("./no-such-model", str(rows)))


def test_bad_rows_are_left_out_where_the_user_says_so(run: Path, tmp_path: Path, capsys) -> None:
    """The options of tables are those of the recipes."""
    rows = tmp_path / "rows.csv"
    rows.write_text("id;text\na;sort a list\nb;\nc;open the file\n", encoding="utf-8")
    predict.main(predict.Config(str(run), str(rows), tables=TableOptions(bad_rows="skip")))
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["a", "c"]
