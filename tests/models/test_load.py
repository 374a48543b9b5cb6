"""What a model's files say it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from lexforge.models import load_encoder, model_type


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


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_models_of_older_versions_are_told_by_their_modules(
    kind: str, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """They were saved without the name of their class."""
    (tiny_splade if kind == "sparse" else tiny_dense).save_pretrained(str(tmp_path))
    file = tmp_path / "config_sentence_transformers.json"
    settings = json.loads(file.read_text())
    del settings["model_type"]
    file.write_text(json.dumps(settings))
    assert model_type(str(tmp_path)) == kind


def test_a_cross_encoder_is_no_encoder(folders: dict[str, Path]) -> None:
    """sentence-transformers would load it as a dense encoder with a random mean."""
    with pytest.raises(ValueError, match="is a CrossEncoder, which scores pairs"):
        load_encoder(str(folders["cross"]))
