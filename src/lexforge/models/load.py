"""Load the encoder that a name stands for, and check which similarity it is searched by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import load_file_path

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.models.splade import build_splade

ModelKind = Literal["dense", "sparse", "cross-encoder", "unknown"]
_KINDS: dict[str, ModelKind] = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "CrossEncoder": "cross-encoder",
}


def model_kind(name: str) -> ModelKind:
    """Read from a model's files what it is, without loading it.

    Args:
        name: A folder or a hub name.

    Returns:
        "dense" for a `SentenceTransformer`, "sparse" for a `SparseEncoder` or a bare masked language model
        (which is a SPLADE encoder here), "cross-encoder" for a `CrossEncoder` or a bare sequence classifier,
        and "unknown" for another bare transformer, or where there are no such files.
    """
    saved_as = _settings(name, "config_sentence_transformers.json").get("model_type")
    if saved_as in _KINDS:
        return _KINDS[saved_as]
    # Older versions of sentence-transformers did not write the class; its modules tell sparse from dense.
    modules = load_file_path(name, "modules.json")
    if modules is not None:
        return "sparse" if "sparse_encoder" in Path(modules).read_text(encoding="utf-8") else "dense"
    architectures = _settings(name, "config.json").get("architectures") or []
    if any(architecture.endswith("ForSequenceClassification") for architecture in architectures):
        return "cross-encoder"
    return "sparse" if any(part.endswith("ForMaskedLM") for part in architectures) else "unknown"


def _settings(name: str, file: str) -> dict[str, Any]:
    """Return the content of one of a model's JSON files; an empty dict where it has none."""
    path = load_file_path(name, file)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}


def load_encoder(
    name: str, max_seq_length: int | None = None, device: str | None = None
) -> SparseEncoder | SentenceTransformer:
    """Load an encoder as it was saved; SPLADE models, saved or bare, get the fused head.

    Args:
        name: A folder or a hub name: a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked
            language model, which becomes a SPLADE encoder.
        max_seq_length: Texts are cut after this many tokens; None keeps what the model was saved with.
        device: Where the model is put; None leaves the choice to sentence-transformers.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: If `name` is a path where nothing is.
        ValueError: If the model is a `CrossEncoder`, or if `lexforge.models.build_splade` refuses it.
    """
    kind = model_kind(name)
    if kind == "cross-encoder":
        raise ValueError(f"{name} is a CrossEncoder, which scores pairs and gives no vectors to search with")
    modules = load_file_path(name, "modules.json")
    if modules is None or "SpladePooling" in Path(modules).read_text(encoding="utf-8"):
        return build_splade(name, max_seq_length=max_seq_length, device=device)
    encoder = SparseEncoder if kind == "sparse" else SentenceTransformer
    model = encoder(name, device=device)
    if max_seq_length is not None:
        model.max_seq_length = max_seq_length
    return model


def check_encoder(model: BaseModel) -> Similarity:
    """Check that a model can be searched with, and return the similarity that it was trained for.

    Args:
        model: A `SparseEncoder` or a `SentenceTransformer`.

    Returns:
        "cosine" or "dot".

    Raises:
        TypeError: If the model is of another class.
        ValueError: If its `similarity_fn_name` is another one.
    """
    if not isinstance(model, SparseEncoder | SentenceTransformer):
        raise TypeError(
            f"the model must be a SparseEncoder or a SentenceTransformer; received a {type(model).__name__}"
        )
    return check_similarity(model.similarity_fn_name)
