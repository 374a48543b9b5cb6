"""A model that cannot be found is refused before anything long begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.models import check_model


def test_models_that_are_there_pass(tiny_checkpoint: Path) -> None:
    """A check that refuses a good model would stop every run."""
    check_model("lexical")
    check_model(str(tiny_checkpoint))


@pytest.mark.parametrize("name", ["nobody/has-this", "./nowhere"])
def test_a_model_that_is_nowhere_is_refused(name: str) -> None:
    """It was found missing after the data had been read and indexed."""
    with pytest.raises(FileNotFoundError, match=name):
        check_model(name)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """A folder of data passed by mistake; transformers' own message is a page long."""
    with pytest.raises(FileNotFoundError, match=r"has neither modules\.json nor config\.json"):
        check_model(str(tmp_path))
