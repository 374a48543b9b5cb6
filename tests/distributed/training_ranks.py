"""Twenty steps of `SpladeTrainer` on a share of each joint batch: run by its test, on two ranks and on one.

torchrun --nproc-per-node 2 training_ranks.py CHECKPOINT OUTPUT
python training_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from transformers import TrainerCallback

from lexforge.losses import NeuralSparseLoss
from lexforge.training import PRESETS, SpladeTrainer, TrainingSettings

JOINT_BATCH, STEPS = 8, 20
WORDS = (
    "list array search index query document vector sparse token model train file graph tree path node".split()
)
ROWS = [  # no text twice: batches then follow the order of the sampler, however large they are
    {
        "anchor": f"{a} {b}",
        "positive": f"the {a} of a {b} {c}",
        "negative_1": f"{c} is not {a}",
        "negative_2": f"a {b} or {c} with an error",
    }
    for a, b, c in zip(WORDS, WORDS[1:] + WORDS[:1], WORDS[2:] + WORDS[:2], strict=True)
]


class RandomTeacher:
    """A fixed random unit vector for each text."""

    def __getitem__(self, texts: list[str]) -> np.ndarray:
        rows = [np.random.default_rng(sum(text.encode())).normal(size=8) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows])


class Recording(SpladeTrainer):
    """Keeps the parts of every step."""

    def track_loss_components(self, loss: dict[str, torch.Tensor]) -> None:
        self.__dict__.setdefault("recorded", []).append({k: v.detach().clone() for k, v in loss.items()})
        super().track_loss_components(loss)


class Gradients(TrainerCallback):
    """Keeps the gradients that the first and the last step hand to the optimizer, clipped."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, torch.Tensor]] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step in (0, STEPS - 1):
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            self.found[state.global_step] = gradients


def train(checkpoint: str, preset: str, ranks: int) -> dict[str, Any]:
    """Train in float64 without dropout; parts of every step, gradients of two, the weights at the end."""
    numbers = PRESETS[preset]  # type: ignore[index]
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu").double()
    model.similarity_fn_name = numbers.similarity
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    special = model.tokenizer.all_special_ids
    idf = torch.linspace(0.1, 3, len(model.tokenizer))
    loss = NeuralSparseLoss(
        model,
        penalty_weights=numbers.penalty_weights(idf, special, [7, 8, 9]),
        special_token_ids=special,
        gather_across_devices=True,
        **numbers.loss_arguments(),
    )
    settings = TrainingSettings(
        steps=STEPS,
        batch_size=JOINT_BATCH // ranks,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        precision="fp32",
    )
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Recording(
            model,
            loss,
            args=settings.arguments(folder, disable_tqdm=True, save_strategy="no", logging_strategy="no"),
            train_dataset=Dataset.from_list(ROWS),
            teacher=RandomTeacher() if numbers.distillation_weight else None,
            phases=numbers.phases,
            ramp_fraction=numbers.ramp_fraction,
            callbacks=[gradients],
        )
        trainer.train()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {"parts": trainer.__dict__["recorded"], "gradients": gradients.found, "weights": weights}


def main(checkpoint: str, output: str) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    results = {preset: train(checkpoint, preset, ranks) for preset in PRESETS}
    if ranks > 1:
        assert dist.get_world_size() == ranks
        for part in (
            part for result in results.values() for parts in result["parts"] for part in parts.values()
        ):
            dist.all_reduce(part)
            part /= ranks
    if ranks == 1 or dist.get_rank() == 0:
        torch.save(results, output)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
