"""Encode queries and documents with the prompts that a model was saved with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.common.types import TextKind

# The names under which models save the prompt of their documents; sentence-transformers knows the same three.
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def encode_kind(
    model: SentenceTransformer | SparseEncoder, texts: Sequence[str], kind: TextKind, **options: Any
) -> Any:
    """Encode texts of one kind with `encode_query` or `encode_document` and the saved prompt.

    sentence-transformers gives every model an empty prompt named "document", and `encode_document` takes it
    although the model was saved with a prompt named "passage", as E5's is. So the prompt is chosen here: the
    first of "document", "passage" and "corpus" that is not empty.

    Args:
        model: A dense or sparse encoder.
        texts: The texts.
        kind: "query" or "document".
        **options: Arguments of `encode_query` and `encode_document`, such as `batch_size`.

    Returns:
        What the model's method returns.
    """
    if kind == "query":
        return model.encode_query(list(texts), **options)
    prompt = next((name for name in _DOCUMENT_PROMPTS if model.prompts.get(name)), None)
    return model.encode_document(list(texts), prompt_name=prompt, **options)
