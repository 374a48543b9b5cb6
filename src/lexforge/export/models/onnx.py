"""The targets whose files onnxruntime runs as they are: pooled vectors, and the pairs of Anserini."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lexforge.export.models.check import RunTexts, Written
from lexforge.export.models.files import EXAMPLE_TEXTS, load_onnx, write_onnx
from lexforge.export.models.graphs import Pairs, TermWeights
from lexforge.export.models.sides import EncodedSide, EncoderSide, token_arrays, write_tokenizer

MODEL_FILE = "model.onnx"


def write_pooled(side: EncoderSide, folder: Path) -> Written:
    """Write a graph that returns the vectors themselves, `sentence_embedding [B, V]`."""
    write_graph(side, folder, TermWeights(side), ["sentence_embedding"])
    return Written(side, folder, partial(run_pooled, folder))


def write_pairs(side: EncoderSide, folder: Path) -> Written:
    """Write a graph for Anserini and Pyserini: one text in, its term ids and weights out.

    Anserini always sends token types, so every graph takes them, whether or not the model has any.
    """
    outputs = ["output_idx", "output_weights"]  # the names that its Java code asks for
    write_graph(side, folder, Pairs(side), outputs, one_text=True, token_types=True)
    tokenizer_type = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"]
    if tokenizer_type == "WordPiece":  # Anserini reads the terms from vocab.txt
        terms = "".join(f"{term}\n" for term in side.terms())
        (folder / "vocab.txt").write_text(terms, encoding="utf-8", newline="\n")  # also on Windows
    return Written(side, folder, partial(_run_pairs, folder, side.vocabulary_size))


def write_graph(
    side: EncoderSide,
    folder: Path,
    graph: nn.Module,
    outputs: Sequence[str],
    *,
    one_text: bool = False,
    token_types: bool | None = None,
) -> None:
    """Write a graph as `model.onnx` with the files of its tokenizer beside it.

    Args:
        side: The side that the graph encodes.
        folder: Where the files go; it is made if it is missing.
        graph: Takes input_ids, attention_mask and, with token types, token_type_ids.
        outputs: Names of the outputs.
        one_text: Whether the graph takes one text at a time.
        token_types: Whether the graph takes token_type_ids; None takes them where the model has them.
    """
    tokenizer = write_tokenizer(side, folder)
    ids, mask = token_arrays(tokenizer, EXAMPLE_TEXTS[:1] if one_text else EXAMPLE_TEXTS)
    example = {"input_ids": ids, "attention_mask": mask}
    if token_types is None:
        token_types = isinstance(side, EncodedSide) and side.has_token_types
    if token_types:
        example["token_type_ids"] = torch.zeros_like(ids)
    write_onnx(graph.eval(), folder / MODEL_FILE, example, outputs, one_text=one_text)


def run_pooled(folder: Path, threads: int | None = None) -> RunTexts:
    """Return what runs a folder of `write_pooled`.

    Args:
        folder: The folder.
        threads: Number of threads of onnxruntime; None leaves the choice to it.

    Returns:
        Texts to vectors.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = load_onnx(folder / MODEL_FILE, threads)
    return lambda texts: torch.from_numpy(session(*token_arrays(tokenizer, texts))[0])


def _run_pairs(folder: Path, size: int) -> RunTexts:
    """Return what runs a folder of `write_pairs` as Anserini does, one text at a time."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = load_onnx(folder / MODEL_FILE)

    def run(texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), size)  # [B, V]
        for row, text in zip(rows, texts, strict=True):
            terms, weights = session(*token_arrays(tokenizer, [text]))
            row[torch.from_numpy(terms)] = torch.from_numpy(weights)
        return rows

    return run
