"""The prompts that a model was saved with: before queries and documents, in encoding and in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.types import (
    NEGATIVE_COLUMN,
    POSITIVE_COLUMNS,
    QUERY_COLUMNS,
    TEXT_KINDS,
    TextKind,
    check_texts,
)

# The names under which models save the prompt of their documents; sentence-transformers knows the same three.
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def saved_prompt(model: BaseModel, kind: TextKind | None) -> str:
    """Return the prompt that a model puts before texts of one kind.

    sentence-transformers gives every model an empty prompt named "document", and `encode_document` takes it
    although the model was saved with a prompt named "passage", as E5's is. So the prompt of documents is the
    first of "document", "passage" and "corpus" that is not empty.

    Args:
        model: A dense or sparse encoder.
        kind: "query", "document", or None for a text that is neither, as `model.encode` takes it.

    Returns:
        The prompt; an empty string where the model has none.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind is not None and kind not in TEXT_KINDS:
        raise ValueError(f"kind must be one of {TEXT_KINDS}; received {kind!r}")
    names = {"query": ("query",), "document": _DOCUMENT_PROMPTS}.get(kind or "", ())
    for name in names:
        if prompt := model.prompts.get(name):
            return prompt
    if any(name in model.prompts for name in names) or model.default_prompt_name is None:
        return ""
    return model.prompts.get(model.default_prompt_name) or ""


def own_prompts(model: SentenceTransformer | SparseEncoder) -> dict[str, str]:
    """Return the prompts of a model by name, for an encoder that is built from it.

    Args:
        model: A dense or sparse encoder.

    Returns:
        Name -> prompt, of those that are not empty; that of documents also under the name "document", without
        which sentence-transformers would give documents an empty prompt.
    """
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt}
    if prompt := saved_prompt(model, "document"):
        prompts["document"] = prompt
    return prompts


def encode_kind(
    model: SentenceTransformer | SparseEncoder, texts: Sequence[str], kind: TextKind, **options: Any
) -> Any:
    """Encode texts of one kind with `encode_query` or `encode_document` and the saved prompt.

    Args:
        model: A dense or sparse encoder.
        texts: The texts.
        kind: "query" or "document".
        **options: Arguments of `encode_query` and `encode_document`, such as `batch_size`.

    Returns:
        What the model's method returns.

    Raises:
        TypeError: If `texts` is a single string instead of a list.
        ValueError: If the kind is unknown.
    """
    check_texts(texts)
    encode = model.encode_query if kind == "query" else model.encode_document
    return encode(list(texts), prompt=saved_prompt(model, kind), **options)


def column_prompts(model: SentenceTransformer | SparseEncoder, columns: Iterable[str]) -> dict[str, str]:
    """Return the saved prompt of each column of training rows, so that training sees what a search sees.

    Args:
        model: The encoder to train.
        columns: Names of text columns. The usual ones are recognised: `anchor`, `query` and `question` hold
            queries, and `positive`, `document`, `passage`, `answer`, `text`, `negative_1` and the like hold
            documents. Any other column, such as `sentence1`, gets the model's default prompt, as
            `model.encode` does.

    Returns:
        Column -> prompt, of the columns that have one.
    """
    prompts = {column: saved_prompt(model, _column_kind(column)) for column in columns}
    return {column: prompt for column, prompt in prompts.items() if prompt}


def _column_kind(column: str) -> TextKind | None:
    if column in QUERY_COLUMNS:
        return "query"
    found = column in (*POSITIVE_COLUMNS, "text") or NEGATIVE_COLUMN.fullmatch(column)
    return "document" if found else None
