"""What recipes share: their beginning, data, encoder and arguments of a trainer, and what a run leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from accelerate import PartialState
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from lexforge import data, evaluation, export, models, report, runs
from lexforge.common.numbers import byte_size
from lexforge.settings import BACKBONE, LEXICAL, RecipeSettings, TrainingSettings
from lexforge.training.any_loss import check_training_length
from lexforge.training.plan import Plan
from lexforge.training.precision import widen_weights

Encoder = TypeVar("Encoder", bound=BaseModel)
Recipe = TypeVar("Recipe", bound=RecipeSettings)


def begin_run(
    cfg: Recipe,
    resolve: Callable[[Recipe], Recipe],
    encoder_class: Literal["SparseEncoder", "SentenceTransformer"],
    *,
    routes: bool = True,
) -> tuple[Recipe, PartialState, runs.Stages, Plan | None]:
    """Start the processes of a run, and refuse what would stop it later, before any data is read.

    All processes train; only the main process measures and writes.

    Args:
        cfg: The settings as the user gave them.
        resolve: Fills in what follows from the model.
        encoder_class: The class of sentence-transformers that loads the model: "SparseEncoder" or
            "SentenceTransformer".
        routes: Whether the recipe tells queries from documents, as a model with a `Router` needs it.

    Returns:
        The settings, resolved, and for a plan those of a few steps in a folder of their own; this process
        among those of the run; the stages of the run; and the plan, if `--plan` asks for one.

    Raises:
        FileNotFoundError: If there is no such model, or nothing to resume.
        FileExistsError: If the run directory holds another run.
        ValueError: If the model is of another class, or has a `Router` without use, an optimizer or a tracker
            is unknown, or a resumed run has other settings.
        ImportError: If the package of an optimizer or a tracker is missing.
    """
    process = runs.start_processes(cfg.train.seed)
    stages = runs.Stages(process)
    stages.begin("check the options")
    cfg = resolve(cfg)
    plan = Plan(cfg, process, stages) if cfg.plan else None
    check_training(cfg.train)
    if plan is not None:
        cfg = plan.short()
    models.check_model(cfg.model, encoder_class, routes=routes)
    runs.check_run_directory(cfg.output_dir, cfg)
    return cfg, process, stages, plan


def check_training(train: TrainingSettings) -> None:
    """Refuse fp16 on a processor, and an optimizer or a tracker that is unknown or not installed.

    Args:
        train: The settings of the training.

    Raises:
        ValueError: If transformers knows none of that name, the optimizer needs what the recipes lack, or
            accelerate would leave fp16 out.
        ImportError: If its package is missing.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    if train.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError(
            "--precision fp16 would be ignored without a GPU, and the run would train in float32: take bf16, "
            "fp32 or auto"
        )
    for name in train.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            known = sorted(INTEGRATION_TO_CALLBACK)
            raise ValueError(f"report_to may name {known}; received {name!r}")
        if name not in get_available_reporting_integrations():
            raise ImportError(f"report_to names {name!r}, whose package is not installed")
    # The Trainer looks for it when the first step is near, after everything was measured. Arguments that want
    # another device than those of the run would part the ranks.
    cpu = not torch.accelerator.is_available()
    arguments = TrainingArguments("unused", optim=train.optim, report_to=[], use_cpu=cpu)
    Trainer.get_optimizer_cls_and_kwargs(arguments)


def read_retrieval(
    cfg: Any, process: PartialState, *, given_rows: bool
) -> tuple[data.TrainingData, dict[str, evaluation.RetrievalEvaluator]]:
    """Read what a retrieval recipe trains on and is measured by, and print what its files were taken for.

    The train split gives the rows; the test split is measured before and after training, and the dev split
    during training. All search the same documents.

    Args:
        cfg: The settings of the run, with the `source`, the `evaluation` and the `eval_documents`.
        process: This process among those of the run.
        given_rows: Whether rows of texts are trained on as they are given.

    Returns:
        The data, and split -> evaluator.

    Raises:
        DataError: If the data cannot be used; the message names the place.
    """
    with process.main_process_first():
        loaded = data.load_training_data(
            cfg.data, cfg.evaluation.splits, cfg.source, given_rows=given_rows, documents=cfg.eval_documents
        )
    for note in loaded.notes:  # what was guessed, left out and counted in the files
        process.print(note)
    return loaded, evaluation.evaluators_by_split(loaded.measured, cfg.evaluation.splits)


def load_start(
    cfg: Any,
    folder: Path,
    texts: Sequence[str],
    process: PartialState,
    stages: runs.Stages,
    build: Callable[..., Encoder],
) -> Encoder:
    """Load the encoder of a run, or build the lexical backbone; its weights are trained in float32.

    Args:
        cfg: The settings of the run, resolved, with the `model`, the `max_seq_length` and `train`.
        folder: The run directory, which keeps the lexical backbone under the name `BACKBONE`.
        texts: The texts that give the lexical backbone its vocabulary and its weights.
        process: This process among those of the run.
        stages: The stages of the run.
        build: Makes the encoder of a checkpoint: `lexforge.models.build_dense` or another function that takes
            a checkpoint and `max_seq_length`.

    Returns:
        The encoder before training.

    Raises:
        ValueError: If all of its weights are frozen, or `training_seq_length` is beyond what it reads.
    """
    stages.begin("load the encoder" if cfg.model != LEXICAL else "build the encoder")
    with process.main_process_first():
        checkpoint = models.resolve_backbone(
            cfg.model,
            texts,
            folder / BACKBONE,
            max_seq_length=cfg.max_seq_length,
            seed=cfg.train.seed,
        )
    model = build(checkpoint, max_seq_length=cfg.max_seq_length)
    # The trainer refuses it too, but only after negatives are mined and teachers have been asked.
    check_training_length(cfg.train.training_seq_length, model.max_seq_length)
    for line in widen_weights(model):
        process.print(line)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            f"no weight of {cfg.model} can be trained, as of an adapter that peft has loaded; merge it into "
            "its model first (merge_and_unload), and give that as --model"
        )
    return model


class QuarterSteps(TrainerCallback):
    """Saves each quarter of a training whose number of steps follows from epochs.

    It leaves alone a training whose settings say when to save, or which saves where it is evaluated.

    Args:
        settings: The settings of the run.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set what could not be set before the number of steps was known."""
        if self.settings.save_steps is None and not args.load_best_model_at_end:
            state.save_steps = self.settings.checkpoint_steps(state.max_steps)


def trainer_options(
    cfg: RecipeSettings, arguments_class: type[Any] | None = None, **others: Any
) -> dict[str, Any]:
    """Return what any trainer of the package takes from the settings of a run.

    Args:
        cfg: The settings of the run, resolved.
        arguments_class: The class of the training arguments; None is `SparseEncoderTrainingArguments`.
        **others: Fields of that class that the settings do not have, or have otherwise.

    Returns:
        `args`, with the folder of the run and the evaluation on dev; `callbacks`, for early stopping and the
        checkpoints of a training by epochs; and how the encoder computes (`AnyLossTraining`).
    """
    patience = cfg.evaluation.early_stopping
    return {
        "args": cfg.train.arguments(
            cfg.output_dir,
            arguments_class,
            **cfg.evaluation.arguments(),
            **hub_arguments(cfg.card.push_to_hub),
            **others,
        ),
        "callbacks": [
            *([] if patience is None else [EarlyStoppingCallback(patience)]),
            QuarterSteps(cfg.train),
        ],
        **cfg.train.encoder_options(),
    }


def hub_arguments(name: str | None) -> dict[str, Any]:
    """Return the arguments of the Trainer that prepare an upload.

    The Trainer makes the repository when it is built, so missing credentials or a wrong name end the run
    before training. It uploads nothing itself: it would upload the run directory, in which a model's files
    replace those of the run.

    Args:
        name: `organisation/name`; None for no upload.

    Returns:
        Fields of the training arguments, with which a new repository is private; none for no upload.
    """
    if name is None:
        return {}
    return {"push_to_hub": True, "hub_model_id": name, "hub_private_repo": True, "hub_strategy": "end"}


def save_model(model: BaseModel, folder: Path) -> None:
    """Save the model of a run, before anything else can fail.

    Args:
        model: The model, after training.
        folder: The folder of the model, in the run directory.

    Raises:
        DiskFullError: If the model does not fit on the disk.
    """
    try:
        model.save_pretrained(str(folder), create_model_card=False)
    except Exception as error:  # the writer of safetensors raises one of its own
        needed = sum(weight.nbytes for weight in model.parameters())
        free = shutil.disk_usage(folder.parent).free
        if free >= needed:
            raise
        raise runs.DiskFullError(
            f"the model of {byte_size(needed)} does not fit into {folder}, where {byte_size(free)} are free. "
            "The last checkpoint is whole: make room, and resume the run (--resume)"
        ) from error


def finish_run(
    cfg: RecipeSettings,
    trainer: BaseTrainer,
    stages: runs.Stages,
    *,
    task: Any,
    measured: int,
    metrics: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
    examples: str = "",
    **others: Any,
) -> None:
    """Leave the card, the numbers and the page of a run, print what it found, and upload the model.

    Args:
        cfg: The settings of the run.
        trainer: The trainer, after training; its model stands in `model/` of the run directory.
        stages: The stages of the run, which end here.
        task: What the model was measured on, as `lexforge.export.write_card` takes it.
        measured: Number of texts, pairs or documents of the test split that were measured.
        metrics: System -> measure -> value.
        settings: Settings that a reader of the card needs, by name.
        examples: Text that is printed below the table.
        **others: What `metrics.json` holds beside `metrics`. The seconds of the stages join its `timing`.
    """
    folder, model = Path(cfg.output_dir), trainer.model
    export.write_card(
        model,
        folder / "model",
        cfg.card,
        task=task,
        base_model=cfg.model,
        data=cfg.data,
        measured=measured,
        metrics=metrics,
        settings={**settings, "steps": trainer.state.global_step, "seed": cfg.train.seed},
        command=runs.launch_command(),
    )
    timing: dict[str, Any] = {**others.pop("timing", {}), "stage_seconds": stages.end()}
    if cfg.resume:  # those of the processes before are not known
        timing["resumed"] = True
    state, best = trainer.state, {}
    if state.best_model_checkpoint is not None:
        best = {"best_checkpoint": {"step": state.best_global_step, "value": state.best_metric}}
    runs.write_json(folder / "metrics.json", {**metrics, "timing": timing, **best, **others})
    print(evaluation.metrics_table(metrics))
    if examples:
        print(examples)
    print(f"\nDiagnosis:\n{report.findings_text(report.diagnose(folder))}")
    print(f"\n{stages.table()}")
    print(report.run_verdict(folder))
    print(f"{folder} holds the model and the numbers.")
    print(f"{report.write_page(folder)} shows the run in a browser.")
    if cfg.card.push_to_hub is not None:
        address = model.push_to_hub(
            cfg.card.push_to_hub,
            private=True,  # where there is no such repository yet
            exist_ok=True,
            local_model_path=str(folder / "model"),
            commit_message="End of training",
        )
        print(f"The model was uploaded to {address}")
