"""What is not supported in shards is refused before training, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from transformers import Trainer

from lexforge.losses import EmbeddingLoss, MoCoLoss, NWSLoss
from lexforge.runs.checkpoint_folders import seal
from lexforge.runs.sharded import EXPERIMENTAL
from lexforge.training import DenseTrainer, SpladeTrainer, TrainingSettings

MakeTrainer = Callable[..., SpladeTrainer]
SUPPORTED = {
    "fsdp_version": 2,
    "state_dict_type": "FULL_STATE_DICT",
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
}


@pytest.fixture
def under_fsdp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Settings of accelerate's plugin -> trainers that find FSDP switched on with them."""
    create = Trainer.create_accelerator_and_postprocess
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # the plugin writes it

    def switch_on(**settings: Any) -> None:
        plugin = FullyShardedDataParallelPlugin(**(SUPPORTED | settings))

        def sharded(self: Trainer) -> None:
            create(self)
            self.accelerator.state.fsdp_plugin = plugin
            self.is_fsdp_enabled = True

        monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", sharded)

    yield switch_on
    AcceleratorState._shared_state.pop("fsdp_plugin", None)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "fsdp_state_dict_type other than FULL_STATE_DICT"),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP"}, "fsdp_auto_wrap_policy: SIZE_BASED_WRAP"),
        ({"cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading"),
        ({"cpu_offload": True}, "fsdp_offload_params"),
        ({"activation_checkpointing": True}, "fsdp_activation_checkpointing"),
        ({"ignored_modules": []}, "fsdp_ignored_modules"),
    ],
)
def test_settings_of_fsdp_that_are_not_supported(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    under_fsdp: Callable[..., None],
    settings: dict[str, Any],
    named: str,
) -> None:
    """Each would save shards, or untie the output embedding, or is tested nowhere."""
    under_fsdp(**settings)
    with pytest.raises(ValueError, match=rf"under FSDP2 this is not supported: {named}\. .*fsdp\.yaml"):
        make_trainer(tiny_splade, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fp16", True, "fp16"),
        ("optim", "adafactor", "optim adafactor"),
        ("torch_compile", True, "torch_compile"),
        ("auto_find_batch_size", True, "auto_find_batch_size"),
        ("load_best_model_at_end", True, "load_best_model_at_end"),
    ],
)
def test_training_arguments_that_are_not_supported(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    under_fsdp: Callable[..., None],
    name: str,
    value: Any,
    said: str,
) -> None:
    """Set after construction, as some need a GPU or an evaluation to be accepted at all."""
    under_fsdp()
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.sharded.refuse_settings()
    setattr(trainer.args, name, value)
    with pytest.raises(ValueError, match=rf"not supported: {said}\. "):
        trainer.sharded.refuse_settings()


@pytest.mark.parametrize("is_first_rank", [True, False])
def test_a_run_says_once_that_fsdp_is_experimental(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    under_fsdp: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_first_rank: bool,
) -> None:
    """Whoever starts it on GPUs should know that nobody has; the other ranks and other runs say nothing."""
    monkeypatch.setattr(Trainer, "is_world_process_zero", lambda self: is_first_rank)
    make_trainer(tiny_splade, tmp_path)
    assert EXPERIMENTAL not in caplog.messages
    under_fsdp()
    make_trainer(tiny_splade, tmp_path)
    assert caplog.messages.count(EXPERIMENTAL) == int(is_first_rank)


@pytest.mark.parametrize(
    "make_loss",
    [
        lambda model: MoCoLoss(model, queue_size=8),
        lambda model: NWSLoss(model, torch.zeros(3, 3), aggregate="mean", alpha=0.5, use_keys=False),
    ],
)
def test_losses_with_parameters_or_averages_are_refused(
    tiny_dense: SentenceTransformer,
    tmp_path: Path,
    under_fsdp: Callable[..., None],
    make_loss: Callable[..., EmbeddingLoss],
) -> None:
    """Accelerate shards one module, the model, and an average of shards follows nothing."""
    under_fsdp()
    arguments = TrainingSettings(precision="fp32").arguments(tmp_path, SentenceTransformerTrainingArguments)
    with pytest.raises(ValueError, match="a loss with trained parameters or a momentum encoder"):
        DenseTrainer(tiny_dense, make_loss(tiny_dense), args=arguments)


@pytest.mark.parametrize("layer", ["BertEmbeddings", "BertLMPredictionHead"])
def test_the_output_embedding_stays_with_the_root(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    under_fsdp: Callable[..., None],
    layer: str,
) -> None:
    """A class that holds it, or the input embedding tied to it, is refused; the layers' class is not."""
    under_fsdp(transformer_cls_names_to_wrap=["BertLayer"])
    make_trainer(tiny_splade, tmp_path).sharded.refuse_layers()
    under_fsdp(transformer_cls_names_to_wrap=["BertLayer", layer])
    with pytest.raises(ValueError, match=f"fsdp_transformer_layer_cls_to_wrap: {layer} holds the output"):
        make_trainer(tiny_splade, tmp_path).train()


def test_other_shards_are_refused(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    under_fsdp: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FSDP1 hides the weight that the fused head reads; DeepSpeed saves shards as if they were the model."""
    under_fsdp(fsdp_version=1, reshard_after_forward="FULL_SHARD")
    with pytest.raises(ValueError, match=r"^FSDP1 is not supported.*multi_gpu\.yaml.*fsdp\.yaml"):
        make_trainer(tiny_splade, tmp_path)
    monkeypatch.undo()
    create = Trainer.create_accelerator_and_postprocess

    def deepspeed(self: Trainer) -> None:
        create(self)
        self.is_deepspeed_enabled = True

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", deepspeed)
    with pytest.raises(ValueError, match=r"^DeepSpeed is not supported.*multi_gpu\.yaml"):
        make_trainer(tiny_splade, tmp_path)
    monkeypatch.undo()
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.args._n_gpu = 2
    with pytest.raises(ValueError, match=r"^nn\.DataParallel over the GPUs .*multi_gpu\.yaml"):
        trainer.sharded.refuse_other_shards()


def test_a_checkpoint_of_the_other_kind_is_refused(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, under_fsdp: Callable[..., None]
) -> None:
    """The Trainer would look for a file that is not there, on one rank, while the others wait for it."""
    trainer = make_trainer(tiny_splade, tmp_path / "run")
    trainer.train()
    checkpoint = tmp_path / "run" / "checkpoint-2"
    under_fsdp()
    sharded = make_trainer(tiny_splade, tmp_path / "run")
    with pytest.raises(ValueError, match="was saved without FSDP2 and cannot be resumed with it"):
        sharded.train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "optimizer.pt").rename(checkpoint / "optimizer.bin")
    seal(checkpoint)
    with pytest.raises(ValueError, match="was saved with FSDP2 and cannot be resumed without it"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
