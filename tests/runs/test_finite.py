"""The first broken number stops the run and has a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
)
from torch import nn
from transformers import TrainerCallback

from lexforge.runs import FiniteTraining, NonFiniteError
from lexforge.runs.checkpoint_folders import last_checkpoint
from lexforge.runs.finite import describe_rows, texts_of
from lexforge.training import SpladeTrainer

MakeTrainer = Callable[..., SpladeTrainer]


class BeforeStep(TrainerCallback):
    """Does something when `step` steps are done and the next begins."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def head_bias(model: SparseEncoder) -> nn.Parameter:
    return dict(model.named_parameters())["0.model.cls.predictions.transform.dense.bias"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_part_is_named_with_the_rows_of_its_batch(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    training_rows: list[dict[str, str]],
    bad: float,
) -> None:
    """Which term, which rows of the training data, which checkpoint: the three things to look at first. The
    rows are those that the sampler gave, seen here by the loss in the tokens.
    """
    trainer = make_trainer(tiny_splade, tmp_path)
    loss = trainer.curriculum.loss
    compute, seen = loss.compute_loss, []

    def break_it(embeddings: Any, features: Any, labels: Any) -> dict[str, torch.Tensor]:
        seen[:] = tiny_splade.tokenizer.batch_decode(features[0]["input_ids"], skip_special_tokens=True)
        parts = compute(embeddings, features, labels)
        return parts | ({"flops_query": parts["flops_query"] * bad} if trainer.state.global_step == 3 else {})

    loss.compute_loss = break_it  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    message = str(error.value)
    places = [[row["anchor"] for row in training_rows].index(text) for text in seen]
    assert message.startswith("flops_query became NaN or infinite with rows " + ", ".join(map(str, places)))
    assert "of the training data ('" + seen[0] in message
    assert "in the step after 3" in message
    assert f"The last good checkpoint is {tmp_path / 'checkpoint-3'}" in message


@pytest.mark.parametrize(("accumulation", "bad"), [(1, -float("inf")), (2, float("nan"))])
def test_a_bad_gradient_is_named_before_the_optimizer_takes_it(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, bad: float, accumulation: int
) -> None:
    """Clipping by a norm that is not finite spreads it to every parameter: afterwards nobody knows whose it
    was. With accumulation the rows are those of all micro-batches.
    """
    trainer = make_trainer(tiny_splade, tmp_path, gradient_accumulation_steps=accumulation)
    step = 2 + accumulation  # the second step of an epoch of three batches has one batch left, the first two

    def spoil() -> None:
        head_bias(tiny_splade).register_hook(lambda gradient: gradient * bad)

    trainer.add_callback(BeforeStep(step, spoil))
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    message = str(error.value)
    assert message.startswith("the gradient of 0.model.cls.predictions.transform.dense.bias became NaN")
    assert len(message.split("rows ")[1].split(" of the")[0].split(", ")) == 4 * accumulation
    assert last_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{step}")
    assert all(bool(torch.isfinite(parameter).all()) for parameter in tiny_splade.parameters())


def test_a_first_step_that_breaks_saves_nothing(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """A checkpoint of step 0 would hold no training, and would keep the command from being repeated."""
    trainer = make_trainer(tiny_splade, tmp_path)
    head_bias(tiny_splade).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteError, match=r"in the step after 0\. The last good checkpoint is none"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_bad_parameter_is_named_and_never_saved(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """A step of infinite size breaks parameters with finite gradients; step 4, which would have been saved,
    is not.
    """
    trainer = make_trainer(tiny_splade, tmp_path)

    def spoil() -> None:
        trainer.optimizer.param_groups[-1]["lr"] = float("inf")

    trainer.add_callback(BeforeStep(3, spoil))
    with pytest.raises(NonFiniteError, match=r"^0\.model.*by the optimizer in step 4.*checkpoint-2\."):
        trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "log.jsonl"]


def test_parameters_that_were_bad_before_the_step_are_not_saved(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """The loss is the first to show it; the last good state is then that of an earlier checkpoint."""
    trainer = make_trainer(tiny_splade, tmp_path)
    poison = partial(next(tiny_splade.parameters()).data.fill_, float("nan"))
    trainer.add_callback(BeforeStep(3, poison))
    with pytest.raises(NonFiniteError, match=r"positive_activation.*step after 3.*checkpoint-2\."):
        trainer.train()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_finite_entries_with_an_infinite_norm_are_no_reason_to_go_on(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """1e30 squared is beyond float32: clipping would multiply every gradient by 0 and go on in silence."""
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.add_callback(
        BeforeStep(1, lambda: head_bias(tiny_splade).register_hook(lambda gradient: gradient * 0 + 1e30))
    )
    with pytest.raises(NonFiniteError, match="the norm of the gradients became"):
        trainer.train()


@pytest.mark.parametrize(("scale", "stops_after"), [(65536.0, None), (1.0, 1), (0.5, 0)])
def test_half_precision_overflow_is_the_scalers_business(
    scale: float,
    stops_after: int | None,
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
) -> None:
    """Under fp16 a step with an infinite gradient is skipped and the scale halved; with the scale below 1
    that explanation is used up.
    """
    trainer = make_trainer(tiny_splade, tmp_path, arguments={"max_steps": 2})
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    before = head_bias(tiny_splade).detach().clone()
    head_bias(tiny_splade).register_hook(lambda gradient: gradient * float("inf"))
    if stops_after is None:
        trainer.train()
        assert trainer.accelerator.scaler.get_scale() == scale / 4
        assert torch.equal(head_bias(tiny_splade), before)
    else:
        with pytest.raises(
            NonFiniteError, match=rf"the gradient of 0\.model\.cls.*in the step after {stops_after}"
        ):
            trainer.train()


def test_a_loss_with_parameters_and_one_number_in_any_trainer(tiny_dense: Any, tmp_path: Path) -> None:
    """Prototypes have gradients too, and most losses return one tensor; the stock collator names no rows."""
    from datasets import Dataset

    class Prototypes(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.prototypes = nn.Parameter(torch.zeros(32))

        def forward(self, features: Any, labels: Any = None) -> torch.Tensor:
            rows = self.model(next(iter(features)))["sentence_embedding"]
            return ((rows - self.prototypes) ** 2).mean()

    class Trainer(FiniteTraining, SentenceTransformerTrainer):
        pass

    loss = Prototypes(tiny_dense)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"text": ["sort a list", "read a file"]})
    trainer = Trainer(tiny_dense, arguments, data, loss=loss)
    loss.prototypes.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(
        NonFiniteError, match=r"gradient of prototypes .* rows that the data collator does not"
    ):
        trainer.train()
    with torch.no_grad():
        loss.prototypes.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"^the loss became NaN"):
        trainer.train()


def test_in_evaluation_nothing_is_saved(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, training_rows: list[dict[str, str]]
) -> None:
    """There is no step to go back before."""
    from datasets import Dataset

    trainer = make_trainer(tiny_splade, tmp_path, eval_dataset=Dataset.from_list(training_rows))
    trainer.curriculum.loss.weights["minimum_activation"] = float("inf")  # no phase writes this weight
    with pytest.raises(
        NonFiniteError, match=r"minimum_activation became NaN or infinite with rows: 4 rows .* in evaluation"
    ):
        trainer.evaluate()
    assert list(tmp_path.iterdir()) == []


def test_texts_of_a_row() -> None:
    """Labels and numbers do not name a row."""
    assert texts_of({"anchor": "a", "label": [1.0, 2.0], "positive": "b", "n": 3}) == ("a", "b")


def test_rows_without_texts_are_counted() -> None:
    """Rows of images alone have none, and the message must not hide what became NaN."""
    assert describe_rows([(), ()]) == "rows: 2 rows"
    assert describe_rows([(), ("a text", "another")]) == "rows: 2 rows ('a text')"
