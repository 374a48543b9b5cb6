"""Twenty steps of `SpladeTrainer` under FSDP2 and a resumed run: run by its test, on two shards and on one.

accelerate launch --config_file recipes/accelerate/fsdp.yaml fsdp_ranks.py CHECKPOINT OUTPUT
python fsdp_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import JOINT_BATCH, ROWS, RandomTeacher
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from lexforge.data import RetrievalData
from lexforge.evaluation import RetrievalEvaluator
from lexforge.losses import NeuralSparseLoss, penalty_weights
from lexforge.negatives import NegativeRule, mine_once
from lexforge.runs import NonFiniteError, leave_processes
from lexforge.settings import Preset
from lexforge.teachers import BM25Teacher
from lexforge.training import PRESETS, SpladeTrainer, TrainingSettings

STEPS, RANKS = 20, int(os.environ.get("WORLD_SIZE", "1"))


class CountShards(TrainerCallback):
    """Keeps how many parameters are in shards after the first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        self.shards = sum(isinstance(parameter, DTensor) for parameter in model.parameters())


def make_model(checkpoint: str, preset: Preset, dtype: torch.dtype) -> SparseEncoder:
    """An encoder without dropout."""
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu").to(dtype)
    model.similarity_fn_name = preset.loss.similarity
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def make_trainer(
    checkpoint: str,
    folder: Path,
    dtype: torch.dtype,
    *callbacks: TrainerCallback,
    finishing: dict[str, float] | None = None,
    **settings: Any,
) -> SpladeTrainer:
    """V26 without dropout, and what the trainer is to do at the end; on several ranks sharded, as accelerate
    does on GPUs."""
    model = make_model(checkpoint, PRESETS["v26"], dtype)
    return trainer_of(model, PRESETS["v26"], ROWS, folder, RandomTeacher(), callbacks, finishing, settings)


def train_lexforge(checkpoint: str, folder: Path, *, resumed_from: int | None = None) -> dict[str, Any]:
    """The preset lexforge as its recipe trains it: mined negatives, BM25 as the teacher, and at the end an
    average of the weights with a share of the start."""
    if RANKS > 1:
        PartialState()  # the ranks mine together before there is a trainer
    preset = PRESETS["lexforge"]
    model = make_model(checkpoint, preset, torch.float64)
    texts = dict.fromkeys(row["positive"] for row in ROWS)
    corpus = {f"d{place}": text for place, text in enumerate(texts)}
    ids = {text: document for document, text in corpus.items()}
    data = RetrievalData(
        "rows",
        corpus,
        {f"q{place}": row["anchor"] for place, row in enumerate(ROWS)},
        {"train": {f"q{place}": {ids[row["positive"]]: 1} for place, row in enumerate(ROWS)}},
    )
    rows = mine_once(model, data, NegativeRule(last_rank=10), folder / "mined.jsonl")
    trainer = trainer_of(
        model,
        preset,
        rows,
        folder / "lexforge",
        BM25Teacher.fit(texts),
        finishing={"start_share": 0.45, "prune_threshold": 0.3, "average_horizon": 0.5},
        settings={"steps": 6, "save_steps": 3},
        # Rows may have the same negative: without duplicates, smaller batches would be made of other rows.
        batch_sampler=BatchSamplers.BATCH_SAMPLER,
    )
    checkpoint_of = f"{folder / 'lexforge'}/checkpoint-{resumed_from}"
    trainer.train(resume_from_checkpoint=checkpoint_of if resumed_from else None)
    weights = dict(trainer.model.state_dict())
    return {"rows": rows, "weights": weights, "log": trainer.state.log_history}


def trainer_of(
    model: SparseEncoder,
    preset: Preset,
    rows: list[dict[str, Any]],
    folder: Path,
    teacher: Any,
    callbacks: Any = (),
    finishing: dict[str, float] | None = None,
    settings: dict[str, Any] | None = None,
    **arguments_of_trainer: Any,
) -> SpladeTrainer:
    """A trainer of a preset, which shards the model where there are several ranks."""
    numbers = preset.loss
    special = model.tokenizer.all_special_ids
    penalties = penalty_weights(numbers, torch.linspace(0.1, 3, len(model.tokenizer)), special, [7, 8, 9])
    queries = {str(place): row["anchor"] for place, row in enumerate(ROWS)}
    documents = {str(place): row["positive"] for place, row in enumerate(ROWS)}
    # Two micro-batches a step, so that gradients are kept back once.
    training = TrainingSettings(
        save_total_limit=None,
        **{
            "steps": STEPS,
            "batch_size": JOINT_BATCH // RANKS // 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "precision": "fp32",
            "save_steps": 7,
            "logging_steps": 1,
        }
        | (settings or {}),
    )
    saves = "no" if folder.name == "resumed" else "steps"  # a save and an evaluation gather, too
    arguments = training.arguments(
        folder,
        disable_tqdm=True,
        eval_strategy=saves,
        eval_steps=10,
        save_strategy=saves,
        **arguments_of_trainer,
    )
    if RANKS > 1:  # accelerate shards on devices that it calls so, and ignores FSDP elsewhere
        PartialState().distributed_type = DistributedType.MULTI_GPU
    trainer = SpladeTrainer(
        model,
        NeuralSparseLoss(
            model,
            penalty_weights=penalties,
            special_token_ids=special,
            gather_across_devices=True,
            teacher_similarity="dot" if isinstance(teacher, BM25Teacher) else "cosine",
            **numbers.arguments(),
        ),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(ROWS[:JOINT_BATCH]),
        evaluator=RetrievalEvaluator(queries, documents, {query: {query: 1} for query in queries}),
        teacher=teacher,
        phases=numbers.phases,
        ramp_fraction=numbers.ramp_fraction,
        callbacks=list(callbacks),
        **(finishing or {}),
    )
    assert trainer.is_fsdp_enabled == (RANKS > 1)
    return trainer


def break_gradients(trainer: SpladeTrainer) -> str:
    """Turn the gradients of the last rank to NaN in the second step; returns the error."""
    compute, calls = trainer.loss.compute_loss, []

    def broken(embeddings: list[torch.Tensor], *args: Any) -> Any:
        calls.append(embeddings[0])
        if len(calls) == 3 and trainer.args.process_index == RANKS - 1:
            embeddings[0].register_hook(lambda gradient: gradient * torch.nan)
        return compute(embeddings, *args)

    trainer.loss.compute_loss = broken
    try:
        trainer.train()
    except NonFiniteError as error:
        return str(error)
    return "no error"


def main(checkpoint: str, output: str) -> None:
    folder = Path(output)
    count = CountShards()
    trainer = make_trainer(checkpoint, folder / "run", torch.float64, count)
    model = trainer.model
    trainer.train()
    assert trainer.model is model
    assert trainer.loss.model is model
    trainer.save_model(str(folder / "final"))
    resumed = make_trainer(checkpoint, folder / "resumed", torch.float64)
    resumed.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-7"))
    autocast = make_trainer(checkpoint, folder / "bf16", torch.float32, precision="bf16", steps=1)
    autocast.train()
    nan = break_gradients(make_trainer(checkpoint, folder / "nan", torch.float32))
    finishing = {"document_terms": 20, "start_share": 0.5}
    wanted = make_trainer(checkpoint, folder / "wanted", torch.float64, finishing=finishing, steps=6)
    wanted.train()
    lexforge = train_lexforge(checkpoint, folder)
    lexforge_resumed = train_lexforge(checkpoint, folder, resumed_from=3)
    results = {
        "error": nan,
        "wanted": [
            (line["terms/document_counted"], line["weight/flops_document"])
            for line in wanted.state.log_history
            if "terms/document_counted" in line
        ],
        "shards": count.shards,
        "log": trainer.state.log_history,
        "weights": dict(model.state_dict()),
        "resumed": dict(resumed.model.state_dict()),
        "lexforge": lexforge,
        "lexforge_resumed": lexforge_resumed,
        "bf16": autocast.state.log_history[0],
    }
    if trainer.is_world_process_zero():
        torch.save(results, folder / "results.pt")
    if RANKS > 1:
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
