"""A model that cannot be found is refused before anything long begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lexforge.models import build_dense, build_splade, check_model, load_encoder


def test_models_that_are_there_pass(tiny_checkpoint: Path) -> None:
    """A check that refuses a good model would stop every run."""
    check_model("lexical")
    check_model(str(tiny_checkpoint))


@pytest.mark.parametrize("name", ["nobody/has-this", "./nowhere"])
def test_a_model_that_is_nowhere_is_refused(name: str) -> None:
    """It was found missing after the data had been read and indexed."""
    with pytest.raises(FileNotFoundError, match=name):
        check_model(name)


@pytest.mark.parametrize("use", [check_model, load_encoder])
def test_a_folder_without_a_model_is_refused(use: Callable[[str], object], tmp_path: Path) -> None:
    """An index or data passed by mistake; transformers wanted a key of a config.json that is not there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "modules.json").write_text("[]")
    index = tmp_path / "index"  # beside the model, as `lexforge adapt` leaves it
    index.mkdir()
    wanted = rf"{index}' is no folder of a model: it has neither .*; that of the run '{tmp_path}' is passed"
    with pytest.raises(FileNotFoundError, match=wanted):
        use(str(index))


def test_a_model_of_another_class_is_refused_before_the_data_is_read(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A SPLADE model given to a dense recipe failed after minutes, and left a run directory behind."""
    build_dense(tiny_checkpoint, device="cpu").save_pretrained(str(tmp_path / "dense"))
    build_splade(tiny_checkpoint, device="cpu").save_pretrained(str(tmp_path / "sparse"))
    with pytest.raises(ValueError, match="was saved as a SparseEncoder, which is no dense encoder"):
        check_model(str(tmp_path / "sparse"), "SentenceTransformer")
    check_model(str(tmp_path / "sparse"), "SparseEncoder")
    check_model(str(tmp_path / "dense"), "SentenceTransformer")
    check_model(str(tmp_path / "dense"), "SparseEncoder")  # its transformer becomes one
    check_model(str(tmp_path / "dense"))
    check_model(str(tiny_checkpoint), "SparseEncoder")
    check_model("lexical", "SparseEncoder")
