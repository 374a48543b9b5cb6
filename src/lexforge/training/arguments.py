"""The published settings of the V26 run as training arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments


def training_arguments(
    output_dir: str | Path,
    *,
    epochs: float = 25,
    steps: int | None = None,
    batch_size: int = 24,
    gradient_accumulation_steps: int = 4,
    learning_rate: float = 3e-5,
    weight_decay: float = 0.01,
    warmup_fraction: float = 0.1,
    max_gradient_norm: float = 1.0,
    precision: str = "bf16",
    seed: int = 42,
    **others: Any,
) -> SparseEncoderTrainingArguments:
    """Arguments for `SpladeTrainer`, by default those of the published V26 run: AdamW, cosine, clipping.

    Batches hold no text twice, since a repeated positive would count as its own negative, and the incomplete
    last batch is dropped, so that every batch has the same number of negatives on every rank.

    Args:
        output_dir: Where checkpoints go.
        epochs: Passes over the data; not used where `steps` is given.
        steps: Optimizer steps, or None.
        batch_size: Rows a device and micro-batch.
        gradient_accumulation_steps: Micro-batches an optimizer step.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Of all parameters but biases and normalisation weights.
        warmup_fraction: Share of training with linear warm-up, in [0, 1).
        max_gradient_norm: Clipping norm.
        precision: "fp32", "bf16" or "fp16" autocast.
        seed: Of the sampler, dropout and whatever else draws.
        **others: Any other field of `SparseEncoderTrainingArguments`; wins over the above.

    Returns:
        The arguments.

    Raises:
        ValueError: If a number is out of range or the precision unknown.
    """
    if precision not in ("fp32", "bf16", "fp16"):
        raise ValueError(f'precision must be "fp32", "bf16" or "fp16"; received {precision!r}')
    if not 0 <= warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must lie in [0, 1); received {warmup_fraction}")
    if (steps is not None and steps < 1) or epochs <= 0 or batch_size < 1 or gradient_accumulation_steps < 1:
        raise ValueError(
            "epochs, steps, batch_size and gradient_accumulation_steps must be positive; received "
            f"{epochs=}, {steps=}, {batch_size=}, {gradient_accumulation_steps=}"
        )
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "num_train_epochs": epochs,
        "max_steps": steps or -1,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "warmup_steps": warmup_fraction,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": max_gradient_norm,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "batch_sampler": BatchSamplers.NO_DUPLICATES,
        "dataloader_drop_last": True,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "seed": seed,
        "report_to": "none",
    }
    return SparseEncoderTrainingArguments(**(settings | others))
