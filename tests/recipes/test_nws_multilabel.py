"""The multi-label recipe as a user runs it, on a data set and a model small enough for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir_folders import write_lines
from loaded_recipes import load_recipe
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from warm_processes import WarmProcesses

from lexforge.corpus import load_label_classifier
from lexforge.data import load_label_sets, multi_hot
from lexforge.evaluation import f1_at
from lexforge.report import run_verdict
from lexforge.training import TrainingSettings

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "nws_multilabel.py"
TOPICS = {
    "sorting": "sort list array min max sum".split(),
    "files": "read write open close file path".split(),
    "graphs": "tree graph node edge parse build".split(),
}


recipe = load_recipe("nws_multilabel")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Sixty texts of four words each, of one or two topics; one has no label."""
    rows = []
    for number in range(60):
        names = list(TOPICS)
        labels = sorted({names[number % 3], names[number * 5 % 9 // 3]})
        words = [TOPICS[label][(number + place) % 6] for place in range(2) for label in labels]
        split = {8: "dev", 9: "test"}.get(number % 10, "train")
        rows.append({"id": str(number), "text": " ".join(words), "labels": labels, "split": split})
    rows[0]["labels"] = []
    return write_lines(tmp_path / "topics.jsonl", rows)


def config(file: Path, model: Path | str, loss: dict[str, Any] | None = None, **others: Any) -> Any:
    """Four steps of eight texts."""
    settings: dict[str, Any] = {
        "data": str(file),
        "model": str(model),
        "output_dir": file.parent / "run",
        "max_seq_length": 16,
        "loss": recipe.LossOptions(**{"queue_size": 16, **(loss or {})}),
        "train": TrainingSettings(
            steps=4,
            batch_size=8,
            gradient_accumulation_steps=1,
            learning_rate=1e-3,
            precision="fp32",
            save_steps=2,
        ),
    }
    return recipe.Config(**(settings | others))


def check_prediction(run: Path, file: Path, trained: dict[str, float], texts: int | None = None) -> None:
    """The labels that a saved model predicts have exactly the F1 that its run has measured."""
    data = load_label_sets(str(file))
    data = data if texts is None else data.sample(texts, TrainingSettings().seed)
    classifier = load_label_classifier(run)
    assert classifier.label_names == data.label_names == tuple(sorted(TOPICS))
    predicted = classifier.predict([row.text for row in data.split("test")])
    given = np.array(multi_hot([list(labels) for labels in predicted], data.label_names))
    measured = f1_at(1, given, np.array(data.columns("test")["label"]))
    assert measured == {name: trained[f"head_{name}"] for name in ("micro_f1", "macro_f1")}


def flags(file: Path, model: Path, run: Path) -> list[str]:
    given = ["--data", str(file), "--model", str(model), "--output-dir", str(run), "--steps", "2"]
    return [*given, "--batch-size", "4", "--max-seq-length", "16", "--queue-size", "16"]


def test_the_command_trains_evaluates_and_leaves_its_records(
    warm: WarmProcesses, file: Path, tiny_checkpoint: Path
) -> None:
    """With flags, in its own process; the model loads without lexforge, and what is printed can be pasted."""
    run = file.parent / "a run"
    done = warm.completed(RECIPE, *flags(file, tiny_checkpoint, run))
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics.pop("timing")["stage_seconds"]["train"] > 0
    measured = {f"{c}_{m}_f1" for c in ("probe", "centroid") for m in ("micro", "macro")} | {"label_map"}
    assert metrics["initial"].keys() == measured
    assert metrics["trained"].keys() == measured | {"head_micro_f1", "head_macro_f1"}
    assert all(0 <= value <= 1 for values in metrics.values() for value in values.values())
    assert done.stdout.count("eval_dev_label_map") == 2  # in the middle and at the end
    assert "_per_second 0," not in done.stdout
    assert f"\n{run_verdict(run)}\n" in done.stdout
    assert json.loads((run / "config.json").read_text())["train"]["steps"] == 2
    assert "torch" in json.loads((run / "env.json").read_text())["versions"]
    assert (run / "checkpoint-2" / "run_state.safetensors").is_file()
    assert "The loss may rise until the queue of 16 texts is full" in done.stdout
    assert f"lexforge predict --model '{run}' --texts FILE" in done.stdout
    check_prediction(run, file, metrics["trained"])
    code = (
        "import sys; sys.modules['lexforge'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({str(run / 'model')!r}, device='cpu')\n"
        "assert model.similarity_fn_name == 'cosine' and model.encode(['sort a list']).shape == (1, 32)"
    )
    loaded = warm.completed("-c", code, forget=["lexforge"])
    assert loaded.returncode == 0, loaded.stderr[-3000:]


def test_a_plan_tells_what_a_run_would_take(
    file: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves nothing behind. The loss needs the labels of all rows, not those of the drawn ones."""
    recipe.main(config(file, tiny_checkpoint, plan=True))
    assert "\nrows                  48, of which a step takes 8\n" in capsys.readouterr().out
    assert not (file.parent / "run").exists()


@pytest.mark.slow
def test_two_ranks_are_one_run(file: Path, tiny_checkpoint: Path) -> None:
    """Ranks share queue and prototypes, and one of them reports."""
    run = file.parent / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, str(RECIPE), *flags(file, tiny_checkpoint, run)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("\ntrained ") == 1
    assert json.loads((run / "env.json").read_text())["ranks"] == 2
    with safe_open(run / "checkpoint-2" / "run_state.safetensors", "pt") as state:
        assert int(state.get_tensor("loss/queue.enqueued")) == 16  # 2 steps of 2 ranks of 4


def test_from_scratch_on_the_embedded_set_it_learns(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default needs no model and no file; here the embedded set is stood in for by a small one."""
    topics = load_label_sets(str(file))
    monkeypatch.setattr("lexforge.data.multilabel.load_docstring_topics", lambda: topics)
    train = TrainingSettings(
        steps=40, batch_size=16, gradient_accumulation_steps=1, learning_rate=2e-3, precision="fp32"
    )
    recipe.main(config(file, "lexical", {"temperature": 0.2}, data="docstrings", train=train))
    metrics = json.loads((file.parent / "run" / "metrics.json").read_text())
    assert metrics["trained"]["label_map"] > metrics["initial"]["label_map"]
    assert metrics["trained"]["head_micro_f1"] > 0.7


@pytest.mark.parametrize(
    ("loss", "given", "expected"), [("nws", None, 1e-2), ("bce", None, 1e-1), ("bce", 0.5, 0.5)]
)
def test_the_rate_of_the_classifier_follows_the_loss(loss: str, given: float | None, expected: float) -> None:
    """A linear head learns best at another rate than prototypes, and a rate that was given stays."""
    cfg = recipe.Config(loss=recipe.LossOptions(name=loss), head_learning_rate=given)
    assert recipe.resolve(cfg).head_learning_rate == expected


@pytest.mark.parametrize(
    ("loss", "others"),
    [
        ({"name": "bce", "queue_size": 2048}, {}),
        ({"label_similarity": "jaccard", "aggregate": "max"}, {}),
        ({"label_similarity": "none", "queue_size": 0}, {"measured_texts": 5}),
    ],
    ids=["bce", "jaccard, max", "no similarity, no queue"],
)
def test_every_option_of_the_recipe_runs(
    file: Path, tiny_checkpoint: Path, loss: dict[str, Any], others: dict[str, Any]
) -> None:
    """An option that fails after an hour is worse than none."""
    recipe.main(config(file, tiny_checkpoint, loss, **others))
    run = file.parent / "run"
    trained = json.loads((run / "metrics.json").read_text())["trained"]
    check_prediction(run, file, trained, others.get("measured_texts"))
    assert (load_label_classifier(run).bias is not None) == ("name" in loss)
    assert SentenceTransformer(str(run / "model"), device="cpu").max_seq_length == 16


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"data": "nowhere.jsonl"}, r"nowhere\.jsonl"),
        ({"model": "no/such/model"}, "no/such/model"),
        ({"loss": {"temperature": 0.0}}, "temperature"),
        ({"loss": {"queue_size": 7}}, r"--queue-size must be at least 8, .*; received 7"),
        ({"measured_texts": 0}, "received 0"),
    ],
)
def test_bad_input_is_one_clear_error(
    file: Path, tiny_checkpoint: Path, others: dict[str, Any], message: str
) -> None:
    """What was received and where; no checkpoint is left."""
    with pytest.raises((ValueError, OSError), match=message):
        recipe.main(config(file, others.pop("model", tiny_checkpoint), **others))
    assert not list(file.parent.glob("run/checkpoint-*"))
    assert "queue_size" not in others.get("loss", {}) or not (file.parent / "run").exists()


def test_a_split_that_is_missing_is_named(file: Path, tiny_checkpoint: Path) -> None:
    """Thresholds need a dev split."""
    rows = [line for line in file.read_text().splitlines() if '"dev"' not in line]
    file.write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match="no split 'dev'"):
        recipe.main(config(file, tiny_checkpoint))
    assert not (file.parent / "run").exists()


def test_resume_ends_with_the_model_of_a_run_never_stopped(file: Path, tiny_checkpoint: Path) -> None:
    """Killed after a checkpoint and started again with `--resume`: the same weights and prototypes."""
    recipe.main(config(file, tiny_checkpoint))
    run, whole = file.parent / "run", file.parent / "whole"
    run.rename(whole)

    class Killed(Exception):
        pass

    trainer_class = recipe.training.DenseTrainer
    original = trainer_class.training_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise Killed
        return original(self, *args, **kwargs)

    trainer_class.training_step = step
    try:
        with pytest.raises(Killed):
            recipe.main(config(file, tiny_checkpoint))
    finally:
        trainer_class.training_step = original
    with pytest.raises(ValueError, match=r"loss.temperature was 0.1 and is now 0.2"):
        recipe.main(config(file, tiny_checkpoint, {"temperature": 0.2}, resume=True))
    texts = file.read_text()
    file.write_text(texts.replace('["files"]', '["graphs"]', 1))
    with pytest.raises(ValueError, match=r"began with: train: 48 \(digest .*\), now 48 \(digest"):
        recipe.main(config(file, tiny_checkpoint, resume=True))
    file.write_text(texts)
    recipe.main(config(file, tiny_checkpoint, resume=True))
    for name in ("model/model.safetensors", "model/label_classifier.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("labels", [["only"], []])
def test_equal_labels_of_all_training_texts_are_refused(labels: list[str], file: Path) -> None:
    """With one label in the whole set the loss was 0 from the first step on, and the run seemed to train."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["labels"] = labels if row["split"] == "train" else ["other"]
    write_lines(file, rows)
    received = "'only'" if labels else "none"
    with pytest.raises(ValueError, match=f"all 48 training texts have the same labels.* received {received}"):
        recipe.main(config(file, "lexical"))
    assert not (file.parent / "run").exists()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_measured_texts_without_a_known_label_are_refused(split: str, file: Path) -> None:
    """The first measure during training failed, and named another split."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["labels"] = [] if row["split"] == split else row["labels"]
    write_lines(file, rows)
    with pytest.raises(ValueError, match=f"texts of the split '{split}' shares a label with a training text"):
        recipe.main(config(file, "lexical"))
    assert not (file.parent / "run").exists()


def test_numbers_that_the_loss_does_not_read_are_refused(file: Path) -> None:
    """The comparison with another temperature would be one of two equal runs."""
    for other in ({"temperature": 0.2}, {"label_similarity": "none"}):
        loss = {"name": "bce", "queue_size": 2048} | other
        with pytest.raises(ValueError, match=r"--loss bce reads no number of nws.*--similarity.*--momentum"):
            recipe.main(config(file, "lexical", loss))


def test_a_rate_that_unlearns_is_refused(file: Path) -> None:
    """As the rate of the encoder is; the prototypes would go up the gradient."""
    with pytest.raises(ValueError, match="head_learning_rate must be a finite number above 0; received -1"):
        recipe.main(config(file, "lexical", head_learning_rate=-1.0))
