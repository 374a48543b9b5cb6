"""The command line: every kind of model, its files, a comparison, and refusals before any encoding."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from beir_folders import write_beir, write_lines

from lexforge.commands import evaluate
from lexforge.data import SourceOptions, load_training_data
from lexforge.evaluation import evaluate_run, read_run, write_run

TEXTS = {"d1": "sort the list", "d2": "open the file", "d3": "parse a tree", "d4": "hash of a key"}
QUERIES = {"q1": "sort list", "q2": "file open", "q3": "tree"}
QRELS = {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}, "q3": {"d3": 1}}
ENCODED = "a vector must be finite; the model gives NaN or infinity"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "data", TEXTS, QUERIES, {"test": QRELS})


@pytest.fixture
def broken(tiny_splade, tmp_path: Path) -> str:
    """A model whose encoding of anything is refused with `ENCODED`."""
    with torch.no_grad():
        next(iter(tiny_splade.parameters())).fill_(torch.nan)
    tiny_splade.save_pretrained(str(tmp_path / "broken"))
    return str(tmp_path / "broken")


@pytest.mark.parametrize("encoder", ["bare", "dense"])
def test_every_kind_of_model_is_evaluated_and_written(
    encoder: str, folder: Path, tmp_path: Path, tiny_checkpoint, tiny_dense, capsys
) -> None:
    """The same command serves a checkpoint, which equals the saved sparse encoder, and a dense encoder."""
    if encoder == "dense":
        tiny_dense.save_pretrained(str(tmp_path / "model"))
    run, report = tmp_path / "run.trec", tmp_path / "report.json"
    name = str(tiny_checkpoint if encoder == "bare" else tmp_path / "model")
    evaluate.main(evaluate.Config(model=name, data=str(folder), max_seq_length=16, run=run, json=report))
    written = json.loads(report.read_text())
    assert written["metrics"] == pytest.approx(evaluate_run(read_run(run), QRELS))
    assert ("flops" in written["sparsity"]) == (encoder != "dense")
    assert written["timing"]["search_queries_per_s"] > 0
    assert written["config"]["max_seq_length"] == 16
    assert f"nDCG@10                  {written['metrics']['nDCG@10']:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_approximate_and_remote_indexes_find_the_exact_run(
    vector_type: str, folder: Path, tmp_path: Path, tiny_splade, tiny_dense
) -> None:
    """Over four documents no index can miss one: every name is the same search."""
    pytest.importorskip("milvus_lite", reason="the extra `milvus` is not installed")
    (tiny_splade if vector_type == "sparse" else tiny_dense).save_pretrained(str(tmp_path / "model"))
    names = ["inverted", "milvus"] if vector_type == "sparse" else ["faiss-flat", "faiss-hnsw", "milvus"]
    runs = {}
    for name in [None, *names]:
        uri = str(tmp_path / "vectors.db") if name == "milvus" else None
        run = tmp_path / f"{name}.trec"
        evaluate.main(evaluate.Config(str(tmp_path / "model"), str(folder), index=name, uri=uri, run=run))
        runs[name] = read_run(run)
    for name in names:
        for query, hits in runs[None].items():
            assert list(runs[name][query]) == list(hits)
            assert runs[name][query] == pytest.approx(hits, rel=1e-5)  # summed in another order


def test_long_documents_are_searched_as_passages(folder, tmp_path, tiny_checkpoint) -> None:
    """What lies behind the tokens that the model reads is found, and the run names documents."""
    long = {key: " ".join(["nothing of it"] * 40) + f". {text}" for key, text in TEXTS.items()} | {"d4": ""}
    write_lines(folder / "corpus.jsonl", [{"_id": key, "text": text} for key, text in long.items()])
    runs = {}
    for passages in (False, True):
        run = tmp_path / f"{passages}.trec"
        evaluate.main(
            evaluate.Config(str(tiny_checkpoint), str(folder), max_seq_length=16, passages=passages, run=run)
        )
        runs[passages] = read_run(run)
    assert set(runs[True]["q1"]) <= set(TEXTS)
    assert max(runs[True]["q1"].values()) > max(runs[False]["q1"].values())


def test_a_comparison_is_reported(folder: Path, tmp_path: Path, tiny_checkpoint, capsys) -> None:
    """The run named by --compare comes first, so that a gain of this model is positive."""
    perfect = {query: {max(row, key=row.get): 1.0} for query, row in QRELS.items()}
    write_run(tmp_path / "other", perfect)
    report = tmp_path / "report.json"
    evaluate.main(
        evaluate.Config(
            str(tiny_checkpoint), str(folder), json=report, compare=tmp_path / "other", metrics=("RR@10",)
        )
    )
    compared = json.loads(report.read_text())["comparison"]["RR@10"]
    assert compared["first"] == 1
    assert compared["difference"] == pytest.approx(compared["second"] - 1)
    assert "1.0000 -> " in capsys.readouterr().out


def test_a_run_is_cut_at_the_depth_of_the_model(folder, tmp_path: Path, tiny_checkpoint, capsys) -> None:
    """A model was worse than its own longer run, because a measure without a cutoff saw more of that."""
    report, run = tmp_path / "report.json", tmp_path / "run.trec"
    config = evaluate.Config(str(tiny_checkpoint), str(folder), metrics=("AP", "RR@1"), json=report)
    evaluate.main(replace(config, run=run))
    evaluate.main(replace(config, compare=run, k=1))
    assert json.loads(report.read_text())["comparison"]["AP"]["difference"] == 0
    write_run(tmp_path / "short", {query: {next(iter(row)): 1.0} for query, row in QRELS.items()})
    capsys.readouterr()
    evaluate.main(replace(config, compare=tmp_path / "short"))
    told = (
        "ranks at most 1 documents per query. If it was cut there, what looks deeper (AP) favours the model"
    )
    assert told in capsys.readouterr().out


def test_queries_that_are_documents_are_left_out_of_both_runs(
    tmp_path: Path, tiny_checkpoint: Path, capsys
) -> None:
    """A model that was held against its own run, which holds each query first, was better with p = 0."""
    texts = {
        f"d{n}": text for n, text in enumerate(["sort a list", "sort the list", "open a file", "a file"])
    }
    qrels = {"test": {"d0": {"d1": 1}, "d2": {"d3": 1}}}
    write_beir(tmp_path / "data", texts, {name: texts[name] for name in qrels["test"]}, qrels)
    report, run = tmp_path / "report.json", tmp_path / "run.trec"
    config = evaluate.Config(str(tiny_checkpoint), str(tmp_path / "data"), metrics=("RR@10",), run=run)
    evaluate.main(config)
    evaluate.main(replace(config, exclude_self=True, compare=run, run=None, json=report))
    compared = json.loads(report.read_text())["comparison"]["RR@10"]
    assert compared["difference"] == 0
    write_run(run, {query: {name: 1.0 for name in texts if name != query} for query in qrels["test"]})
    capsys.readouterr()
    evaluate.main(replace(config, exclude_self=True, compare=run, run=None, k=10))
    assert "If it was cut there" not in capsys.readouterr().out, "the run ranks every other document"


def finished(run: Path, data: Path, splits: list[str] | None = None, **source: Any) -> Path:
    """A run directory without a model, which was measured on data and found the positives of its test."""
    if data.is_dir():
        (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    options = SourceOptions(**source)
    loaded = load_training_data(str(data), splits or ["test"], options)
    run.mkdir()
    found = {query: {max(row, key=row.get): 1.0} for query, row in loaded.measured.split("test").items()}
    write_run(run / "run.trec", found)
    settings = {"data": str(data), "source": asdict(options), "eval_documents": None}
    (run / "config.json").write_text(json.dumps(settings))
    (run / "env.json").write_text(json.dumps({"data": loaded.digests([])}))
    return run


def test_a_finished_run_is_compared_by_what_it_found(
    folder: Path, tmp_path: Path, tiny_checkpoint, broken: str
) -> None:
    """Its `run.trec` is read, and its model, which is not even there, is not encoded again."""
    other, report = finished(tmp_path / "a run", folder), tmp_path / "report.json"
    config = evaluate.Config(str(tiny_checkpoint), str(folder), json=report, metrics=("RR@10",))
    evaluate.main(replace(config, compare=other / "run.trec"))
    by_file = json.loads(report.read_text())["comparison"]
    evaluate.main(replace(config, compare=other))
    assert json.loads(report.read_text())["comparison"] == by_file
    assert by_file["RR@10"]["first"] == 1

    config = replace(config, model=broken)  # what is refused is refused before anything is encoded
    (other / "config.json").write_text('{"eval_documents": 1000}')
    sampled = r"a run has searched a sample \(--eval-documents 1000\)"
    pasted = rf"--model '{re.escape(str(other))}' --run other\.trec in the place of --compare"
    with pytest.raises(ValueError, match=f"{sampled}.*{pasted}"):
        evaluate.main(replace(config, compare=other))
    (other / "run.trec").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"a run holds no run\.trec: it is no directory of a retrieval"
    ):
        evaluate.main(replace(config, compare=other))


def clicks(path: Path, pairs: int) -> Path:
    """Rows of queries and answers, every fifth of which has a weight that is no number."""
    rows = (f"query {row},answer of {row},{row if row % 5 else 'many'}\n" for row in range(pairs))
    path.write_text("query,positive,clicks\n" + "".join(rows))
    return path


@pytest.mark.parametrize("splits", [["test"], ["test", "dev"]])
def test_a_run_is_compared_over_what_it_was_measured_on(
    splits: list[str], tmp_path: Path, tiny_checkpoint
) -> None:
    """Whatever it measured beside the test, and with weights, which no evaluation reads: a row with a wrong
    weight had left the test set, so that the options of the run did not make it again.
    """
    data, source = clicks(tmp_path / "x.csv", 60), SourceOptions(hold_out=0.2)
    run = finished(tmp_path / "run", data, splits, hold_out=0.2, weight_column="clicks", bad_rows="skip")
    report = tmp_path / "report.json"
    evaluate.main(evaluate.Config(str(tiny_checkpoint), str(data), source=source, compare=run, json=report))
    assert json.loads(report.read_text())["comparison"]["RR@10"]["first"] == 1


def test_a_run_that_was_measured_on_other_data_is_refused(tmp_path: Path) -> None:
    """Queries that the run had not searched counted as 0 for it, and the gain looked sure: p = 2e-17."""
    data = clicks(tmp_path / "x.csv", 60)
    run = finished(tmp_path / "run", data, hold_out=0.1)
    config = evaluate.Config("./no-such-model", str(data), source=SourceOptions(hold_out=0.3), compare=run)
    measured = [
        len(load_training_data(str(data), ["test"], SourceOptions(hold_out=share)).measured.queries)
        for share in (0.1, 0.3)
    ]
    # The searched documents, which are the same in another order, are not named.
    with pytest.raises(
        ValueError,
        match=rf"run was measured on other data than this evaluation: judged queries: {measured[0]} \(digest "
        rf"\w+\), now {measured[1]} \(digest \w+\); --hold-out was 0\.1 and is now 0\.3\. Give the data",
    ):
        evaluate.main(config)

    same = replace(config, source=SourceOptions(hold_out=0.1))
    with pytest.raises(ValueError, match=r"judged queries: .*; --split was test and is now dev\. Give"):
        evaluate.main(replace(same, split="dev"))
    with pytest.raises(FileNotFoundError, match="no-such-model"):  # the comparison itself is good
        evaluate.main(same)
    clicks(data, 61)
    with pytest.raises(
        ValueError, match=r"evaluation: searched documents: 60 \(.*, now 61 .*\)\. Give the data"
    ):
        evaluate.main(same)
    (run / "env.json").unlink()
    with pytest.raises(ValueError, match=r"env\.json is missing, or an earlier version wrote it"):
        evaluate.main(same)


def test_queries_that_a_file_does_not_rank_are_told(folder, tmp_path: Path, tiny_checkpoint, capsys) -> None:
    """They count as 0, which may as well mean that the file is of other queries."""
    write_run(tmp_path / "other", {"q1": {"d1": 1.0}})
    evaluate.main(evaluate.Config(str(tiny_checkpoint), str(folder), compare=tmp_path / "other"))
    assert f"{tmp_path / 'other'} ranks nothing for 2 of the 3 judged queries" in capsys.readouterr().out


def test_the_model_of_a_run_is_no_run_and_names_it(folder: Path, tmp_path: Path) -> None:
    """It is the folder that `--model` takes; `--compare` reads what stands above it."""
    run = finished(tmp_path / "a run", folder)
    (run / "model").mkdir()
    with pytest.raises(FileNotFoundError, match=r"the folder above it is one: --compare '.*/a run'$"):
        evaluate.main(evaluate.Config("./no-such-model", str(folder), compare=run / "model"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"split": "dev"}, ValueError, "dev"),
        ({"json": Path("no-such-folder/report.json")}, FileNotFoundError, "no-such-folder"),
        ({"data": "no-such-data"}, FileNotFoundError, "no-such-data"),
        ({"model": "./no-such-model"}, FileNotFoundError, "no-such-model"),
        (
            {"index": "faiss-flat"},
            ValueError,
            "the index 'faiss-flat' does not hold sparse vectors",
        ),
        ({"collection": "other"}, ValueError, "--collection other would be ignored: only an index at an"),
        ({"index": "milvus", "uri": "no-such-folder/x.db"}, Exception, "no-such-folder|pip install"),
        ({"metrics": ("nDCG@500",)}, ValueError, "k = 100"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1; received 0"),
        ({"run": Path()}, IsADirectoryError, "--run must name a file"),
        ({"run": Path("same"), "json": Path("same")}, ValueError, "must name two files; received same"),
        ({"k": 0}, ValueError, "k must be at least 1; received 0"),
    ],
)
def test_bad_input_fails_before_encoding(change: dict, error, message: str, folder, broken: str) -> None:
    """A mistake must not cost the encoding of the corpus, which would be another error."""
    with pytest.raises(error, match=message):
        evaluate.main(evaluate.Config(**{"model": broken, "data": str(folder), **change}))


@pytest.mark.parametrize(
    ("metrics", "message"), [(("nDGC@10",), "unknown measure 'nDGC@10'"), ((), "received none")]
)
def test_a_wrong_measure_is_refused_before_the_model_is_loaded(metrics: tuple, message: str, folder) -> None:
    """A large model takes minutes to load, and a name on the hub is downloaded."""
    with pytest.raises(ValueError, match=message):
        evaluate.main(evaluate.Config("./no-such-model", str(folder), metrics=metrics))


@pytest.mark.parametrize("name", ["corpus", "queries"])
def test_an_id_that_a_run_file_cannot_carry_fails_before_encoding(
    name: str, folder, tmp_path: Path, broken: str
) -> None:
    """The run is written last: only where one is asked for, and then before the work."""
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d 9", "text": "spam"}\n')
    if name == "queries":
        for path in (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"):
            path.write_text(path.read_text().replace("q1", "q 1").replace("d 9", "d9"))
    config = evaluate.Config(broken, str(folder), run=tmp_path / "run", json=tmp_path / "json")
    message = "query id 'q 1': a TREC file" if name == "queries" else "document id 'd 9': a TREC file"
    with pytest.raises(ValueError, match=message):
        evaluate.main(config)
    with pytest.raises(ValueError, match=ENCODED):  # without a run file the id is no fault
        evaluate.main(replace(config, run=None))


def test_only_the_split_asked_for_is_read(folder, broken: str) -> None:
    """A fault of the training split is none of an evaluation's."""
    (folder / "qrels" / "train.tsv").write_text("q9\td9\t1\n")
    with pytest.raises(ValueError, match=ENCODED):
        evaluate.main(evaluate.Config(broken, str(folder)))


def test_a_compared_run_of_other_data_is_refused(folder, tmp_path: Path, tiny_checkpoint) -> None:
    """A run that names unknown documents belongs to another corpus."""
    write_run(tmp_path / "other", {"q1": {"elsewhere": 1.0}})
    with pytest.raises(ValueError, match="other:1: document 'elsewhere' is not in the data"):
        evaluate.main(evaluate.Config(str(tiny_checkpoint), str(folder), compare=tmp_path / "other"))


def test_a_compared_run_without_the_split_is_refused(folder, tmp_path: Path, tiny_checkpoint) -> None:
    """An empty file would compare with nothing and leave no trace of it in the report."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="empty must rank queries of the split 'test'; it ranks none"):
        evaluate.main(evaluate.Config(str(tiny_checkpoint), str(folder), compare=tmp_path / "empty"))


def test_a_comparison_by_one_query_is_refused_before_the_model_is_loaded(folder, tmp_path: Path) -> None:
    """A paired test needs two; it failed at the end, and the files of the evaluation were not written."""
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    write_run(tmp_path / "other", {"q1": {"d1": 1.0}})
    with pytest.raises(ValueError, match="at least two judged queries; the split 'test' has 1"):
        evaluate.main(evaluate.Config("./no-such-model", str(folder), compare=tmp_path / "other"))
