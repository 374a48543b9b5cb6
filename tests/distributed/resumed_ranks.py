"""Runs of `SpladeTrainer` on two ranks, one of them asked to stop, beside a whole run: run by its test.

torchrun --nproc-per-node 2 resumed_ranks.py CHECKPOINT FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from training_ranks import ROWS, RandomTeacher
from transformers import TrainerCallback, set_seed

from lexforge.losses import NeuralSparseLoss
from lexforge.runs import TrainingInterrupted, leave_processes
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


def main(checkpoint: str, folder: str) -> None:
    run = Path(folder)
    trainer(checkpoint, run / "whole").train()
    for step in STOPPED:
        with pytest.raises(TrainingInterrupted) as interrupted:
            trainer(checkpoint, run / f"stopped-{step}", Stop(step)).train()
        assert (interrupted.value.step, interrupted.value.code) == (step, 143)
        trainer(checkpoint, run / f"stopped-{step}").train(resume_from_checkpoint=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
