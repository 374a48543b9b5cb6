"""The restriction of the output vocabulary: exact, saved, kept by training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SparseEncoder
from transformers import AutoTokenizer, ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerBase

from lexforge.models import build_splade, restrict_output_vocabulary
from lexforge.models.decoder_bias import BANNED_BIAS

TEXTS = ["sort a list of words", "한국 서울 검색", "the index", "query"]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def embeddings(model: SparseEncoder) -> np.ndarray:
    return model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()


@pytest.mark.parametrize("fused", [True, False])
def test_banned_terms_stay_silent_and_others_do_not_change(
    tiny_checkpoint: Path, tmp_path: Path, fused: bool
) -> None:
    """The restriction is in the weights: a model loaded by sentence-transformers alone has it too."""
    model = build_splade(tiny_checkpoint, fused=fused, device="cpu")
    before = embeddings(model)
    banned = np.flatnonzero(before.max(axis=0))[::2].tolist()  # terms that were in use
    assert len(banned) > 10
    assert restrict_output_vocabulary(model, banned) is model
    after = embeddings(model)
    assert not after[:, banned].any()
    kept = np.delete(np.arange(before.shape[1]), banned)
    np.testing.assert_array_equal(after[:, kept], before[:, kept])  # no other bias is touched
    model.save_pretrained(str(tmp_path))
    # fused and plain sum in another order
    np.testing.assert_allclose(embeddings(SparseEncoder(str(tmp_path), device="cpu")), after, atol=1e-5)


def test_training_keeps_the_restriction(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The Trainer's own optimizer, with a weight decay and a learning rate far above the usual ones."""
    from datasets import Dataset
    from sentence_transformers.sparse_encoder import (
        SparseEncoderTrainer,
        SparseEncoderTrainingArguments,
        losses,
    )

    model = restrict_output_vocabulary(build_splade(tiny_checkpoint, device="cpu"), range(0, 60))
    bias = model[0].model.get_output_embeddings().bias
    before = bias.detach().clone()
    arguments = SparseEncoderTrainingArguments(
        str(tmp_path), max_steps=5, per_device_train_batch_size=4, learning_rate=0.05, weight_decay=0.5,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    pairs = Dataset.from_dict({"anchor": TEXTS * 5, "positive": TEXTS[::-1] * 5})
    ranking = losses.SparseMultipleNegativesRankingLoss(model)
    loss = losses.SpladeLoss(model, ranking, document_regularizer_weight=1e-3)
    SparseEncoderTrainer(model=model, args=arguments, train_dataset=pairs, loss=loss).train()
    assert (bias[:60] == BANNED_BIAS).all()
    assert (bias[60:] != before[60:]).any()  # training did change what it may
    assert not embeddings(model.eval())[:, :60].any()


@pytest.mark.parametrize("wrong", [[-1], [3, 1000]])
def test_ids_outside_the_vocabulary(tiny_checkpoint: Path, wrong: list[int]) -> None:
    """A negative id would silently ban a term from the end."""
    model = build_splade(tiny_checkpoint, device="cpu")
    with pytest.raises(ValueError, match=rf"must lie in \[0, \d+\); received \[{wrong[-1]}\]"):
        restrict_output_vocabulary(model, wrong)


def test_banning_everything(tiny_checkpoint: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Every text would become the empty vector."""
    with pytest.raises(ValueError, match="nothing would be left"):
        restrict_output_vocabulary(build_splade(tiny_checkpoint, device="cpu"), range(len(tokenizer)))


def test_a_decoder_without_bias(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """There is no other place in the saved weights for the restriction."""
    terms = len(AutoTokenizer.from_pretrained(tiny_checkpoint))
    config = ModernBertConfig(
        vocab_size=terms, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2,
        sep_token_id=3, decoder_bias=False,
    )  # fmt: skip
    ModernBertForMaskedLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no bias"):
        restrict_output_vocabulary(build_splade(tmp_path, device="cpu"), [1])
