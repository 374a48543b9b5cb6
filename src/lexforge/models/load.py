"""Load whatever encoder a name stands for, and check what it is searched by."""

from __future__ import annotations

import json
from pathlib import Path

from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import load_file_path

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.models.splade import build_splade


def load_encoder(
    name: str, max_seq_length: int | None = None, device: str | None = None
) -> SparseEncoder | SentenceTransformer:
    """The encoder as it was saved; SPLADE models, saved or bare, with the fused head.

    Args:
        name: A folder or a hub name: a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked
            language model, which becomes a SPLADE encoder.
        max_seq_length: Texts are cut after this many tokens; None leaves what the model was saved with.
        device: Where the model is put; by default what sentence-transformers finds.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: `name` looks like a path and there is nothing.
        ValueError: As for `lexforge.models.build_splade`.
    """
    modules = load_file_path(name, "modules.json")
    if modules is None or "SpladePooling" in Path(modules).read_text(encoding="utf-8"):
        return build_splade(name, max_seq_length=max_seq_length, device=device)
    config = load_file_path(name, "config_sentence_transformers.json")
    settings = json.loads(Path(config).read_text(encoding="utf-8")) if config else {}
    encoder = SparseEncoder if settings.get("model_type") == "SparseEncoder" else SentenceTransformer
    model = encoder(name, device=device)
    if max_seq_length is not None:
        model.max_seq_length = max_seq_length
    return model


def check_encoder(model: BaseModel) -> Similarity:
    """The similarity that a model was trained for and carries, `dot` or `cosine`.

    Args:
        model: A `SparseEncoder` or a `SentenceTransformer`.

    Raises:
        TypeError: The model is of another class.
        ValueError: Its `similarity_fn_name` is another one.
    """
    if not isinstance(model, SparseEncoder | SentenceTransformer):
        raise TypeError(
            f"the model is a {type(model).__name__}, neither SparseEncoder nor SentenceTransformer"
        )
    return check_similarity(model.similarity_fn_name)
