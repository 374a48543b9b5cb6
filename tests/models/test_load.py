"""What a model's files say it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaModel,
)

from lexforge.models import build_dense, build_inference_free, load_encoder, model_type
from lexforge.models.fingerprint import fingerprint
from lexforge.teachers import SentenceTransformerTeacher


@pytest.fixture(scope="module")
def folders(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bare sequence classifier, the same saved as a cross-encoder, and a transformer without a head."""
    root = tmp_path_factory.mktemp("kinds")
    config = BertConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(root / "classifier")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(root / "classifier")
    CrossEncoder(str(root / "classifier"), device="cpu").save_pretrained(str(root / "cross"))
    BertModel(config).save_pretrained(root / "bare")
    return {path.name: path for path in root.iterdir()}


def test_the_kind_is_read_from_the_files(
    folders: dict[str, Path], tiny_checkpoint: Path, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """Nothing is loaded for it, and no class is guessed."""
    tiny_splade.save_pretrained(str(tmp_path / "sparse"))
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    assert model_type(str(tmp_path / "sparse")) == model_type(str(tiny_checkpoint)) == "sparse"
    assert model_type(str(tmp_path / "dense")) == "dense"
    assert model_type(str(folders["cross"])) == model_type(str(folders["classifier"])) == "cross-encoder"
    assert model_type(str(folders["bare"])) == model_type(str(tmp_path / "nothing")) == "unknown"


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_models_of_older_versions_are_told_by_their_modules(
    vector_type: str, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """They were saved without the name of their class."""
    (tiny_splade if vector_type == "sparse" else tiny_dense).save_pretrained(str(tmp_path))
    file = tmp_path / "config_sentence_transformers.json"
    settings = json.loads(file.read_text())
    del settings["model_type"]
    file.write_text(json.dumps(settings))
    assert model_type(str(tmp_path)) == vector_type


def test_a_cross_encoder_is_no_encoder(folders: dict[str, Path]) -> None:
    """sentence-transformers would load it as a dense encoder with a random mean."""
    with pytest.raises(ValueError, match="is a CrossEncoder, which scores pairs"):
        load_encoder(str(folders["cross"]))


def test_an_inference_free_encoder_is_fused_and_its_length_checked(tiny_splade, tmp_path: Path) -> None:
    """Its Router hides the SPLADE head: documents would be encoded through logits [B, L, V]."""
    terms = len(tiny_splade.tokenizer)
    build_inference_free(tiny_splade, [1.0] * terms).save_pretrained(str(tmp_path))
    model = load_encoder(str(tmp_path), max_seq_length=16, device="cpu")
    route = model[0].sub_modules["document"]
    assert route[0].max_seq_length == model.max_seq_length == 16
    states = route[0](model.preprocess(["sort a list"], task="document"))["token_embeddings"]
    assert states.shape[-1] == 32 != terms  # the width of the states, and no logits
    with pytest.raises(ValueError, match="allows a max_seq_length of 3 to 64; received 65"):
        load_encoder(str(tmp_path), max_seq_length=65, device="cpu")


def test_the_lengths_of_two_routes_stay_where_an_index_names_the_longest(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A search cut queries where documents are cut, so the same query had other vectors than in training."""
    sides = [
        [
            Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=each),
            SpladePooling(),
        ]
        for each in (8, 32)
    ]
    SparseEncoder(modules=[Router.for_query_document(*sides)], device="cpu").save_pretrained(str(tmp_path))
    model = load_encoder(str(tmp_path), max_seq_length=32, device="cpu")
    lengths = {route: part[0].max_seq_length for route, part in model[0].sub_modules.items()}
    assert lengths == {"query": 8, "document": 32}
    before = fingerprint(model)
    model[0].sub_modules["query"][0].max_seq_length = 9  # the length of the model stays 32
    assert fingerprint(model) != before


@pytest.mark.parametrize("routed", [False, True])
def test_a_dense_encoder_takes_no_more_tokens_than_it_has_positions(
    routed: bool, tiny_dense, tmp_path: Path
) -> None:
    """It would fail in torch at the first long text."""
    if routed:
        modules = list(tiny_dense.children())
        tiny_dense = type(tiny_dense)(modules=[Router.for_query_document(modules, modules)], device="cpu")
    tiny_dense.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="BertModel allows a max_seq_length of 3 to 64; received 65"):
        load_encoder(str(tmp_path), max_seq_length=65, device="cpu")
    model = load_encoder(str(tmp_path), max_seq_length=64, device="cpu")
    model.encode_document("list " * 200, show_progress_bar=False)


@pytest.mark.parametrize("saved", [False, True])
def test_no_text_is_longer_than_the_positions(saved: bool, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """sentence-transformers takes RoBERTa's 66 rows for 66 positions: a long text was an error of torch."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint, model_max_length=512)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=66,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    if saved:
        transformer = Transformer(str(tmp_path / "bare"))
        assert transformer.max_seq_length == 66
        modules = [transformer, Pooling(32, pooling_mode="mean")]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "saved"))
        models = [load(str(tmp_path / "saved"), device="cpu") for load in (load_encoder, build_dense)]
        SentenceTransformerTeacher(str(tmp_path / "saved")).encode(["list " * 200], "document")
    else:
        models = [build_dense(tmp_path / "bare", device="cpu")]
    for model in models:
        assert model.max_seq_length == 64
        model.encode_document("list " * 200, show_progress_bar=False)
    with pytest.raises(ValueError, match="RobertaModel allows a max_seq_length of 3 to 64; received 65"):
        build_dense(tmp_path / "bare", max_seq_length=65, device="cpu")
