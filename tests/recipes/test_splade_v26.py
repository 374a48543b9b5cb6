"""The recipe as a user runs it, on a data set and a model small enough for a test."""

from __future__ import annotations

import ast
import html
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import PartialState
from beir_folders import write_beir, write_lines
from loaded_recipes import load_recipe
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForSequenceClassification
from warm_processes import WarmProcesses

from lexforge.data import digests, read_training_rows
from lexforge.evaluation import read_scores
from lexforge.models import (
    TokenWeights,
    build_inference_free,
    build_splade,
    load_encoder,
    scale_head,
    vocabulary_size,
)
from lexforge.report import diagnose, run_verdict
from lexforge.retrieval import BM25Index
from lexforge.settings import (
    PRESETS,
    CardOptions,
    EvaluationSettings,
    PresetName,
    SourceOptions,
    StartSettings,
    TrainingSettings,
)
from lexforge.teachers import load_teacher, teach_rows
from lexforge.training import SpladeTrainer

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "splade_v26.py"
WORDS = "list array search index query document vector sparse token model train python file graph".split()


FOUR_STEPS = TrainingSettings(
    steps=4, batch_size=4, gradient_accumulation_steps=1, precision="fp32", save_steps=2, logging_steps=1
)
# Twelve documents seldom give a batch of four rows with a negative each in which no text is repeated.
TWO_ROWS = TrainingSettings(steps=2, batch_size=2, gradient_accumulation_steps=1, precision="fp32")


recipe = load_recipe("splade_v26")


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Twelve documents and as many queries; eight train, four test; one judged not relevant each."""
    pairs = list(zip(WORDS, WORDS[1:], WORDS[2:], strict=False))
    return write_beir(
        tmp_path / "data",
        {f"d{i}": (a, f"the {b} of a {c}") for i, (a, b, c) in enumerate(pairs)},
        {f"q{i}": f"{a} {b}" for i, (a, b, _) in enumerate(pairs)},
        {
            split: {f"q{i}": {f"d{i}": 1, f"d{(i + 5) % 12}": 0} for i in numbers}
            for split, numbers in (("train", range(8)), ("test", range(8, 12)))
        },
    )


def of_preset(name: PresetName, **numbers: Any) -> dict[str, Any]:
    """The settings of a preset as those of the recipe, with other numbers of its loss."""
    chosen = PRESETS[name]
    loss = replace(chosen.loss, **numbers)
    return {"preset": name, "loss": loss, "start": chosen.start, "finish": chosen.finish}


def names_of(folder: Path) -> list[Path]:
    """The files below a folder."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def config(beir: Path, **others: Any) -> Any:
    """Four steps of four rows."""
    settings: dict[str, Any] = {
        "data": str(beir),
        "output_dir": beir.parent / "run",
        "max_seq_length": 16,
        "evaluation": EvaluationSettings(),
        "train": FOUR_STEPS,
    }
    teacher = PRESETS[others.get("preset", "lexforge-scratch")].data.teacher
    keeps_embeddings = "loss" in others and others["loss"].needs_teacher and teacher != "bm25"
    if keeps_embeddings and "teacher_scores" not in others:
        settings["teacher_cache"] = beir.parent / "teacher"
    return recipe.Config(**(settings | others))


def test_wrong_rows_are_told_before_bm25_indexes_the_documents(
    beir: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a large collection takes minutes, and wrong rows need none."""
    monkeypatch.setattr(BM25Index, "build", lambda *_, **__: pytest.fail("it was built"))
    rows = beir.parent / "rows.jsonl"
    rows.write_text('{"anchor": "list array", "positiv": "a text"}\n')
    for negatives, message in ((rows, "received .*'positiv'"), ("given", "batch")):
        train = replace(TWO_ROWS, batch_size=64)
        with pytest.raises(ValueError, match=message):
            recipe.main(config(beir, model=str(tiny_checkpoint), negatives=negatives, train=train))
    assert not (beir.parent / "run").exists()


def test_a_run_trains_evaluates_and_leaves_its_records(
    warm: WarmProcesses, beir: Path, tiny_checkpoint: Path
) -> None:
    """With flags, in a process of its own; the model loads where lexforge is not installed."""
    run = beir.parent / "run"
    arguments = ["--preset", "v26", "--data", beir, "--model", tiny_checkpoint, "--output-dir", run]
    arguments += ["--steps", "3", "--batch-size", "4", "--max-seq-length", "16", "--teacher", "lsa-char"]
    arguments += ["--teacher-cache", beir.parent / "teacher"]
    done = warm.completed(RECIPE, *arguments, folder=beir.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((run / "metrics.json").read_text())
    for system in ("bm25", "initial", "trained"):
        assert all(0 <= metrics[system][name] <= 1 for name in ("nDCG@10", "RR@10", "R@100"))
    assert all(
        metrics["trained"][name] > 0 for name in ("query_active_dims", "document_active_dims", "flops")
    )
    assert json.loads((run / "config.json").read_text())["loss"]["flops_weight"] == 0.01
    assert (run / "report.html").stat().st_size < 5_000_000
    page = html.unescape((run / "report.html").read_text(encoding="utf-8"))
    assert run_verdict(run) in page
    assert all(f'<section id="{part}"' in page for part in ("explorer", "training", "sparsity"))
    assert "report.html shows the run in a browser" in done.stdout
    assert f"\n{run_verdict(run)}\n" in done.stdout
    log = done.stdout + done.stderr
    assert log.count("stop words (en): ") == 1
    for noise in ("it/s", "Loading weights", "Writing model shards", "widget", "indexing errors"):
        assert noise not in log
    assert {"log.jsonl", "bm25.trec", "initial.trec", "terms.json", "explorer.json", "diagnosis.json"} <= set(
        os.listdir(run)
    )
    assert "torch" in json.loads((run / "env.json").read_text())["versions"]
    assert "expansion:" in done.stdout
    assert done.stdout.count("query: ") == 3
    assert {line.split()[0] for line in (run / "run.trec").read_text().splitlines()} <= {
        f"q{i}" for i in range(8, 12)
    }
    code = (
        "import sys; sys.modules['lexforge'] = None\n"
        "from sentence_transformers import SparseEncoder\n"
        f"model = SparseEncoder({str(run / 'model')!r}, device='cpu')\n"
        "assert model.similarity_fn_name == 'cosine' and model.encode(['sort a list']).shape[1] > 0"
    )
    loaded = warm.completed("-c", code, forget=["lexforge"])
    assert loaded.returncode == 0, loaded.stderr[-3000:]


def test_a_checkpoint_in_half_precision_is_trained_in_float32(
    beir: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In bfloat16 a run loses most small steps, and no error says so."""
    half = tmp_path / "half"
    AutoModelForMaskedLM.from_pretrained(tiny_checkpoint, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(half)
    recipe.main(config(beir, model=str(half), train=TWO_ROWS, **of_preset("plain")))
    assert capsys.readouterr().out.count("saved in bfloat16 and are trained") == 1
    model = build_splade(beir.parent / "run" / "model")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_two_ranks_are_one_run(warm: WarmProcesses, beir: Path) -> None:
    """On CPUs, ranks that do not find each other would build and train two models in one directory."""
    run = beir.parent / "run"
    arguments = ["--data", str(beir), "--output-dir", str(run)]
    arguments += ["--steps", "2", "--batch-size", "2", "--max-seq-length", "16", "--preset", "plain"]
    assert warm.run(RECIPE, arguments, ranks=2) == [0, 0], warm.log.read_text()[-3000:]
    assert warm.log.read_text().count("\ntrained ") == 1, "one rank reports"
    assert json.loads((run / "env.json").read_text())["ranks"] == 2


def test_from_scratch_by_the_default_preset(
    beir: Path, hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default backbone is made from the corpus and starts with knowledge of it; it is uploaded with its
    card, which names no place of the machine.
    """
    recipe.main(config(beir, card=CardOptions(license="mit", push_to_hub="organisation/name")))
    assert names_of(hub / "organisation" / "name") == names_of(beir.parent / "run" / "model")
    card = (hub / "organisation" / "name" / "README.md").read_text(encoding="utf-8")
    assert str(beir.parent) not in card
    assert all(
        word in card
        for word in ("license: mit", "| this model |", "| BM25 |", f"| preset | {recipe.Config().preset} |")
    )
    metrics = json.loads((beir.parent / "run" / "metrics.json").read_text())
    assert metrics["initial"]["nDCG@10"] > 0.5, (
        "a bag of words finds documents that share the words of the query"
    )
    assert "trained" in capsys.readouterr().out


@pytest.mark.parametrize(
    "others",
    [
        {**of_preset("v22", similarity="dot"), "negatives": "mined", "train": TWO_ROWS},
        {"output_vocabulary": "seen"},
        {"inference_free": True, "document_terms": 12},
    ],
    ids=["mined negatives, dot product", "restricted vocabulary", "inference-free, wanted terms"],
)
def test_every_option_of_the_recipe_runs(beir: Path, tiny_checkpoint: Path, others: dict[str, Any]) -> None:
    """An option that fails after an hour of teacher encoding is worse than none."""
    recipe.main(config(beir, model=str(tiny_checkpoint), **others))
    model = SparseEncoder(str(beir.parent / "run" / "model"), device="cpu")
    documents = model.encode_document(["the list of a graph"], convert_to_sparse_tensor=False)
    if "output_vocabulary" in others:
        assert not documents[0, model.tokenizer.all_special_ids].any()
    if "document_terms" in others:
        texts = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
        vectors = model.encode_document(
            [f"{text['title']} {text['text']}" for text in texts], convert_to_sparse_tensor=False
        )
        assert float((vectors > 0).sum() / len(texts)) == pytest.approx(others["document_terms"], rel=0.01)
    if "inference_free" in others:
        terms = model.decode(model.encode_query("sort list"))
        assert {str(term) for term, _ in terms} <= {"sort", "list"}


def test_precomputed_scores_take_the_place_of_a_teacher(
    beir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores of a cross-encoder arrive as a file in qrels format."""
    scores = beir.parent / "scores.tsv"
    pairs = [f"q{i}\td{i}\t0.9\nq{i}\td{(i + 5) % 12}\t0.1\n" for i in range(8)]
    scores.write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))
    others = {**of_preset("v26"), "negatives": "judged", "teacher_scores": scores}
    rows = rows_of_run(config(beir, model=str(tiny_checkpoint), **others), trains=True)
    assert [row["label"] for row in rows] == [[0.9, 0.1]] * 8
    assert "] load the teacher\n" not in capsys.readouterr().out
    others |= {"plan": True, "teacher_cache": None}
    recipe.main(config(beir, model=str(tiny_checkpoint), **others))
    assert "\nseconds per step " in capsys.readouterr().out


def test_rows_with_scores_need_no_teacher(
    beir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cross-encoder's scores in the file of rows, which are those that the run trains on; a route by column
    must not take them for texts.
    """
    rows = [
        {"anchor": word, "positive": f"the {word}", "negative_1": f"no {word}", "label": [0.9, 0.1]}
        for word in WORDS
    ]
    write_lines(beir.parent / "mined.jsonl", rows)
    others = {**of_preset("v26"), "negatives": beir.parent / "mined.jsonl"}
    others |= {"model": str(tiny_checkpoint), "inference_free": True, "teacher_cache": None}
    cfg = config(beir, **others)
    recipe.main(cfg)
    assert_trained_on(cfg, rows)
    assert "] load the teacher\n" not in capsys.readouterr().out
    state = json.loads((beir.parent / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["log_history"][-1]["loss/distillation"] > 0


def test_a_teacher_that_the_run_would_ignore_is_refused(beir: Path) -> None:
    """The run would end well without the teacher, whether it exists or not, and nobody would notice."""
    rows = [{"anchor": word, "positive": word, "negative_1": "no", "label": [0.9, 0.1]} for word in WORDS]
    write_lines(beir.parent / "mined.jsonl", rows)
    distils = {**of_preset("v26")}
    for others, message in [
        ({"teacher": "no/such/teacher"}, "reads no teacher, so --teacher no/such/teacher would be ignored"),
        (
            {"teacher_scores": beir / "scores.tsv"},
            "so --teacher-scores .* would be ignored",
        ),
        (distils | {"teacher": "lsa", "teacher_scores": beir / "scores.tsv"}, "received 'lsa' and '.*tsv'"),
        (distils | {"teacher": "lsa", "negatives": beir.parent / "mined.jsonl"}, "the rows carry the scores"),
    ]:
        with pytest.raises(ValueError, match=message):
            recipe.main(config(beir, **others))
    assert not (beir.parent / "run").exists()


def test_numbers_that_the_phases_set_are_refused(beir: Path) -> None:
    """The run would train with those of the phases, whatever the flag says."""
    cfg = config(beir, **of_preset("v26"))
    for name, flag in (
        ("temperature", "--loss.temperature 0.5"),
        ("infonce_weight", "--loss.infonce-weight 0.5"),
    ):
        with pytest.raises(ValueError, match=f"{flag} would be ignored: the phases of the preset v26 set it"):
            recipe.check(replace(cfg, loss=replace(cfg.loss, **{name: 0.5})))
    recipe.check(replace(cfg, loss=replace(cfg.loss, infonce_weight=0.0)))  # this switches the term off


def test_numbers_of_a_term_that_is_off_are_refused(beir: Path) -> None:
    """Who tunes them would compare runs that are the same."""
    for others, message in (
        (
            {"stopword_penalty": 15.0},
            "--loss.stopword-penalty 15.0 would be ignored: --loss.idf-alpha",
        ),
        (
            {"mse_weight": 0.5},
            "--loss.mse-weight 0.5 would be ignored: --loss.distillation-weight is 0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            recipe.check(config(beir, **of_preset("plain", **others)))
    for others in (
        {"stopword_penalty": 15.0, "idf_alpha": 0.0},
        {"kl_weight": 0.5, "distillation_weight": 1.0},
    ):
        recipe.check(config(beir, **of_preset("plain", **others)))


def test_a_number_of_negatives_without_any_is_refused(beir: Path) -> None:
    """Who compares numbers would compare runs that are the same."""
    cfg = config(beir, negatives_per_row=5, negatives="none")
    with pytest.raises(ValueError, match="--negatives-per-row 5 would be ignored: --negatives is none"):
        recipe.check(cfg)
    recipe.check(replace(cfg, negatives="bm25"))


def test_a_shift_by_idf_of_the_lexical_backbone_is_refused(beir: Path) -> None:
    """It was left out without a word; that of a preset is left out as the help says."""
    for others in (
        {"start": StartSettings(idf_bias=0.2)},
        {**of_preset("lexforge"), "start": StartSettings(idf_bias=0.2)},
    ):
        with pytest.raises(ValueError, match=r"--start.idf-bias 0.2 would be ignored: the lexical backbone"):
            recipe.check(config(beir, **others))
    recipe.check(config(beir, **of_preset("lexforge")))


def test_scores_without_negatives_are_refused_before_the_run(beir: Path) -> None:
    """One score per row has nothing to be compared with; the loss would say so at its first step."""
    scores = beir.parent / "scores.tsv"
    scores.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t0.9\n" for i in range(8)))
    others = {**of_preset("v26"), "teacher_scores": scores}
    for negatives in ("none", "mined"):  # those that the model mines were trained on without a score
        message = f"give --negatives judged or --negatives bm25 with it; received --negatives {negatives}"
        with pytest.raises(ValueError, match=message):
            recipe.main(config(beir, **others, negatives=negatives))
    assert not (beir.parent / "run").exists()


def test_scores_by_id_beside_rows_of_texts_are_refused(beir: Path) -> None:
    """They would be read and ignored, and the run would fail at its first step."""
    others = {"negatives": beir.parent / "mined.jsonl", "teacher_scores": beir.parent / "scores.tsv"}
    others |= {**of_preset("v26")}
    with pytest.raises(
        ValueError,
        match=r"--teacher-scores names documents by id, and the rows of .*mined\.jsonl have no ids",
    ):
        recipe.main(config(beir, **others))


@pytest.mark.parametrize("negatives", ["bm25", "judged"])
def test_a_query_without_a_candidate_is_trained_on(
    beir: Path, tiny_checkpoint: Path, negatives: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any real set has one: nobody judged another document, or BM25 finds only the positive."""
    qrels = beir / "qrels" / "train.tsv"
    qrels.write_text(qrels.read_text().replace("q3\td8\t0\n", ""))
    lines = [json.loads(line) for line in (beir / "queries.jsonl").read_text().splitlines()]
    write_lines(
        beir / "queries.jsonl", [line | ({"text": "zebra"} if line["_id"] == "q3" else {}) for line in lines]
    )
    others = {**of_preset("v22"), "negatives": negatives, "model": str(tiny_checkpoint)}
    rows = rows_of_run(config(beir, train=TWO_ROWS, **others))
    assert [bool(row["negative_1"]) for row in rows] == [True] * 8
    line = "data, split 'train': 8 rows of 1 negative; 1 filled up at random, 0 dropped"
    assert [record.getMessage() for record in caplog.records if record.name == "lexforge.negatives.rows"] == [
        line
    ]


def rows_of_run(cfg: Any, *, trains: bool = False) -> list[dict[str, Any]]:
    """The rows that the recipe makes, before a teacher is asked; if it trains, they are those of the run."""
    process, resolved = PartialState(), recipe.resolve(cfg)
    loaded, evaluators = recipe.training.read_retrieval(resolved, process, given_rows=False)
    rows, _ = recipe.make_rows(resolved, loaded, evaluators["test"], None, process)
    if trains:
        recipe.main(cfg)
        assert_trained_on(cfg, rows)
    return rows


def assert_trained_on(cfg: Any, rows: list[dict[str, Any]]) -> None:
    """By the digest of the rows that the run has written, and the epochs that its steps were."""
    data = json.loads((cfg.output_dir / "env.json").read_text())["data"]
    assert data["rows"] == digests({"rows": rows})["rows"]
    state = json.loads((cfg.output_dir / f"checkpoint-{cfg.train.steps}" / "trainer_state.json").read_text())
    assert state["epoch"] == cfg.train.steps / (len(rows) // cfg.train.batch_size)


def kept_scores(cfg: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the scores that the run has kept of its teacher, which is not asked again."""
    before = {path: path.stat() for path in cfg.teacher_cache.iterdir()}
    taught, _ = teach_rows(load_teacher(cfg.teacher, []), rows, cfg.teacher_cache)
    assert {path: path.stat() for path in cfg.teacher_cache.iterdir()} == before
    return taught


def add_an_id_with_a_space(folder: Path) -> None:
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "x y", "text": "a"}\n')


@pytest.mark.parametrize(
    ("change", "others", "message"),
    [
        (lambda folder: (folder / "qrels" / "test.tsv").unlink(), {}, "no split 'test'"),
        (add_an_id_with_a_space, {}, "document id 'x y': a TREC file"),
        (None, {"model": "no/such/model"}, "no/such/model"),
        (None, {"teacher": "no/such/teacher", **of_preset("v26")}, "no/such/teacher"),
        (None, {"data": "nowhere"}, "nowhere"),
        (None, {"negatives": Path("bm52")}, "received 'bm52', and there is no such file"),
        (None, of_preset("v22"), "the triplet margin needs negatives"),
        (None, {"train": TrainingSettings(batch_size=64)}, "has 8 rows, and one batch needs 64"),
        (None, {"evaluation": EvaluationSettings(5, best_measure="recal")}, "received 'recal'"),
        (None, {"document_terms": 0}, "document_terms must be a finite number above 0; received 0"),
        (None, {"query_terms": 8, "inference_free": True}, "--query-terms needs a query encoder"),
        (
            None,
            {"document_terms": 64, **of_preset("lexforge-scratch", flops_weight=0.0)},
            "--document-terms is reached by way of --loss.flops-weight, which must be above 0",
        ),
        (
            None,
            {"query_terms": 8, **of_preset("lexforge-scratch", query_flops_weight=0.0)},
            "--query-terms is reached by way of --loss.query-flops-weight, which must be above 0",
        ),
    ],
    ids=[
        "split",
        "id with a space",
        "model",
        "teacher",
        "data",
        "negatives",
        "no negatives",
        "no full batch",
        "measure",
        "no terms",
        "terms of queries that are looked up",
        "document terms without a weight",
        "query terms without a weight",
    ],
)
def test_bad_input_is_one_clear_error_before_training(
    beir: Path, change: Callable[[Path], Any] | None, others: dict[str, Any], message: str
) -> None:
    """What was received and where; the user mends it and runs the same command again."""
    if change is not None:
        change(beir)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        recipe.main(config(beir, **others))
    assert not list((beir.parent).glob("run/checkpoint-*"))


def test_the_numbers_are_written_before_the_run_file(beir: Path) -> None:
    """A run file that cannot be written, as on a full disk, must not take the numbers of the run with it."""
    recipe.main(config(beir))
    run = beir.parent / "run"
    scores = (run / "trained.scores.json").read_bytes()
    shutil.rmtree(run / "model")
    for name in ("trained.scores.json", "run.trec"):
        (run / name).unlink()
    (run / "run.trec").mkdir()  # at its place no file can be written
    with pytest.raises(OSError, match=r"run\.trec"):
        recipe.main(config(beir, resume=True))
    assert (run / "trained.scores.json").read_bytes() == scores
    assert read_scores(run / "trained.scores.json").mean["nDCG@10"] > 0
    assert (run / "model" / "model.safetensors").is_file()


def test_a_directory_that_holds_a_run_is_not_touched(beir: Path) -> None:
    """The second run with the same command must not overwrite the first."""
    run = beir.parent / "run"
    (run / "model").mkdir(parents=True)
    (run / "metrics.json").write_text("precious")
    with pytest.raises(FileExistsError, match="already holds another run"):
        recipe.main(config(beir))
    assert sorted(path.name for path in run.iterdir()) == ["metrics.json", "model"]
    assert (run / "metrics.json").read_text() == "precious"


def test_a_plan_leaves_the_run_directory_as_it_was(beir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It tells what the run would take, in front of a finished run."""
    run = beir.parent / "run"
    (run / "model").mkdir(parents=True)
    (run / "metrics.json").write_text("precious")
    found = {path: path.stat().st_mtime_ns for path in beir.parent.rglob("*")}
    recipe.main(config(beir, plan=True))
    assert {path: path.stat().st_mtime_ns for path in beir.parent.rglob("*")} == found
    printed = capsys.readouterr().out
    for name in ("seconds per step", "peak memory", "largest batch", "time", "disk"):
        assert f"\n{name} " in printed
    assert "\nrows                  8, of which a step takes 4\n" in printed
    with pytest.raises(ValueError, match="leave --resume out"):
        recipe.main(config(beir, plan=True, resume=True))


def test_two_ranks_plan_together(warm: WarmProcesses, beir: Path, tiny_checkpoint: Path) -> None:
    """They share a temporary folder, and one of them reports what a step of both takes."""
    arguments = ["--data", beir, "--model", tiny_checkpoint, "--output-dir", beir.parent / "run"]
    arguments += "--steps 4 --batch-size 2 --max-seq-length 16 --preset plain --plan".split()
    assert warm.run(RECIPE, arguments, ranks=2) == [0, 0], warm.log.read_text()[-3000:]
    printed = warm.log.read_text()
    assert printed.count("\nrows                  8, of which a step takes 4\n") == 1
    assert "on cpu, in each of 2 processes" in printed
    assert not (beir.parent / "run").exists()


def test_rows_with_weights_are_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The drawn rows are fewer than the weights."""
    rows = "".join(f"ask for {i},the text {i} answers,{i}\n" for i in range(120))
    (tmp_path / "clicks.csv").write_text(f"query,positive,clicks\n{rows}", encoding="utf-8")
    source = SourceOptions(hold_out=0.05, weight_column="clicks")
    recipe.main(config(tmp_path / "clicks.csv", plan=True, source=source, train=TWO_ROWS))
    printed = capsys.readouterr().out
    told = re.search(
        r"clicks\.csv: (1\d\d) training rows(?s:.*)\nrows +(1\d\d), of which a step takes 2\n", printed
    )
    assert told is not None
    assert told[1] == told[2]


def test_a_plan_mines_nothing(
    beir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Mining encodes all documents, which may take longer than training; negatives of BM25 stand for it."""
    with caplog.at_level(logging.INFO, logger="lexforge"):
        recipe.main(config(beir, model=str(tiny_checkpoint), negatives="mined", plan=True, train=TWO_ROWS))
    assert not says_that_it_mines(capsys, caplog)


def says_that_it_mines(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the recipe prints the stage, or the log has the line of the file that was mined."""
    said = ["] mine the negatives\n" in capsys.readouterr().out, "mined.jsonl: " in caplog.text]
    assert said[0] == said[1]
    return said[0]


def test_resume_ends_with_the_model_of_a_run_never_stopped(beir: Path) -> None:
    """Killed after a checkpoint and started again with `--resume`, the recipe leaves the same weights. Over
    another text under the same path it would leave others, and is refused.
    """
    recipe.main(config(beir))
    whole = (beir.parent / "run" / "model" / "model.safetensors").read_bytes()
    (beir.parent / "run").rename(beir.parent / "whole")

    class Killed(Exception):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    trainer_class = recipe.training.SpladeTrainer
    original = trainer_class.training_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kill() if self.state.global_step == 3 else original(self, *args, **kwargs)

    trainer_class.training_step = step
    try:
        with pytest.raises(Killed):
            recipe.main(config(beir))
    finally:
        trainer_class.training_step = original
    with pytest.raises(ValueError, match="max_seq_length was 16 and is now 15"):
        recipe.main(config(beir, resume=True, max_seq_length=15))
    texts = (beir / "corpus.jsonl").read_text()
    (beir / "corpus.jsonl").write_text(texts.replace("the array of a search", "the array of a file"))
    with pytest.raises(ValueError, match=r"documents: 12 \(digest .*\), now 12 .*; rows: 8 "):
        recipe.main(config(beir, resume=True))
    (beir / "corpus.jsonl").write_text(texts)
    recipe.main(config(beir, resume=True))
    assert (beir.parent / "run" / "model" / "model.safetensors").read_bytes() == whole
    timings = [json.loads((beir.parent / n / "metrics.json").read_text())["timing"] for n in ("whole", "run")]
    assert [timing.get("resumed") for timing in timings] == [None, True]


def test_lexforge_shifts_the_bias_and_keeps_a_share_of_the_start(beir: Path, tiny_checkpoint: Path) -> None:
    """Without a step of training the model would be the shifted start, and the average keeps half of it."""
    run = beir.parent / "run"
    train = TrainingSettings(
        steps=1, batch_size=4, gradient_accumulation_steps=1, precision="fp32", learning_rate=1e-9
    )
    train = replace(train, lr_scheduler_type=PRESETS["lexforge"].train.lr_scheduler_type)
    settings = of_preset("lexforge") | {"start": StartSettings(idf_bias=2.0), "train": train}
    recipe.main(
        config(beir, negatives="none", model=str(tiny_checkpoint), **settings)
    )  # twelve documents leave no batch without repeats
    before = SparseEncoder(str(tiny_checkpoint), device="cpu")[0].model.get_output_embeddings().bias
    after = SparseEncoder(str(run / "model"), device="cpu")[0].model.get_output_embeddings().bias
    assert (after - before).abs().max() > 0.1, "the idf of the corpus is in the saved model"
    metrics = json.loads((run / "metrics.json").read_text())
    # The table shows the user's model before training, without the shift.
    assert metrics["initial"]["document_active_dims"] != metrics["trained"]["document_active_dims"]
    # The settings of the preset that the trainer follows reach it.
    arguments = json.loads((run / "checkpoint-1" / "training_args.json").read_text())
    assert arguments["lr_scheduler_type"] == "constant_with_warmup"
    assert (run / "checkpoint-1" / "run_state.safetensors").is_file()


def test_a_head_is_treated_by_what_it_was_made_of_and_trained_for(
    beir: Path,
    tiny_checkpoint: Path,
    tiny_dense: SentenceTransformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half of a language model that never retrieved anything would spoil what was trained, and such a head
    does not show the words of a text by itself. A head that was made of embeddings, and then adapted, went to
    thousands of terms where no number was wanted."""
    trained = scale_head(build_splade(tiny_checkpoint, device="cpu"), WORDS, active_terms=1)
    trained.save_pretrained(str(tmp_path / "splade"))
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    made = scale_head(build_splade(tmp_path / "dense", device="cpu"), WORDS, active_terms=1)
    made.save_pretrained(str(tmp_path / "made"))
    shares = []
    own = []
    wanted = []

    class Noted(Exception):
        pass

    def noted(self: SpladeTrainer, *args: Any, **others: Any) -> None:
        shares.append(others["start_share"])
        own.append(args[1].weights["own_activation"])
        wanted.append((others["document_terms"], others["query_terms"]))
        raise Noted

    for model, said in ((tiny_checkpoint, True), (tmp_path / "splade", False), (tmp_path / "made", False)):
        settings = {"model": str(model), "output_dir": tmp_path / f"run-{model.name}"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SpladeTrainer, "__init__", noted)
            with pytest.raises(Noted):
                recipe.main(config(beir, negatives="none", **settings, **of_preset("lexforge")))
        assert ("is no retriever yet" in capsys.readouterr().out) == said
    kept = PRESETS["lexforge"].finish.start_share
    assert shares == [0.0, kept, kept]
    assert own == [PRESETS["lexforge"].start.untrained_own_activation, 0.0, 0.0]
    assert own[0] > 0
    few = vocabulary_size(trained) // 20
    assert wanted == [(few, few), (None, None), (few, few)]


def test_a_number_of_the_preset_without_a_weight_is_dropped(beir: Path, tiny_checkpoint: Path) -> None:
    """The trainer would refuse a number of query terms that nobody gave."""
    said: Any = SimpleNamespace(print=lambda *_: None)
    for weights, kept in (
        ({}, (True, True)),
        ({"query_flops_weight": 0.0}, (True, False)),
        ({"flops_weight": 0.0}, (False, False)),
    ):
        cfg = config(beir, model=str(tiny_checkpoint), **of_preset("lexforge", **weights))
        model = build_splade(tiny_checkpoint, device="cpu")
        cfg = recipe.prepare_head(cfg, model, WORDS, said)
        assert (cfg.document_terms is not None, cfg.query_terms is not None) == kept


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"train": replace(FOUR_STEPS, training_seq_length=17)}, "max_seq_length, 16; received 17"),
        ({"query_terms": 10**6}, "query_terms must lie between 0 and the"),
        ({"document_terms": 10**6}, "document_terms must lie between 0 and the"),
    ],
)
def test_numbers_beyond_the_model_are_refused_when_it_is_loaded(
    beir: Path,
    tiny_checkpoint: Path,
    others: dict[str, Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The trainer refuses them after hours of mining and of the teacher."""
    with pytest.raises(ValueError, match=message):
        recipe.main(config(beir, model=str(tiny_checkpoint), **of_preset("lexforge"), **others))
    assert "] count the terms of the documents\n" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "schedule"), [("lexforge", "constant_with_warmup"), ("lexforge-scratch", "cosine")]
)
def test_the_lexical_backbone_is_trained_as_its_preset_says(name: PresetName, schedule: str) -> None:
    """`lexforge` keeps its rate, where the preset of the default lets it fall as a cosine; all take 300 steps
    of 64 rows.
    """
    train = recipe.resolve(recipe.defaults("lexical", name)).train
    assert (train.lr_scheduler_type, train.steps, train.batch_size) == (schedule, 300, 64)
    assert train.training_seq_length == 96


def test_mined_negatives_take_the_route_of_documents(beir: Path, tiny_checkpoint: Path) -> None:
    """They stand in the run directory, and a column without a route has no encoder."""
    train = TrainingSettings(
        steps=1, batch_size=1, gradient_accumulation_steps=1, precision="fp32", learning_rate=1e-4
    )
    settings = {"model": str(tiny_checkpoint), **of_preset("lexforge")}
    recipe.main(config(beir, inference_free=True, train=train, **settings))
    state = json.loads((beir.parent / "run" / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["global_step"] == 1
    arguments = json.loads((beir.parent / "run" / "checkpoint-1" / "training_args.json").read_text())
    routes = ast.literal_eval(arguments["router_mapping"])
    assert routes["negative_1"] == "document"
    assert routes["anchor"] == "query"
    assert len(read_training_rows(beir.parent / "run" / "mined.jsonl")) == 8


@pytest.mark.parametrize("flag", [False, True])
def test_an_inference_free_model_is_trained_on(beir: Path, tiny_checkpoint: Path, flag: bool) -> None:
    """It failed only after everything before the first step, which may take hours. Its queries stay those of
    the first run, and its documents learn.
    """
    encoder = build_splade(tiny_checkpoint, max_seq_length=16, device="cpu")
    start = build_inference_free(encoder, [2.0] * vocabulary_size(encoder))
    start.save_pretrained(str(beir.parent / "start"))
    others = {"model": str(beir.parent / "start"), "max_seq_length": None, "train": TWO_ROWS}
    recipe.main(config(beir, inference_free=flag, **others))
    trained = SparseEncoder(str(beir.parent / "run" / "model"), device="cpu")
    assert trained.max_seq_length == 16
    for side, same in (("encode_query", True), ("encode_document", False)):
        before, after = (getattr(model, side)("sort list").to_dense() for model in (start, trained))
        assert torch.allclose(before, after, atol=1e-5) == same  # fused and plain sum in another order


def test_a_resumed_run_trains_on_the_rows_that_were_mined(
    beir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights are no longer those that mined: mining again would give other rows."""
    train = TrainingSettings(
        steps=4,
        batch_size=2,
        gradient_accumulation_steps=1,
        precision="fp32",
        learning_rate=1e-2,
        save_steps=2,
    )
    cfg = config(beir, model=str(tiny_checkpoint), negatives="mined", train=train, **of_preset("lexforge"))
    run = beir.parent / "run"
    with caplog.at_level(logging.INFO, logger="lexforge"):
        recipe.main(cfg)
    assert says_that_it_mines(capsys, caplog)
    mined, weights = (run / "mined.jsonl").stat(), (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "checkpoint-4")
    recipe.main(replace(cfg, resume=True))
    assert (run / "mined.jsonl").stat() == mined
    assert (run / "model" / "model.safetensors").read_bytes() == weights


def test_a_named_teacher_scores_the_negatives_that_are_mined(beir: Path, tiny_checkpoint: Path) -> None:
    """The teacher embeds what the model has mined."""
    train = TrainingSettings(
        steps=1, batch_size=2, gradient_accumulation_steps=1, precision="fp32", learning_rate=1e-4
    )
    settings = {"model": str(tiny_checkpoint), **of_preset("lexforge")}
    recipe.main(config(beir, negatives="mined", teacher="lsa", train=train, **settings))
    state = json.loads((beir.parent / "run" / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["log_history"][0]["loss/distillation"] > 0


@pytest.fixture
def tiny_cross(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A random cross-encoder with one output."""
    config = BertConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "classifier")
    CrossEncoder(str(tmp_path / "classifier"), device="cpu").save_pretrained(str(tmp_path / "cross"))
    return tmp_path / "cross"


def test_a_cross_encoder_as_teacher_scores_the_documents_of_each_mined_row(
    beir: Path, tiny_checkpoint: Path, tiny_cross: Path
) -> None:
    """The oracle is the cross-encoder's own logits of the rows that were trained on."""
    settings = {"model": str(tiny_checkpoint), "train": TWO_ROWS, **of_preset("lexforge")}
    settings |= {"teacher_cache": beir.parent / "teacher"}
    cfg = config(beir, negatives="mined", teacher=str(tiny_cross), **settings)
    recipe.main(cfg)
    rows = kept_scores(cfg, read_training_rows(cfg.output_dir / "mined.jsonl"))
    assert len(rows) == 8
    cross = CrossEncoder(str(tiny_cross), device="cpu")
    for row in rows:
        pairs = [(row["anchor"], row[column]) for column in ("positive", "negative_1")]
        expected = cross.predict(pairs, activation_fn=torch.nn.Identity()).tolist()
        assert row["label"] == pytest.approx(expected, abs=1e-5)  # padding changes float32 sums
    state = json.loads((cfg.output_dir / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["log_history"][0]["loss/distillation"] > 0
    assert "| teacher | cross |" in (cfg.output_dir / "model" / "README.md").read_text()


def test_a_teacher_that_scores_pairs_needs_negatives(
    beir: Path, tiny_checkpoint: Path, tiny_cross: Path
) -> None:
    """Said before the run directory is made."""
    others = {"model": str(tiny_checkpoint), "teacher": str(tiny_cross), **of_preset("lexforge")}
    with pytest.raises(ValueError, match=r"cross scores pairs of texts\. .* give --negatives mined"):
        recipe.main(config(beir, negatives="none", **others))
    assert not (beir.parent / "run").exists()


def ask(beir: Path, words: list[str]) -> None:
    """Give the eight training queries other words."""
    words = [*words, *WORDS[8:12]]
    write_lines(beir / "queries.jsonl", [{"_id": f"q{i}", "text": text} for i, text in enumerate(words)])


@pytest.mark.parametrize(
    ("leads", "others", "teaches"), [(False, {}, False), (True, {}, True), (False, {"teacher": "bm25"}, True)]
)
def test_bm25_teaches_where_it_ranks_better_or_is_named(
    beir: Path, tiny_checkpoint: Path, leads: bool, others: Any, teaches: bool
) -> None:
    """Distilling a worse ranking takes away what the model knows better."""
    if not leads:
        ask(beir, [f"{letter} hash" for letter in "bcdefghi"])  # no document has these words
    settings = {"model": str(tiny_checkpoint), **of_preset("lexforge")}
    recipe.main(config(beir, negatives="none", **settings, **others))
    state = json.loads((beir.parent / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert ("loss/distillation" in state["log_history"][0]) == teaches
    compared = json.loads((beir.parent / "run" / "metrics.json").read_text())["training_queries"]
    if others:
        assert compared == {}
    elif leads:
        assert compared["bm25"] > compared["model"] > 0
    else:
        assert compared["model"] > compared["bm25"] == 0
    card = (beir.parent / "run" / "model" / "README.md").read_text()
    assert f"| teacher | {'bm25' if teaches else 'none'} |" in card


@pytest.mark.parametrize(
    ("weights", "term"),
    [
        ({"margin_mse_weight": 0.1}, "margin_mse"),
        ({"infonce_weight": 0.0, "flops_weight": 0.0, "minimum_activation_weight": 0.0}, "distillation"),
    ],
)
def test_bm25_stays_the_teacher_of_what_needs_one(
    beir: Path, tiny_checkpoint: Path, weights: dict[str, float], term: str
) -> None:
    """MarginMSE without a teacher would stop the run at its first step, and a loss in which nothing else
    ranks would train on sparsity alone.
    """
    ask(beir, [WORDS[(i + 4) % 8] for i in range(8)])  # BM25 finds the documents of other queries
    settings = {"model": str(tiny_checkpoint), **of_preset("lexforge", **weights)}
    recipe.main(config(beir, negatives="none", **settings))
    state = json.loads((beir.parent / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["log_history"][0][f"loss/{term}"] > 0


def test_the_sparse_head_of_bge_m3_is_trained_from_its_folder(beir: Path, tiny_m3: Path) -> None:
    """The folder names its preset, the saved model is trained further by the same one, and a preset that
    shifts the bias of terms is refused by the name of the head.
    """
    settings = recipe.defaults(str(tiny_m3))
    assert settings.preset == "bge-m3"
    numbers = of_preset("bge-m3")
    recipe.main(config(beir, model=str(tiny_m3), evaluation=settings.evaluation, **numbers))
    run = beir.parent / "run"
    assert recipe.defaults(str(run / "model")).preset == "bge-m3"
    model = load_encoder(str(run / "model"), device="cpu")
    assert isinstance(model[1], TokenWeights)
    start = build_splade(tiny_m3, device="cpu")
    assert model[1].sparse_linear.weight.tolist() != start[1].sparse_linear.weight.tolist()
    # A text has no other terms, which is no symptom.
    found = {finding.symptom.name: finding.ok for finding in diagnose(run)}
    assert found["expansion"] is None
    other = config(beir, model=str(tiny_m3), output_dir=beir.parent / "other", **of_preset("lexforge"))
    with pytest.raises(ValueError, match=r"TokenWeights.*--preset bge-m3"):
        recipe.main(other)
