"""Load the encoder that a name stands for, and say or change the similarity by which it is searched."""

from __future__ import annotations

from typing import TypeVar

from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sparse_encoder.modules import SpladePooling

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.models.names import checked_name, model_settings, model_type
from lexforge.models.splade import build_splade
from lexforge.models.structure import set_max_seq_length
from lexforge.models.token_weights import TokenWeights, load_sparse_encoder

SparseOrDense = TypeVar("SparseOrDense", SparseEncoder, SentenceTransformer)


def load_encoder(
    name: str, max_seq_length: int | None = None, device: str | None = None
) -> SparseEncoder | SentenceTransformer:
    """Load an encoder as it was saved; SPLADE models, saved or bare, get the fused head.

    Args:
        name: A folder or a hub name: a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked
            language model, which becomes a SPLADE encoder.
        max_seq_length: Texts are cut after this many tokens. None keeps what the model was saved with,
            limited to what it has positions for; so does the longest of several lengths, which is what an
            index names.
        device: Where the model is put; None leaves the choice to sentence-transformers.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
        ValueError: If the model is a `CrossEncoder` or a `MultiVectorEncoder`, if
            `lexforge.models.build_splade` refuses it, or if `max_seq_length` leaves no room for a word or
            exceeds the model's positions.
    """
    name = checked_name(name)
    found = model_type(name)
    if found == "cross-encoder":
        raise ValueError(f"{name} is a CrossEncoder, which scores pairs and gives no vectors to search with")
    if found == "multi-vector":
        raise ValueError(
            f"{name} is a MultiVectorEncoder, whose texts have many vectors; no index holds those"
        )
    modules = model_settings(name, "modules.json")
    written = f"{modules} {model_settings(name, 'router_config.json')}"  # a Router names its own modules
    if not modules or SpladePooling.__name__ in written or TokenWeights.__name__ in written:
        model: SparseEncoder | SentenceTransformer = build_splade(name, device=device)
    else:
        model = (load_sparse_encoder if found == "sparse" else SentenceTransformer)(name, device=device)
        set_max_seq_length(model, None)
    # An index names the length of its model, which may be the longest of several.
    if max_seq_length not in (None, model.max_seq_length):
        set_max_seq_length(model, max_seq_length)
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
