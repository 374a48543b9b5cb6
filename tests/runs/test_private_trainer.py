"""The private parts of the Trainer are what `lexforge.runs.resumable` takes them to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder, SparseEncoderTrainer
from sentence_transformers.base.trainer import BaseTrainer
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler

from lexforge.losses import NeuralSparseLoss
from lexforge.runs.resumable import ResumableTraining
from lexforge.training import SpladeTrainer, TrainingSettings

Calls = list[tuple[str, tuple[Any, ...]]]


def parameters_of(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (Trainer, "_save_checkpoint", ["self", "model", "trial"]),
        (Trainer, "_save_optimizer_and_scheduler", ["self", "output_dir"]),
        (Trainer, "_load_from_checkpoint", ["self", "resume_from_checkpoint", "model"]),
        (BaseTrainer, "_load_from_checkpoint", ["self", "checkpoint_path"]),
        (Trainer, "_get_output_dir", ["self", "trial"]),
        (BaseTrainer, "_push_from_checkpoint", ["self", "checkpoint_folder"]),
        (BaseTrainer, "_load_best_model", ["self"]),
        (CallbackHandler, "on_save", ["self", "args", "state", "control", "kwargs"]),
    ],
)
def test_each_private_method_has_the_signature_that_is_relied_on(
    owner: type, name: str, parameters: list[str]
) -> None:
    """A renamed method would turn an override into dead code, and checkpoints would be written in place."""
    assert parameters_of(getattr(owner, name)) == parameters


def test_no_private_method_is_overridden_beyond_those_tested_here() -> None:
    """Whoever overrides another one must write its test."""
    ordinary = {"__module__", "__init__", "__doc__"} | {"__abstractmethods__", "_abc_impl"}
    names = {name for name in vars(ResumableTraining) if name.startswith("_") and hasattr(BaseTrainer, name)}
    assert names - ordinary == {
        "_save_checkpoint",
        "_load_from_checkpoint",
        "_load_best_model",
        "_save_optimizer_and_scheduler",
    }


class Spied(SparseEncoderTrainer):
    """A stock trainer that notes the calls of what `ResumableTraining` overrides or calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: Calls = []

    def _save_checkpoint(self, *args: Any) -> None:
        self.calls.append(("_save_checkpoint", args))
        super()._save_checkpoint(*args)
        self.calls.append(("end of _save_checkpoint", ()))

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(("save_model", (*args, *kwargs.items())))
        super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, *args: Any) -> None:
        self.calls.append(("_save_optimizer_and_scheduler", args))
        super()._save_optimizer_and_scheduler(*args)

    def _load_from_checkpoint(self, *args: Any) -> None:
        self.calls.append(("_load_from_checkpoint", args))
        super()._load_from_checkpoint(*args)

    def _push_from_checkpoint(self, *args: Any) -> None:
        self.calls.append(("_push_from_checkpoint", args))

    def _load_best_model(self) -> None:
        self.calls.append(("_load_best_model", ()))
        super()._load_best_model()


class SpiedCallback(TrainerCallback):
    """Notes the events of a save and of an evaluation among the calls of the trainer."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.calls.append(("on_save", ()))

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.calls.append(("on_evaluate", ()))


@pytest.fixture
def spied(tiny_splade: SparseEncoder, training_rows: list[dict[str, str]]) -> Callable[..., Spied]:
    """Folder, arguments -> a stock trainer of four steps that saves and evaluates at every second."""

    def make(folder: Path, **arguments: Any) -> Spied:
        settings = TrainingSettings(
            steps=4, batch_size=4, gradient_accumulation_steps=1, precision="fp32", save_steps=2
        )
        options = {"disable_tqdm": True, "eval_strategy": "steps", "eval_steps": 2} | arguments
        callback, data = SpiedCallback(), Dataset.from_list(training_rows)
        trainer = Spied(
            tiny_splade,
            settings.arguments(folder, **options),
            data,
            data,
            NeuralSparseLoss(tiny_splade, distillation_weight=0.0),
            callbacks=[callback],
        )
        callback.trainer = trainer
        return trainer

    return make


def test_train_calls_what_is_overridden_in_the_order_that_is_relied_on(
    spied: Callable[..., Spied], tmp_path: Path
) -> None:
    """A checkpoint comes after the evaluation of its step; everything of it is written within
    `_save_checkpoint`, under `args.output_dir`; and `on_save` follows at once.
    """
    trainer = spied(tmp_path)
    trainer.train()
    places = [str(tmp_path / f"checkpoint-{step}") for step in (2, 4)]
    assert [call for call in trainer.calls if call[0] != "_save_checkpoint"] == [
        event
        for place in places
        for event in (
            ("on_evaluate", ()),
            ("save_model", (place, ("_internal_call", True))),
            ("_save_optimizer_and_scheduler", (place,)),
            ("end of _save_checkpoint", ()),
            ("on_save", ()),
        )
    ]
    (first, second) = [arguments for name, arguments in trainer.calls if name == "_save_checkpoint"]
    assert first == second == (trainer.model, None)
    assert trainer._get_output_dir(None) == trainer.args.output_dir == str(tmp_path)


def test_another_output_dir_for_the_moment_moves_the_whole_checkpoint(
    spied: Callable[..., Spied], tmp_path: Path
) -> None:
    """`ResumableTraining` writes beside the run so: no file may land in the run itself."""
    trainer = spied(tmp_path / "run", save_strategy="no", eval_strategy="no", eval_steps=None)
    trainer.train()
    trainer.args.output_dir = str(tmp_path / "beside")
    trainer._save_checkpoint(trainer.model, None)
    assert list((tmp_path / "run").rglob("*")) == []
    saved = {path.name for path in (tmp_path / "beside" / "checkpoint-4").iterdir()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} <= saved


def test_a_resumed_run_loads_the_checkpoint_once_by_the_private_method(
    spied: Callable[..., Spied], tmp_path: Path
) -> None:
    """Shards are protected from being loaded over there; the best model is loaded at the end of training."""
    best = {"load_best_model_at_end": True}
    spied(tmp_path, **best).train()
    checkpoint = str(tmp_path / "checkpoint-2")
    trainer = spied(tmp_path, **best)
    trainer.train(resume_from_checkpoint=checkpoint)
    loads = [call for call in trainer.calls if "load" in call[0]]
    assert loads[:2] == [("_load_from_checkpoint", (checkpoint,)), ("_load_best_model", ())]
    assert [name for name, _ in loads[2:]] == ["_load_from_checkpoint"]


def test_under_fsdp_the_checkpoint_is_loaded_into_the_wrapped_model() -> None:
    """The Trainer passes the model there as a second argument, which sentence-transformers does not take; the
    override of `ResumableTraining` takes it. Whoever changes this line changes the reason for the override.
    """
    source = inspect.getsource(Trainer)
    assert source.count("self._load_from_checkpoint(resume_from_checkpoint, self.model_wrapped)") == 1
    assert source.count("self._load_from_checkpoint(resume_from_checkpoint)") == 1
    assert parameters_of(ResumableTraining._load_from_checkpoint) == ["self", "checkpoint_path", "model"]


@pytest.mark.parametrize("pushes", [False, True])
def test_a_checkpoint_is_uploaded_where_the_argument_says_so(
    spied: Callable[..., Spied], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pushes: bool
) -> None:
    """`ResumableTraining` hides `push_to_hub` while a checkpoint lies beside its place, and uploads later."""
    monkeypatch.setattr(Trainer, "_finish_current_push", lambda _: None)
    trainer = spied(tmp_path)
    trainer.args.push_to_hub = pushes
    trainer.train()
    pushed = [arguments for name, arguments in trainer.calls if name == "_push_from_checkpoint"]
    assert pushed == ([(str(tmp_path / f"checkpoint-{step}"),) for step in (2, 4)] if pushes else [])


def test_the_handler_of_callbacks_can_be_replaced(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """The replacement keeps every callback in its order and every attribute; it alone leaves `on_save` out,
    and it notes like the stock handler that the save is done.
    """
    trainer = make_trainer(tiny_splade, tmp_path)
    handler = trainer.callback_handler
    stock = CallbackHandler(
        handler.callbacks, handler.model, handler.processing_class, handler.optimizer, handler.lr_scheduler
    )
    assert vars(stock).keys() == vars(handler).keys()
    assert stock.callbacks == handler.callbacks
    for either in (stock, handler):
        trainer.control.should_save = True
        assert either.on_save(trainer.args, trainer.state, trainer.control) is trainer.control
        assert trainer.control.should_save is False
    own = {name for name in vars(type(handler)) if not name.startswith("__")}
    assert own == {"on_save"}
    assert torch.is_tensor(next(handler.model.parameters()))
