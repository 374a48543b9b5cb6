"""The batch of sentence-transformers, and beside it what the teacher says and which rows these are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
)
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sparse_encoder import SparseEncoderDataCollator

from lexforge.common.text_identity import NO_TEXT, text_identity
from lexforge.common.types import DataError
from lexforge.losses import InfoNCELoss, NeuralSparseLoss
from lexforge.runs.finite import ROWS_KEY
from lexforge.training import DenseTrainer, SpladeTrainer, TrainingSettings
from lexforge.training.collator import DenseCollator, SpladeCollator

ROWS = [
    {"anchor": "sort list", "positive": "sort a list", "label": 1},
    {"anchor": "search", "positive": "search an index", "label": 0},
]

IDENTITIES = {"anchor_text_identity", "positive_text_identity"}


class Teacher:
    """The first letters' codes, in half precision as the cache keeps them; remembers what it was asked."""

    similarity = "cosine"

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    def lookup(self, texts: list[str], kind: str) -> np.ndarray:
        self.asked.append((kind, list(texts)))
        return np.array([[ord(text[0]), ord(text[1]), len(text)] for text in texts], np.float16)


def collate(encoder: SparseEncoder, collator: type[SparseEncoderDataCollator], **given: Any) -> Any:
    return collator(preprocess_fn=encoder.preprocess, valid_label_columns=["label"], **given)(ROWS)


def test_only_keys_are_added(tiny_splade: SparseEncoder) -> None:
    """Whatever a loss of sentence-transformers reads stands as it would."""
    stock = collate(tiny_splade, SparseEncoderDataCollator)
    batch = collate(tiny_splade, SpladeCollator)
    assert batch.pop(ROWS_KEY) == [("sort list", "sort a list"), ("search", "search an index")]
    assert batch.keys() == stock.keys() | IDENTITIES
    for key, value in stock.items():
        assert torch.equal(batch[key], value) if isinstance(value, torch.Tensor) else batch[key] == value


def test_a_dense_batch_names_its_rows_too(tiny_dense: SentenceTransformer) -> None:
    """And keeps every setting of the collator that the trainer makes."""
    stock = SentenceTransformerDataCollator(tiny_dense.preprocess, ["label"], prompts={"anchor": "query: "})
    collator = DenseCollator.like(stock)
    assert collator.prompts == {"anchor": "query: "}
    batch, expected = collator(ROWS), stock(ROWS)
    assert batch.pop(ROWS_KEY) == [("sort list", "sort a list"), ("search", "search an index")]
    assert batch.keys() == expected.keys() | IDENTITIES
    assert torch.equal(batch["anchor_input_ids"], expected["anchor_input_ids"])


def test_the_teacher_is_asked_for_each_text_column(tiny_splade: SparseEncoder) -> None:
    """Under the name from which the Trainer makes `teacher_embedding` of the column's features; anchors are
    queries, all else documents, so that the teacher's prompts fit.
    """
    teacher = Teacher()
    batch = collate(tiny_splade, SpladeCollator, teacher=teacher)
    assert teacher.asked == [
        ("query", ["sort list", "search"]),
        ("document", ["sort a list", "search an index"]),
    ]
    added = {key: value for key, value in batch.items() if key.endswith("_teacher_embedding")}
    assert added.keys() == {"anchor_teacher_embedding", "positive_teacher_embedding"}
    assert added["positive_teacher_embedding"].tolist() == [[115, 111, 11], [115, 101, 15]]


def test_what_the_teacher_keeps_is_not_shared_with_the_batch(tiny_splade: SparseEncoder) -> None:
    """A tensor over the cache's read-only map would warn, and a change in place would reach the file."""
    kept = np.ones((2, 3), np.float16)
    kept.flags.writeable = False

    class Keeps:
        def lookup(self, texts: list[str], kind: str) -> np.ndarray:
            return kept

    batch = collate(tiny_splade, SpladeCollator, teacher=Keeps())
    batch["anchor_teacher_embedding"].zero_()
    assert kept.min() == 1


def test_identities_of_the_texts_stand_beside_the_tokens(tiny_splade: SparseEncoder) -> None:
    """A loss leaves out a candidate by the identity of its text, also where tokens were cut off."""
    batch = collate(tiny_splade, SpladeCollator)
    for column in ("anchor", "positive"):
        expected = [text_identity(row[column]) for row in ROWS]
        assert batch[f"{column}_text_identity"].tolist() == expected
    assert "anchor_relevant" not in batch


def test_judged_documents_travel_beside_the_anchor(tiny_splade: SparseEncoder) -> None:
    """The column is no text: the encoder must not see it, the loss finds it sorted and filled up."""
    rows = [ROWS[0] | {"relevant": [5, -3]}, ROWS[1] | {"relevant": [7]}]
    collator = SpladeCollator(preprocess_fn=tiny_splade.preprocess, valid_label_columns=["label"])
    batch = collator(rows)
    assert batch["anchor_relevant"].tolist() == [[-3, 5], [7, NO_TEXT]]
    assert batch.keys() == collator(ROWS).keys() | {"anchor_relevant"}
    assert batch[ROWS_KEY] == [("sort list", "sort a list"), ("search", "search an index")]
    assert rows[0]["relevant"] == [5, -3], "the rows themselves stay as they are"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"positive": None}, "column 'positive': expected text in every row; received None"),
        (
            {"relevant": 1},
            "column 'relevant': expected a list of identities .*received 1. A column that means",
        ),
        ({"relevant": "yes"}, "column 'relevant': expected a list of identities .*received 'yes'"),
    ],
)
def test_a_cell_that_is_none_is_named(
    tiny_splade: SparseEncoder, changed: dict[str, Any], message: str
) -> None:
    """Of a data set of InfoNCELoss no cell is read before training. sentence-transformers names no column,
    and a column of grades that is called relevant ended in "object of type 'int' has no len()".
    """
    collator = SpladeCollator(preprocess_fn=tiny_splade.preprocess, valid_label_columns=["label"])
    with pytest.raises(DataError, match=message):
        collator([ROWS[0] | {name: [1] for name in changed if name == "relevant"}, ROWS[1] | changed])


def test_the_trainer_hands_them_to_the_loss(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """Two steps of our trainer on rows with judged documents: the share left out is known to the loss."""
    rows = [
        {"anchor": f"sort {word}", "positive": f"sorted {word}", "relevant": [text_identity("sorted list")]}
        for word in ("list", "array", "index", "file")
    ]
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0, temperature=20.0)
    arguments = TrainingSettings(
        steps=2, batch_size=4, gradient_accumulation_steps=1, precision="fp32", logging_steps=1
    ).arguments(tmp_path, save_strategy="no", disable_tqdm=True)
    trainer = SpladeTrainer(tiny_splade, loss, args=arguments, train_dataset=Dataset.from_list(rows))
    trainer.train()
    # three of the four anchors leave out one of their three negatives
    logged = [line["candidates/left_out"] for line in trainer.state.log_history if "loss" in line]
    assert logged == [pytest.approx(0.25, abs=1e-3)] * 2


def test_training_texts_are_cut_where_the_trainer_is_told(
    tiny_splade: SparseEncoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Shorter training texts make steps cheaper; the model itself still reads whole texts."""
    monkeypatch.chdir(tmp_path)  # a trainer without arguments makes its folder where it is
    longest = tiny_splade.max_seq_length
    dataset = Dataset.from_list([{"anchor": "sort list", "positive": "sort a list of words " * 4}])

    def tokens(length: int | None) -> int:
        loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
        trainer = SpladeTrainer(tiny_splade, loss, train_dataset=dataset, training_seq_length=length)
        return int(trainer.data_collator(dataset.to_list())["positive_input_ids"].shape[1])

    assert tokens(5) == 5
    assert tokens(None) > 5
    assert tiny_splade.max_seq_length == longest
    for wrong in (2, longest + 1):
        with pytest.raises(ValueError, match=f"between 3, .* max_seq_length, {longest}; received {wrong}"):
            tokens(wrong)


def test_a_dense_run_logs_the_share_left_out(tiny_dense: SentenceTransformer, tmp_path: Path) -> None:
    """A scalar loss has no parts in the log; what it left out stands there all the same."""
    rows = [
        {"anchor": f"sort {word}", "positive": f"sorted {word}", "relevant": [text_identity("sorted list")]}
        for word in ("list", "array", "index", "file")
    ]
    arguments = TrainingSettings(
        steps=2, batch_size=4, gradient_accumulation_steps=1, precision="fp32", logging_steps=1
    ).arguments(tmp_path, SentenceTransformerTrainingArguments, save_strategy="no", disable_tqdm=True)
    trainer = DenseTrainer(
        tiny_dense, InfoNCELoss(tiny_dense), args=arguments, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()
    logged = [line["candidates/left_out"] for line in trainer.state.log_history if "loss" in line]
    assert logged == [pytest.approx(0.25, abs=1e-3)] * 2


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
@pytest.mark.parametrize("given", [None, {"positive": "open "}])
def test_the_trainer_puts_the_saved_prompts_before_the_texts(
    vector_type: str, given: dict[str, str] | None, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """Evaluation and search use them, so training without them would train for other texts. Prompts that the
    arguments name come first. The oracle is the tokenizer on prompt and text.
    """
    model = tiny_splade if vector_type == "sparse" else tiny_dense
    model.prompts = {"query": "search ", "document": "", "passage": "file "}
    settings = TrainingSettings(steps=1, batch_size=2, precision="fp32")
    rows = [{"anchor": "sort list", "positive": "a tree"}, {"anchor": "index", "positive": "a graph"}]
    if vector_type == "sparse":
        arguments = settings.arguments(tmp_path, prompts=given)
        loss = NeuralSparseLoss(model, distillation_weight=0.0)
        trainer = SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(rows))
    else:
        arguments = settings.arguments(tmp_path, SentenceTransformerTrainingArguments, prompts=given)
        trainer = DenseTrainer(
            model, InfoNCELoss(model), args=arguments, train_dataset=Dataset.from_list(rows)
        )
    batch = next(iter(trainer.get_train_dataloader()))
    expected = {"anchor": "search ", "positive": "file "} if given is None else given
    for column in ("anchor", "positive"):
        texts = {f"[CLS] {expected.get(column, '')}{row[column]} [SEP]".replace("  ", " ") for row in rows}
        found = {
            text.replace(" [PAD]", "") for text in model.tokenizer.batch_decode(batch[f"{column}_input_ids"])
        }
        assert found == texts
    assert trainer.train().global_step == 1
