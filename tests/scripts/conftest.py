"""Scripts as modules, and a small retrieval set for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """A script by its stem, imported and not run."""

    def load(stem: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(stem, SCRIPTS / f"{stem}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[stem] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """A BEIR folder with a corpus alone."""
    texts = [
        "sort the list",
        "open the file",
        "parse a tree",
        "hash of a key",
        "search the index",
        "vector",
        "",
    ]
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"_id": f"d{i}", "title": "", "text": text}) + "\n" for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    return folder
