"""Batches without repeated texts: as many as promised, and of rows drawn by weight, the same everywhere."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

from lexforge.data import (
    DataError,
    SourceOptions,
    check_source,
    load_retrieval_data,
    load_training_data,
)
from lexforge.losses import InfoNCELoss
from lexforge.runs.finite import ROWS_KEY
from lexforge.training import DenseTrainer, TrainingSettings
from lexforge.training.batch_samplers import FullEpochs, WeightedBatchSampler, draw_rows, weighted_batches


def rows(number: int) -> Dataset:
    return Dataset.from_list([{"anchor": f"q{i}", "positive": f"p{i}"} for i in range(number)])


def sampler(weights: list[float], batch_size: int = 4, seed: int = 3) -> WeightedBatchSampler:
    return WeightedBatchSampler(
        rows(len(weights)), batch_size, True, weights=np.array(weights, dtype=float), seed=seed
    )


def answered(number: int, others: int) -> Dataset:
    """Questions that share one answer, except some with answers of their own."""
    answers = [f"p{i}" if i < others else "the same" for i in range(number)]
    return Dataset.from_dict({"anchor": [f"q{i}" for i in range(number)], "positive": answers})


def epoch_of(kind: Any, data: Dataset, epoch: int) -> list[list[int]]:
    made = kind(data, 4, True, seed=3, generator=torch.Generator())
    made.set_epoch(epoch)
    return list(made)


def test_an_epoch_has_as_many_batches_as_it_promises() -> None:
    """A pass over questions with few answers yields fewer, and the steps of a resumed run would be others."""
    data = answered(40, 4)
    assert len(epoch_of(NoDuplicatesBatchSampler, data, 0)) < 10
    for epoch in range(3):
        batches = epoch_of(FullEpochs, data, epoch)
        assert len(batches) == 10
        assert all(len({data[row]["positive"] for row in batch}) == 4 for batch in batches)
        assert batches == epoch_of(FullEpochs, data, epoch) != epoch_of(FullEpochs, data, epoch + 1)
        assert batches == epoch_of(partial(FullEpochs, precompute_hashes=True), data, epoch)
    assert epoch_of(FullEpochs, answered(40, 2), 0) == [], "no batch of four answers can be made of three"
    plain = answered(42, 42)
    assert epoch_of(FullEpochs, plain, 5) == epoch_of(NoDuplicatesBatchSampler, plain, 5)


def test_all_steps_are_taken_where_most_rows_share_a_text(
    tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """The training ended before its last step and its last checkpoint, and a resumed one trained on."""
    settings = TrainingSettings(steps=8, batch_size=4, learning_rate=1e-3, precision="fp32", save_steps=5)
    args = settings.arguments(tmp_path, SentenceTransformerTrainingArguments)
    given = {"args": args, "train_dataset": answered(40, 4)}
    DenseTrainer(tiny_dense, InfoNCELoss(tiny_dense), **given).train()
    assert (tmp_path / "checkpoint-8").is_dir()
    again = DenseTrainer(tiny_dense, InfoNCELoss(tiny_dense), **given)
    assert again.train(resume_from_checkpoint=True).global_step == 8
    assert again.state.global_step == 8


def test_each_row_is_drawn_by_its_share() -> None:
    """Rounded up or down in each epoch, exact over many, and never for the weight 0; by a naive loop."""
    weights = np.array([0.0, 1, 2, 3, 10, 0.5, 0, 3.5])
    total: Counter[int] = Counter()
    for epoch in range(400):
        drawn = draw_rows(weights, 7, epoch)
        assert len(drawn) == len(weights)
        counts = Counter(drawn.tolist())
        for row, weight in enumerate(weights):
            expected = len(weights) * weight / weights.sum()
            assert int(expected) <= counts[row] <= int(expected) + 1 if weight else row not in counts
        total += counts
    shares = np.array([total[row] for row in range(len(weights))]) / sum(total.values())
    # 400 epochs: the starts are uniform, so a count of 0 or 1 more has a deviation below .5 / 20 per epoch.
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)


def test_equal_weights_draw_each_row_once() -> None:
    """Then nothing differs from training without weights."""
    for epoch in range(20):
        assert draw_rows(np.full(37, 2.5), 1, epoch).tolist() == list(range(37))


def test_the_draw_follows_from_seed_and_epoch() -> None:
    """Two ranks and a resumed run make the sampler anew, and must get the same batches."""
    weights = [float(1 + i % 5) for i in range(40)]
    first = sampler(weights)
    batches = {}
    for epoch in (0, 1, 2):
        first.set_epoch(epoch)
        batches[epoch] = list(first)
    other = sampler(weights)
    other.set_epoch(2)
    assert list(other) == batches[2] != batches[1]
    assert batches[0] != batches[1]
    assert len(first) == 10
    third = sampler(weights, seed=4)
    assert list(third) != batches[0]


def test_no_batch_holds_a_text_twice() -> None:
    """Its second place would count as a negative of the first, however much the row weighs."""
    found = list(sampler([50.0, *[1.0] * 39]))
    assert len(found) == 10
    assert all(len(set(batch)) == len(batch) == 4 for batch in found)
    assert sum(0 in batch for batch in found) >= len(found) - 1


def test_weights_that_do_not_fit_are_refused() -> None:
    """Rows that were dropped after the weights were read would get those of others."""
    with pytest.raises(ValueError, match="received 3 for 4 rows"):
        WeightedBatchSampler(rows(4), 2, True, weights=np.ones(3))


@pytest.mark.parametrize("number", [7, 12])
def test_an_evaluation_takes_each_of_its_rows_once(
    number: int, tiny_splade: Any, make_trainer: Any, training_rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """The weights are those of the training rows, whose sampler sentence-transformers takes for all data."""
    evaluated = Dataset.from_list(training_rows[:number])
    arguments = {"per_device_eval_batch_size": 1, **weighted_batches(np.array([3.0, *[1.0] * 11]))}
    trainer = make_trainer(tiny_splade, tmp_path, eval_dataset=evaluated, arguments=arguments)
    for batches in (trainer.get_eval_dataloader(), trainer.get_test_dataloader(evaluated)):
        texts = [batch[ROWS_KEY][0][0] for batch in batches]
        assert sorted(texts) == sorted(evaluated["anchor"][:])
    rows_of_an_epoch = [row for batch in trainer.get_train_dataloader().batch_sampler for row in batch]
    assert rows_of_an_epoch.count(0) > 1


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["query,positive,clicks", *lines]) + "\n")
    return str(path)


CLICKS = SourceOptions(weight_column="clicks", bad_rows="skip")


# The oldest `datasets` leaves a CSV file open until it is collected.
LEFT_OPEN = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@LEFT_OPEN
def test_weights_are_read_with_the_rows(tmp_path: Path) -> None:
    """They follow rows that are held out; a repeated row adds its weight to the first, and a row of a wrong
    weight stays with the weight 0, because an evaluation that reads no weights has its texts too.
    """
    source = write(tmp_path / "x.csv", "a,b,2", "c,d,1.5", "a,b,3", "e,f,many", "g,h,-1", "i,j,", "k,l,0")
    loaded = load_training_data(source, [], CLICKS)
    assert loaded.weights is not None
    assert loaded.weights.tolist() == [5.0, 1.5, 0.0, 0.0, 0.0, 0.0]
    assert loaded.training_rows().column_names == ["anchor", "positive"]
    wrong = "line 5 ('many'), line 6 ('-1'), line 7 ('')"
    assert f"  wrong weights, never drawn: 3, namely {wrong}" in loaded.notes
    assert weighted_batches(loaded.weights)["batch_sampler"](loaded.training_rows(), 1, True).batch_size == 1
    with pytest.raises(DataError, match=r":5: 'clicks' must hold a number >= 0; received 'many'\nIn all 3"):
        load_training_data(source, [], SourceOptions(weight_column="clicks"))
    assert load_training_data(source, []).weights is None
    assert weighted_batches(None) == {}

    source = write(tmp_path / "y.csv", *(f"q{i},p{i},{i}" for i in range(1, 40)))
    held_out = load_training_data(source, ["test"], SourceOptions(weight_column="clicks", hold_out=0.3))
    trained = held_out.training_rows()
    assert held_out.weights is not None
    assert held_out.weights.tolist() == [float(row["anchor"][1:]) for row in trained]
    assert held_out.digests(trained)["weights"]["count"] == len(trained)


@LEFT_OPEN
@pytest.mark.parametrize("cell", ["3,5", "1.200,50", "1.234.567"])
def test_weights_with_commas_or_marks_of_thousands_are_bad(cell: str, tmp_path: Path) -> None:
    """And they tell nothing of a decimal point: 1.200 beside them, which means 1200 there, is told."""
    source = write(tmp_path / "x.csv", "a,b,1.200", f'c,d,"{cell}"')
    with pytest.raises(DataError, match=rf":3: 'clicks' must hold a number >= 0; received '{cell}'"):
        load_training_data(source, [], SourceOptions(weight_column="clicks"))
    loaded = load_training_data(source, [], CLICKS)
    assert loaded.weights is not None
    assert loaded.weights.tolist() == [1.2, 0.0]
    assert f"{source}:2: 1.200 in 'clicks' is read with a decimal point" in loaded.notes[0]


@LEFT_OPEN
def test_weights_are_those_of_train_alone(tmp_path: Path) -> None:
    """Nothing is drawn from another split: its file needs no such column, and a wrong weight is no fault."""
    write(tmp_path / "train.csv", "a,b,2", "c,d,1")
    write(tmp_path / "dev.csv", "i,j,many")
    (tmp_path / "test.csv").write_text("query,positive\ne,f\ng,h\n")
    options = SourceOptions(weight_column="clicks")
    check_source(str(tmp_path), ["train", "test"], options)
    loaded = load_training_data(str(tmp_path), ["test", "dev"], options)
    assert loaded.weights is not None
    assert loaded.weights.tolist() == [2.0, 1.0]
    assert {split: len(judged) for split, judged in loaded.measured.qrels.items()} == {"test": 2, "dev": 1}


@LEFT_OPEN
def test_weights_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    """An option without an effect misleads."""
    source = write(tmp_path / "x.csv", "a,b,0", "c,d,0")
    with pytest.raises(DataError, match="no row of the split 'train' has a weight above 0"):
        _ = load_training_data(source, [], CLICKS).weights
    with pytest.raises(DataError, match=r"expected one weight column out of \['views'\]"):
        load_training_data(source, [], SourceOptions(weight_column="views"))
    with pytest.raises(ValueError, match="--weight-column clicks would be ignored: weights belong to rows"):
        load_training_data(source, [], CLICKS, given_rows=False)
    with pytest.raises(ValueError, match="would be ignored: they say how often"):
        load_retrieval_data(source, None, CLICKS)
