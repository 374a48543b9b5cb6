"""What all recipes do before they read data, and after their model is trained and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from transformers import EarlyStoppingCallback, TrainerCallback

from lexforge import evaluation, export, models, report, runs
from lexforge.settings import CardOptions, EvaluationSettings, TrainingSettings
from lexforge.training.hub import push_model


class RecipeConfig(Protocol):
    """The settings that every recipe has."""

    data: str
    model: str
    card: CardOptions
    output_dir: Path
    resume: bool
    evaluation: EvaluationSettings
    train: TrainingSettings


def check_run(
    cfg: Any, wanted: Literal["SparseEncoder", "SentenceTransformer"], measures: Sequence[str]
) -> None:
    """Refuse what would stop a run later, before any data is read; every rank must call this.

    Args:
        cfg: The settings of the run (`RecipeConfig`).
        wanted: The class of sentence-transformers that loads the model: "SparseEncoder" or
            "SentenceTransformer".
        measures: The names of the measures that the evaluation on dev computes.

    Raises:
        FileNotFoundError: If there is no such model, or nothing to resume.
        FileExistsError: If the run directory holds another run.
        ValueError: If the model is of another class, a measure, an optimizer or a tracker is unknown, or a
            resumed run has other settings.
        ImportError: If the package of a tracker is missing.
    """
    cfg.evaluation.check_measure(measures)
    models.check_model(cfg.model, wanted)
    runs.check_run_directory(cfg.output_dir, cfg, resume=cfg.resume)
    check_optimizer(cfg.train.optim)
    check_trackers(cfg.train.report_to)


def check_optimizer(name: str) -> None:
    """Refuse an optimizer that transformers does not know.

    Args:
        name: The name of `TrainingSettings.optim`.

    Raises:
        ValueError: If there is none of that name.
    """
    from transformers.training_args import OptimizerNames

    known = [one.value for one in OptimizerNames]
    if name not in known:
        raise ValueError(f"optim must be one of {known}; received {name!r}")


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that the Trainer does not know or that is not installed.

    Args:
        names: The trackers of `TrainingSettings.report_to`.

    Raises:
        ValueError: If the Trainer knows no tracker of that name.
        ImportError: If its package is missing.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = sorted(INTEGRATION_TO_CALLBACK)
            raise ValueError(f"report_to may name {known}; received {name!r}")
        if name not in get_available_reporting_integrations():
            raise ImportError(f"report_to names {name!r}, whose package is not installed")


def early_stopping(settings: EvaluationSettings) -> list[TrainerCallback]:
    """Return the callback that stops a training whose `best_measure` gets no better, if it is asked for."""
    return [] if settings.early_stopping is None else [EarlyStoppingCallback(settings.early_stopping)]


def finish_run(
    cfg: RecipeConfig,
    model: BaseModel,
    trainer: BaseTrainer,
    stages: runs.Stages,
    *,
    task: Any,
    split: str,
    measured: int,
    metrics: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
    examples: str = "",
    **others: Any,
) -> None:
    """Leave the card, the numbers and the page of a run, print what it found, and upload the model.

    Args:
        cfg: The settings of the run.
        model: The trained model, which stands in `model/` of the run directory.
        trainer: The trainer, after training.
        stages: The stages of the run, which end here.
        task: What the model was measured on, as `lexforge.export.write_card` takes it.
        split: The split that it was measured on.
        measured: Number of texts, pairs or documents that were measured.
        metrics: System -> measure -> value.
        settings: Settings that a reader of the card needs, by name.
        examples: Text that is printed below the table.
        **others: What `metrics.json` holds beside `metrics`. The seconds of the stages join its `timing`.
    """
    folder = Path(cfg.output_dir)
    export.write_card(
        model,
        folder / "model",
        cfg.card,
        task=task,
        base_model=cfg.model,
        data=cfg.data,
        split=split,
        measured=measured,
        metrics=metrics,
        settings={**settings, "steps": trainer.state.global_step, "seed": cfg.train.seed},
        command=runs.launch_command(),
    )
    timing = {**others.pop("timing", {}), "stage_seconds": stages.end()}
    runs.write_json(folder / "metrics.json", {**metrics, "timing": timing, **_best(trainer.state), **others})
    print(evaluation.metrics_table(metrics))
    if examples:
        print(examples)
    print(f"\nDiagnosis:\n{report.findings_text(report.diagnose(folder))}")
    print(f"\n{stages.table()}")
    print(report.run_verdict(folder))
    print(f"{folder} holds the model and the numbers.")
    print(f"{report.write_page(folder)} shows the run in a browser.")
    if cfg.card.push_to_hub is not None:
        print(f"The model was uploaded to {push_model(trainer, folder / 'model')}")


def _best(state: Any) -> dict[str, dict[str, float]]:
    """Return which checkpoint the trainer has chosen as the best; empty where none was chosen."""
    if state.best_model_checkpoint is None:
        return {}
    return {"best_checkpoint": {"step": state.best_global_step, "value": state.best_metric}}
