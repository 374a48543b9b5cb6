"""The tokens of texts as an encoder reads them: a sparse encoder's other active terms are its expansion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Router

from lexforge.common.samples import evenly_spaced
from lexforge.common.types import TextKind
from lexforge.models.lengths import smallest_limit
from lexforge.models.prompts import saved_prompt

_BATCH_TEXTS = 1024
SAMPLE = 1000  # texts in which unknown tokens are counted at most


def own_token_ids(model: SparseEncoder, texts: Sequence[str]) -> list[list[int]]:
    """Cut texts into tokens as an encoder does.

    Args:
        model: The encoder.
        texts: N texts.

    Returns:
        N lists of ids in the order of the text, special tokens included; tokens beyond the model's
        `max_seq_length` are left out, and a repeated token is repeated.
    """
    rows: list[list[int]] = []
    limit = token_limit(model)
    whole = {"truncation": False, "verbose": False}
    cut = whole if limit is None else {"truncation": True, "max_length": limit}
    for start in range(0, len(texts), _BATCH_TEXTS):
        batch = list(texts[start : start + _BATCH_TEXTS])
        rows.extend(model.tokenizer(batch, return_attention_mask=False, **cut)["input_ids"])
    return rows


def own_tokens(model: SparseEncoder, text: str) -> list[str]:
    """Cut one text as `own_token_ids` does, and return its tokens as they are spelt, without special ones."""
    [ids] = own_token_ids(model, [text])
    tokens: list[str] = model.tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)
    return tokens


def keep_own_terms(model: SparseEncoder, vectors: sparse.csr_array, texts: Sequence[str]) -> sparse.csr_array:
    """Drop every active term that is not a token of its text; what is left searches as a bag of words does.

    Args:
        model: The encoder that made the vectors.
        vectors: `[N, V]` CSR, the vectors of the texts.
        texts: N texts. Tokens beyond the model's `max_seq_length` do not count.

    Returns:
        `[N, V]` CSR with the weights of the own terms as they are.
    """
    rows = own_token_ids(model, texts)
    columns = list(chain.from_iterable(rows))
    ends = np.cumsum([0, *map(len, rows)])
    tokens = sparse.csr_array((np.ones(len(columns), np.float32), columns, ends), shape=vectors.shape)
    tokens.sum_duplicates()
    tokens.data[:] = 1.0  # a token that is repeated is one term
    return sparse.csr_array(vectors.multiply(tokens))


def expansion_share(own: sparse.csr_array, vectors: sparse.csr_array) -> float:
    """Return the share of the active terms of all texts that are not tokens of their text, from 0 to 1.

    Args:
        own: `[N, V]` CSR, what `keep_own_terms` has left.
        vectors: `[N, V]` CSR, all active terms; where there are none, the share is 0.
    """
    return 1 - int(own.count_nonzero()) / max(int(vectors.count_nonzero()), 1)


def token_limit(model: BaseModel) -> int | None:
    """Return the number of tokens after which an encoder cuts a document, or None if it reads any length.

    A `Router` has a limit per route, and a transformer may name a shorter one for documents alone
    (`document_length`).
    """
    reader = _reader(model, "document")
    return smallest_limit(getattr(reader, name, None) for name in ("max_seq_length", "document_length"))


def count_tokens(model: BaseModel, texts: Sequence[str]) -> list[int]:
    """Count the tokens of documents, with their prompt and special ones, however long they are.

    Args:
        model: An encoder of sentence-transformers.
        texts: N texts, without the prompt that the model puts before a document.

    Returns:
        N numbers.
    """
    # Not verbose: the tokenizer would warn of texts that are longer than the model reads.
    options = {"truncation": False, "return_attention_mask": False, "verbose": False}
    prompt = saved_prompt(model, "document")
    tokenizer = _reader(model, "document").tokenizer
    return list(map(len, tokenizer([prompt + text for text in texts], **options)["input_ids"]))


def _reader(model: BaseModel, kind: TextKind) -> Any:
    """Return the module that cuts texts of one kind into tokens; a `Router` may have one for each kind."""
    first: Any = model[0]
    if isinstance(first, Router) and kind in first.sub_modules:
        route: Any = first.sub_modules[kind]
        return route[0]
    return first


def unknown_share(model: BaseModel, texts: Sequence[str]) -> float:
    """Measure how much of some documents a model's tokenizer does not know.

    Args:
        model: An encoder of sentence-transformers.
        texts: N documents, at least one. Of more than `SAMPLE`, that many are looked at, evenly spaced.

    Returns:
        The share of unknown tokens among those that are not special otherwise; 0 for a tokenizer that knows
        every text.
    """
    sample = [texts[place] for place in evenly_spaced(len(texts), SAMPLE)]
    unknown, tokens = _count_unknown(model, sample, "document")
    return float(unknown.sum() / max(1, tokens.sum()))


def unknown_shares(model: BaseModel, texts: Sequence[str], kind: TextKind) -> NDArray[np.float64]:
    """Measure how much of each text a model's tokenizer does not know.

    Args:
        model: An encoder of sentence-transformers.
        texts: N texts.
        kind: "query" or "document", which a `Router` may cut by different tokenizers.

    Returns:
        `[N]` float64, the share of unknown tokens of each text, as for `unknown_share`.
    """
    unknown, tokens = _count_unknown(model, texts, kind)
    return unknown / np.maximum(1, tokens)


def _count_unknown(
    model: BaseModel, texts: Sequence[str], kind: TextKind
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the unknown tokens and all tokens of each text, both `[N]`, without special tokens."""
    tokenizer = _reader(model, kind).tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or not len(texts):
        return np.zeros(len(texts), np.int64), np.ones(len(texts), np.int64)
    options = {"add_special_tokens": False, "truncation": False, "verbose": False}
    rows = tokenizer(list(texts), **options)["input_ids"]
    return np.array([row.count(unknown) for row in rows]), np.array([len(row) for row in rows])
