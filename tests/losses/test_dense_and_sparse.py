"""Dense and sparse vectors of BGE-M3 trained together: the parts, their gradients, and the trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.common.text_identity import NO_TEXT
from lexforge.losses import DenseAndSparseLoss, NeuralSparseLoss
from lexforge.losses.base import RELEVANT_KEY
from lexforge.losses.false_negatives import token_identity
from lexforge.losses.functional import info_nce
from lexforge.models import build_splade, dense_encoder
from lexforge.settings import PRESETS
from lexforge.training import SpladeTrainer, TrainingSettings

COLUMNS = [["sort a list", "search the index"], ["list of words", "index of a graph"], ["a tree", "an array"]]
NUMBERS: dict[str, Any] = PRESETS["bge-m3"].loss.arguments()


@pytest.fixture
def model(tiny_m3: Path) -> SparseEncoder:
    return build_splade(tiny_m3, device="cpu")


def features_of(model: SparseEncoder) -> list[dict[str, Any]]:
    return [dict(model.preprocess(texts)) for texts in COLUMNS]


def test_the_parts_are_those_of_each_kind_alone(model: SparseEncoder) -> None:
    """The dense part is InfoNCE of what the dense encoder gives, the others are those of NeuralSparseLoss."""
    both = DenseAndSparseLoss(model, dense_weight=0.5, dense_temperature=0.1, **NUMBERS)
    parts = both(features_of(model))
    alone = NeuralSparseLoss(model, **NUMBERS)(features_of(model))
    assert parts.keys() == alone.keys() | {"dense"}
    for name, value in alone.items():
        torch.testing.assert_close(parts[name], value)
    dense = dense_encoder(model)
    anchor, positive, negative = (torch.from_numpy(dense.encode(texts)) for texts in COLUMNS)
    expected = 0.5 * info_nce(anchor, positive, negative.unsqueeze(1), temperature=0.1)
    torch.testing.assert_close(parts["dense"], expected, atol=1e-5, rtol=1e-5)


def test_the_dense_part_leaves_out_what_is_known_to_answer(model: SparseEncoder) -> None:
    """The negative of the first row is judged relevant to its anchor; the sum leaves it out by hand."""
    loss = DenseAndSparseLoss(model, dense_temperature=0.1, **NUMBERS)
    features = features_of(model)
    answer = token_identity(features[2]["input_ids"], features[2]["attention_mask"])[0].item()
    features[0][RELEVANT_KEY] = torch.tensor([[answer], [NO_TEXT]])
    found = loss(features)["dense"]
    anchor, *documents = (torch.from_numpy(dense_encoder(model).encode(texts)) for texts in COLUMNS)
    scores = anchor @ torch.cat(documents).T / 0.1  # [2, 4]: two positives, then two negatives
    first = scores[0, [0, 1, 3]].logsumexp(dim=0) - scores[0, 0]
    second = scores[1].logsumexp(dim=0) - scores[1, 1]
    torch.testing.assert_close(found, (first + second) / 2, atol=1e-5, rtol=1e-5)  # float32


def test_the_dense_part_moves_the_encoder_and_not_the_sparse_head(model: SparseEncoder) -> None:
    """Both kinds share the transformer; the linear layer belongs to one of them."""
    DenseAndSparseLoss(model, **NUMBERS)(features_of(model))["dense"].backward()
    assert model[0].model.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    gradient = model[1].sparse_linear.weight.grad
    assert gradient is None or not gradient.any()


def test_the_trainer_takes_it(
    model: SparseEncoder, tmp_path: Path, training_rows: list[dict[str, str]]
) -> None:
    """Both parts stand in the log, and both fall."""
    settings = TrainingSettings(
        steps=12, batch_size=6, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32",
        logging_steps=1,
    )  # fmt: skip
    trainer = SpladeTrainer(
        model,
        DenseAndSparseLoss(model, dense_temperature=0.05, **NUMBERS | {"temperature": 0.05}),
        args=settings.arguments(tmp_path, disable_tqdm=True),
        train_dataset=Dataset.from_list(training_rows),
        dropout=0.0,
    )
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss/dense" in line]
    for name in ("loss/dense", "loss/infonce"):
        assert lines[-1][name] < lines[0][name], name
    assert 0 < lines[0]["share/dense"] < 1


def test_what_it_cannot_do_is_refused(model: SparseEncoder, tiny_splade: SparseEncoder) -> None:
    """Each of these would train something else than asked for."""
    with pytest.raises(ValueError, match="mini_batch_size must be None; received 2"):
        DenseAndSparseLoss(model, mini_batch_size=2, **NUMBERS)
    with pytest.raises(ValueError, match=r"one head of BGE-M3 .* received one with 0"):
        DenseAndSparseLoss(tiny_splade, **NUMBERS)
    for weight in (-1, math.inf):  # infinity became a loss of NaN in the first step
        with pytest.raises(ValueError, match=f"dense_weight must be finite and >= 0; received {weight}"):
            DenseAndSparseLoss(model, dense_weight=weight, **NUMBERS)
    with pytest.raises(ValueError, match=r"^dense_temperature must be a finite number above 0; received 0"):
        DenseAndSparseLoss(model, dense_temperature=0, **NUMBERS)  # `temperature` is another number
    with pytest.raises(ValueError, match="pass it to the trainer directly"):
        DenseAndSparseLoss(model, **NUMBERS).compute_loss_from_embeddings([torch.ones(2, 90)] * 2)
