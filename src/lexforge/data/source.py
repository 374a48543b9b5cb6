"""Retrieval data by the name that a command line takes, whatever their source."""

from __future__ import annotations

from lexforge.data.beir import load_beir
from lexforge.data.docstrings import load_docstrings
from lexforge.data.hub import load_hub
from lexforge.data.retrieval_data import RetrievalData


def load_retrieval_data(source: str) -> RetrievalData:
    """Load a retrieval set by the name that a command line takes.

    Args:
        source: `docstrings` (the embedded corpus), `hf:organisation/name` (a hub data set), or a folder in
            BEIR layout.

    Returns:
        The set, checked.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        DataError: If the data cannot be used; the message names file and line.
    """
    if source == "docstrings":
        return load_docstrings()
    if source.startswith("hf:"):
        return load_hub(source)
    return load_beir(source)
