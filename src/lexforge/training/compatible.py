"""Training with the data sets, losses and loss factories that the trainers of sentence-transformers take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.trainer import BaseTrainer
from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
    SpladeRegularizerWeightSchedulerCallback,
)
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from lexforge.common.ranks import world_size
from lexforge.data.columns import column_names
from lexforge.losses.base import LOSS_KEYS, embedding_losses, loss_tensors
from lexforge.runs.loss_state import LossStateCallback
from lexforge.training.batches import no_batch, no_whole_batch
from lexforge.training.columns import DATASET_NAME, loss_columns, without_extra_columns
from lexforge.training.unused_parameters import decide_find_unused

Loss = nn.Module | Callable[[Any], nn.Module]
Losses = Loss | Mapping[str, Loss] | None


class CompatibleTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: it takes what its parent takes, and our losses with it.

    - Data sets: a `Dataset`, an `IterableDataset`, or several by name. Columns count by position, whatever
      their names are. Columns that no loss reads are dropped, with one line in the log
      (`lexforge.training.columns.without_extra_columns`).
    - Losses: any of sentence-transformers or ours, wrapped or not, one for each data set by name, or none for
      the default of the parent.
    - Factories: with `model_init`, each training (each trial of a hyperparameter search) gets a new model,
      and each loss that is given as a function of the model is built anew.

    The state of the losses is kept equal on all ranks and saved in each checkpoint (`LossStateCallback`).
    What our losses measure beside their value (`EmbeddingLoss.metrics`) is logged as the mean over the
    batches that measured it. Training that could not take a single step is refused.

    Args:
        model: The model to train; None if `model_init` makes it.
        loss: A loss, a function from a model to a loss, a dictionary of either by the name of the data set,
            or None.
        **kwargs: The other arguments of the parent.

    Raises:
        TypeError: If the loss is none of the above.
        ValueError: If a loss of ours with a state is given with `model_init` and not as a function, if
            several ranks would compute different losses of ours in one step, or if `train` finds that no step
            can be taken.
    """

    def __init__(self, model: BaseModel | None = None, loss: Losses = None, **kwargs: Any) -> None:
        self._given_loss = loss
        self._label_columns = _label_columns(kwargs.get("data_collator"))
        # Kind of batch -> name -> [sum over the batches since the last line of the log, number of them].
        self._metrics: dict[str, dict[str, list[Any]]] = {"train": {}, "eval": {}}
        for one in self._given_losses().values():
            self._check_loss_argument(one, new_models=kwargs.get("model_init") is not None)
        for name in ("train_dataset", "eval_dataset"):
            kwargs[name] = without_extra_columns(kwargs.get(name), self._label_columns, name)
        datasets = [kwargs["train_dataset"], kwargs["eval_dataset"]]
        self._check_rows(datasets, loss)
        self._first_arguments = kwargs.get("args")
        if model is not None:
            self._prepare_first_model(model)
        kwargs["loss"] = dict(loss) if isinstance(loss, Mapping) else loss
        super().__init__(model=model, **kwargs)
        if any(_is_function(one) for one in self._given_losses().values()):
            self._check_rows(datasets, self.loss)
        self._check_ranks()
        self._loss_state = LossStateCallback(self.loss)
        self.add_callback(self._loss_state)

    @property
    def losses(self) -> list[nn.Module]:
        """The losses in use: one, or one for each data set."""
        return list(self.loss.values()) if isinstance(self.loss, dict) else [self.loss]

    def call_model_init(self, trial: Any = None) -> BaseModel:
        """Make the model of a training by `model_init`, and each loss that was given as a function."""
        model = super().call_model_init(trial)
        if hasattr(self, "loss"):
            self.prepare_model(model)
            self._rebuild_losses(model)
        else:  # the parent makes models in its constructor, too
            self._prepare_first_model(model)
        return model

    def prepare_model(self, model: BaseModel) -> None:
        """Change a model in place before it is trained; by default nothing is changed."""

    def _prepare_first_model(self, model: BaseModel) -> None:
        self.prepare_model(model)
        if self._first_arguments is not None:  # the parent reads the setting when it sets up the ranks
            decide_find_unused(self._first_arguments, model)

    def losses_were_rebuilt(self) -> None:
        """Let callbacks follow the losses of a new training."""
        self.remove_callback(self._loss_state)
        self._loss_state = LossStateCallback(self.loss)
        self.add_callback(self._loss_state)

    def check_rows(self, dataset: Any, loss: nn.Module) -> None:
        """Check the rows that a loss is to train on, before training; by default nothing is checked."""

    def preprocess_dataset(self, dataset: Any = None, dataset_name: str | None = None) -> Any:
        """Drop the columns that no loss reads, and do what the parent does."""
        dataset = without_extra_columns(dataset, self._label_columns, f"{dataset_name}_dataset")
        return super().preprocess_dataset(dataset, dataset_name=dataset_name)

    def get_train_dataloader(self) -> DataLoader:
        """The batches of training.

        Raises:
            ValueError: If there is none.
        """
        batches = super().get_train_dataloader()
        try:
            count = len(batches)
        except TypeError:  # a stream does not know its length; `train` looks at the steps that were taken
            return batches
        if count == 0:
            raise ValueError(
                no_whole_batch(
                    _sizes(self.train_dataset), self.args.train_batch_size, max(1, self.args.world_size)
                )
            )
        return batches

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the parent does.

        Raises:
            ValueError: If not a single step can be taken.
        """
        if self.args.max_steps <= 0 and self.args.num_train_epochs <= 0:
            raise ValueError(
                "no step would be taken: max_steps or num_train_epochs must be above 0; received "
                f"{self.args.max_steps} and {self.args.num_train_epochs}"
            )
        try:
            return super().train(*args, **kwargs)
        except ValueError as error:
            if self.state.global_step == 0 and "does not contain any data" in str(error):  # an empty stream
                raise ValueError(no_batch(self.args.train_batch_size)) from error
            raise

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
            inputs = {name: value for name, value in inputs.items() if not _is_for_the_loss(name)}
        result = super().compute_loss(model, inputs, *args, **kwargs)
        sums = self._metrics["train" if self.model.training else "eval"]
        for one in ours:
            for name, value in one.metrics.items():
                held = sums.setdefault(name, [torch.zeros_like(value), 0])
                held[0] = held[0] + value
                held[1] += 1
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the losses measured, as means over the batches that measured it, with the parts."""
        kind = "train" if "loss" in logs else "eval" if "eval_loss" in logs else None
        if kind:
            sums = self.accum_loss_components[kind]
            for name, (total, count) in self._metrics[kind].items():
                # `log` of sentence-transformers divides each sum by the number of batches that gave parts.
                if not int(sums.get("steps", 0)):
                    sums["steps"] = torch.tensor(count, device=total.device)
                sums[name] = total * sums["steps"] / count
        super().log(logs, start_time)
        if kind:
            for name in self._metrics[kind]:
                del self.accum_loss_components[kind][name]
            self._metrics[kind].clear()

    def _given_losses(self) -> dict[str, Any]:
        """What was given as the loss, by the name of the data set; a single one under the empty name."""
        given = self._given_loss
        return dict(given) if isinstance(given, Mapping) else {"": given}

    def _check_rows(self, datasets: list[Any], losses: Any) -> None:
        """Call `check_rows` for each data set whose loss is built."""
        for given in datasets:
            for name, dataset in (given if isinstance(given, dict) else {"": given}).items():
                loss = losses.get(name) if isinstance(losses, Mapping) else losses
                if dataset is not None and isinstance(loss, nn.Module):
                    self.check_rows(dataset, loss)

    def _check_loss_argument(self, loss: Any, *, new_models: bool) -> None:
        if loss is not None and not isinstance(loss, nn.Module) and not callable(loss):
            hint = (
                ": pass the arguments of training as args=..." if isinstance(loss, TrainingArguments) else ""
            )
            raise TypeError(
                "loss must be a loss, a function from a model to a loss, or a dictionary of either by the "
                f"name of the data set; received {type(loss).__name__}{hint}"
            )
        if new_models and isinstance(loss, nn.Module) and embedding_losses(loss) and loss_tensors(loss):
            name = type(loss).__name__
            raise ValueError(
                f"with model_init each training needs a {name} of its own, because {name} has a state; pass "
                f"a function, such as loss=lambda model: {name}(model)"
            )

    def _check_ranks(self) -> None:
        """Refuse data sets by name whose batches the ranks could not compute together.

        In one step the ranks take batches of different data sets, and our losses exchange numbers.
        """
        ours = [type(one).__name__ for loss in self.losses for one in embedding_losses(loss)]
        if world_size() == 1 or not ours or not isinstance(self.train_dataset, dict):
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

    def _rebuild_losses(self, model: BaseModel) -> None:
        """Build each loss that was given as a function for another model; the others follow the model."""
        functions = {name: one for name, one in self._given_losses().items() if _is_function(one)}
        if functions:
            replaced = [self.loss[name] if name else self.loss for name in functions]
            for callback in list(self.callback_handler.callbacks):  # the parent adds a new one for a new loss
                schedule = isinstance(callback, SpladeRegularizerWeightSchedulerCallback)
                if schedule and any(callback.loss is loss for loss in replaced):
                    self.remove_callback(callback)
            model = model.to(self.args.device)
            rebuilt = {name: self.prepare_loss(one, model) for name, one in functions.items()}
            self.loss = self.loss | rebuilt if isinstance(self.loss, dict) else rebuilt[""]
        self.losses_were_rebuilt()


def _is_function(loss: Any) -> bool:
    return loss is not None and not isinstance(loss, nn.Module)


def _label_columns(collator: Any) -> list[str]:
    """The names of columns that a collator takes for the label; by default those of sentence-transformers."""
    stock = BaseDataCollator(preprocess_fn=None)  # type: ignore[arg-type]
    return list(getattr(collator or stock, "valid_label_columns", stock.valid_label_columns))


def _is_for_the_loss(name: str) -> bool:
    return any(name.endswith(f"_{key}") for key in LOSS_KEYS)


def _sizes(dataset: Any) -> dict[str, int] | int:
    return {name: len(one) for name, one in dataset.items()} if isinstance(dataset, dict) else len(dataset)
