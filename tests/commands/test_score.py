"""The command line that scores pairs: both forms, what reads them, and refusals before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from beir_folders import write_lines
from sentence_transformers import SparseEncoder

from lexforge.commands import score
from lexforge.data import (
    load_retrieval_data,
    load_teacher_scores,
    read_training_rows,
    write_training_rows,
)
from lexforge.evaluation import write_run
from lexforge.negatives import rows_of_judgements
from lexforge.settings import SourceOptions


@pytest.fixture
def folder(corpus_folder: Path) -> Path:
    """The corpus with two queries of a training split and a run of each."""
    queries = {"q0": "sort list", "q1": "file"}
    write_lines(corpus_folder / "queries.jsonl", [{"_id": k, "text": text} for k, text in queries.items()])
    (corpus_folder / "qrels").mkdir()
    (corpus_folder / "qrels" / "train.tsv").write_text("q0\td0\t1\nq1\td1\t1\n")
    write_run(corpus_folder / "run.trec", {"q0": {"d2": 3.0, "d0": 2.0, "d3": 1.0}, "q1": {"d0": 1.0}})
    return corpus_folder


def dot_product(model: SparseEncoder, query: str, document: str) -> float:
    vectors = model.encode([query, document], convert_to_sparse_tensor=False)
    return float(vectors[0] @ vectors[1])


def test_scores_of_a_run_are_those_that_training_reads(
    folder: Path, tmp_path: Path, tiny_checkpoint, tiny_splade
) -> None:
    """Judged documents and the best two of each query; `rows_of_judgements` finds every score it needs."""
    output = tmp_path / "scores.tsv"
    cfg = score.Config(
        str(tiny_checkpoint),
        output,
        data=str(folder),
        run=folder / "run.trec",
        depth=2,
        cache=tmp_path / "cache",
    )
    score.main(cfg)
    data = load_retrieval_data(str(folder))
    scores = load_teacher_scores(output, data)
    assert {query: list(found) for query, found in scores.items()} == {"q0": ["d0", "d2"], "q1": ["d1", "d0"]}
    for query, found in scores.items():
        for document, given in found.items():
            expected = dot_product(tiny_splade, data.queries[query], data.corpus[document])
            assert given == pytest.approx(expected, rel=1e-5)  # float32, in other batches
    rows = rows_of_judgements(data, runs=[{"q0": {"d2": 1.0}, "q1": {"d0": 1.0}}], scores=scores)
    assert [row["label"] for row in rows] == [list(found.values()) for found in scores.values()]
    before = output.read_bytes()
    score.main(cfg)
    assert output.read_bytes() == before


def test_rows_of_a_file_are_labelled(tmp_path: Path, tiny_checkpoint, tiny_splade) -> None:
    """The file that comes out is the one that the recipe reads in the place of the mined one."""
    rows = [{"anchor": "sort list", "positive": "sort the list", "negative_1": "open the file"}]
    write_training_rows(tmp_path / "mined.jsonl", rows)
    output = tmp_path / "labelled.jsonl.gz"
    score.main(
        score.Config(str(tiny_checkpoint), output, rows=tmp_path / "mined.jsonl", cache=tmp_path / "cache")
    )
    (row,) = read_training_rows(output)
    expected = [dot_product(tiny_splade, "sort list", row[name]) for name in ("positive", "negative_1")]
    assert row == rows[0] | {"label": pytest.approx(expected, rel=1e-5)}


def test_arguments_are_checked_before_the_teacher_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Loading a teacher takes a minute; the mistakes of a command line show at once."""
    output = tmp_path / "out.tsv"
    for options, message in [
        ({}, "either --rows or --data"),
        ({"rows": Path("mined.jsonl"), "data": "folder"}, "either --rows or --data"),
        ({"rows": Path("mined.jsonl"), "run": Path("run.trec")}, "--run run.trec would be ignored"),
        (
            {"rows": Path("mined.jsonl"), "split": "dev"},
            "--split dev would be ignored: the pairs are those of --rows",
        ),
        (
            {"rows": Path("mined.jsonl"), "source": SourceOptions(query_column="q", bad_rows="skip")},
            "--bad-rows skip and --query-column q would be ignored",
        ),
        ({"data": "folder", "depth": 9}, "--depth 9 would be ignored: it is the depth of --run"),
    ]:
        with pytest.raises(ValueError, match=message):
            score.main(score.Config("nobody/has-this", output, **options))
    write_training_rows(tmp_path / "rows.jsonl", [{"anchor": "a", "positive": "b", "negative_1": "c"}])
    with pytest.raises(ValueError, match="'bm25' is fitted on a corpus, and listed pairs have none"):
        score.main(score.Config("bm25", output, rows=tmp_path / "rows.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"the folder of .* does not exist"):
        score.main(score.Config("nobody/has-this", tmp_path / "no" / "out.tsv", data=str(folder)))
    with pytest.raises(IsADirectoryError, match="--output must name a file"):
        score.main(score.Config("nobody/has-this", tmp_path, data=str(folder)))
    run = tmp_path / "run.trec"
    write_run(run, {"q0": {"d0": 1.0}})
    with pytest.raises(ValueError, match="depth must be at least 1; received 0"):
        score.main(score.Config("nobody/has-this", output, data=str(folder), run=run, depth=0))


def test_a_run_of_another_split_is_refused_before_the_teacher_is_loaded(folder: Path, tmp_path: Path) -> None:
    """The judged pairs of train alone were scored where `--split test` was forgotten, without a word."""
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\n")
    (folder / "qrels" / "train.tsv").write_text("q0\td0\t1\n")
    write_run(folder / "test.trec", {"q1": {"d0": 1.0}})
    options = {"data": str(folder), "run": folder / "test.trec"}
    with pytest.raises(ValueError, match=r"queries of the split 'train'; it ranks none.* .--split names"):
        score.main(score.Config("nobody/has-this", tmp_path / "out.tsv", **options))
