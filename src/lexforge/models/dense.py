"""Dense encoders in sentence-transformers' modules and saved format."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import load_file_path

from lexforge.models.splade import checked_name


def build_dense(
    name_or_path: str | Path,
    *,
    max_seq_length: int | None = None,
    similarity: Literal["cosine", "dot"] = "cosine",
    device: str | None = None,
) -> SentenceTransformer:
    """A dense encoder: a saved `SentenceTransformer`, or any transformer with the mean over its tokens.

    Args:
        name_or_path: A folder or a hub name: a saved `SentenceTransformer`, or a checkpoint that `AutoModel`
            and `AutoTokenizer` load, such as a backbone of `build_lexical_backbone`.
        max_seq_length: Texts are cut after this many tokens, special tokens included; by default what the
            model says.
        similarity: How texts are compared; saved with the model as `similarity_fn_name`.
        device: Where the model is put; by default what sentence-transformers finds.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: `name_or_path` looks like a path and there is nothing.
        ValueError: `max_seq_length` leaves no room for a word, or an unknown `similarity`.
    """
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"similarity must be 'cosine' or 'dot', got {similarity!r}")
    if max_seq_length is not None and max_seq_length < 3:
        raise ValueError(f"max_seq_length must be at least 3, got {max_seq_length}")
    name = checked_name(name_or_path)
    modules = None
    if load_file_path(name, "modules.json") is None:
        transformer = Transformer(name)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")]
    model = SentenceTransformer(
        None if modules else name, modules=modules, device=device, similarity_fn_name=similarity
    )
    if max_seq_length is not None:
        model.max_seq_length = max_seq_length
    return model
