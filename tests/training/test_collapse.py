"""The warning before a collapse costs a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sentence_transformers import SparseEncoder
from transformers import TrainerControl, TrainerState, TrainingArguments

from lexforge.losses import NeuralSparseLoss
from lexforge.training import SpladeTrainer, collapse
from lexforge.training.collapse import CollapseCallback


def feed(callback: CollapseCallback, lines: list[dict[str, float]], caplog: pytest.LogCaptureFixture) -> list:
    """The warnings after each line of a log."""
    counts = []
    with caplog.at_level(logging.WARNING):
        for step, logs in enumerate(lines, 1):
            state = TrainerState(global_step=10 * step)
            callback.on_log(TrainingArguments(report_to="none"), state, TrainerControl(), logs=logs)
            counts.append(len(caplog.messages))
    return counts


def line(query: float, document: float) -> dict[str, float]:
    return {"loss": 1.0, "terms/query": query, "terms/document": document}


def test_empty_activations_are_called_out_once_they_stay(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three lines in a row, not three in all; once, not at every line after; again after it had recovered."""
    monkeypatch.setattr(collapse, "PATIENCE", 3)
    callback = CollapseCallback(100)
    empty, healthy = line(0.4, 20), line(5, 20)
    lines = [empty, empty, healthy, empty, empty, empty, empty, healthy, empty, empty, empty]
    assert feed(callback, lines, caplog) == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    first = caplog.messages[0]
    assert "step 60" in first
    assert "a query has had 0.4 of 100 terms active" in first
    assert "lower flops_weight" in first
    assert "raise minimum_activation_weight" in first


def test_dense_activations_are_called_out_for_each_column(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than half of the vocabulary active is no sparse model; exactly half is let pass."""
    monkeypatch.setattr(collapse, "PATIENCE", 2)
    callback = CollapseCallback(100)
    assert feed(callback, [line(50, 51), line(50, 51)], caplog) == [0, 1]
    assert "a document has had 51.0 of 100" in caplog.messages[0]
    assert "raise flops_weight" in caplog.messages[0]


def test_a_wanted_number_is_named_in_the_place_of_the_weight_that_it_sets(
    tiny_splade: SparseEncoder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The controller would overwrite the weight at the next count."""
    monkeypatch.chdir(tmp_path)  # a trainer without arguments makes its folder where it is
    loss = NeuralSparseLoss(tiny_splade, flops_weight=1.0)
    trainer = SpladeTrainer(tiny_splade, loss, document_terms=8)
    (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, CollapseCallback))
    size = callback.vocabulary_size
    assert feed(callback, [line(5, size)] * 5, caplog)[-1] == 1
    assert caplog.messages[0].endswith("terms active: lower document_terms")


def test_lines_without_activations_count_for_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of a run, and those of the evaluation, hold no such number."""
    monkeypatch.setattr(collapse, "PATIENCE", 2)
    callback = CollapseCallback(100)
    assert feed(callback, [line(0, 20), {"train_runtime": 3.0}, line(0, 20)], caplog) == [0, 0, 1]
