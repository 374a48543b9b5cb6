"""`build_splade`: which checkpoints become encoders, what is saved with them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder, SpladePooling, Transformer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from lexforge.models import build_splade
from lexforge.models.structure import positions_of, splade_transformers, vocabulary_size

TEXTS = ["sort a list of words", "한국 서울 검색", "the index", "query"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def embeddings(model: SparseEncoder) -> np.ndarray:
    return model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()


def beside(model: PreTrainedModel, checkpoint: Path, folder: Path) -> Path:
    """Save a model with the tokenizer of another checkpoint."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


def other_architectures(terms: int) -> list[PreTrainedModel]:
    torch.manual_seed(0)
    modern = ModernBertConfig(
        vocab_size=terms, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        cls_token_id=2, sep_token_id=3, **SMALL,
    )  # fmt: skip
    return [
        DistilBertForMaskedLM(
            DistilBertConfig(
                vocab_size=terms, dim=32, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64
            )
        ),
        RobertaForMaskedLM(
            RobertaConfig(vocab_size=terms, max_position_embeddings=66, pad_token_id=1, **SMALL)
        ),
        ElectraForMaskedLM(
            ElectraConfig(vocab_size=terms, embedding_size=16, max_position_embeddings=64, **SMALL)
        ),
        ModernBertForMaskedLM(modern),
    ]


def test_an_encoder_computes_the_splade_formula(tiny_checkpoint: Path) -> None:
    """The oracle is the formula in plain loops over the logits that transformers gives."""
    model = build_splade(tiny_checkpoint, device="cpu")
    language_model = AutoModelForMaskedLM.from_pretrained(tiny_checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    for text, row in zip(TEXTS, embeddings(model), strict=True):
        with torch.no_grad():
            logits = language_model(**tokenizer(text, return_tensors="pt")).logits[0].double().numpy()
        expected = np.zeros(logits.shape[1])
        for token in logits:
            for term, logit in enumerate(token):
                if logit > 0:
                    expected[term] = max(expected[term], np.log(1 + logit))
        # float32 products of 32 numbers, padded and not
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_a_saved_encoder_keeps_its_settings_unless_told(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Training goes on from an encoder; its similarity and length must not fall back to defaults."""
    build_splade(tiny_checkpoint, max_seq_length=16, similarity="cosine", device="cpu").save_pretrained(
        str(tmp_path)
    )
    kept = build_splade(tmp_path, device="cpu")
    assert (kept.similarity_fn_name, kept.max_seq_length) == ("cosine", 16)
    told = build_splade(tmp_path, max_seq_length=20, similarity="dot", device="cpu")
    assert (told.similarity_fn_name, told.max_seq_length) == ("dot", 20)
    np.testing.assert_allclose(
        embeddings(kept), embeddings(build_splade(tiny_checkpoint, device="cpu")), atol=1e-6
    )


def test_other_masked_language_models(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Every family keeps its decoder and its positions elsewhere; a complete one is never refused."""
    terms = len(AutoTokenizer.from_pretrained(tiny_checkpoint))
    for language_model in other_architectures(terms):
        folder = beside(language_model, tiny_checkpoint, tmp_path / type(language_model).__name__)
        plain, fused = (build_splade(folder, fused=fused, device="cpu") for fused in (False, True))
        assert plain.max_seq_length == 64
        assert positions_of(splade_transformers(plain)[0].model) == 64
        rows = embeddings(plain)
        assert (rows > 0).any()
        np.testing.assert_allclose(embeddings(fused), rows, atol=1e-5)  # another order of summation
        long_text = " ".join(["list"] * 200)  # cut at 64 tokens, the last position that exists
        assert plain.encode(long_text, show_progress_bar=False).shape == (terms,)


def test_an_asymmetric_encoder_is_set_up_on_every_route(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A Router hides its transformers from the model's own max_seq_length."""
    routes = {
        route: [Transformer(str(tiny_checkpoint), transformer_task="fill-mask"), SpladePooling("max")]
        for route in ("query", "document")
    }
    SparseEncoder(
        modules=[Router.for_query_document(routes["query"], routes["document"])], device="cpu"
    ).save_pretrained(str(tmp_path))
    model = build_splade(tmp_path, max_seq_length=12, device="cpu")
    assert [transformer.max_seq_length for transformer in splade_transformers(model)] == [12, 12]


@pytest.mark.parametrize("name", ["missing/deep/folder", "./missing", "missing", Path("a/b")])
def test_a_path_that_does_not_exist(name: str | Path) -> None:
    """A typing mistake must not become a minute of hub requests."""
    with pytest.raises(FileNotFoundError, match="there is no model at"):
        build_splade(name)


def test_a_file_is_no_model(tiny_checkpoint: Path) -> None:
    """The weights' file instead of its folder is a common slip."""
    with pytest.raises(ValueError, match="is a file"):
        build_splade(tiny_checkpoint / "model.safetensors")


def test_a_checkpoint_whose_embeddings_cannot_replace_its_head(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """transformers would put a random head there, and training would start from noise."""
    discriminator = ElectraForPreTraining(ElectraConfig(vocab_size=109, embedding_size=16, **SMALL))
    with pytest.raises(ValueError, match=r"ElectraForMaskedLM misses .*generator"):
        build_splade(beside(discriminator, tiny_checkpoint, tmp_path / "electra"), device="cpu")


def test_a_sparse_encoder_that_is_no_splade(tiny_dense, tmp_path: Path) -> None:
    """A sparse autoencoder over a dense model saves as a SparseEncoder too."""
    modules = [*tiny_dense.children(), SparseAutoEncoder(input_dim=32, hidden_dim=64, k=4)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r"followed by SpladePooling; received .*SparseAutoEncoder"):
        build_splade(tmp_path, device="cpu")


@pytest.mark.parametrize("length", [-1, 2, 65])
def test_lengths_that_cannot_be(tiny_checkpoint: Path, length: int) -> None:
    """Beyond its positions a model fails in the middle of training, at the first long text."""
    message = rf"BertForMaskedLM allows a max_seq_length of 3 to 64; received {length}"
    with pytest.raises(ValueError, match=message):
        build_splade(tiny_checkpoint, max_seq_length=length, device="cpu")


def test_a_saved_encoder_with_an_unknown_similarity(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """It is asked for, not guessed."""
    tiny_splade.similarity_fn_name = "euclidean"
    tiny_splade.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=r'"cosine" or "dot"; received .euclidean'):
        build_splade(tmp_path, device="cpu")
    assert build_splade(tmp_path, similarity="dot", device="cpu").similarity_fn_name == "dot"


def test_the_vocabulary_size_is_the_width_of_the_vectors(tiny_splade: SparseEncoder) -> None:
    """Penalties and idf are laid out by it; padded checkpoints are wider than their tokenizer."""
    assert (
        vocabulary_size(tiny_splade) == tiny_splade.encode(["list"], convert_to_sparse_tensor=False).shape[1]
    )
    for transformer in splade_transformers(tiny_splade):
        transformer.model.resize_token_embeddings(128)
    assert vocabulary_size(tiny_splade) == 128


@pytest.mark.parametrize("head", [True, False])
def test_the_weights_are_loaded_once(
    head: bool, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look for missing ones held a second copy of the model while the first was loaded."""
    folder = tiny_checkpoint
    if not head:
        folder = beside(AutoModel.from_pretrained(tiny_checkpoint), tiny_checkpoint, tmp_path / "bare")
    original, devices = PreTrainedModel.from_pretrained.__func__, []

    def recorded(cls: type[PreTrainedModel], *args: Any, **options: Any) -> Any:
        result = original(cls, *args, **options)
        model = result[0] if isinstance(result, tuple) else result
        devices.append(model.device.type)
        return result

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(recorded))
    build_splade(folder, device="cpu")
    assert devices.count("cpu") == 1
