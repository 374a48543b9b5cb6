"""Whether a model can be found, before anything long begins."""

from __future__ import annotations

from typing import Literal

from sentence_transformers.util import load_file_path

from lexforge.settings import LEXICAL
from lexforge.models.names import check_saved_class, checked_name


def check_model(name: str, wanted: Literal["SparseEncoder", "SentenceTransformer"] | None = None) -> None:
    """Refuse a model whose files cannot be found, or of the wrong kind; its weights are not loaded.

    Args:
        name: `lexical`, a folder, or a name on the hub, which must be in its local cache if there is no
            network.
        wanted: The class of sentence-transformers that is to load it; None takes any.

    Raises:
        FileNotFoundError: If there is no such folder, or neither the hub nor its cache has the model.
        ValueError: If the name is that of a file, or if the model was saved by another class.
    """
    if name == LEXICAL:
        return
    found = checked_name(name)
    if all(load_file_path(found, file) is None for file in ("modules.json", "config.json")):
        raise FileNotFoundError(
            f"the model {name!r} has neither modules.json nor config.json: it is no folder of a model, and "
            "neither the hub nor its local cache has a model of that name"
        )
    if wanted is not None:
        check_saved_class(found, wanted)
