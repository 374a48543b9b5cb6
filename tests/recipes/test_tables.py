"""Tables as `--data` of the recipes that train on labelled texts and on scored pairs."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from loaded_recipes import load_recipe
from pyarrow import parquet
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sklearn.metrics import f1_score

from lexforge.common.command_line import run_command
from lexforge.corpus import load_label_classifier
from lexforge.data import load_label_sets, load_sts
from lexforge.settings import MultiLabelOptions, StsOptions

FORMATS = ["csv", "jsonl.gz", "parquet"]
SPLITS = ["train"] * 8 + ["validation"] * 3 + ["test"] * 4
LABELLED = [
    {
        "Betreff": f"the {('ship', 'plough')[number % 2]} number {number}",
        "topics": [("sea", "field")[number % 2], *(["even"] if number % 4 == 0 else [])],
        "split": split,
    }
    for number, split in enumerate(SPLITS)
]
LEFT = ["sort a list", "the index", "open a file and read it", "search words"]
RIGHT = ["a list of words", "the index of a file", "read it", "sort it"]
PAIRS = [
    {"left": LEFT[number % 4], "right": RIGHT[number // 2 % 4], "grade": number / 4, "split": split}
    for number, split in enumerate(SPLITS)
]
COLUMNS = {
    "nws_multilabel": ["--text-column", "Betreff", "--labels-column", "topics"],
    "cosent_sts": ["--sentence1-column", "left", "--sentence2-column", "right", "--score-column", "grade"],
}
ROWS = {"nws_multilabel": LABELLED, "cosent_sts": PAIRS}
EXTRA = {"nws_multilabel": ["--queue-size", "8"], "cosent_sts": []}


def write(rows: list[dict[str, Any]], form: str, folder: Path) -> Path:
    """Write rows as a table; the cells of a CSV file hold lists as JSON."""
    path = folder / f"rows.{form}"
    if form == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif form == "csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            for row in rows:
                cells = {key: json.dumps(v) if isinstance(v, list) else v for key, v in row.items()}
                writer.writerow(cells)
    else:
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def recipe(name: str, file: Path, model: Path, *flags: str) -> None:
    """Run a recipe as its command does, in this process: two steps on tiny texts."""
    module = load_recipe(name)
    words = ["--data", str(file), "--model", str(model), "--output-dir", str(file.parent / "run")]
    words += ["--steps", "2", "--batch-size", "4", "--max-seq-length", "12", *EXTRA[name], *flags]
    run_command(module.main, module.Config, None, arguments=words)


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_holds_the_same_rows(form: str, tmp_path: Path) -> None:
    """The oracle is the list that was written: no cell may become another text, number or label."""
    file = str(write(PAIRS, form, tmp_path))
    options = StsOptions(sentence1_column="left", sentence2_column="right", score_column="grade")
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        found = [tuple(row.values()) for row in load_sts(file, [split], options)[split]]
        assert found == [(row["left"], row["right"], row["grade"]) for row in PAIRS if row["split"] == name]
    (tmp_path / "labelled").mkdir()
    file = str(write(LABELLED, form, tmp_path / "labelled"))
    read = load_label_sets(
        file, ["train", "dev", "test"], MultiLabelOptions(text_column="Betreff", labels_column="topics")
    )
    assert read.label_names == ("even", "field", "sea")
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        assert [(row.text, list(row.labels)) for row in read.split(split)] == [
            (row["Betreff"], row["topics"]) for row in LABELLED if row["split"] == name
        ]


@pytest.mark.parametrize(("name", "form"), [("nws_multilabel", "csv"), ("cosent_sts", "jsonl.gz")])
def test_a_recipe_trains_on_a_table(name: str, form: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A user's own column names, by flags: the run ends with a model and its numbers of the test split, which
    scikit-learn and scipy find again.
    """
    file = write(ROWS[name], form, tmp_path)
    recipe(name, file, tiny_checkpoint, *COLUMNS[name], "--no-initial-evaluation")
    trained = json.loads((tmp_path / "run" / "metrics.json").read_text())["trained"]
    test = [row for row in ROWS[name] if row["split"] == "test"]
    if name == "cosent_sts":
        model = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
        left, right = (model.encode([row[side] for row in test]) for side in ("left", "right"))
        cosine = [
            float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(left, right, strict=True)
        ]
        expected = spearmanr(cosine, [row["grade"] for row in test]).statistic
        assert trained["spearman_cosine"] == pytest.approx(expected, abs=1e-6)
        return
    classifier = load_label_classifier(tmp_path / "run")
    names = sorted({label for row in LABELLED for label in row["topics"]})
    given, found = (
        [[int(label in labels) for label in names] for labels in rows]
        for rows in ([row["topics"] for row in test], classifier.predict([row["Betreff"] for row in test]))
    )
    expected = f1_score(given, found, average="micro", zero_division=0)
    assert trained["head_micro_f1"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ROWS)
def test_a_model_with_a_router_is_refused_before_the_data_is_read(name: str, tiny_dense, tmp_path) -> None:
    """Its texts are neither queries nor documents: the trainer asked for a `router_mapping` after minutes."""
    router = Router.for_query_document(list(tiny_dense.children()), list(tiny_dense.children()))
    SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(tmp_path / "routes"))
    with pytest.raises(SystemExit) as ended:
        recipe(name, write(ROWS[name], "jsonl.gz", tmp_path), tmp_path / "routes", *COLUMNS[name])
    assert "routes has a Router, which encodes queries and documents by different modules" in str(ended.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "flags", "message", "form"),
    [
        ("nws_multilabel", ["--labels-column", "topics"], "--text-column", "csv"),
        ("nws_multilabel", ["--text-column", "Betreff"], "--labels-column", "parquet"),
        ("nws_multilabel", ["--text-column", "Text", "--labels-column", "topics"], "'Text'", "jsonl.gz"),
        (
            *("cosent_sts", ["--sentence2-column", "right", "--score-column", "grade"]),
            *("--sentence1-column", "jsonl.gz"),
        ),
        (
            *("cosent_sts", ["--sentence1-column", "left", "--sentence2-column", "right"]),
            *("--score-column", "csv"),
        ),
        ("cosent_sts", [*COLUMNS["cosent_sts"][:-1], "note"], "'note'", "parquet"),
    ],
)
def test_a_wrong_column_ends_with_one_line(
    name: str, flags: list[str], message: str, form: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The line names the file, the option and the columns that there are, and no folder is left behind."""
    file = write(ROWS[name], form, tmp_path)
    with pytest.raises(SystemExit) as ended:
        recipe(name, file, tiny_checkpoint, *flags)
    text = str(ended.value)
    assert text.startswith("error: ")
    assert "\n" not in text
    assert str(file) in text
    assert message in text
    assert str(next(iter(ROWS[name][0]))) in text  # a column that there is
    assert not (tmp_path / "run").exists()
