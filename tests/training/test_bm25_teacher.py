"""BM25 as the teacher of a training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.losses import NeuralSparseLoss
from lexforge.losses.distillation import distillation
from lexforge.losses.false_negatives import BatchTexts
from lexforge.settings import PRESETS
from lexforge.teachers import BM25Teacher
from lexforge.teachers.bm25 import WIDTH
from lexforge.training import SpladeTrainer, TrainingSettings


def test_it_teaches_by_dot_product(
    fresh: Callable[[], SparseEncoder], training_rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """Cosines of BM25's vectors would forget the lengths that BM25 minds, without an error."""
    teacher = BM25Teacher.fit([row["positive"] for row in training_rows])
    settings = TrainingSettings(
        steps=1, batch_size=4, gradient_accumulation_steps=1, precision="fp32", logging_steps=1
    )

    def trainer(**others: Any) -> SpladeTrainer:
        model = fresh()
        model.similarity_fn_name = "dot"
        return SpladeTrainer(
            model,
            NeuralSparseLoss(model, **PRESETS["lexforge"].loss.arguments(), **others),
            args=settings.arguments(tmp_path, disable_tqdm=True),
            train_dataset=Dataset.from_list(training_rows),
            teacher=teacher,
        )

    with pytest.raises(ValueError, match="its loss needs teacher_similarity='dot'; received 'cosine'"):
        trainer()
    taught = trainer(teacher_similarity="dot")
    batch = next(iter(taught.get_train_dataloader()))
    anchors, positives = (batch[f"{name}_teacher_embedding"].float() for name in ("anchor", "positive"))
    assert anchors.shape == positives.shape == (4, WIDTH)
    assert ((anchors @ positives.T).diagonal() > 0).all(), "a row's query and positive share words"
    features, _ = taught.collect_features(batch)
    student = [taught.model(dict(column))["sentence_embedding"] for column in features]
    parts = taught.losses[0].compute_loss(student, features, None)
    numbers = PRESETS["lexforge"].loss
    candidates = torch.cat([column["teacher_embedding"] for column in features[1:]]).float()
    expected = distillation(
        student[0] @ torch.cat(student[1:]).T,
        anchors @ candidates.T,
        numbers.distillation_temperature,
        numbers.kl_weight,
        numbers.mse_weight,
        match_scale=True,
        left_out=BatchTexts.of(features, False).left_out(),
    )
    torch.testing.assert_close(parts["distillation"], numbers.distillation_weight * expected)
    taught.train()
    assert taught.state.log_history[0]["loss/distillation"] > 0
