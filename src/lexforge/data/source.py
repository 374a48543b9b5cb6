"""Retrieval data by the name that a command line takes, whatever their source."""

from __future__ import annotations

from collections.abc import Sequence

from lexforge.data.beir import load_beir
from lexforge.data.docstrings import load_docstrings
from lexforge.data.hub import load_hub
from lexforge.data.retrieval_data import RetrievalData


def load_retrieval_data(source: str, splits: Sequence[str] | None = None) -> RetrievalData:
    """Load a retrieval set by the name that a command line takes.

    Args:
        source: `docstrings` (the embedded corpus), `hf:organisation/name` (a hub data set), or a folder in
            BEIR layout.
        splits: The splits to keep; None keeps all.

    Returns:
        The set, checked.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split.
        DataError: If the data cannot be used; the message names file and line.
    """
    if source == "docstrings":
        loaded = load_docstrings()
    elif source.startswith("hf:"):
        loaded = load_hub(source)
    else:
        return load_beir(source, splits)
    return loaded if splits is None else loaded.only(splits)
