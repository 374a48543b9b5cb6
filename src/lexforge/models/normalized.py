"""Models for engines that know dot products only: vectors of unit length, whose dot product is the cosine."""

from __future__ import annotations

from typing import TypeVar

from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Normalize

from lexforge.models.load import check_encoder

SparseOrDense = TypeVar("SparseOrDense", SparseEncoder, SentenceTransformer)


def normalize_vectors(model: SparseOrDense) -> SparseOrDense:
    """Let a model that is searched by cosine be searched by dot product, in place and with equal scores.

    A `Normalize` of sentence-transformers becomes the last module. It is saved with the model, so an engine
    or an exporter that knows nothing of `similarity_fn_name` ranks as the cosine does.

    Args:
        model: A sparse or dense encoder, symmetric or with a `Router`. One that is searched by dot product
            stays as it is.

    Returns:
        `model`, with `similarity_fn_name` "dot".

    Raises:
        ValueError: If the model's similarity is neither cosine nor dot product, or if `encode` cuts its
            vectors afterwards (`max_active_dims`, `truncate_dim`), which would change their length again.
    """
    if check_encoder(model) == "dot":
        return model
    for name in ("max_active_dims", "truncate_dim"):
        if getattr(model, name, None) is not None:
            raise ValueError(
                f"vectors that `encode` cuts do not keep their unit length; set {name} of the model to None, "
                f"received {getattr(model, name)}"
            )
    model.append(Normalize())
    model.similarity_fn_name = "dot"
    return model
