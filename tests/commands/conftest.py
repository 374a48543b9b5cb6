"""A small retrieval set for the commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from beir_folders import write_lines

TEXTS = ["sort the list", "open the file", "parse a tree", "hash of a key", "search the index", "vector", ""]


def write_corpus(folder: Path) -> Path:
    """Write a BEIR folder with a corpus alone."""
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]
    return write_lines(folder / "corpus.jsonl", rows).parent


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """A BEIR folder with a corpus alone."""
    return write_corpus(tmp_path / "data")


@pytest.fixture(scope="session")
def encoded_corpus(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors of that corpus in three blocks, which `vectors` copies."""
    from lexforge.commands import encode

    folder = tmp_path_factory.mktemp("encoded")
    data = str(write_corpus(folder / "data"))
    encode.main(encode.Config(str(tiny_checkpoint), data, folder / "vectors", block_rows=3))
    return folder / "vectors"


@pytest.fixture
def vectors(encoded_corpus: Path, tmp_path: Path) -> Path:
    """The vectors of the corpus, which a test may change."""
    return Path(shutil.copytree(encoded_corpus, tmp_path / "vectors"))
