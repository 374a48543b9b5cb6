"""What the name of a model stands for: folders, hub names with and without a slash, and kinds of models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from lexforge.common.types import DataError
from lexforge.models import build_dense, build_splade, check_model, load_encoder, model_type, names
from lexforge.models.names import checked_name
from lexforge.teachers import SentenceTransformerTeacher, load_teacher

TEXTS = ["sort a list", "open the file"]


@pytest.fixture
def in_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Puts a folder into a hub cache of its own under a name, as a download would leave it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(folder: Path, name: str) -> None:
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        commit = "0123456789abcdef0123456789abcdef01234567"
        shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)

    return put


def test_a_hub_name_without_a_slash(in_hub_cache, tiny_checkpoint: Path) -> None:
    """`bert-base-uncased` is the name that people try first, and it has no organisation."""
    in_hub_cache(tiny_checkpoint, "bert-base-uncased")
    expected = build_splade(tiny_checkpoint, device="cpu").encode(TEXTS).to_dense().numpy()
    for load in (build_splade, load_encoder):
        found = load("bert-base-uncased", device="cpu").encode(TEXTS).to_dense().numpy()
        np.testing.assert_array_equal(found, expected)
    dense = build_dense(tiny_checkpoint, device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(build_dense("bert-base-uncased", device="cpu").encode(TEXTS), dense)


def test_a_name_that_sentence_transformers_completes(
    in_hub_cache, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """`all-MiniLM-L6-v2` means the model of the organisation sentence-transformers, as it does there."""
    tiny_dense.save_pretrained(str(tmp_path / "saved"))
    in_hub_cache(tmp_path / "saved", "sentence-transformers/all-mini")
    assert checked_name("all-mini") == "sentence-transformers/all-mini"
    expected = tiny_dense.encode(TEXTS)
    np.testing.assert_array_equal(build_dense("all-mini", device="cpu").encode(TEXTS), expected)
    np.testing.assert_array_equal(load_encoder("all-mini", device="cpu").encode(TEXTS), expected)
    assert load_teacher("all-mini", TEXTS).encode(TEXTS, "document").shape == expected.shape


def test_a_run_directory_stands_for_its_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """It is the folder that a recipe names at its end; transformers called it an unrecognized model."""
    run = tmp_path / "run"
    run.mkdir()
    for file in ("config.json", "env.json"):
        (run / file).write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"a run that has not saved its model: .*model is missing"):
        checked_name(run)
    encoder = build_splade(tiny_checkpoint, device="cpu")
    encoder.save_pretrained(str(run / "model"))
    assert checked_name(str(run)) == str(run / "model")
    check_model(str(run), "SparseEncoder")
    expected = encoder.encode(TEXTS).to_dense().numpy()
    for load in (build_splade, load_encoder):
        np.testing.assert_array_equal(load(str(run), device="cpu").encode(TEXTS).to_dense().numpy(), expected)
    encoder.save_pretrained(str(run))  # a model with a folder of that name in it is itself meant
    assert checked_name(str(run)) == str(run)


@pytest.mark.parametrize(
    "name", ["missing", "nobody/missing", "../missing", "a/b/c", "a--b", "a/b.git", "", Path("org/name")]
)
def test_a_name_that_nothing_has(name: str | Path) -> None:
    """One line says what was looked for, before transformers fails with many."""
    with pytest.raises(FileNotFoundError, match=r"there is no model at .*; pass the folder") as caught:
        checked_name(name)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is repeated for half a minute; a misspelt name without a slash cost three."""
    asked: list[bool] = []

    def unreachable(name: str, file: str, local_files_only: bool) -> str:
        asked.append(not local_files_only)
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(names, "hf_hub_download", unreachable)
    with pytest.raises(FileNotFoundError, match="at 'missing', the hub cannot be reached, and its local"):
        checked_name("missing")
    assert asked == [True] + [False] * 7  # four names of two files, of which the cache is asked


def saved_as(class_name: str, checkpoint: Path, folder: Path) -> Path:
    """Save a model of another class of sentence-transformers."""
    if class_name == "CrossEncoder":
        bare = folder / "classifier"
        BertForSequenceClassification(BertConfig.from_pretrained(checkpoint, num_labels=1)).save_pretrained(
            bare
        )
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(bare)
        CrossEncoder(str(bare), device="cpu").save_pretrained(str(folder / class_name))
    elif class_name == "SparseEncoder":
        build_splade(checkpoint, device="cpu").save_pretrained(str(folder / class_name))
    else:
        build_dense(checkpoint, device="cpu").save_pretrained(str(folder / class_name))
        settings = folder / class_name / "config_sentence_transformers.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": class_name}))
    return folder / class_name


@pytest.mark.parametrize("class_name", ["CrossEncoder", "SparseEncoder", "MultiVectorEncoder"])
def test_a_model_of_another_class_is_no_dense_encoder_and_no_dense_teacher(
    class_name: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """sentence-transformers would convert it in silence, to a mean over tokens that nobody has trained."""
    folder = saved_as(class_name, tiny_checkpoint, tmp_path)
    with pytest.raises(ValueError, match=f"was saved as a {class_name}, which is no dense encoder"):
        build_dense(folder)
    with pytest.raises(DataError, match="dense embeddings are needed here"):
        SentenceTransformerTeacher(str(folder))


@pytest.mark.parametrize("class_name", ["CrossEncoder", "MultiVectorEncoder"])
def test_a_model_of_another_class_is_no_splade_encoder(
    class_name: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The message names the class that the user saved, not one that the conversion makes."""
    folder = saved_as(class_name, tiny_checkpoint, tmp_path)
    with pytest.raises(
        ValueError, match=f"was saved as a {class_name}, which is no SPLADE encoder"
    ) as caught:
        build_splade(folder)
    assert "SparseAutoEncoder" not in str(caught.value)


def test_a_bare_classifier_is_no_splade_encoder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Most cross-encoders are saved so; their transformer was never trained to encode a text alone."""
    config = BertConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"a CrossEncoder \(a sequence classifier\), which is no SPLADE encoder"
    ):
        build_splade(tmp_path)


def test_a_model_with_many_vectors_per_text_is_no_encoder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """No index here holds them, and their mean was not trained."""
    folder = saved_as("MultiVectorEncoder", tiny_checkpoint, tmp_path)
    assert model_type(str(folder)) == "multi-vector"
    with pytest.raises(ValueError, match="is a MultiVectorEncoder, whose texts have many vectors"):
        load_encoder(str(folder))
