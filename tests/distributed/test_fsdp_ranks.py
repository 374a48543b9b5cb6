"""Training under FSDP2 is training on one process, and what it saves is the whole model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import JOINT_BATCH, ROWS, RandomTeacher, without_dropout
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from lexforge.data import RetrievalData
from lexforge.evaluation import RetrievalEvaluator
from lexforge.losses import NeuralSparseLoss, penalty_weights, word_weights
from lexforge.negatives import NegativeRule, mine_once
from lexforge.runs import NonFiniteError
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
    return without_dropout(model)


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
    """The preset lexforge as its recipe trains a head that was not trained for SPLADE: mined negatives, BM25
    as the teacher, own activation, wanted numbers of terms, and at the end an average of the weights. A share
    of the start is kept too, as of a head that was."""
    preset = PRESETS["lexforge"]
    own = preset.start.untrained_own_activation
    preset = replace(preset, loss=replace(preset.loss, own_activation_weight=own))
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
        finishing={**asdict(preset.finish), "document_terms": 12, "query_terms": 6},
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
    finishing: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **arguments_of_trainer: Any,
) -> SpladeTrainer:
    """A trainer of a preset, which shards the model where there are several ranks."""
    numbers = preset.loss
    special = model.tokenizer.all_special_ids
    idf = torch.linspace(0.1, 3, len(model.tokenizer))
    penalties = penalty_weights(numbers, idf, special, [7, 8, 9])
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
            word_weights=word_weights(idf, special, [7, 8, 9]),
            gather_across_devices=True,
            teacher_similarity="cosine" if teacher is None else teacher.similarity,
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


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Whole, resumed, broken and finished runs; what they leave is told by the first rank."""
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
    if not trainer.is_world_process_zero():
        return {}
    return {
        "folder": str(folder),
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


CONFIGURATION = Path(__file__).parents[2] / "recipes" / "accelerate" / "fsdp.yaml"
TEXTS = ["list array", "the search of an index", "query document"]


@pytest.fixture(scope="module")
def runs(on_ranks: Callable[..., list[Any]]) -> dict[str, dict[str, Any]]:
    """What the first rank of two shards tells, launched as a recipe is, and what one process tells."""
    launcher = (
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(CONFIGURATION),
        "--main_process_port",
        "0",
    )
    return {
        "sharded": on_ranks("on_each_rank", launcher=launcher)[0],
        "one": on_ranks("on_each_rank", ranks=1)[0],
    }


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_two_shards_train_as_one_process(runs: dict[str, dict[str, Any]]) -> None:
    """Fused head, hard negatives, teacher, curriculum, accumulation, clipping by the norm of all shards and
    evaluation in between (loss and ranking): the same log and the same weights after twenty steps.
    """
    sharded, one = runs["sharded"], runs["one"]
    assert sharded["shards"] == len(sharded["weights"]) - 2  # the tied output embedding and its bias
    assert one["shards"] == 0
    # float64: the order of sums and the padding of a batch differ, and AdamW carries the difference on.
    torch.testing.assert_close(sharded["weights"], one["weights"], rtol=1e-7, atol=1e-8)
    assert len(sharded["log"]) == len(one["log"]) == 23  # 20 steps, 2 evaluations, the end
    for line, expected in zip(sharded["log"], one["log"], strict=True):
        assert line.keys() == expected.keys()
        for name, value in line.items():
            # A share is that of each rank's own parts, then averaged: not the same on two ranks.
            if not any(part in name for part in ("per_s", "_ms", "runtime", "share/")):
                assert math.isclose(value, expected[name], rel_tol=1e-5, abs_tol=1.1e-4), name  # four digits


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_wanted_number_of_terms_is_that_of_the_whole_model(runs: dict[str, dict[str, Any]]) -> None:
    """The terms of the gathered model are counted, and the weights of FLOPS follow as on one process."""
    sharded, one = runs["sharded"]["wanted"], runs["one"]["wanted"]
    assert len(sharded) == 6
    torch.testing.assert_close(torch.tensor(sharded), torch.tensor(one), rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_the_default_preset_trains_in_shards(runs: dict[str, dict[str, Any]]) -> None:
    """What it mines, and the average of the weights that it leaves, are those of one process; a resumed run
    reads the mined rows and goes on with the average.
    """
    sharded, one = runs["sharded"], runs["one"]
    assert sharded["lexforge"]["rows"] == one["lexforge"]["rows"]
    assert all(row["negative_1"] != row["positive"] for row in one["lexforge"]["rows"])
    # Trained in float64; the averages are float32, whose last digit may differ.
    torch.testing.assert_close(
        sharded["lexforge"]["weights"], one["lexforge"]["weights"], rtol=2e-7, atol=1e-8
    )
    for found in (sharded, one):
        assert found["lexforge_resumed"]["rows"] == found["lexforge"]["rows"]
        resumed, whole = (found[name]["weights"] for name in ("lexforge_resumed", "lexforge"))
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_what_is_saved_is_the_whole_model(runs: dict[str, dict[str, Any]]) -> None:
    """Stock sentence-transformers loads the final model and each checkpoint, and they encode as those of one
    process do.
    """
    for saved in ("final", "run/checkpoint-7", "run/checkpoint-14", "run/checkpoint-20"):
        sharded, one = (
            SparseEncoder(str(Path(runs[name]["folder"]) / saved), device="cpu")
            for name in ("sharded", "one")
        )
        assert sharded.state_dict().keys() == one.state_dict().keys()
        torch.testing.assert_close(dict(sharded.state_dict()), dict(one.state_dict()), rtol=1e-7, atol=1e-8)
        embeddings = [model.encode(TEXTS, convert_to_sparse_tensor=False) for model in (sharded, one)]
        torch.testing.assert_close(*embeddings, rtol=1e-6, atol=1e-6)
    weights = runs["sharded"]["weights"]
    final = SparseEncoder(str(Path(runs["sharded"]["folder"]) / "final"), device="cpu").state_dict()
    torch.testing.assert_close(dict(final), weights, rtol=0, atol=0, check_dtype=False)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_resumed_run_of_shards_ends_with_the_same_bytes(runs: dict[str, dict[str, Any]]) -> None:
    """From inside an epoch: weights, the optimizer's state, kept whole, scheduler and sampler."""
    for found in runs.values():
        assert all(torch.equal(found["resumed"][name], found["weights"][name]) for name in found["weights"])


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_autocast_of_shards_is_that_of_one_process(runs: dict[str, dict[str, Any]]) -> None:
    """Accelerate's own bf16 for FSDP2 would round the activations, and autocast rounds the products alone."""
    sharded, one = (found["bf16"] for found in runs.values())
    # 4e-7 apart where products are rounded alike; activations in bfloat16 are 4e-3 apart
    assert math.isclose(sharded["loss"], one["loss"], rel_tol=1e-5)
    assert math.isclose(sharded["grad_norm"], one["grad_norm"], rel_tol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_gradient_that_is_not_finite_stops_every_rank(runs: dict[str, dict[str, Any]]) -> None:
    """Its shards lie on all ranks, one norm over them tells, and the names are those without shards."""
    messages = [found["error"] for found in runs.values()]
    named = [message.split(" became NaN")[0] for message in messages]
    assert named[0] == named[1]
    assert named[0].startswith("the gradient of 0.model.bert.embeddings.word_embeddings.weight")
    assert all("in the step after 1. The last good checkpoint is /" in message for message in messages)
    assert "on rank 1" in messages[0]
