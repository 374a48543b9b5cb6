"""The length and the width of a saved model, read without its weights, are those of the loaded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder
from transformers import (
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from lexforge.models import build_dense, build_inference_free, build_splade, vocabulary_size
from lexforge.models.lengths import own_length, own_width


def test_a_checkpoint_has_its_positions(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The oracle is the encoder itself, loaded: RoBERTa's rows for padding are no positions."""
    assert own_length(str(tiny_checkpoint)) == build_splade(tiny_checkpoint, device="cpu").max_seq_length
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=42, pad_token_id=1,
    )  # fmt: skip
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.model_max_length = 10**30  # no limit
    tokenizer.save_pretrained(tmp_path)
    assert own_length(str(tmp_path)) == 40  # typed from the design: 42 rows, of which 2 are not for tokens
    assert build_splade(tmp_path, device="cpu").max_seq_length == 40


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_a_saved_encoder_has_what_it_was_saved_with(
    vector_type: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A model that was trained with 24 tokens is not trained on with the 64 that it has positions for."""
    folder = str(tmp_path / "model")
    if vector_type == "sparse":
        build_splade(tiny_checkpoint, max_seq_length=24, device="cpu").save_pretrained(folder)
        assert SparseEncoder(folder, device="cpu").max_seq_length == 24
    else:
        build_dense(tiny_checkpoint, max_seq_length=24, device="cpu").save_pretrained(folder)
        assert SentenceTransformer(folder, device="cpu").max_seq_length == 24
    assert own_length(folder) == 24


def test_a_model_with_a_router_has_those_of_its_documents(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """An inference-free model is trained on with its own length, and the rate of its width: its queries are
    looked up in a table, which has neither.
    """
    encoder = build_splade(tiny_checkpoint, max_seq_length=24, device="cpu")
    build_inference_free(encoder, [1.0] * vocabulary_size(encoder)).save_pretrained(str(tmp_path))
    assert own_length(str(tmp_path)) == 24
    assert own_width(str(tmp_path)) == encoder[0].model.config.hidden_size


def test_the_file_of_older_versions_is_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 was saved so: 256 there, and 512 with its tokenizer."""
    folder = tmp_path / "model"
    build_dense(tiny_checkpoint, max_seq_length=24, device="cpu").save_pretrained(str(folder))
    file = folder / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": 20}))
    assert own_length(str(folder)) == 20


def test_the_width_of_a_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Families name it differently (DistilBERT: dim), and a saved encoder keeps it in a folder of its own."""
    width = build_splade(tiny_checkpoint, device="cpu")[0].model.config.hidden_size
    assert own_width(str(tiny_checkpoint)) == width
    build_dense(tiny_checkpoint, device="cpu").save_pretrained(str(tmp_path / "dense"))
    assert own_width(str(tmp_path / "dense")) == width
    DistilBertForMaskedLM(DistilBertConfig(vocab_size=9, dim=24, n_layers=1, n_heads=2)).save_pretrained(
        tmp_path / "distilbert"
    )
    assert own_width(str(tmp_path / "distilbert")) == 24
    with pytest.raises(FileNotFoundError):
        own_width(str(tmp_path / "nowhere"))
