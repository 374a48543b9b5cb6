"""Training with parameters sharded over ranks by FSDP2, beside the whole model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import save_fsdp_optimizer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor
from transformers.trainer import OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCHEDULER_NAME
from transformers.trainer_utils import TrainOutput

from lexforge.losses.base import loss_tensors


class ShardedTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: train under FSDP2 and keep the model whole.

    FSDP2 shards a copy of the model, and the copy is what trains. The model itself stays whole, in the memory
    of each rank's CPU, and takes over the values of the shards when it is evaluated or saved and when
    training ends: so checkpoints are those of any other run, and after `train` the model is as after training
    on one GPU. (If `train` raises, it is as it was last saved.) The optimizer's state is saved whole; a run
    is resumed under FSDP2. Without FSDP2 nothing changes.

    Raises:
        ValueError: At construction, under DeepSpeed, FSDP1 or `nn.DataParallel`, and under FSDP2 with what it
            is not tested with: a loss with trained parameters or a momentum encoder, fp16, offloading,
            loading on rank 0 only, ... By `train`, for a layer class that must not be sharded by itself, and
            for a checkpoint that was saved without FSDP2 (or with it, where this run is without).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._whole: BaseModel | None = None  # while shards of its copy are trained
        self._refuse_other_shards()
        if self.is_fsdp_enabled:
            self._refuse_settings()
            # Autocast does it instead, as on one GPU: a policy would round the embeddings to bfloat16.
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = None

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train; under FSDP2 a sharded copy of the model, whose weights the model has in the end."""
        if resume_from_checkpoint:
            self._refuse_other_checkpoint(Path(str(resume_from_checkpoint)))
        if not self.is_fsdp_enabled:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        self._refuse_layers()
        if resume_from_checkpoint:
            self._load_from_checkpoint(str(resume_from_checkpoint))
        whole, card = self.model, self.model.model_card_data
        self._use(copy.deepcopy(whole, {id(card): card}))  # the card knows this trainer
        self._whole = whole.to("cpu")
        try:
            output = super().train(resume_from_checkpoint, *args, **kwargs)
            self._gather()
        finally:
            self._whole = self.optimizer = self.lr_scheduler = None
            self._use(whole.to(self.args.device))
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the whole model."""
        with self._whole_in_place(self.args.device):
            return super().evaluate(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model; under FSDP2 to be called on every rank, as every rank has a share of it."""
        with self._whole_in_place("cpu"):
            super().save_model(output_dir, _internal_call)

    def autocast_smart_context_manager(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Autocast the shards, which accelerate does for models that it wraps and not for those it shards."""
        return (
            super().autocast_smart_context_manager(*args, **kwargs)
            if self._whole is None
            else self.accelerator.autocast()
        )

    @contextmanager
    def _whole_in_place(self, device: torch.device | str) -> Iterator[None]:
        """Gather the shards, and hide that there are any."""
        shards, whole, sharded = self.model, self._whole, self.is_fsdp_enabled
        if whole is not None:
            self._gather()
            self._use(whole.to(device))
        self.is_fsdp_enabled = False
        try:
            yield
        finally:
            self.is_fsdp_enabled = sharded
            if whole is not None:
                self._use(shards)
                whole.to("cpu")

    @torch.no_grad()
    def _gather(self) -> None:
        """Copy the shards of all ranks into the whole model of each, one tensor at a time."""
        assert self._whole is not None
        own = self._whole.state_dict()
        for name, tensor in self.model.state_dict().items():
            own[name].copy_(whole_tensor(tensor))

    def _use(self, model: BaseModel) -> None:
        self.model = self.model_wrapped = self.callback_handler.model = model
        for loss in self._losses():
            self.override_model_in_loss(loss, model)

    def _losses(self) -> list[nn.Module]:
        return list(self.loss.values()) if isinstance(self.loss, dict) else [self.loss]

    def _refuse_other_shards(self) -> None:
        found = {
            "DeepSpeed": self.is_deepspeed_enabled,
            "nn.DataParallel over the GPUs of one process": self.args.n_gpu > 1,
            "FSDP1": self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.fsdp_version != 2,
        }
        if any(found.values()):
            raise ValueError(
                f"{_listed(found)} is not supported: train with DistributedDataParallel, one process a GPU: "
                "accelerate launch --config_file recipes/accelerate/multi_gpu.yaml (one GPU: one_gpu.yaml; "
                "FSDP2, where the optimizer's state does not fit into one: fsdp.yaml)"
            )

    def _refuse_settings(self) -> None:
        plugin = self.accelerator.state.fsdp_plugin
        policy = getattr(plugin.auto_wrap_policy, "func", plugin.auto_wrap_policy)
        own = [loss_tensors(loss).keys() - dict(loss.named_buffers()).keys() for loss in self._losses()]
        found = {
            "fsdp_state_dict_type other than FULL_STATE_DICT": "FULL" not in str(plugin.state_dict_type),
            "fsdp_auto_wrap_policy: SIZE_BASED_WRAP": policy is size_based_auto_wrap_policy,
            # It moves the model to the device `meta`, where the output embedding loses its tie.
            "fsdp_cpu_ram_efficient_loading": plugin.cpu_ram_efficient_loading,
            "fsdp_offload_params": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
            "fsdp_activation_checkpointing": plugin.activation_checkpointing,
            "fsdp_ignored_modules": plugin.ignored_modules is not None,
            "fp16": self.args.fp16,
            "torch_compile": self.args.torch_compile,
            "auto_find_batch_size": self.args.auto_find_batch_size,
            "load_best_model_at_end": self.args.load_best_model_at_end,
            "a loss with trained parameters or a momentum encoder": any(own),
        }
        if any(found.values()):
            raise ValueError(
                f"under FSDP2 this is not supported: {_listed(found)}. Leave it out (the settings of "
                "recipes/accelerate/fsdp.yaml are supported), or train with DistributedDataParallel: "
                "accelerate launch --config_file recipes/accelerate/multi_gpu.yaml"
            )

    def _refuse_layers(self) -> None:
        """A group of FSDP2 gathers its parameters for its own forward: none may be read elsewhere."""
        heads = [getattr(module, "get_output_embeddings", lambda: None)() for module in self.model.modules()]
        at_head = {parameter for head in heads if head is not None for parameter in head.parameters()}
        for name in self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap or ():
            layers = [module for module in self.model.modules() if type(module).__name__ == name]
            if any(not at_head.isdisjoint(layer.parameters()) for layer in layers):
                raise ValueError(
                    f"fsdp_transformer_layer_cls_to_wrap: {name} holds the output embedding (or the input "
                    "embedding that it is tied to); name the class of the encoder's layers alone, such as "
                    "BertLayer or XLMRobertaLayer"
                )

    def _refuse_other_checkpoint(self, checkpoint: Path) -> None:
        """Without FSDP2 the optimizer's state is kept by number, with it by name."""
        if (checkpoint / (OPTIMIZER_NAME if self.is_fsdp_enabled else OPTIMIZER_NAME_BIN)).is_file():
            this, other = ("with", "without") if self.is_fsdp_enabled else ("without", "with")
            raise ValueError(f"{checkpoint} was saved {other} FSDP2 and cannot be resumed {this} it")

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        if self._whole is None:  # else it was, before the copy was made
            super()._load_from_checkpoint(checkpoint_path)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._whole is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin = self.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
        if self.args.should_save:
            assert self.lr_scheduler is not None  # made before the first step
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)


def _listed(found: dict[str, bool]) -> str:
    return " and ".join(name for name, used in found.items() if used)


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor whose shards lie on several ranks, gathered on each; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
