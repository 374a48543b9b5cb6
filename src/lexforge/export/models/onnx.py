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
from lexforge.export.models.files import EXAMPLE_TEXTS, OnnxSession, write_onnx
from lexforge.export.models.graphs import Pairs, TermWeights
from lexforge.export.models.sides import EncodedSide, EncoderSide, token_arrays, write_tokenizer

MODEL_FILE = "model.onnx"


def write_pooled(sides: Sequence[EncoderSide], folder: Path) -> list[Written]:
    """Write graphs that return the vectors themselves, `sentence_embedding [B, V]`.

    Args:
        sides: The sides of the encoder.
        folder: An existing, empty folder.

    Returns:
        One entry for each side.
    """
    written = []
    for side in sides:
        write_graph(side, folder / side.folder, TermWeights(side), ["sentence_embedding"])
        written.append(Written(side, folder / side.folder, partial(run_pooled, folder / side.folder)))
    return written


def write_pairs(sides: Sequence[EncoderSide], folder: Path) -> list[Written]:
    """Write graphs for Anserini and Pyserini: one text in, its term ids and weights out.

    Anserini always sends token types, so every graph takes them, whether or not the model has any.

    Args:
        sides: The sides of the encoder.
        folder: An existing, empty folder.

    Returns:
        One entry for each side.
    """
    outputs = ["output_idx", "output_weights"]  # the names that its Java code asks for
    written = []
    for side in sides:
        place = folder / side.folder
        write_graph(side, place, Pairs(side), outputs, one_text=True, token_types=True)
        written.append(Written(side, place, partial(_run_pairs, place, side.vocabulary_size)))
        tokenizer_type = json.loads((place / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"]
        if tokenizer_type == "WordPiece":  # Anserini reads the terms from vocab.txt
            terms = "".join(f"{term}\n" for term in side.terms())
            (place / "vocab.txt").write_text(terms, encoding="utf-8", newline="\n")  # also on Windows
    return written


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
    folder.mkdir(exist_ok=True)
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
    session = OnnxSession(folder / MODEL_FILE, threads)
    return lambda texts: torch.from_numpy(session.run(*token_arrays(tokenizer, texts))[0])


def _run_pairs(folder: Path, size: int) -> RunTexts:
    """Return what runs a folder of `write_pairs` as Anserini does, one text at a time."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = OnnxSession(folder / MODEL_FILE)

    def run(texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), size)  # [B, V]
        for row, text in zip(rows, texts, strict=True):
            terms, weights = session.run(*token_arrays(tokenizer, [text]))
            row[torch.from_numpy(terms)] = torch.from_numpy(weights)
        return rows

    return run
