"""Two ranks stop where one is asked to, and go on together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import ROWS, RandomTeacher
from transformers import TrainerCallback, set_seed

from lexforge.losses import NeuralSparseLoss
from lexforge.runs import TrainingInterrupted
from lexforge.settings import V26
from lexforge.training import SpladeTrainer, TrainingSettings

STEPS, STOPPED = 10, (1, 4, 7)  # 4 batches of each rank an epoch, two a step


class Stop(TrainerCallback):
    """A scheduler that takes the machine of rank 1."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


class StopAtTheEnd(TrainerCallback):
    """The same after the last step, when the ranks have told each other of signals for the last time."""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def trainer(checkpoint: str, folder: Path, *callbacks: TrainerCallback) -> SpladeTrainer:
    """V26 with dropout, two micro-batches a step, evaluated in between."""
    set_seed(1)
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    model.similarity_fn_name = V26.loss.similarity
    loss = NeuralSparseLoss(
        model,
        penalty_weights=torch.linspace(0.1, 3, len(model.tokenizer)),
        special_token_ids=model.tokenizer.all_special_ids,
        gather_across_devices=True,
        **V26.loss.arguments(),
    )
    settings = TrainingSettings(
        save_total_limit=None,
        steps=STEPS,
        batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        precision="fp32",
        save_steps=STEPS,
    )
    options: dict[str, Any] = {"disable_tqdm": True, "eval_strategy": "steps", "eval_steps": 3}
    return SpladeTrainer(
        model,
        loss,
        args=settings.arguments(folder, **options),
        train_dataset=Dataset.from_list(ROWS),
        eval_dataset=Dataset.from_list(ROWS[:8]),
        teacher=RandomTeacher(),
        phases=V26.loss.phases,
        callbacks=list(callbacks),
    )


def on_each_rank(checkpoint: str, run: Path) -> str:
    """A whole run, and runs that are stopped and resumed; returns their folder."""
    trainer(checkpoint, run / "whole").train()
    for step in STOPPED:
        with pytest.raises(TrainingInterrupted) as interrupted:
            trainer(checkpoint, run / f"stopped-{step}", Stop(step)).train()
        assert (interrupted.value.step, interrupted.value.code) == (step, 143)
        trainer(checkpoint, run / f"stopped-{step}").train(resume_from_checkpoint=True)
    with pytest.raises(TrainingInterrupted):
        trainer(checkpoint, run / "late", StopAtTheEnd()).train()
    return str(run)


NAMES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth")


@pytest.mark.slow
def test_a_run_that_one_rank_is_asked_to_stop_ends_as_the_run_never_stopped(
    on_ranks: Callable[..., list[Any]],
) -> None:
    """Inside an epoch, at its end and in a later one; every byte of model, optimizer, schedule and random
    states.
    """
    folder = Path(on_ranks("on_each_rank")[0])
    whole = folder / "whole" / "checkpoint-10"
    for step in (1, 4, 7):
        run = folder / f"stopped-{step}"
        assert {path.name for path in run.iterdir()} == {
            f"checkpoint-{step}",
            "checkpoint-10",
            "log.jsonl",
        }
        for name in NAMES:
            assert (run / "checkpoint-10" / name).read_bytes() == (whole / name).read_bytes(), (
                f"{step} {name}"
            )
