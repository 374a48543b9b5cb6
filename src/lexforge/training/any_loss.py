"""Training with any loss of lexforge or sentence-transformers, on any data set that their trainers take."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from functools import partial
from typing import Any

import torch
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from sentence_transformers.base.training_args import BatchSamplers
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from lexforge.common.ranks import world_size
from lexforge.data.columns import column_names
from lexforge.losses.base import LOSS_KEYS, embedding_losses, loss_models, loss_tensors, losses_of
from lexforge.models.structure import checkpoint_layers, has_router, set_dropout
from lexforge.settings import TrainingSettings
from lexforge.training.batch_samplers import FullEpochs, WeightedBatchSampler
from lexforge.training.columns import DATASET_NAME, loss_columns, without_extra_columns
from lexforge.training.precision import EncoderPrecision, widen_products

Losses = nn.Module | Mapping[str, nn.Module] | None
logger = logging.getLogger(__name__)


class AnyLossTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: it takes the data sets and losses of its parent, and ours.

    - Data sets: a `Dataset`, an `IterableDataset`, or several by name. Columns count by position, whatever
      their names are. Columns that no loss reads are dropped, with one line in the log
      (`lexforge.training.columns.without_extra_columns`).
    - Losses: any of sentence-transformers or ours, wrapped or not, one for each data set by name, or none for
      the default of the parent.

    What our losses measure beside their value (`EmbeddingLoss.metrics`) is logged as the mean over the
    batches that measured it. Training that could not take a single step is refused.

    Args:
        model: The model to train; None if `model_init` makes one for each training.
        loss: A loss, a dictionary of losses by the name of the data set, or None. With `model_init` it must
            have no state, because it serves one model after another.
        fastest_precision: Whether the encoder is trained in bfloat16 if this processor computes it faster so
            (`EncoderPrecision`); for training without autocast.
        dropout: Share, in [0, 1), of every dropout of the model, which keeps it; None leaves those it has.
        gradient_checkpointing: Whether the backward pass computes the activations of each layer again instead
            of keeping them. The setting of that name in `args` fails with some versions of
            sentence-transformers and transformers, which this does not.
        training_seq_length: Tokens per text of the training rows, special tokens included; longer texts are
            cut, which makes the steps cheaper. None cuts them where the model does, at its `max_seq_length`.
        **kwargs: The other arguments of the parent.

    Raises:
        TypeError: If the loss is none of the above, such as a function that builds one.
        ValueError: If a loss was built with another model, if one of ours with a state is given with
            `model_init`, if several ranks would compute different losses of ours in one step, if
            `training_seq_length` is out of range, or if `train` finds that no step can be taken.
    """

    def __init__(
        self,
        model: BaseModel | None = None,
        loss: Losses = None,
        *,
        fastest_precision: bool = False,
        dropout: float | None = None,
        gradient_checkpointing: bool = False,
        training_seq_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.dropout = dropout
        self.training_seq_length = training_seq_length
        self.gradient_checkpointing = gradient_checkpointing
        self._label_columns = _label_columns(kwargs.get("data_collator"))
        # "train" or "eval" -> name -> sum over the micro-batches since the last line of the log, and their
        # number. The sums of the parent stay empty: it would round to four decimals, where a small part of
        # the loss becomes 0.
        self._sums: dict[str, dict[str, tuple[Any, int]]] = {"train": {}, "eval": {}}
        self._evaluated = "eval"  # how the names of what the last evaluation logs begin
        for one in losses_of(loss):
            _check_loss_argument(one, model, new_models=kwargs.get("model_init") is not None)
        for name in ("train_dataset", "eval_dataset"):
            kwargs[name] = without_extra_columns(kwargs.get(name), self._label_columns, name)
            self._check_each_dataset(kwargs[name], loss)
        self._first_arguments = kwargs.get("args")
        if model is not None:
            self._prepare_first_model(model)
        kwargs["loss"] = dict(loss) if isinstance(loss, Mapping) else loss
        super().__init__(model=model, **kwargs)
        self.encoder_precision = EncoderPrecision() if fastest_precision else None
        if self.encoder_precision is not None:
            self.add_callback(self.encoder_precision)
        self._check_ranks()

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Make the schedule of the learning rate; a training of one step has no warm-up, whose rate is 0."""
        if num_training_steps == 1:
            self.args.warmup_steps = 0
        schedule: LRScheduler = super().create_scheduler(num_training_steps, optimizer)
        return schedule

    @property
    def losses(self) -> list[nn.Module]:
        """The losses in use: one, or one for each data set."""
        return losses_of(self.loss)

    def call_model_init(self, trial: Any = None) -> BaseModel:
        """Make the model of a training by `model_init`; the parent gives it to the loss."""
        model = super().call_model_init(trial)
        if hasattr(self, "loss"):
            self.prepare_model(model)
        else:  # the parent makes models in its constructor, too
            self._prepare_first_model(model)
        return model

    def prepare_model(self, model: BaseModel) -> None:
        """Change a model in place before it is trained: padding is skipped, and what was asked for set."""
        check_training_length(self.training_seq_length, model.max_seq_length)
        widen_products(model)  # a copy of a model in the middle of its training computes as that one did
        if self.dropout is not None:
            set_dropout(model, self.dropout)
        if self.gradient_checkpointing:
            checkpoint_layers(model)

    def _prepare_first_model(self, model: BaseModel) -> None:
        self.prepare_model(model)
        arguments = self._first_arguments  # the parent reads this setting when it sets up the ranks
        if arguments is not None and arguments.ddp_find_unused_parameters is None:
            # The search finds poolers. In the forward pass of one route it takes the other route for unused,
            # whose parameters then count as ready twice ("mark a variable ready only once").
            arguments.ddp_find_unused_parameters = not has_router(model)

    def check_rows(self, dataset: Any, loss: nn.Module) -> None:
        """Check the rows that a loss is to train on, before training; by default nothing is checked."""

    def preprocess_dataset(self, dataset: Any = None, dataset_name: str | None = None) -> Any:
        """Drop the columns that no loss reads, and do what the parent does."""
        dataset = without_extra_columns(dataset, self._label_columns, f"{dataset_name}_dataset")
        return super().preprocess_dataset(dataset, dataset_name=dataset_name)

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> BaseDataCollator:
        """The collator of the parent, which cuts texts where the training rows are to be cut."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        if self.training_seq_length is not None:
            stock.max_length = self.training_seq_length
        return stock

    def get_batch_sampler(
        self, dataset: Any, batch_size: int, drop_last: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """The sampler that the arguments name; that without duplicates keeps the length it promises.

        sentence-transformers asks it for other data too, which do not have the weights of the training rows.
        """
        named = self.args.batch_sampler
        hashed = named == BatchSamplers.NO_DUPLICATES_HASHED
        weighted = getattr(named, "func", None) is WeightedBatchSampler  # as `weighted_batches` returns it
        full = hashed or named == BatchSamplers.NO_DUPLICATES
        full |= weighted and dataset is not self.train_dataset
        if not full or not isinstance(dataset, Sized):
            return super().get_batch_sampler(dataset, batch_size, drop_last, *args, **kwargs)
        batches = partial(FullEpochs, precompute_hashes=hashed)
        return batches(dataset, batch_size, drop_last, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the parent does.

        Raises:
            ValueError: If not a single step can be taken.
        """
        if self.model_wrapped is not self.model:  # DistributedDataParallel of an earlier training is kept
            self.accelerator.prepare_model(self.model, evaluation_mode=True)  # with the autocast in it
        try:
            output = super().train(*args, **kwargs)
        finally:
            # The format belongs to this training: the model is used, and may be trained again, in its own.
            widen_products(self.model)
            self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)  # takes the autocast off
            vars(self.model).pop("_is_accelerate_prepared", None)  # or no training would put it on again
        if self.state.global_step == 0:
            raise ValueError(
                "no step was taken: max_steps or num_train_epochs must be above 0, and the data must yield a "
                f"whole batch for each device; received {self.args.max_steps} and "
                f"{self.args.num_train_epochs}, and batches of {self.args.train_batch_size} rows"
            )
        if self.state.global_step < self.args.max_steps and not self.control.should_training_stop:
            logger.warning(
                f"trained {self.state.global_step} of {self.args.max_steps} steps: the batch sampler yielded "
                "fewer batches than its length promised. Lower the batch size or ask for more steps"
            )
        return output

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a micro-batch, and note what our losses measured beside it."""
        loss: Any = self.loss
        if isinstance(loss, dict):
            if DATASET_NAME not in inputs:
                raise ValueError(
                    f"there is one loss for each of the data sets {list(loss)}: give the data by these "
                    "names; received a data set without a name"
                )
            loss = loss[inputs[DATASET_NAME]]
        ours = embedding_losses(loss)
        if not ours:  # the losses of sentence-transformers hand all that they receive to the model
            endings = tuple(f"_{key}" for key in LOSS_KEYS)
            inputs = {name: value for name, value in inputs.items() if not name.endswith(endings)}
        result = super().compute_loss(model, inputs, *args, **kwargs)
        for one in ours:
            self._add_up(one.metrics)
        return result

    def track_loss_components(self, loss: dict[str, torch.Tensor]) -> None:
        """Add the parts of a loss up for the log, as `loss/<part>`."""
        self._add_up({"steps": torch.ones(())} | {f"loss/{name}": part for name, part in loss.items()})

    def _add_up(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add values of a micro-batch to the sums for the next line of the log."""
        sums = self._sums["train" if self.model.training else "eval"]
        for name, value in values.items():
            total, count = sums.get(name, (0.0, 0))
            sums[name] = total + value.detach(), count + 1

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as the parent does; the line of the log that follows tells of these batches alone."""
        self._evaluated = kwargs.get("metric_key_prefix", "eval")
        self._begin_sums("eval")
        return super().evaluation_loop(*args, **kwargs)

    def _begin_sums(self, mode: str) -> None:
        """Set the sums to 0; their names stay, so that all ranks gather the same ones the next time."""
        self._sums[mode] = dict.fromkeys(self._sums[mode], (0.0, 0))

    def take_means(self, mode: str) -> dict[str, float]:
        """Return the means of what the losses measured since the last line of the log, and begin anew.

        A mean is that of the micro-batches, of all ranks, that measured the value. A part of the loss counts
        as 0 where the loss lacks it, so that the means of the parts add up to that of the loss.
        """
        sums = {
            name: torch.tensor([[float(total), count]], device=self.args.device)
            for name, (total, count) in self._sums[mode].items()
        }
        self._begin_sums(mode)
        gathered = {name: rows.sum(dim=0).tolist() for name, rows in self.accelerator.gather(sums).items()}
        steps, _ = gathered.pop("steps", (0, 0))
        counts = {name: steps if name.startswith("loss/") else gathered[name][1] for name in gathered}
        return {name: gathered[name][0] / count for name, count in counts.items() if count}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the losses measured beside a loss that is logged."""
        mode = "train" if "loss" in logs else "eval" if f"{self._evaluated}_loss" in logs else None
        if mode:
            prefix = f"{self._evaluated}_" if mode == "eval" else ""
            means = self.take_means(mode)
            logs = logs | {f"{prefix}{name}": float(f"{value:.6g}") for name, value in means.items()}
        super().log(logs, start_time)

    def _check_each_dataset(self, given: Any, losses: Losses) -> None:
        """Call `check_rows` for each data set that was given, with its loss."""
        for name, dataset in (given if isinstance(given, dict) else {"": given}).items():
            loss = losses.get(name) if isinstance(losses, Mapping) else losses
            if dataset is not None and loss is not None:
                self.check_rows(dataset, loss)

    def _check_ranks(self) -> None:
        """Refuse data whose batches the ranks could not compute together.

        Accelerate joins the batches of a stream, which it cannot with texts in them. Of data sets by name the
        ranks take batches of different ones in a step, and our losses exchange numbers.
        """
        if world_size() == 1:
            return
        from datasets import IterableDataset  # here, as in `without_extra_columns`

        streams = any(isinstance(one, IterableDataset) for one in (self.train_dataset, self.eval_dataset))
        if streams and self.accelerator.dispatch_batches is not False:
            raise ValueError(
                'on several ranks an IterableDataset needs accelerator_config={"dispatch_batches": False} in '
                "the training arguments, so that each rank reads its own batches, because accelerate cannot "
                f"join texts; received dispatch_batches={self.accelerator.dispatch_batches}"
            )
        ours = [type(one).__name__ for loss in self.losses for one in embedding_losses(loss)]
        if not ours or not isinstance(self.train_dataset, dict):
            return
        columns = {
            name: loss_columns(column_names(one), self._label_columns)
            for name, one in self.train_dataset.items()
        }
        if len(self.losses) > 1 or len({len(names) for names in columns.values()}) > 1:
            raise ValueError(
                f"on several ranks {', '.join(sorted(set(ours)))} needs one loss and the same number of text "
                "columns for all data sets, because the ranks take batches of different data sets at the "
                f"same time; received {len(self.losses)} losses and the text columns {columns}. Train on one "
                "rank"
            )


def _check_loss_argument(loss: Any, model: BaseModel | None, *, new_models: bool) -> None:
    if loss is not None and not isinstance(loss, nn.Module):
        hint = ": pass the arguments of training as args=..." if isinstance(loss, TrainingArguments) else ""
        raise TypeError(
            "loss must be a loss that was built with its model, or a dictionary of such losses by the name "
            f"of the data set; received {type(loss).__name__}{hint}"
        )
    others = [] if loss is None or model is None else [one for one in loss_models(loss) if one is not model]
    if others:
        raise ValueError(
            f"{type(loss).__name__} was built with another {type(others[0]).__name__} than the one that the "
            "trainer gets, which would stay as it is: build the loss with the model that is trained"
        )
    if new_models and loss is not None and embedding_losses(loss) and loss_tensors(loss):
        raise ValueError(
            f"{type(loss).__name__} has a state, which model_init would hand from one model to the next: "
            "give a model instead of model_init"
        )


def _label_columns(collator: Any) -> list[str]:
    """The names of columns that a collator takes for the label; by default those of sentence-transformers."""
    stock = BaseDataCollator(preprocess_fn=None)  # type: ignore[arg-type]
    return list(getattr(collator or stock, "valid_label_columns", stock.valid_label_columns))


def check_full_batch(rows: int, settings: TrainingSettings, processes: int) -> None:
    """Refuse data that cannot fill one batch on every process.

    `TrainingSettings.arguments` drops an incomplete batch, so the Trainer would end without a single step and
    without an error.

    Args:
        rows: Number of training rows.
        settings: Gives the number of rows per batch and process.
        processes: Number of processes that train together.

    Raises:
        ValueError: If there are fewer rows than one batch of each process needs.
    """
    if rows < settings.batch_size * processes:
        raise ValueError(
            f"the training data has {rows} rows, and one batch needs {settings.batch_size * processes} "
            f"(batch size {settings.batch_size}, number of processes {processes}): lower the batch size, "
            "because no step would be taken"
        )


def check_queue(size: int, settings: TrainingSettings, processes: int) -> None:
    """Refuse a queue that cannot hold one batch, as its loss would at the first step.

    Args:
        size: The value of `--queue-size`.
        settings: Gives the number of rows per batch and process.
        processes: Number of processes that train together.

    Raises:
        ValueError: If the queue is shorter than one batch of all processes.
    """
    if size < settings.batch_size * processes:
        raise ValueError(
            f"--queue-size must be at least {settings.batch_size * processes}, the texts of one batch (batch "
            f"size {settings.batch_size}, number of processes {processes}); received {size}"
        )


def check_training_length(tokens: int | None, longest: int | None) -> None:
    """Refuse a number of tokens per training text that holds no token or that the model cannot read.

    Args:
        tokens: The number, special tokens included; None stands for `longest`.
        longest: The model's `max_seq_length`; None for no limit.

    Raises:
        ValueError: If the number is out of range.
    """
    if tokens is not None and not (tokens >= 3 and (longest is None or tokens <= longest)):
        raise ValueError(
            "training_seq_length must lie between 3, a token between two special ones, and the model's "
            f"max_seq_length, {longest}; received {tokens}"
        )
