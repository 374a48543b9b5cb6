"""The state of a loss through a killed and resumed run, in any trainer of sentence-transformers."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import TrainerControl, TrainerState

from lexforge.losses import CoSENTLoss, MoCoLoss, NeuralSparseLoss, NWSLoss, loss_tensors
from lexforge.losses.base import EmbeddingLoss
from lexforge.models import is_training
from lexforge.runs import RunStateCallback
from lexforge.runs.state import FORMAT, STATE_FILE, read_state
from lexforge.storage.tensors import read_tensors, write_tensors
from lexforge.training import SpladeTrainer, TrainingSettings

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
STEPS = 6


class Prototypes(EmbeddingLoss):
    """The class of a text by its nearest prototype, with a buffer that counts batches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.prototypes = nn.Parameter(torch.randn(3, 32))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def compute_loss(self, embeddings, features, labels):
        if is_training(self.model):
            self.batches += 1
        return nn.functional.cross_entropy(10 * embeddings[0] @ self.prototypes.T, labels)


def moco(model: nn.Module) -> MoCoLoss:
    return MoCoLoss(model, queue_size=10, momentum=0.7, temperature=0.1)


def nws(model: nn.Module) -> NWSLoss:
    return NWSLoss(model, torch.eye(3), aggregate="max", queue_size=10, momentum=0.7)


LOSSES = {"moco": moco, "nws": nws, "prototypes": Prototypes, "softmax": lambda m: SoftmaxLoss(m, 32, 3)}


def dense(checkpoint: Path) -> SentenceTransformer:
    torch.manual_seed(0)  # of the pooler, which the checkpoint lacks
    transformer = Transformer(str(checkpoint), max_seq_length=32)
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")


def rows(loss_name: str) -> Dataset:
    data: dict[str, list] = {"anchor": [f"{a} {b}" for a, b in pairwise(WORDS)] * 3}
    if loss_name not in ("nws", "prototypes"):
        data["positive"] = [f"the {text} of it" for text in data["anchor"]]
    if loss_name != "moco":
        data["label"] = [row % 3 for row in range(len(data["anchor"]))]
    if loss_name == "nws":  # one label or two of each text
        data["label"] = [[int(place in (row, row // 2 % 3)) for place in range(3)] for row in data["label"]]
    return Dataset.from_dict(data)


def make_trainer(
    checkpoint: Path, folder: Path, loss_name: str, *callbacks: Any, seed: int = 0, **settings: Any
) -> SentenceTransformerTrainer:
    """Six steps of two micro-batches, with dropout and the Trainer's own (fused) optimizer."""
    model = dense(checkpoint)
    torch.manual_seed(seed)
    loss = LOSSES[loss_name](model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        **{
            "max_steps": STEPS,
            "save_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-2,
            "dataloader_drop_last": True,
            "dataloader_pin_memory": False,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
        }
        | settings,
    )
    return SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=rows(loss_name),
        loss=loss,
        callbacks=[*callbacks, RunStateCallback(loss)],
    )


def outcome(trainer: Any) -> tuple[dict, dict]:
    state = {name: tensor.detach().clone() for name, tensor in loss_tensors(trainer.loss).items()}
    return dict(trainer.model.state_dict()), state


class Killed(Exception):
    pass


def kill_after(trainer: Any, steps: int) -> None:
    """Train, and die in the step after `steps`, once its first micro-batch has moved the queue."""
    step = trainer.training_step

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = step(*args, **kwargs)
        if trainer.state.global_step == steps:
            raise Killed
        return loss

    trainer.training_step = counted
    with pytest.raises(Killed):
        trainer.train()


@pytest.mark.parametrize("loss_name", LOSSES)
def test_a_killed_and_resumed_run_is_the_run_never_stopped(
    loss_name: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Model, queue, momentum encoder and prototypes, bit for bit; a loss of sentence-transformers too."""
    whole = make_trainer(tiny_checkpoint, tmp_path / "whole", loss_name)
    whole.train()
    kill_after(make_trainer(tiny_checkpoint, tmp_path / "killed", loss_name), 5)
    # built anew, and drawn anew: what is not restored differs
    resumed = make_trainer(tiny_checkpoint, tmp_path / "killed", loss_name, seed=99)
    resumed.train(resume_from_checkpoint=str(tmp_path / "killed" / "checkpoint-4"))
    assert len(outcome(whole)[1]) >= 2
    torch.testing.assert_close(outcome(resumed), outcome(whole), rtol=0, atol=0)


def test_a_checkpoint_that_lies_elsewhere_is_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A callback sees `args.resume_from_checkpoint`, and not the argument of `train`."""
    first = tmp_path / "first"
    make_trainer(tiny_checkpoint, first, "prototypes", max_steps=2).train()
    expected = make_trainer(tiny_checkpoint, first, "prototypes", seed=9, max_steps=3)
    expected.train(resume_from_checkpoint=str(first / "checkpoint-2"))
    moved = str(shutil.move(first / "checkpoint-2", tmp_path / "moved"))
    settings = {"seed": 9, "max_steps": 3, "resume_from_checkpoint": moved}
    trainer = make_trainer(tiny_checkpoint, tmp_path / "second", "prototypes", **settings)
    trainer.train(resume_from_checkpoint=moved)
    torch.testing.assert_close(outcome(trainer), outcome(expected), rtol=0, atol=0)
    assert trainer.loss.batches == 6


@pytest.fixture(scope="module")
def with_queue(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of MoCo after two steps."""
    folder = tmp_path_factory.mktemp("with-queue")
    make_trainer(tiny_checkpoint, folder, "moco", max_steps=2).train()
    return folder / "checkpoint-2"


def saved_again(file: Path, **changed: Any) -> None:
    """Write a state anew, with other fields or tensors and a good checksum."""
    fields, tensors = read_tensors(file, FORMAT)
    write_tensors(file, FORMAT, fields | changed.pop("fields", {}), changed.pop("tensors", tensors))


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda file: file.unlink(),
            FileNotFoundError,
            "does not exist.*resumed at step 2.*arguments too .resume_from_checkpoint=",
        ),
        (
            lambda file: saved_again(file, fields={"global_step": 4}),
            ValueError,
            "saved at step 4, and the run resumes at step 2",
        ),
        (
            lambda file: saved_again(file, tensors={"loss/a": torch.zeros(1)}),
            ValueError,
            "a does not belong",
        ),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff"),
            ValueError,
            "is cut, altered or no state of a run.*checksum",
        ),
        (
            lambda file: save_file(load_file(file), file, metadata={"global_step": "2"}),
            ValueError,
            "no state of a run: it has no manifest of a lexforge-run-state",
        ),
        (
            lambda file: saved_again(file, fields={"values": {}}, tensors={}),
            ValueError,
            "holds the state of nothing, and this run needs that of loss",
        ),
    ],
    ids=["missing", "another step", "another loss", "a bit", "of version 0.1", "without the part"],
)
def test_a_state_that_is_not_there_stops_the_run(
    damage: Any,
    error: type[Exception],
    message: str,
    with_queue: Path,
    tiny_checkpoint: Path,
    tmp_path: Path,
) -> None:
    """A fresh queue must never pass for a resumed one."""
    checkpoint = Path(shutil.copytree(with_queue, tmp_path / "checkpoint-2"))
    damage(checkpoint / STATE_FILE)
    with pytest.raises(error, match=message):
        make_trainer(tiny_checkpoint, tmp_path, "moco").train(resume_from_checkpoint=str(checkpoint))


def test_gradients_are_clipped_by_their_own_norm_and_cleared(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The Trainer clips the model's gradients only, and before 6.1 clears the model's only."""
    from transformers import TrainerCallback

    norms: list[tuple[float, bool]] = []

    class Watch(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            norms.append((float(trainer.loss.prototypes.grad.norm()), False))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            norms.append((0.0, trainer.loss.prototypes.grad is None))

    trainer = make_trainer(tiny_checkpoint, tmp_path, "prototypes", max_steps=2, max_grad_norm=0.01)
    trainer.add_callback(Watch())
    trainer.train()
    # float32; torch divides by the norm plus 1e-6
    assert [norm for norm, _ in norms[::2]] == pytest.approx([0.01, 0.01], rel=1e-3)
    assert all(cleared for _, cleared in norms[1::2])


def test_a_loss_without_state_costs_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Nothing of it is kept, and a resume looks for nothing. The file may hold what the head was timed at."""
    for resume in (None, str(tmp_path / "checkpoint-2")):
        model = dense(tiny_checkpoint)
        loss = CoSENTLoss(model)
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=str(tmp_path),
                max_steps=3,
                save_steps=2,
                use_cpu=True,
                dataloader_pin_memory=False,
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=rows("softmax"),
            loss=loss,
            callbacks=[RunStateCallback(loss)],
        )
        trainer.train(resume_from_checkpoint=resume)
        has_file = (tmp_path / "checkpoint-2" / STATE_FILE).exists()
        assert not has_file or read_state(tmp_path / "checkpoint-2", 2)[0] == {}


def test_a_dictionary_of_losses_is_one_state(tiny_checkpoint: Path) -> None:
    """The Trainer takes one loss a data set, whose name may be `model`."""
    model = dense(tiny_checkpoint)
    callback = RunStateCallback({"model": moco(model), "classes": Prototypes(model)})
    names = set(loss_tensors(callback.loss))
    assert {"model.queue.keys", "classes.prototypes", "classes.batches"} <= names
    for name in ("pairs-v1.1", "train"):
        with pytest.raises(ValueError, match=rf"a name without dots .* received \['{name}'\]"):
            RunStateCallback({name: moco(model)})
    with pytest.raises(TypeError, match="built with its model"):
        RunStateCallback(Prototypes)


class SparseWithPrototypes(NeuralSparseLoss):
    """A loss of ours that has a state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, self_reconstruction_weight=0, distillation_weight=0)
        self.scale = nn.Parameter(torch.ones(1))

    def compute_loss(self, embeddings, features, labels):
        return {"scaled": self.scale.sum() * sum(super().compute_loss(embeddings, features, labels).values())}


def test_our_trainer_adds_it_itself(tiny_splade, tmp_path: Path) -> None:
    """Whoever trains with `SpladeTrainer` need not know of the callback."""
    settings = TrainingSettings(
        steps=2,
        batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        precision="fp32",
        save_steps=2,
    )
    trainer = SpladeTrainer(
        tiny_splade,
        SparseWithPrototypes(tiny_splade),
        args=settings.arguments(tmp_path, disable_tqdm=True),
        train_dataset=rows("moco"),
    )
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-2" / STATE_FILE)
    assert saved["loss/scale"].item() != 1
    torch.testing.assert_close(saved["loss/scale"], trainer.loss.scale.detach(), rtol=0, atol=0)


def test_the_best_model_has_the_loss_that_was_trained_with_it(fresh: Any, tmp_path: Path) -> None:
    """A classifier of the best encoder and the prototypes of the last step would fit nowhere."""
    settings = TrainingSettings(
        steps=4,
        batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        precision="fp32",
        save_steps=2,
    )

    def train(resume: bool) -> SpladeTrainer:
        model = fresh()
        trainer = SpladeTrainer(
            model,
            SparseWithPrototypes(model),
            args=settings.arguments(
                tmp_path,
                disable_tqdm=True,
                eval_strategy="steps",
                eval_steps=2,
                load_best_model_at_end=True,
                greater_is_better=True,  # so that the first is the best
            ),
            train_dataset=rows("moco"),
            eval_dataset=rows("moco"),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    trained, resumed = train(False), train(True)
    assert trained.state.best_global_step == 2
    saved = {step: load_file(tmp_path / f"checkpoint-{step}" / STATE_FILE)["loss/scale"] for step in (2, 4)}
    assert not torch.equal(saved[2], saved[4])
    assert torch.equal(trained.loss.scale, saved[2])
    assert torch.equal(resumed.loss.scale, saved[2]), "also where the run had finished"


class Counting:
    """A part with a tensor and a value in JSON types."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        return self.kept

    def load_state(self, state: Any) -> None:
        self.kept = dict(state)


def test_what_each_loss_measured_of_the_memory_is_kept(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A resumed run that measured anew could cut its batches into other pieces."""
    model = dense(tiny_checkpoint).train()
    losses, again = ({"pairs": CoSENTLoss(model), "more": CoSENTLoss(model)} for _ in range(2))
    losses["pairs"].rows_that_fit(model, [model.preprocess(["sort a list"] * 2)] * 2)
    arguments = SentenceTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    state, control = TrainerState(global_step=2, is_world_process_zero=True), TrainerControl()
    RunStateCallback(losses).on_save(arguments, state, control)
    RunStateCallback(again).on_train_begin(arguments, state, control)
    assert again["pairs"].rows_that_fit.state() == losses["pairs"].rows_that_fit.state() != {}
    assert again["more"].rows_that_fit.state() == {}


def test_a_part_is_kept_beside_a_loss_without_state(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The same file holds whatever a training registers: tensors, and values in JSON types."""
    part = Counting()
    part.kept = {"mean": torch.tensor([1.0, 2.0]), "seen": [["a", 3]]}
    callback = RunStateCallback(CoSENTLoss(dense(tiny_checkpoint)))
    callback.parts["counting"] = part
    arguments = SentenceTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    state, control = TrainerState(global_step=2, is_world_process_zero=True), TrainerControl()
    callback.on_save(arguments, state, control)
    resumed = Counting()
    again, other = RunStateCallback(callback.loss), RunStateCallback(callback.loss)
    again.parts["counting"], other.parts["other"] = resumed, Counting()
    again.on_train_begin(arguments, state, control)
    assert resumed.kept["seen"] == [["a", 3]]
    assert torch.equal(resumed.kept["mean"], part.kept["mean"])
    with pytest.raises(ValueError, match="holds the state of counting, and this run needs that of other"):
        other.on_train_begin(arguments, state, control)
