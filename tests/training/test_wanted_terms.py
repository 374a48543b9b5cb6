"""Wanted numbers of active terms through the trainer: counted, resumed, trimmed and refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.losses import InfoNCELoss, NeuralSparseLoss
from lexforge.runs.checkpoint_folders import last_checkpoint
from lexforge.sparsity import document_levels
from lexforge.training import SpladeTrainer
from lexforge.training import trainer as trainer_module
from lexforge.training.columns import texts_of_rows

WORDS = "list array search index query document vector sparse token model train file".split()


def test_a_resumed_run_has_the_factors_of_one_never_stopped(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Weights to the bit, so the state of the controller is in the checkpoint, with optimizer, schedule,
    sampler and dropout: with ramp and curriculum, micro-batches, and an average of the weights, which the
    counts read.
    """

    def make(folder: str) -> SpladeTrainer:
        wanted = {"query_terms": 20, "document_terms": 50}
        return make_trainer(
            fresh(),
            tmp_path / folder,
            ramp_fraction=0.5,
            gradient_accumulation_steps=2,
            average_horizon=0.5,
            start_share=0.3,
            **wanted,
        )

    whole = make("whole")
    whole.train()
    lines = [line for line in whole.state.log_history if "loss" in line]
    weights = [line["weight/flops_document"] for line in lines]
    assert len(set(weights)) > 4  # the controller does act
    assert {line["terms/document_wanted"] for line in lines} == {50}
    assert whole.state.log_history[-1]["terms/document_finished"] == pytest.approx(50, abs=0.1)

    class Stop(Exception):
        pass

    stopped = make("stopped")
    step = stopped.training_step

    def stop_after_five(*args: Any, **kwargs: Any) -> torch.Tensor:
        if stopped.state.global_step == 5:  # a step past the checkpoint, which resume must do again
            raise Stop
        return step(*args, **kwargs)

    stopped.training_step = stop_after_five  # type: ignore[method-assign]
    with pytest.raises(Stop):
        stopped.train()
    resumed = make("stopped")
    checkpoint = last_checkpoint(tmp_path / "stopped")
    assert checkpoint == str(tmp_path / "stopped" / "checkpoint-4")
    resumed.train(resume_from_checkpoint=checkpoint)
    assert [line["phase"] for line in resumed.state.log_history if "loss" in line][-1] == 3
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=0, atol=0, msg=name)
    again = make("stopped")
    again.train(resume_from_checkpoint=last_checkpoint(tmp_path / "stopped"))  # the run has finished
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_a_training_with_a_low_number_ends_sparser(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """The sign of the whole loop, and what `train` leaves: the texts of training have the number."""
    trainer = make_trainer(tiny_splade, tmp_path, document_terms=40, arguments={"max_steps": 30})
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert lines[-1]["weight/flops_document"] > 10 * lines[0]["weight/flops_document"]
    counted = [line["terms/document_counted"] for line in lines if "terms/document_counted" in line]
    assert counted[-1] < 0.8 * counted[0]
    rows = Dataset.from_list(training_rows)
    texts = [*rows["positive"][:], *rows["negative_1"][:]]
    vectors = tiny_splade.encode(texts, convert_to_sparse_tensor=False)
    assert float((vectors > 0).sum(dim=1).float().mean()) == pytest.approx(40, abs=1 / len(texts))


def test_the_terms_of_the_finished_model_are_counted(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
) -> None:
    """Half of the weights are those of the start, which has few terms, and there is a threshold. To count
    changes nothing."""
    texts = [f"the {first} of a {second}" for first in WORDS for second in WORDS][:128]
    bias = tiny_splade[0].model.get_output_embeddings().bias
    with torch.no_grad():
        bias -= 0.4
    given = {"start_share": 0.5, "prune_threshold": 0.1, "counted_texts": {"document": texts}}
    trainer = make_trainer(tiny_splade, tmp_path, document_terms=12, **given)
    assert trainer.controller is not None

    def terms(shift: float) -> float:
        with torch.no_grad():
            bias.add_(shift)
            rows = tiny_splade.encode(texts, convert_to_sparse_tensor=False)
            bias.sub_(shift)
        return float((rows > 0).sum() / len(texts))

    with torch.no_grad():
        bias += 1.0  # what training did
    before = {name: value.clone() for name, value in tiny_splade.state_dict().items()}
    tiny_splade.train()
    assert trainer.controller.count() == {"document": pytest.approx(terms(-0.5 - 0.1), rel=1e-3)}
    assert terms(0.0) > 1.1 * terms(-0.6)
    tiny_splade.train()
    trainer.controller.count()
    assert tiny_splade.training
    torch.testing.assert_close(dict(tiny_splade.state_dict()), before, rtol=1e-6, atol=1e-6)


def test_the_end_of_a_training_gives_no_scale(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Training has chosen the scale of the logits, so only the bias moves when the documents are trimmed."""
    texts = [f"the {first} of a {second}" for first in WORDS for second in WORDS][:64]
    assert document_levels(fresh(), texts, [2]).scales[2] > 1
    model = fresh()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given = {"counted_texts": {"document": texts}, "arguments": {"max_steps": 1, "learning_rate": 0.0}}
    make_trainer(model, tmp_path, document_terms=2, **given).train()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(before[name].shape == (len(model.tokenizer),) for name in changed)  # of the decoder alone


def test_after_autocast_the_saved_model_has_the_number_that_is_told(
    fresh: Callable[[], SparseEncoder],
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts are encoded in float32 later: trimmed under autocast, they would have another number then, and
    the finished run, resumed without a step, another bias.
    """
    texts = [f"the {first} of a {second}" for first in WORDS for second in WORDS]
    monkeypatch.setattr(trainer_module, "SAMPLE", len(texts))  # no other texts fill the sample up
    given: dict[str, Any] = {"document_terms": 20, "counted_texts": {"document": texts}}
    given["arguments"] = {"bf16": True, "max_steps": 4}
    trainer = make_trainer(fresh(), tmp_path / "run", **given)
    trainer.train()
    trainer.model.save_pretrained(str(tmp_path / "saved"))
    saved = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    vectors = saved.encode(texts, convert_to_sparse_tensor=False)
    terms = float((vectors > 0).sum() / len(texts))
    assert trainer.state.log_history[-1]["terms/document_finished"] == pytest.approx(terms, abs=0.005)
    again = make_trainer(fresh(), tmp_path / "run", **given)
    again.train(resume_from_checkpoint=last_checkpoint(tmp_path / "run"))
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_the_number_of_queries_is_told(
    fresh: Callable[[], SparseEncoder],
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not exact, so the log and a warning say what queries have; documents are exact beside it."""
    trainer = make_trainer(fresh(), tmp_path / "queries", query_terms=3)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    vectors = trainer.model.encode([row["anchor"] for row in training_rows], convert_to_sparse_tensor=False)
    terms = float((vectors > 0).sum(dim=1).float().mean())
    assert terms > 5
    assert trainer.state.log_history[-1]["terms/query_finished"] == pytest.approx(terms, abs=0.01)
    assert f"a query has {terms:.1f} active terms on average, and 3 were wanted" in caplog.text

    both = make_trainer(fresh(), tmp_path / "both", query_terms=3, document_terms=40)
    both.train()
    texts = [row[column] for row in training_rows for column in ("positive", "negative_1")]
    vectors = both.model.encode(texts, convert_to_sparse_tensor=False)
    assert float((vectors > 0).sum(dim=1).float().mean()) == pytest.approx(40, abs=1 / len(texts))


@pytest.mark.parametrize(
    ("wanted", "numbers", "message"),
    [
        ({"document_terms": 0}, {}, "document_terms must .* received 0"),
        ({"query_terms": -3}, {}, "query_terms must .* received -3"),
        ({"document_terms": math.nan}, {}, "document_terms must .* received nan"),
        ({"query_terms": 10**6}, {}, "query_terms must lie between 0 and the .* received 1e"),
        (
            {"query_terms": 8},
            {"query_flops_weight": 0.0},
            "query_terms multiplies the weight of flops_query.*received 0",
        ),
    ],
)
def test_what_cannot_be_held_is_refused_before_training(
    tiny_splade: SparseEncoder, wanted: dict[str, float], numbers: dict[str, float], message: str
) -> None:
    """A wrong number, or a weight of 0, which no factor moves, would train a whole run for nothing."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0, **numbers)
    with pytest.raises(ValueError, match=message):
        SpladeTrainer(tiny_splade, loss, **wanted)


def test_a_loss_without_the_two_weights_is_refused(tiny_splade: SparseEncoder) -> None:
    """The controller would move nothing."""
    with pytest.raises(ValueError, match=r"need a single NeuralSparseLoss.*received InfoNCELoss"):
        SpladeTrainer(tiny_splade, InfoNCELoss(tiny_splade), document_terms=9)


def test_rows_of_every_kind_give_the_same_texts() -> None:
    """A data set, a stream and several by name hold the same texts, whatever the columns are called; a label
    is no text and a repeated text counts once.
    """
    texts = {"query": ["a", "b", "c"], "document": ["d", "e", "f"]}
    rows = Dataset.from_dict(
        {"question": texts["query"] * 2, "answer": texts["document"] * 2, "label": [1.0] * 6}
    )
    for given in (rows, rows.to_iterable_dataset(), {"a": rows, "b": rows.select(range(2))}):
        assert texts_of_rows(given, ["label"], most=100) == texts


def test_many_rows_are_read_in_part() -> None:
    """Rows of a large set stay on the disk; those that are read lie all over it."""
    rows = Dataset.from_dict({"anchor": [str(row) for row in range(100)], "positive": ["text"] * 100})
    expected = {"query": [str(row) for row in range(0, 100, 5)], "document": ["text"]}
    assert texts_of_rows(rows, (), most=5) == expected
    assert texts_of_rows(rows.to_iterable_dataset(), (), most=5)["query"] == ["0", "1", "2", "3", "4"]
