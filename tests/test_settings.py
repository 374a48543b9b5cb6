"""The settings that a command line reads: presets, ranges, and the arguments of the Trainer."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments

from lexforge.losses import NeuralSparseLoss
from lexforge.settings import (
    NUMBER_NAMES,
    PRESETS,
    V26,
    EvaluationSettings,
    FinishSettings,
    LossSettings,
    Preset,
    SourceOptions,
    SparseLossNumbers,
    StartSettings,
    TrainingSettings,
    preset_of_model,
)

LOSSES = Path(__file__).resolve().parents[1] / "docs" / "losses.md"


def table_of_presets() -> dict[str, dict[str, str]]:
    """Preset -> row -> cell of the table in section 8 of docs/losses.md."""
    section = LOSSES.read_text(encoding="utf-8").partition("\n## 8.")[2].partition("\n## 9.")[0]
    lines = [line[1:-1].split("|") for line in section.splitlines() if line.startswith("|")]
    (_, *names), _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {
        name.lower(): {row[0].partition(" (")[0]: row[column] for row in rows}
        for column, name in enumerate(names, 1)
    }


TABLE = table_of_presets()


def numbers(cell: str) -> list[float]:
    return [float(Fraction(number)) for number in re.findall(r"[\d.]+(?:e-\d+|/\d+)?", cell)]


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_has_the_numbers_of_the_documentation(name: str) -> None:
    """A preset that drifts from its source would be published under a wrong name."""
    preset, cells = PRESETS[name], TABLE[name]
    loss, start, finish, train = preset.loss, preset.start, preset.finish, preset.train
    for row, number in {
        "InfoNCE": loss.infonce_weight,
        "self-reconstruction": loss.self_reconstruction_weight,
        "positive activation": loss.positive_activation_weight,
        "own activation": loss.own_activation_weight or 0,
        "triplet margin": loss.triplet_margin_weight,
        "FLOPS": loss.flops_weight,
        "minimum activation": loss.minimum_activation_weight,
        "distillation": loss.distillation_weight,
        "temperature": loss.temperature,
        "ramp of the sparsity, share of training": loss.ramp_fraction,
        "idf in the bias": start.idf_bias,
        "horizon of the average": finish.average_horizon,
        "share of the start": finish.start_share,
        "threshold at the end": finish.prune_threshold,
        "learning rate, pretrained / from scratch": train.learning_rate,
    }.items():
        assert number == pytest.approx(numbers(cells[row])[0]), row
    scratch = numbers(cells["learning rate, pretrained / from scratch"])[1]
    assert preset.training_from_scratch().learning_rate == scratch
    schedule = {"cosine": "cosine", "stays": "constant_with_warmup"}[cells["learning rate after the warm-up"]]
    assert train.lr_scheduler_type == schedule
    assert loss.similarity == cells["similarity"]
    assert (loss.idf_alpha is not None) == (cells["sparsity"] == "IDF-aware")
    if loss.idf_alpha is not None:
        assert [loss.idf_alpha, loss.l2_ratio] == numbers(cells["alpha / beta"])
        assert loss.special_penalty == next(iter(numbers(cells["special tokens"])), None)
        assert [loss.stopword_penalty] == numbers(cells["factor of stop words"])
    if loss.distillation_weight:
        told = numbers(cells["distillation: temperature, KL, MSE"])
        assert [loss.distillation_temperature, loss.kl_weight, loss.mse_weight] == told


def test_the_other_numbers_of_v26_are_those_of_the_documentation() -> None:
    """They stand in a sentence below the table."""
    told = f"margin {V26.loss.margin}, k {V26.loss.top_k}, theta {V26.loss.activation_threshold}"
    assert f"Its other numbers: {told.replace('0.', '.')}." in LOSSES.read_text(encoding="utf-8")


def test_every_number_of_the_loss_reaches_it() -> None:
    """A number that nothing reads is a promise not kept."""
    accepted = {*inspect.signature(NeuralSparseLoss).parameters, *NUMBER_NAMES}
    assert set(V26.loss.arguments()) <= accepted
    elsewhere = {field.name for field in fields(LossSettings)} - set(V26.loss.arguments())
    assert elsewhere == {"idf_alpha", "special_penalty", "stopword_penalty", "ramp_fraction", "phases"}


def test_a_preset_and_the_loss_have_the_same_defaults() -> None:
    """The numbers have one home; a preset without arguments and a loss without arguments are both V26."""
    arguments = Preset().loss.arguments()
    assert arguments.pop("similarity") == "cosine"
    assert SparseLossNumbers(**arguments) == SparseLossNumbers()


@pytest.mark.parametrize(
    ("group", "wrong"),
    [
        (LossSettings, {"flops_weight": -1.0}),
        (LossSettings, {"ramp_fraction": 1.5}),
        (FinishSettings, {"start_share": 1.0}),
        (StartSettings, {"idf_bias": -0.1}),
        (StartSettings, {"idf_bias": float("nan")}),
        (FinishSettings, {"prune_threshold": -0.1}),
        (FinishSettings, {"average_horizon": 1.5}),
        (TrainingSettings, {"precision": "fp8"}),
        (TrainingSettings, {"warmup_fraction": 1.0}),
        (TrainingSettings, {"dropout": 1.0}),
        (TrainingSettings, {"mini_batch_size": 0}),
        (TrainingSettings, {"steps": 0}),
        (TrainingSettings, {"epochs": 0}),
        (TrainingSettings, {"batch_size": 0}),
        (TrainingSettings, {"gradient_accumulation_steps": 0}),
        (TrainingSettings, {"learning_rate": float("nan")}),
        (TrainingSettings, {"logging_steps": -1}),
        (TrainingSettings, {"logging_steps": 2.5}),
        (TrainingSettings, {"logging_steps": float("inf")}),
        (TrainingSettings, {"epochs": float("inf")}),
        (TrainingSettings, {"learning_rate": float("inf")}),
        (TrainingSettings, {"weight_decay": -0.1}),
        (EvaluationSettings, {"eval_steps": 0}),
        (EvaluationSettings, {"eval_steps": 1.5}),
        (EvaluationSettings, {"best_measure": "nDCG@10"}),
        (EvaluationSettings, {"eval_steps": 5, "early_stopping": 2}),
        (SourceOptions, {"hold_out": 1.0}),
    ],
)
def test_a_number_out_of_range_is_named(group: Any, wrong: dict[str, Any]) -> None:
    """A wrong flag of a recipe must stop the run before any data or model is read."""
    name, value = list(wrong.items())[-1]
    with pytest.raises(ValueError, match=rf"{name.removesuffix('_weight')}.*received.* ?'?{value}"):
        group(**wrong)


@pytest.mark.parametrize(("width", "rate"), [(64, 3e-4), (128, 3e-4), (384, 1e-4), (768, 5e-5), (None, 3e-4)])
def test_a_wide_encoder_takes_a_lower_rate(width: int | None, rate: float) -> None:
    """What trains 4 million parameters well lets 110 million diverge."""
    assert PRESETS["lexforge"].learning_rate_of(width) == pytest.approx(rate)
    assert PRESETS["v26"].learning_rate_of(width) == 3e-5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"steps": 200}, 50),
        ({"steps": 3}, 1),
        ({"steps": 100_000}, 500),
        ({"steps": 200, "save_steps": 7}, 7),
    ],
)
def test_a_short_training_saves_before_its_end(given: dict[str, Any], expected: int, tmp_path: Path) -> None:
    """The default runs have 200 steps: a kill costs a quarter of them, and not all."""
    settings = replace(TrainingSettings(), **given)
    assert settings.arguments(tmp_path).save_steps == expected
    again = settings.left_open().with_defaults(settings)
    assert again.arguments(tmp_path).save_steps == expected


def test_the_checkpoints_of_epochs_stay_open_until_the_steps_are_known() -> None:
    """A quarter of them, as help says, and not the 500 that a short training never reaches."""
    settings = TrainingSettings(epochs=2.0).with_defaults(TrainingSettings(steps=200))
    assert settings.save_steps is None
    assert [settings.checkpoint_steps(steps) for steps in (3, 400, 10_000)] == [1, 100, 500]


def test_training_rows_are_cut_no_later_than_the_model_reads() -> None:
    """The trainer refuses rows that are longer than what the model reads."""
    preset = TrainingSettings(training_seq_length=128)
    given = TrainingSettings(training_seq_length=100)
    lengths = [
        settings.with_defaults(defaults, tokens).training_seq_length
        for settings in (TrainingSettings(), given)
        for defaults in (preset, TrainingSettings())
        for tokens in (None, 64, 256)
    ]
    assert lengths == [128, 64, 128, None, None, None, *[100] * 6]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_for_a_terminal(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job's log each state of the bar would stand anew."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    assert TrainingSettings(precision="fp32").arguments(tmp_path).disable_tqdm is not terminal


def test_a_share_of_known_steps_is_a_number_of_steps(tmp_path: Path) -> None:
    """A checkpoint holds the number, so each resumed run warned that the share is another one."""
    settings = TrainingSettings(steps=30, precision="fp32", logging_steps=0.05)
    assert settings.arguments(tmp_path).logging_steps == 2
    assert replace(settings, steps=None, epochs=2.0).arguments(tmp_path).logging_steps == 0.05


def test_any_field_of_the_stock_arguments_can_be_given(tmp_path: Path) -> None:
    """A user passes any field of the stock arguments, of the class that the trainer takes."""
    settings = TrainingSettings(steps=7, precision="fp32", logging_steps=3, seed=7)
    arguments = settings.arguments(tmp_path, weight_decay=0.5)
    assert (arguments.max_steps, arguments.logging_steps, arguments.weight_decay) == (7, 3, 0.5)
    dense = settings.arguments(tmp_path, SentenceTransformerTrainingArguments, prompts={"anchor": "query: "})
    assert type(dense) is SentenceTransformerTrainingArguments
    assert (dense.seed, dense.prompts, dense.dataloader_drop_last) == (7, {"anchor": "query: "}, True)


def test_one_process_trains_on_one_of_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer would take all of them by DataParallel, which the trainers refuse after costly stages."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    settings = TrainingSettings(batch_size=3, precision="fp32")
    arguments = settings.arguments(tmp_path, use_cpu=False)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, 3)


def test_a_rate_that_nobody_chose_is_asked_for(tmp_path: Path) -> None:
    """Without the check the Trainer would take its own default, which no line names."""
    with pytest.raises(ValueError, match="learning_rate must be a number before training starts"):
        TrainingSettings(learning_rate=None, precision="fp32").arguments(tmp_path)


def test_steps_and_epochs_are_not_given_together(tmp_path: Path) -> None:
    """One of them would be ignored without a word; each of them alone decides."""
    with pytest.raises(ValueError, match="received 100 steps and 3 epochs"):
        TrainingSettings(steps=100, epochs=3)
    by_epochs = TrainingSettings(epochs=3, precision="fp32").arguments(tmp_path)
    assert (by_epochs.max_steps, by_epochs.num_train_epochs) == (-1, 3)
    assert TrainingSettings(steps=100, precision="fp32").arguments(tmp_path).max_steps == 100


def test_a_best_measure_must_be_one_that_is_computed() -> None:
    """The Trainer would find out after the first evaluation."""
    settings = EvaluationSettings(eval_steps=5, best_measure="recall")
    with pytest.raises(ValueError, match=r"best_measure must be one of \['nDCG@10'\]; received 'recall'"):
        settings.check_measure(["nDCG@10"])


def test_the_preset_follows_from_the_files_of_a_model(tmp_path: Path) -> None:
    """The encoder is built by the same rule: both heads of BGE-M3, or a saved encoder with that head."""
    assert preset_of_model("lexical") == "lexforge-scratch"
    assert preset_of_model(str(tmp_path)) == preset_of_model("organisation/name") == "lexforge"
    (tmp_path / "sparse_linear.pt").touch()
    assert preset_of_model(str(tmp_path)) == "lexforge"
    (tmp_path / "colbert_linear.pt").touch()
    assert preset_of_model(str(tmp_path)) == "bge-m3"
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "modules.json").write_text('[{"type": "lexforge.models.TokenWeights"}]')
    assert preset_of_model(str(tmp_path / "run")) == "bge-m3"  # a run directory stands for its model
