"""The trainer: a log that tells everything, a curriculum that survives resume, a stop where numbers break."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from transformers import PrinterCallback, TrainerState

from lexforge.losses import NeuralSparseLoss
from lexforge.runs.log_file import LogLines
from lexforge.settings import V26, Phase
from lexforge.training import SpladeTrainer, TrainingSettings
from lexforge.training.curriculum import CurriculumCallback

STEPS = 6
ONE_STEP = {"max_steps": 1, "save_strategy": "no"}


@pytest.fixture(scope="module")
def trained(
    fresh: Callable[[], SparseEncoder],
    make_trainer: Callable[..., SpladeTrainer],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[SpladeTrainer, str]:
    """The trainer after six steps, and what it printed, without a bar."""
    trainer = make_trainer(fresh(), tmp_path_factory.mktemp("trained"))
    with redirect_stdout(io.StringIO()) as printed:
        trainer.train()
    return trainer, printed.getvalue()


def test_the_log_holds_every_part_its_share_the_active_dimensions_and_the_phase(
    trained: tuple[SpladeTrainer, str],
) -> None:
    """A term that takes over the loss, or a model that grows dense, must be seen while it happens."""
    trainer, _ = trained
    parts = [name for name, weight in trainer.curriculum.loss.weights.items() if weight]
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == STEPS
    for line in lines:
        assert line["loss"] == pytest.approx(
            sum(line[f"loss/{name}"] for name in parts), rel=1e-5
        )  # the log rounds to six digits
        assert sum(line[f"share/{name}"] for name in parts) == pytest.approx(1, abs=1e-5)
        assert line["terms/query"] > 0
        assert line["terms/document"] > 0
    assert [line["phase"] for line in lines] == [1, 1, 2, 2, 2, 3]  # ends at .32 and .68 of six steps


def test_without_a_bar_a_line_of_the_log_begins_with_its_step(trained: tuple[SpladeTrainer, str]) -> None:
    """In a job's log no bar shows how far training is, and the Trainer's own lines do not say it."""
    lines = [line for line in trained[1].splitlines() if "loss" in line]
    assert [line.split(": ")[0] for line in lines] == [
        *(f"step {step} of {STEPS}" for step in range(1, STEPS + 1)),
        f"step {STEPS} of {STEPS}",  # the summary of the training
    ]
    for line in lines[:-1]:  # the rest is in log.jsonl
        names = [value.split()[0] for value in line.split(": ", 1)[1].split(", ")]
        assert names[0] == "loss"
        assert {name.split("/")[0] for name in names} == {"loss", "terms"}
        assert "terms/query" in names


def test_a_small_part_of_the_loss_is_no_zero_in_the_log(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """sentence-transformers rounds to four decimals, where a share of .001 % is lost."""
    trainer = make_trainer(tiny_splade, tmp_path)
    loss = trainer.curriculum.loss
    loss.weights["flops_document"] *= 1e-6
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert all(0 < line["loss/flops_document"] < 5e-5 for line in lines[1:])
    assert all(0 < line["share/flops_document"] < 5e-5 for line in lines[1:])


def test_above_a_bar_the_lines_are_short_too(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a terminal the Trainer writes all values of each entry, over several rows of the screen."""
    make_trainer(tiny_splade, tmp_path, arguments={"disable_tqdm": False}).train()
    written = capsys.readouterr()
    lines = [line for line in (written.out + written.err).splitlines() if "terms/query" in line]
    assert [line.split(": ")[0] for line in lines] == [
        f"step {step} of {STEPS}" for step in range(1, STEPS + 1)
    ]
    assert not any("learning_rate" in line for line in lines)


def test_a_printer_of_the_user_stays(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Only the Trainer's own is replaced."""

    class Own(PrinterCallback):
        pass

    trainer = make_trainer(tiny_splade, tmp_path, callbacks=[own := Own()])
    printers = [one for one in trainer.callback_handler.callbacks if isinstance(one, PrinterCallback)]
    assert printers[0] is own
    assert [type(one) for one in printers] == [Own, LogLines]


def test_the_learning_rate_follows_schedule_times_phase(trained: tuple[SpladeTrainer, str]) -> None:
    """The factor of a phase multiplies the cosine schedule at the same step, worked out by hand here."""
    trainer, _ = trained
    found = [line["learning_rate"] for line in trainer.state.log_history if "loss" in line]
    factors = [1, 1, 0.5, 0.5, 0.5, 0.25]
    warm_up = 1  # ceil(0.1 * 6)
    for step, (rate, factor) in enumerate(zip(found, factors, strict=True)):
        share = (step - warm_up) / (STEPS - warm_up)
        cosine = 0.0 if step < warm_up else 0.5 * (1 + math.cos(math.pi * share))
        assert rate == pytest.approx(1e-3 * cosine * factor, abs=1e-12), step


def test_evaluation_data_may_be_named(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """Several sets by name, as sentence-transformers takes them; the rows of each are checked."""
    rows = Dataset.from_list(training_rows)
    trainer = make_trainer(tiny_splade, tmp_path, eval_dataset={"first": rows, "second": rows})
    measured = trainer.evaluate()
    assert {"eval_first_loss", "eval_second_loss"} <= measured.keys()
    wrong = rows.map(lambda row: {"positive": " "})
    with pytest.raises(ValueError, match="column 'positive', row 0: the text is blank"):
        make_trainer(tiny_splade, tmp_path, eval_dataset={"first": rows, "second": wrong})


def test_a_schedule_without_factors_cannot_follow_phases(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Ignoring the phase's learning rate in silence would train another run than the one asked for."""
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.args.lr_scheduler_type = "reduce_lr_on_plateau"
    with pytest.raises(ValueError, match="schedule made of factors"):
        trainer.train()


def test_a_term_that_is_switched_off_stays_off(tiny_splade: SparseEncoder) -> None:
    """An ablation sets a weight to 0; a phase that turned the term on again would ablate nothing."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    callback = CurriculumCallback(loss, V26.loss.phases)
    callback.on_step_begin(None, TrainerState(global_step=9, max_steps=10), None)  # type: ignore[arg-type]
    assert (loss.temperature, loss.weights["infonce"], loss.weights["distillation"]) == (0.04, 3.0, 0.0)


def test_the_ramp_reaches_the_loss(
    tiny_splade: SparseEncoder, tmp_path: Path, training_rows: list[dict[str, str]]
) -> None:
    """Without a ramp the penalty of special tokens hits an untrained model at full strength."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    seen: list[float] = []
    compute = loss.compute_loss

    def spy(*args: Any) -> dict[str, torch.Tensor]:
        seen.append(loss.regularizer_ramp)
        return compute(*args)

    loss.compute_loss = spy  # type: ignore[method-assign]
    trainer = SpladeTrainer(
        tiny_splade,
        loss,
        args=TrainingSettings(
            steps=4, batch_size=2, gradient_accumulation_steps=1, precision="fp32"
        ).arguments(tmp_path, disable_tqdm=True),
        train_dataset=Dataset.from_list(training_rows),
        ramp_fraction=0.5,
    )
    trainer.train()
    assert seen == [0.0, 0.25, 1.0, 1.0]
    assert trainer.curriculum.phases == ()
    with pytest.raises(ValueError, match="ramp_fraction"):
        SpladeTrainer(tiny_splade, loss, ramp_fraction=2.0, phases=(Phase(1.0, 1, 1, 1),))


def test_the_evaluation_loss_is_that_of_the_model_alone(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """A model that does not change has one evaluation loss, whatever the phase, the ramp and the step are;
    `load_best_model_at_end` would otherwise choose by the step. The value is that of the last phase.
    """
    arguments = {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.0}
    rows = Dataset.from_list(training_rows)
    trainer = make_trainer(tiny_splade, tmp_path, eval_dataset=rows, ramp_fraction=0.9, arguments=arguments)
    losses = [trainer.evaluate()["eval_loss"]]
    trainer.train()
    losses += [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    losses.append(trainer.evaluate()["eval_loss"])
    assert len(losses) == STEPS + 2
    assert set(losses) == {losses[0]}
    last = make_trainer(tiny_splade, tmp_path, eval_dataset=rows, phases=())
    last.loss.temperature = V26.loss.phases[-1].temperature
    last.loss.weights["infonce"] = V26.loss.phases[-1].infonce_weight
    last.loss.weights["distillation"] = V26.loss.phases[-1].distillation_weight
    assert last.evaluate()["eval_loss"] == losses[0]


def test_after_an_evaluation_the_loss_has_the_values_of_its_step_again(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """Training with evaluations has the same temperature, weights and ramp at each step as without."""

    def train(folder: str, **arguments: Any) -> list[tuple[float, float, dict[str, float]]]:
        rows = Dataset.from_list(training_rows)
        trainer = make_trainer(
            tiny_splade, tmp_path / folder, eval_dataset=rows, ramp_fraction=0.5, arguments=arguments
        )
        loss, seen = trainer.curriculum.loss, []
        compute = loss.compute_loss

        def spy(*args: Any) -> dict[str, torch.Tensor]:
            if tiny_splade.training:
                seen.append((loss.temperature, loss.regularizer_ramp, dict(loss.weights)))
            return compute(*args)

        loss.compute_loss = spy  # type: ignore[method-assign]
        trainer.train()
        return seen

    without = train("without")
    assert len({str(values) for values in without}) == 5  # the ramp and the phases differ from step to step
    assert train("with", eval_strategy="steps", eval_steps=1) == without


@pytest.mark.parametrize("fails", [False, True])
def test_a_loss_that_has_trained_has_the_values_that_it_was_given(
    fails: bool,
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second training with it would otherwise have the weights of the first one's last step."""
    trainer = make_trainer(tiny_splade, tmp_path, ramp_fraction=1.0, document_terms=5)
    loss = trainer.curriculum.loss

    def values() -> tuple[Any, ...]:
        return loss.temperature, loss.regularizer_ramp, dict(loss.weights), dict(loss.sparsity_factors)

    given, seen = values(), []

    def note(logs: dict[str, float], start_time: float | None = None) -> None:
        seen.append(values())
        if fails:
            raise RuntimeError("stopped")

    monkeypatch.setattr(trainer, "log", note)
    with pytest.raises(RuntimeError, match="stopped") if fails else nullcontext():
        trainer.train()
    assert all(moved != before for moved, before in zip(seen[0], given, strict=True))
    assert values() == given


@pytest.mark.parametrize(("wanted", "share"), [(None, 0.1), (0.0, 0.0), (0.3, 0.3)])
def test_dropout_is_that_of_the_training(
    wanted: float | None,
    share: float,
    fresh: Callable[[], SparseEncoder],
    make_trainer: Callable[..., SpladeTrainer],
    tmp_path: Path,
) -> None:
    """The model trains with the wanted share, and its saved configuration keeps its own."""
    model = fresh()
    make_trainer(model, tmp_path, dropout=wanted, arguments=ONE_STEP).train()
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {share}
    assert model[0].model.config.hidden_dropout_prob == 0.1
