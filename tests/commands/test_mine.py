"""The command line that mines negatives: every kind of ranking, the teacher, and refusals before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from beir_folders import write_lines
from sentence_transformers import CrossEncoder, SparseEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from lexforge import cli
from lexforge.commands import mine
from lexforge.common.types import DataError
from lexforge.data import read_training_rows
from lexforge.evaluation import write_run
from lexforge.negatives import NEGATIVE_RULE, NegativeRule

QUERIES = {"q0": "sort list", "q1": "file", "q2": "parse tree"}
POSITIVES = {"q0": "d0", "q1": "d1", "q2": "d2"}
TEXTS = {"q0": "sort the list", "q1": "open the file", "q2": "parse a tree"}  # of the positives


@pytest.fixture
def folder(corpus_folder: Path) -> Path:
    """The corpus with three queries of a training split."""
    write_lines(corpus_folder / "queries.jsonl", [{"_id": k, "text": text} for k, text in QUERIES.items()])
    (corpus_folder / "qrels").mkdir()
    rows = [f"{query}\t{document}\t1\n" for query, document in POSITIVES.items()]
    (corpus_folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return corpus_folder


def mined(folder: Path, rule: NegativeRule | None = None, **options: Any) -> list[dict]:
    output = folder / "mined.jsonl"
    mine.main(mine.Config(str(folder), output, rule=rule or NegativeRule(), **options))
    rows = read_training_rows(output)
    assert [row["anchor"] for row in rows] == [QUERIES[query] for query in sorted(QUERIES)][: len(rows)]
    for row in rows:
        assert TEXTS["q" + str(list(QUERIES.values()).index(row["anchor"]))] == row["positive"]
        assert row["negative_1"] not in ("", row["positive"], row["anchor"])
    return rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"teacher_cache": Path("c")},
            "--teacher-cache c would be ignored: it keeps the embeddings of a --teacher",
        ),
        (
            {"teacher": "bm25", "rule": NegativeRule(teacher_margin=0.1), "teacher_cache": Path("c")},
            "--teacher-cache c would be ignored: the teacher bm25 scores texts as they come",
        ),
        ({"cache_dir": Path("c")}, "--cache-dir c would be ignored: only a --model that encodes the texts"),
        ({"max_seq_length": 7, "batch_size": 3}, "--max-seq-length 7 and --batch-size 3 would be ignored"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(options: dict, message: str, folder: Path) -> None:
    """Whoever names a folder believes that it is filled."""
    with pytest.raises(ValueError, match=message):
        mined(folder, model="bm25", **options)


@pytest.mark.parametrize("system", ["bm25", "bare", "dense"])
def test_every_kind_of_model_ranks(
    system: str, folder: Path, tmp_path: Path, tiny_checkpoint, tiny_dense, capsys
) -> None:
    """BM25, a masked language model as SPLADE, a dense encoder: the best document of each that is not the
    positive, by the products of sentence-transformers, and for BM25 the only other one with a word of the
    query.
    """
    with (folder / "corpus.jsonl").open("a") as corpus:
        for number, text in enumerate(("sort a vector", "close file", "tree search"), start=7):
            corpus.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    name = {"bm25": "bm25", "bare": str(tiny_checkpoint), "dense": str(tmp_path / "dense")}[system]
    expected = ["sort a vector", "close file", "tree search"]
    if system != "bm25":
        tiny_dense.save_pretrained(str(tmp_path / "dense"))
        model = tiny_dense if system == "dense" else SparseEncoder(name, device="cpu")
        form = {} if system == "dense" else {"convert_to_sparse_tensor": False}
        for place, (query, text) in enumerate(QUERIES.items()):
            others = [one for one in texts if one not in ("", TEXTS[query])]
            vectors = model.encode_query([text], **form), model.encode_document(others, **form)
            scores = model.similarity(*vectors)[0]
            expected[place] = others[int(scores.argmax())]
    rule = NegativeRule(choice="top", shortage="drop")
    rows = mined(folder, rule, model=name)
    assert "3 rows of 1 negative; 0 filled up at random, 0 dropped" in capsys.readouterr().out
    assert [row["negative_1"] for row in rows] == expected
    # Drawn at random, too, the same command writes the same file.
    assert mined(folder, model=name) == mined(folder, model=name)


def test_a_run_made_elsewhere_is_mined(folder: Path, tmp_path: Path, capsys) -> None:
    """By hand: q0 has d3 below its positive, q1 only better ones, q2 is not in the run."""
    write_run(tmp_path / "run", {"q0": {"d4": 3.0, "d0": 2.0, "d3": 1.0}, "q1": {"d5": 2.0, "d1": 1.0}})
    rule = NegativeRule(margin=0.0, shortage="drop", choice="top")
    rows = mined(folder, rule, run=tmp_path / "run")
    assert rows == [{"anchor": "sort list", "positive": "sort the list", "negative_1": "hash of a key"}]
    assert "1 row of 1 negative; 0 filled up at random, 2 dropped" in capsys.readouterr().out
    rows = mined(folder, NegativeRule(margin=0.0, choice="top"), run=tmp_path / "run")
    assert len(rows) == 3
    assert "3 rows of 1 negative; 2 filled up at random, 0 dropped" in capsys.readouterr().out


def test_a_teacher_filters(folder: Path, tmp_path: Path) -> None:
    """Scores from a file: d4 is as good as the positive, d3 is not."""
    write_run(tmp_path / "run", {"q0": {"d4": 3.0, "d3": 1.0}})
    lines = [f"q{i}\td{i}\t0.9\n" for i in range(3)] + ["q0\td4\t0.88\n", "q0\td3\t0.2\n"]
    (tmp_path / "scores.tsv").write_text("".join(lines))
    rule = NegativeRule(teacher_margin=0.05, choice="top", shortage="drop")
    rows = mined(folder, rule, run=tmp_path / "run", teacher_scores=tmp_path / "scores.tsv")
    assert [row["negative_1"] for row in rows] == ["hash of a key"]
    fitted = {"model": "bm25", "teacher": "lsa", "teacher_cache": tmp_path / "cache"}
    assert len(mined(folder, NegativeRule(teacher_margin=0.05), **fitted)) == 3
    assert (tmp_path / "cache").is_dir()


def test_a_teacher_that_scores_pairs_filters(folder: Path, tmp_path: Path, tiny_checkpoint) -> None:
    """The oracle is the model itself, which ranks: its best document below the positive is the negative."""
    documents = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").read_text().splitlines()][:6]
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "bare")
    model = CrossEncoder(str(tmp_path / "bare"), device="cpu")
    model.save_pretrained(str(tmp_path / "cross"))
    run, expected = {}, {}
    for query, text in QUERIES.items():
        options = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        scores = model.predict([(text, document) for document in documents], **options)
        run[query] = {f"d{i}": float(score) for i, score in enumerate(scores)}
        ranked = sorted(run[query], key=lambda document: -run[query][document])
        worse = ranked[ranked.index(POSITIVES[query]) + 1 :]
        if worse:
            expected[text] = documents[int(worse[0][1:])]
    write_run(tmp_path / "run", run)
    rule = NegativeRule(teacher_margin=0.0, choice="top", shortage="drop")
    output = tmp_path / "rows.jsonl"
    options = {
        "run": tmp_path / "run",
        "teacher": str(tmp_path / "cross"),
        "teacher_cache": tmp_path / "cache",
    }
    mine.main(mine.Config(str(folder), output, rule=rule, **options))
    assert {row["anchor"]: row["negative_1"] for row in read_training_rows(output)} == expected
    unfiltered = mined(folder, NegativeRule(choice="top"), run=tmp_path / "run")
    assert {row["anchor"]: row["negative_1"] for row in unfiltered} != expected
    assert len([file for file in (tmp_path / "cache").iterdir() if file.is_dir()]) == 1, "one block of scores"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "pass either --model or --run"),
        ({"model": "bm25", "run": Path("run")}, ValueError, "pass either --model or --run"),
        ({"model": "bm25", "teacher": "lsa"}, ValueError, "--teacher-margin and a teacher"),
        ({"model": "bm25", "rule": NegativeRule(teacher_margin=0.1)}, ValueError, "--teacher-margin and"),
        (
            {"model": "bm25", "teacher": "lsa", "teacher_scores": Path("scores")},
            ValueError,
            "pass --teacher or --teacher-scores; received both",
        ),
        ({"model": "bm25", "split": "dev"}, ValueError, "no split 'dev'"),
        ({"model": "bm25", "output": Path("no-such-folder/rows")}, FileNotFoundError, "no-such-folder"),
        ({"run": Path("no-such-run")}, FileNotFoundError, "no-such-run"),
        ({"model": "bm25", "output": Path()}, IsADirectoryError, "--output must name a file"),
        ({"model": "./no-such-model"}, FileNotFoundError, "no-such-model"),
    ],
)
def test_bad_input_is_refused(options: dict, error: type, message: str, folder: Path) -> None:
    """With the flag that is wrong, and without a file that looks like a result."""
    settings = {"data": str(folder), "output": folder / "mined.jsonl", **options}
    with pytest.raises(error, match=message):
        mine.main(mine.Config(**settings))
    assert not (folder / "mined.jsonl").exists()


def test_a_run_of_other_data_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its documents or queries are not there."""
    for name, run in (("documents", {"q0": {"x": 1.0}}), ("queries", {"x": {"d0": 1.0}})):
        write_run(tmp_path / name, run)
        with pytest.raises(ValueError, match="'x' is not in the data"):
            mined(folder, run=tmp_path / name)


def test_an_empty_run_is_refused(folder: Path, tmp_path: Path) -> None:
    """Every negative would be drawn at random, and the file would look mined."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="empty must rank queries of the split 'train'; it ranks none"):
        mined(folder, run=tmp_path / "empty")


def test_the_flags_of_the_rule_are_flags_of_the_command(folder: Path) -> None:
    """As a user types them."""
    flags = "--model bm25 --per-row 2 --first-rank 1 --last-rank 5 --margin 0.1 --choice top --seed 3".split()
    cli.main(["mine", "--data", str(folder), "--output", str(folder / "out.jsonl"), *flags])
    columns = ["anchor", "positive", "negative_1", "negative_2"]
    assert list(read_training_rows(folder / "out.jsonl")[0]) == columns


def test_the_command_mines_by_the_rule_of_the_recipes(folder: Path) -> None:
    """Rows that are mined beforehand and those that a training mines meet the same conditions."""
    assert mine.Config(data=str(folder), output=folder / "out.jsonl").rule == NEGATIVE_RULE


def test_no_row_that_is_left_is_one_clear_error(folder: Path) -> None:
    """Where every row is dropped, the counts say why; the writer knew only that there was no row."""
    with pytest.raises(DataError, match=r"no row is left to write: 0 rows of 30 negatives; .* 3 dropped"):
        mined(folder, NegativeRule(per_row=30, shortage="drop"), model="bm25")
