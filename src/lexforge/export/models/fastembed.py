"""The target of fastembed: logits that it pools itself, and a table of weights for inference-free queries."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lexforge.export.models.check import RunTexts, Written
from lexforge.export.models.files import load_onnx
from lexforge.export.models.graphs import TokenLogits
from lexforge.export.models.onnx import MODEL_FILE, write_graph
from lexforge.export.models.sides import EncodedSide, EncoderSide, LookupSide, token_arrays

SPLADE = "prithivida/Splade_PP_en_v1"
"""The model of fastembed whose class loads an export of a SPLADE encoder."""

INFERENCE_FREE = "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-gte"
"""The model of fastembed whose class loads an export with a table for queries."""


def write_logits(sides: Sequence[EncoderSide], folder: Path) -> list[Written]:
    """Write what fastembed loads from `specific_model_path`: `logits [B, L, V]`, and `idf.json` for queries.

    fastembed's SPLADE class takes the maximum of log1p(relu(logits)), and its inference-free class that of
    log1p(log1p(relu(logits))) with special tokens at 0. The logits of an encoder that applies log1p another
    number of times are changed so that its own vectors come out.

    Args:
        sides: The sides of the encoder.
        folder: An existing, empty folder.

    Returns:
        One entry for each side.

    Raises:
        ValueError: If fastembed cannot do what the encoder does: sum over tokens, scale to unit length,
            keep the largest weights only, or look documents up.
    """
    for side in sides:
        if isinstance(side, LookupSide) and "document" in side.kinds:
            raise ValueError(
                "fastembed encodes documents with a model; this encoder looks them up in a table"
            )
        if isinstance(side, EncodedSide) and side.pooling != "max":
            raise ValueError(f"fastembed pools by 'max'; received an encoder that pools by {side.pooling!r}")
        if side.normalized:
            raise ValueError("fastembed does not scale vectors to unit length, and this encoder does")
        if side.max_active_dims is not None:
            raise ValueError(
                "fastembed keeps every term of a text; received an encoder with max_active_dims "
                f"{side.max_active_dims}"
            )
    query, document = sides[0], sides[-1]
    if not isinstance(query, LookupSide):
        return [_write_encoded(side, folder / side.folder, SPLADE) for side in sides]
    # fastembed reads one folder, where one tokenizer cuts queries and documents.
    encoded = _write_encoded(document, folder, INFERENCE_FREE)
    weights = query.weights.tolist()
    idf = {term: weights[i] for i, term in enumerate(query.terms()) if weights[i] != 0}
    (folder / "idf.json").write_text(json.dumps(idf, ensure_ascii=False, indent=0), encoding="utf-8")
    special = tuple(query.tokenizer.all_special_ids)
    lookup = _loader(folder, INFERENCE_FREE, query.vocabulary_size, special, lookup=True)
    # That tokenizer also adds special tokens to a query, which the table does without.
    room = document.max_seq_length - document.tokenizer.num_special_tokens_to_add()
    earlier = query.max_seq_length > room
    query = replace(query, max_seq_length=document.max_seq_length)
    return [Written(query, folder, lookup, special, _runtime(), cuts_earlier=earlier), encoded]


def _write_encoded(side: EncoderSide, folder: Path, name: str) -> Written:
    """Write the logits of a side for one of fastembed's two classes."""
    assert isinstance(side, EncodedSide)
    own, theirs = 1 + side.double_log1p, 1 + (name == INFERENCE_FREE)
    write_graph(side, folder, TokenLogits(side, own - theirs), ["logits"])
    side.model.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    # Older versions read the special tokens from this file.
    tokens = json.dumps(side.tokenizer.special_tokens_map, ensure_ascii=False, indent=1)
    (folder / "special_tokens_map.json").write_text(tokens, encoding="utf-8")
    special = tuple(side.tokenizer.all_special_ids) if name == INFERENCE_FREE else ()
    load = _loader(folder, name, side.vocabulary_size, special)
    return Written(side, folder, load, special, _runtime())


def _runtime() -> str:
    if importlib.util.find_spec("fastembed") is not None:
        return "fastembed"
    return "onnxruntime with the pooling of fastembed (which is not installed)"


def _loader(
    folder: Path, name: str, size: int, special: tuple[int, ...], *, lookup: bool = False
) -> Callable[[], RunTexts]:
    """Return what loads a folder in fastembed, or without it what does the same steps."""
    if importlib.util.find_spec("fastembed") is not None:
        return partial(_load_fastembed, folder, name, size, lookup=lookup)
    if lookup:
        return partial(_load_table, folder, size, special)
    return partial(_load_onnxruntime, folder, special, double=name == INFERENCE_FREE)


def _load_fastembed(folder: Path, name: str, size: int, *, lookup: bool) -> RunTexts:
    model: Any = importlib.import_module("fastembed").SparseTextEmbedding(
        name, specific_model_path=str(folder), providers=["CPUExecutionProvider"]
    )

    def run(texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), size)  # [B, V]
        found = model.query_embed(list(texts)) if lookup else model.embed(list(texts))
        for row, embedding in zip(rows, found, strict=True):
            row[torch.from_numpy(embedding.indices)] = torch.from_numpy(embedding.values).float()
        return rows

    return run


def _load_onnxruntime(folder: Path, special: tuple[int, ...], *, double: bool) -> RunTexts:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = load_onnx(folder / MODEL_FILE)

    def run(texts: Sequence[str]) -> Tensor:
        ids, mask = token_arrays(tokenizer, texts)
        logits = session(ids, mask)[0]  # [B, L, V]
        weights = np.log1p(np.maximum(logits, 0)) * mask.numpy()[:, :, None]
        rows = weights.max(axis=1)  # [B, V]
        rows = np.log1p(rows) if double else rows
        rows[:, list(special)] = 0
        return torch.from_numpy(rows)

    return run


def _load_table(folder: Path, size: int, special: tuple[int, ...]) -> RunTexts:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    idf = json.loads((folder / "idf.json").read_text(encoding="utf-8"))
    weights = {vocabulary[term]: weight for term, weight in idf.items()}

    def run(texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), size)  # [B, V]
        for row, text in zip(rows, texts, strict=True):
            for term in set(tokenizer.encode(text).ids) - set(special):
                row[term] = weights.get(term, 0.0)
        return rows

    return run
