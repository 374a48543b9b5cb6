"""Synthetic topics, on which every contrastive loss must show that it learns."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

TOPIC_WORDS = [
    "sort list array min max sum".split(),
    "read write open close file path".split(),
    "tree graph node edge parse build".split(),
    "한국 서울 검색 문서 단어 질문".split(),
    "train loss batch model token dense".split(),
    "hash key value cache save load".split(),
]


class Topics:
    """Texts of four words of one topic; the texts that `separation` reads are drawn apart."""

    def pairs(self, count: int, seed: int = 0) -> list[tuple[str, str]]:
        """Two texts of one topic, the topics in turn."""
        generator = random.Random(seed)
        words = [TOPIC_WORDS[row % len(TOPIC_WORDS)] for row in range(count)]
        return [tuple(" ".join(generator.sample(topic, 4)) for _ in range(2)) for topic in words]

    def separation(self, model: Any) -> float:
        """Mean cosine of two texts of a topic minus that of two texts of different topics."""
        texts = [text for pair in self.pairs(24, seed=1) for text in pair]
        topic = torch.arange(24).remainder(len(TOPIC_WORDS)).repeat_interleave(2)
        rows = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        rows = torch.nn.functional.normalize(rows.to_dense().float(), dim=-1)
        cosine, same = rows @ rows.T, topic[:, None] == topic[None, :]
        others = ~torch.eye(len(texts), dtype=torch.bool)
        return float(cosine[same & others].mean() - cosine[~same].mean())

    def train(self, model: Any, loss: Any, rows: list[dict[str, Any]], way: str, steps: int = 30) -> None:
        """Some steps through `fit`, `SentenceTransformerTrainer` or `SparseEncoderTrainer`."""
        if way == "fit":
            from sentence_transformers import InputExample
            from torch.utils.data import DataLoader

            texts = [[value for key, value in row.items() if key != "label"] for row in rows]
            examples = [
                InputExample(texts=text, label=row.get("label", 0.0))
                for text, row in zip(texts, rows, strict=True)
            ]
            torch.manual_seed(0)
            loader = DataLoader(examples, batch_size=16, shuffle=True)
            epochs = -(-steps // len(loader))
            with warnings.catch_warnings():
                # `fit` asks for pinned memory, with or without an accelerator, and takes no argument for it
                warnings.filterwarnings("ignore", message="'pin_memory' argument")
                model.fit(
                    [(loader, loss)],
                    epochs=epochs,
                    warmup_steps=0,
                    optimizer_params={"lr": 3e-3},
                    show_progress_bar=False,
                )
            return
        from datasets import Dataset
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.sparse_encoder import (
            SparseEncoderTrainer,
            SparseEncoderTrainingArguments,
        )

        sparse = way == "sparse trainer"
        trainer = SparseEncoderTrainer if sparse else SentenceTransformerTrainer
        arguments = SparseEncoderTrainingArguments if sparse else SentenceTransformerTrainingArguments
        trainer(
            model=model,
            args=arguments(
                output_dir="run",
                max_steps=steps,
                per_device_train_batch_size=16,
                learning_rate=3e-3,
                use_cpu=True,
                dataloader_drop_last=True,
                dataloader_pin_memory=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=Dataset.from_list(rows),
            loss=loss,
        ).train()


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topics:
    """See `Topics`; whatever training writes goes to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return Topics()
