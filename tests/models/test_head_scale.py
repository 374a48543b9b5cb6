"""The scale of a masked language model's head that was not trained for SPLADE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from lexforge.models import (
    build_inference_free,
    build_lexical_backbone,
    build_splade,
    fuse_encoder,
    head_is_trained,
    restrict_output_vocabulary,
    scale_head,
)
from lexforge.models.head_scale import UNTRAINED, can_scale_logits, scale_logits
from lexforge.models.structure import splade_decoders

TEXTS = ["sort a list of words", "한국 서울 검색", "the index", "open a file and read it"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
MODELS: dict[str, Any] = {
    "bert": lambda terms, tied: BertForMaskedLM(
        BertConfig(vocab_size=terms, max_position_embeddings=64, tie_word_embeddings=tied, **SMALL)
    ),
    "roberta": lambda terms, tied: RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=terms, max_position_embeddings=66, pad_token_id=1, tie_word_embeddings=tied, **SMALL
        )
    ),
    "distilbert": lambda terms, tied: DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=terms, dim=32, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64,
            tie_word_embeddings=tied,
        )
    ),
    "modernbert": lambda terms, tied: ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=terms, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
            cls_token_id=2, sep_token_id=3, tie_word_embeddings=tied, **SMALL,
        )
    ),
}  # fmt: skip


def bare(family: str, checkpoint: Path, folder: Path, *, tied: bool = True) -> Path:
    """Save a masked language model that was never trained for SPLADE: half of its logits are above 0."""
    torch.manual_seed(0)
    model = MODELS[family](len(AutoTokenizer.from_pretrained(checkpoint)), tied)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


def rows(model: SparseEncoder) -> np.ndarray:
    return model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", MODELS)
def test_a_bare_language_model_starts_with_few_terms(
    family: str, tied: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """By definition: so many terms on average, of a mean logit of 1, in every family and after saving."""
    folder = bare(family, tiny_checkpoint, tmp_path / "bare", tied=tied)
    assert (rows(build_splade(folder, device="cpu")) > 0).mean() > 0.3
    for fused in (True, False):
        model = build_splade(folder, fused=fused, device="cpu")
        scale_head(model, TEXTS, active_terms=9)
        found = rows(model)
        assert (found > 0).sum() == 9 * len(TEXTS)
        assert np.expm1(found[found > 0]).mean() == pytest.approx(1, rel=1e-3)  # float32
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(rows(loaded), found, atol=1e-5)  # float32


def test_the_scale_of_a_bare_head_does_not_matter(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Large rows of the decoder make SPLADE collapse; they start as any other head does."""
    found = []
    for factor in (0.25, 1.0, 4.0):
        folder = bare("bert", tiny_checkpoint, tmp_path / str(factor), tied=False)
        language_model = AutoModelForMaskedLM.from_pretrained(folder)
        with torch.no_grad():
            language_model.get_output_embeddings().weight *= factor
            language_model.get_output_embeddings().bias *= factor
        language_model.save_pretrained(folder)
        found.append(rows(scale_head(build_splade(folder, device="cpu"), TEXTS)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[2], found[1], atol=1e-5)


def test_the_input_embeddings_stay(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A tied decoder shares its matrix with the input, which must not be scaled."""
    folder = bare("bert", tiny_checkpoint, tmp_path)
    before = build_splade(folder, device="cpu")[0].model.get_input_embeddings().weight
    model = scale_head(build_splade(folder, device="cpu"), TEXTS)
    assert torch.equal(model[0].model.get_input_embeddings().weight, before)
    assert splade_decoders(model)[0].weight is model[0].model.get_input_embeddings().weight


def test_terms_that_are_left_out_stay_out(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The shift would cancel the bias that bans them, and they would count among the active terms."""
    model = build_splade(bare("bert", tiny_checkpoint, tmp_path / "bare"), fused=False, device="cpu")
    banned = list(range(5, 30))
    restrict_output_vocabulary(model, banned)
    left = model[0].model.config.vocab_size - len(banned)
    for too_many in (left, left + 1):  # the weights became NaN
        with pytest.raises(ValueError, match=rf"active_terms must lie in \[1, {left - 1}\]"):
            scale_head(model, TEXTS, active_terms=too_many)
    scale_head(model, TEXTS, active_terms=4)
    found = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False)
    assert not found[:, banned].any()
    assert float((found > 0).sum(dim=1).float().mean()) == pytest.approx(4)


def test_a_plain_head_stays_plain_under_a_forward_of_training(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """`fuse_encoder` replaces a forward too, and a head that pools by sums cannot be fused."""
    model = build_splade(bare("bert", tiny_checkpoint, tmp_path / "bare"), fused=False, device="cpu")
    model[1].pooling_strategy = "sum"
    fuse_encoder(model)
    scale_head(model, TEXTS, active_terms=4)
    assert "forward" not in vars(model[1])


def test_a_trained_head_is_told_by_its_few_terms(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A trained SPLADE encoder may be saved as a bare masked language model too."""
    folder = bare("bert", tiny_checkpoint, tmp_path / "bare")
    model = build_splade(folder, device="cpu")
    assert not head_is_trained(model, TEXTS)
    scale_head(model, TEXTS, active_terms=5)[0].model.save_pretrained(tmp_path / "splade")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "splade")
    loaded = build_splade(tmp_path / "splade", device="cpu")
    assert head_is_trained(loaded, TEXTS)
    assert head_is_trained(loaded, [" ", ""]), "without a text nothing speaks against it"


def test_a_head_of_a_small_vocabulary_is_told_by_the_tokens_of_the_text(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A backbone of a few documents has so few terms that the words of one text are many of them."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    texts = [f"a list of {' '.join(letters[n : n + 12])} that is sorted" for n in range(24)]
    model = build_splade(build_lexical_backbone(texts, tmp_path / "lexical", max_seq_length=48), device="cpu")
    vectors = model.encode_document(texts, convert_to_sparse_tensor=False, show_progress_bar=False)
    assert (vectors > 0).float().mean() > UNTRAINED
    assert head_is_trained(model, texts)
    assert not head_is_trained(
        build_splade(bare("bert", tiny_checkpoint, tmp_path / "bare"), device="cpu"), texts
    )


def test_a_decoder_without_a_bias_cannot_be_scaled(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The threshold of a term is its bias."""
    folder = bare("bert", tiny_checkpoint, tmp_path)
    model = build_splade(folder, device="cpu")
    splade_decoders(model)[0].bias = None
    with pytest.raises(ValueError, match="has no bias that could be shifted"):
        scale_head(model, TEXTS)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", MODELS)
def test_logits_are_multiplied_bit_for_bit(
    family: str, tied: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A power of two rounds nothing, in every family, and sentence-transformers loads the model so."""
    folder = bare(family, tiny_checkpoint, tmp_path / "bare", tied=tied)
    model = build_splade(folder, fused=False, device="cpu")
    restrict_output_vocabulary(model, [7, 30])

    def logits(encoder: SparseEncoder) -> torch.Tensor:
        tokens: Any = encoder[0].tokenizer(TEXTS[0], return_tensors="pt")
        with torch.no_grad():
            return encoder[0].model.eval()(**tokens).logits[0]  # [L, V]

    before = logits(model)
    assert can_scale_logits(model, TEXTS[0])
    scale_logits(model, 8, TEXTS[0])
    allowed = [term for term in range(before.shape[1]) if term not in (7, 30)]
    assert torch.equal(logits(model)[:, allowed], 8 * before[:, allowed])
    assert (logits(model)[:, [7, 30]] < -9e3).all()
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(rows(loaded), rows(model), atol=1e-5)  # float32


def test_the_documents_of_an_inference_free_model_are_multiplied(tiny_splade: SparseEncoder) -> None:
    """Its head stands behind a router, and its queries are looked up."""
    free = build_inference_free(tiny_splade, np.linspace(0.1, 2, len(tiny_splade.tokenizer)))
    options: dict[str, Any] = {"convert_to_sparse_tensor": False, "show_progress_bar": False}
    queries, documents = free.encode_query(TEXTS, **options), free.encode_document(TEXTS, **options)
    scale_logits(free, 4, TEXTS[0])
    assert torch.equal(free.encode_query(TEXTS, **options), queries)
    torch.testing.assert_close(free.encode_document(TEXTS, **options).expm1(), 4 * documents.expm1())


def test_a_factor_without_a_place_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The matrix of the input embeddings must not be multiplied, and other factors are rounded."""
    model = build_splade(bare("bert", tiny_checkpoint, tmp_path), device="cpu")
    for factor in (0, 3, -2):
        with pytest.raises(ValueError, match=f"power of two, 1 or above; received {factor}"):
            scale_logits(model, factor, TEXTS[0])
    model[0].model.cls.predictions.transform.LayerNorm = torch.nn.Identity()
    assert not can_scale_logits(model, TEXTS[0])
    with pytest.raises(ValueError, match="no normalization before it"):
        scale_logits(model, 2, TEXTS[0])
