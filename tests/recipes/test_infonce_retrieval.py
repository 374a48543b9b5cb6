"""The dense retrieval recipe, as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from beir_folders import write_beir
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from transformers import AutoTokenizer
from warm_processes import WarmProcesses

from lexforge.report import run_verdict
from lexforge.runs.state import read_state

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = "ship wave tide wheat barn plough star comet orbit violin flute drum".split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Queries that share a word with their document, and more documents than a batch."""
    documents = [f"{word} {other} and more" for word in WORDS for other in WORDS if word != other]
    return write_beir(
        tmp_path / "data",
        {f"d{i}": text for i, text in enumerate(documents)},
        {f"q{i}": f"about {text.split(' and')[0]}" for i, text in enumerate(documents)},
        {
            split: {f"q{i}": {f"d{i}": 1} for i in chosen}
            for split, chosen in (("train", range(100)), ("test", range(100, 132)))
        },
    )


@pytest.fixture
def run(warm: WarmProcesses) -> Run:
    """Runs the recipe with the given arguments."""
    return partial(warm.completed, ROOT / "recipes/infonce_retrieval.py")


@pytest.mark.parametrize(
    "loss", ["moco", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("infonce", "hcl"))]
)
def test_each_loss_trains_and_leaves_the_files_of_a_run(
    run: Run, folder: Path, tmp_path: Path, loss: str
) -> None:
    """The files are what other tools read; the measures are those of the model in the folder."""
    out = tmp_path / "out"
    result = run(
        *("--data", folder, "--loss", loss, "--steps", 4, "--batch-size", 8),
        *(("--queue-size", 64) if loss == "moco" else ()),
        *("--max-seq-length", 16, "--learning-rate", 1e-4, "--output-dir", out),
    )
    assert result.returncode == 0, result.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert set(metrics) == {"bm25", "initial", "trained", "timing"}
    assert f"\n{run_verdict(out)}\n" in result.stdout
    assert 0 < metrics["trained"]["nDCG@10"] <= 1
    for file in ("config.json", "env.json", "run.trec", "model/modules.json"):
        assert (out / file).is_file()
    # The file is also there if the head was timed on this machine before.
    has_state = (out / "checkpoint-4" / "run_state.safetensors").is_file()
    kept = read_state(out / "checkpoint-4", 4)[0] if has_state else {}
    assert ("loss" in kept) == (loss == "moco")


def test_static_embeddings_train_without_a_limit_of_tokens(
    run: Run, folder: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """They have no transformer that could cut a text; the run asks for no number that none of them takes."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save_pretrained(str(tmp_path / "static"), create_model_card=False)
    out = tmp_path / "out"
    result = run(
        *("--data", folder, "--model", tmp_path / "static", "--steps", 4, "--batch-size", 8),
        *("--learning-rate", 1e-2, "--output-dir", out),
    )
    assert result.returncode == 0, result.stderr
    assert json.loads((out / "config.json").read_text())["max_seq_length"] is None
    trained = SentenceTransformer(str(out / "model"), device="cpu")[0].embedding.weight
    assert not torch.equal(trained, model[0].embedding.weight)


def test_both_routes_of_a_router_are_trained(
    run: Run, folder: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """The trainer asked for a `router_mapping`, which no flag gives, after everything had been measured."""

    def route() -> list[Module]:
        transformer = Transformer(str(tiny_checkpoint), max_seq_length=16)
        return [transformer, Pooling(transformer.get_embedding_dimension())]

    model = SentenceTransformer(modules=[Router.for_query_document(route(), route())], device="cpu")
    model.save_pretrained(str(tmp_path / "routes"), create_model_card=False)
    out = tmp_path / "out"
    result = run(
        *("--data", folder, "--model", tmp_path / "routes", "--steps", 2, "--batch-size", 8),
        *("--learning-rate", 1e-2, "--output-dir", out),
    )
    assert result.returncode == 0, result.stderr
    trained = SentenceTransformer(str(out / "model"), device="cpu")
    for kind in ("query", "document"):
        before, after = (one[0].sub_modules[kind][0].model.embeddings for one in (model, trained))
        assert not torch.equal(before.word_embeddings.weight, after.word_embeddings.weight)


@pytest.mark.slow
def test_a_run_killed_while_it_built_the_encoder_goes_on(run: Run, folder: Path, tmp_path: Path) -> None:
    """Then the folder holds the records, no encoder and no checkpoint."""
    out = tmp_path / "out"
    options = ["--data", folder, "--steps", 2, "--batch-size", 8, "--max-seq-length", 16, "--output-dir", out]
    result = run(*options)
    assert result.returncode == 0, result.stderr
    for path in out.iterdir():
        if path.name not in ("config.json", "env.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = run(*options, "--resume")
    assert result.returncode == 0, result.stderr
    assert (out / "metrics.json").is_file()

    judgements = folder / "qrels" / "test.tsv"
    judgements.write_text(judgements.read_text().replace("\t1\n", "\t2\n", 1))
    result = run(*options, "--resume")
    assert "began with: judgements: 132 (digest" in result.stderr


def test_negatives_that_the_loss_would_not_read_are_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    """An option that nothing reads would let a user believe in hard negatives that never were."""
    result = run("--data", folder, "--loss", "hcl", "--negatives", "bm25", "--output-dir", tmp_path / "out")
    assert result.returncode != 0
    assert "negatives are read by the loss infonce only; received the loss 'hcl'" in result.stderr


def test_numbers_of_another_loss_are_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    """Who tunes them would compare runs that are the same."""
    options = ["--data", folder, "--queue-size", 64, "--beta", 2, "--output-dir", tmp_path / "out"]
    result = run(*options)
    assert result.returncode == 1
    assert "error: --queue-size 64 and --beta 2.0 would be ignored: the loss is infonce" in result.stderr
    assert "--queue-size 64 would be ignored: the loss is hcl" in run(*options, "--loss", "hcl").stderr


def test_a_plan_tells_what_a_run_would_take(run: Run, folder: Path, tmp_path: Path) -> None:
    """And leaves nothing behind."""
    out = tmp_path / "out"
    result = run(
        "--data",
        folder,
        *("--steps", 4, "--batch-size", 4, "--max-seq-length", 16),  # the plan draws fewer than all rows
        "--output-dir",
        out,
        "--plan",
    )
    assert result.returncode == 0, result.stderr
    assert "\nrows                  100, of which a step takes 4\n" in result.stdout
    assert f"\n{folder}: 100 training rows, " in result.stdout
    assert f"are free at {tmp_path}" in result.stdout
    assert not out.exists()
