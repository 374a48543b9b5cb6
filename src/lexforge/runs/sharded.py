"""Training with parameters sharded over ranks by FSDP2, while the model itself stays whole."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.utils import save_fsdp_optimizer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor
from transformers.trainer import OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCHEDULER_NAME
from transformers.training_args import OptimizerNames

from lexforge.losses.base import loss_tensors, losses_of

logger = logging.getLogger(__name__)

EXPERIMENTAL = "Experimental: FSDP2 was tested on two CPU processes, and was never run on GPUs."


class ShardedCopy:
    """The sharded copy of a trainer's model that is trained under FSDP2; without FSDP2 it changes nothing.

    FSDP2 shards a copy of the model, and the copy is what trains. The model itself stays whole, in the CPU
    memory of each rank. It takes over the values of the shards when it is evaluated, when it is saved and
    when training ends. So checkpoints are the same as those of any other run, and after `train` the model is
    what it would be after training on one GPU. (If `train` raises an error, the model has the values of its
    last evaluation or save.) The optimizer's state is saved whole, and a run is resumed under FSDP2. The
    first rank logs once that FSDP2 is experimental.

    Args:
        trainer: The trainer, constructed up to here.

    Raises:
        ValueError: If the trainer uses DeepSpeed, FSDP1 or `nn.DataParallel`, or under FSDP2 a setting that
            is not tested with it: a loss with trained parameters or a momentum encoder, fp16, offloading,
            loading on rank 0 only, and others that the message names.
    """

    def __init__(self, trainer: BaseTrainer) -> None:
        self.trainer = trainer
        self.whole: BaseModel | None = None  # the whole model, while shards of its copy are trained
        self.refuse_other_shards()
        if trainer.is_fsdp_enabled:
            self.refuse_settings()
            # Autocast does the work instead, as on one GPU: the policy would round the embeddings.
            trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = None
            if trainer.is_world_process_zero():
                logger.warning(EXPERIMENTAL)

    @contextmanager
    def in_training(self, checkpoint: Path | None, load: Callable[[str], None]) -> Iterator[None]:
        """A block in which the trainer trains the copy; at its end the model has the weights of the copy.

        Args:
            checkpoint: The checkpoint that training is resumed from, or None.
            load: Loads a checkpoint into the trainer's model.

        Raises:
            ValueError: If a class of layers must not be sharded by itself, or the checkpoint was saved
                without FSDP2 (or with it, and this run is without).
        """
        trainer = self.trainer
        if checkpoint is not None:
            self._refuse_other_checkpoint(checkpoint)
        if not trainer.is_fsdp_enabled:
            yield
            return
        self.refuse_layers()
        if checkpoint is not None:
            load(str(checkpoint))
        whole, card = trainer.model, trainer.model.model_card_data
        self._use(copy.deepcopy(whole, {id(card): card}))  # the card refers to the trainer: it is not copied
        self.whole = whole.to("cpu")
        try:
            yield
            self._gather()
        finally:
            self.whole = trainer.optimizer = trainer.lr_scheduler = None
            self._use(whole.to(trainer.args.device))

    @contextmanager
    def whole_in_place(self, device: torch.device | str) -> Iterator[None]:
        """A block in which the trainer has the whole model, with the values of the shards, and no FSDP.

        Args:
            device: Where the whole model is for the block.
        """
        trainer = self.trainer
        shards, whole, fsdp = trainer.model, self.whole, trainer.is_fsdp_enabled
        swap = whole is not None and shards is not whole  # the block may stand within another one
        if swap:
            assert whole is not None
            self._gather()
            self._use(whole.to(device))
        trainer.is_fsdp_enabled = False
        try:
            yield
        finally:
            trainer.is_fsdp_enabled = fsdp
            if swap:
                assert whole is not None
                self._use(shards)
                whole.to("cpu")

    def save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the whole state of the optimizer, gathered from all ranks, and that of the schedule."""
        trainer = self.trainer
        plugin = trainer.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, trainer.accelerator, trainer.optimizer, trainer.model, output_dir)
        if trainer.args.should_save:
            assert trainer.lr_scheduler is not None  # it is made before the first step
            torch.save(trainer.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    @torch.no_grad()
    def _gather(self) -> None:
        """Copy the shards of all ranks into the whole model of each rank, one tensor at a time."""
        assert self.whole is not None
        own = self.whole.state_dict()
        for name, tensor in self.trainer.model.state_dict().items():
            own[name].copy_(whole_tensor(tensor))

    def _use(self, model: BaseModel) -> None:
        trainer = self.trainer
        trainer.model = trainer.model_wrapped = trainer.callback_handler.model = model
        for loss in losses_of(trainer.loss):
            trainer.override_model_in_loss(loss, model)

    def refuse_other_shards(self) -> None:
        """Refuse the ways of sharding, or of using several GPUs, that are not supported."""
        trainer = self.trainer
        found = {
            "DeepSpeed": trainer.is_deepspeed_enabled,
            "nn.DataParallel over the GPUs of one process": trainer.args.n_gpu > 1,
            "FSDP1": trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version != 2,
        }
        if any(found.values()):
            raise ValueError(
                f"{_listed(found)} is not supported: train with DistributedDataParallel and one process per "
                "GPU, accelerate launch --config_file multi_gpu.yaml (for one GPU "
                "one_gpu.yaml; for FSDP2, if the optimizer's state does not fit on one GPU, fsdp.yaml). "
                "`lexforge recipe accelerate/multi_gpu.yaml` prints the first of them"
            )

    def refuse_settings(self) -> None:
        """Refuse the settings that are not tested under FSDP2."""
        args, plugin = self.trainer.args, self.trainer.accelerator.state.fsdp_plugin
        policy = getattr(plugin.auto_wrap_policy, "func", plugin.auto_wrap_policy)
        # The tensors of each loss that are neither the model's nor buffers: parameters and momentum encoders.
        own = [
            loss_tensors(loss).keys() - dict(loss.named_buffers()).keys()
            for loss in losses_of(self.trainer.loss)
        ]
        found = {
            "fsdp_state_dict_type other than FULL_STATE_DICT": "FULL" not in str(plugin.state_dict_type),
            "fsdp_auto_wrap_policy: SIZE_BASED_WRAP": policy is size_based_auto_wrap_policy,
            # This moves the model to the device `meta`, where the output embedding loses its tie.
            "fsdp_cpu_ram_efficient_loading": plugin.cpu_ram_efficient_loading,
            "fsdp_offload_params": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
            "fsdp_activation_checkpointing": plugin.activation_checkpointing,
            "fsdp_ignored_modules": plugin.ignored_modules is not None,
            "fp16": args.fp16,
            "optim adafactor": args.optim == OptimizerNames.ADAFACTOR,  # it adds whole states to shards
            "torch_compile": args.torch_compile,
            "auto_find_batch_size": args.auto_find_batch_size,
            "model_init": self.trainer.model_init is not None,
            "load_best_model_at_end": args.load_best_model_at_end,
            "a loss with trained parameters or a momentum encoder": any(own),
        }
        if any(found.values()):
            raise ValueError(
                f"under FSDP2 this is not supported: {_listed(found)}. Leave it out (the settings of "
                "`lexforge recipe accelerate/fsdp.yaml` are supported), or train with "
                "DistributedDataParallel: accelerate launch --config_file multi_gpu.yaml, "
                "which `lexforge recipe` prints too"
            )

    def refuse_layers(self) -> None:
        """Refuse a class of layers whose parameters are also read outside of its own forward.

        FSDP2 gathers the parameters of such a layer for its own forward only.
        """
        trainer = self.trainer
        modules = list(trainer.model.modules())
        heads = [getattr(module, "get_output_embeddings", lambda: None)() for module in modules]
        at_head = {parameter for head in heads if head is not None for parameter in head.parameters()}
        for name in trainer.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap or ():
            layers = [module for module in modules if type(module).__name__ == name]
            if any(not at_head.isdisjoint(layer.parameters()) for layer in layers):
                raise ValueError(
                    f"fsdp_transformer_layer_cls_to_wrap: {name} holds the output embedding (or the input "
                    "embedding that it is tied to); name the class of the encoder's layers alone, such as "
                    "BertLayer or XLMRobertaLayer"
                )

    def _refuse_other_checkpoint(self, checkpoint: Path) -> None:
        """Refuse a checkpoint whose optimizer state has the other form: by number, or under FSDP2 by name."""
        fsdp = self.trainer.is_fsdp_enabled
        if (checkpoint / (OPTIMIZER_NAME if fsdp else OPTIMIZER_NAME_BIN)).is_file():
            this, other = ("with", "without") if fsdp else ("without", "with")
            raise ValueError(f"{checkpoint} was saved {other} FSDP2 and cannot be resumed {this} it")


def _listed(found: dict[str, bool]) -> str:
    return " and ".join(name for name, used in found.items() if used)


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor whose shards lie on several ranks, gathered on each of them; any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
