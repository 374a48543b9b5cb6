"""The batch of sentence-transformers, and beside it what the teacher says and which rows these are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sparse_encoder import SparseEncoderDataCollator

from lexforge.runs.finite import ROWS_KEY
from lexforge.training.collator import DenseCollator, SpladeCollator

ROWS = [
    {"anchor": "sort list", "positive": "sort a list", "label": 1},
    {"anchor": "search", "positive": "search an index", "label": 0},
]


class Teacher:
    """The first letters' codes, in half precision as the cache keeps them; remembers what it was asked."""

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
    assert batch.keys() == stock.keys()
    for key, value in stock.items():
        assert torch.equal(batch[key], value) if isinstance(value, torch.Tensor) else batch[key] == value


def test_a_dense_batch_names_its_rows_too(tiny_dense: SentenceTransformer) -> None:
    """And keeps every setting of the collator that the trainer makes."""
    stock = SentenceTransformerDataCollator(tiny_dense.preprocess, ["label"], prompts={"anchor": "query: "})
    collator = DenseCollator.like(stock)
    assert collator.prompts == {"anchor": "query: "}
    batch, expected = collator(ROWS), stock(ROWS)
    assert batch.pop(ROWS_KEY) == [("sort list", "sort a list"), ("search", "search an index")]
    assert batch.keys() == expected.keys()
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
