"""A small retrieval set for the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


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
