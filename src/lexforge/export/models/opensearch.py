"""The target of OpenSearch: what its plugin ml-commons registers, one zip and one configuration per side."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lexforge.export.models.check import RunTexts, Written
from lexforge.export.models.files import EXAMPLE_TEXTS, load_torchscript, portable_side, torchscript_bytes
from lexforge.export.models.graphs import TermWeights
from lexforge.export.models.sides import EncoderSide, LookupSide, token_arrays, write_tokenizer

CONFIGURATION = "ml-commons_model_config.json"
ARCHIVE = "model.zip"
SMALLEST_WEIGHT = 1e-6
"""For a term of weight 0: a term that the table lacks would weigh 1, and a query refuses weights of 0."""


class Named(nn.Module):
    """A graph between dictionaries, as ml-commons calls it."""

    def __init__(self, side: EncoderSide, zeroed_ids: Sequence[int]) -> None:
        super().__init__()
        self.weights = TermWeights(side, zeroed_ids)

    def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `{"output": [B, V]}`; the token types of a single text are 0."""
        ids = tokens["input_ids"]
        return {"output": self.weights(ids, tokens["attention_mask"], torch.zeros_like(ids))}


def write_opensearch(side: EncoderSide, folder: Path, name: str) -> Written:
    """Write a zip and `ml-commons_model_config.json`.

    An encoded side becomes TorchScript (`SPARSE_ENCODING`), a table becomes `idf.json` (`SPARSE_TOKENIZE`).
    Special tokens weigh 0, as in OpenSearch's own models.

    Args:
        side: A side of the encoder.
        folder: Absent, or an empty folder.
        name: Name under which the model is registered.

    Returns:
        What was written.

    Raises:
        ValueError: If texts need a prompt, which OpenSearch cannot add, or if a table has negative weights or
            different weights for two terms that OpenSearch cannot tell apart, or if its vectors are cut or
            scaled.
    """
    if any(side.prompts.values()):
        raise ValueError(
            f"OpenSearch gives texts to the model as they are; this encoder adds prompts: {side.prompts}"
        )
    special = tuple(side.tokenizer.all_special_ids)
    tokenizer = write_tokenizer(side, folder)
    files = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    load: Any
    if isinstance(side, LookupSide):
        function = "SPARSE_TOKENIZE"
        files["idf.json"] = _idf(side, tokenizer)
        load = partial(_load_table, folder / ARCHIVE, side.vocabulary_size)
        runtime = "the steps of ml-commons (OpenSearch itself is not started)"
    else:
        function = "SPARSE_ENCODING"
        ids, mask = token_arrays(tokenizer, EXAMPLE_TEXTS)
        example = {"input_ids": ids, "attention_mask": mask}
        graph = Named(portable_side(side), special).eval()
        files["model.pt"] = torchscript_bytes(graph, (example,), freeze=False)
        load = partial(_load_encoded, folder / ARCHIVE)
        runtime = "libtorch"
    archive = _zip(files)
    (folder / ARCHIVE).write_bytes(archive)
    kinds = " and ".join({"query": "queries", "document": "documents"}[kind] for kind in side.kinds)
    configuration = {
        "name": f"{name}-{side.folder}" if side.folder else name,
        "version": "1.0.0",
        "description": f"Neural sparse model for {kinds}, exported by lexforge.",
        "model_format": "TORCH_SCRIPT",
        "function_name": function,
        "model_content_size_in_bytes": len(archive),
        "model_content_hash_value": hashlib.sha256(archive).hexdigest(),
    }
    (folder / CONFIGURATION).write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
    return Written(side, folder, load, special, runtime)


def _idf(side: LookupSide, tokenizer: Tokenizer) -> bytes:
    """Return the table by the text of each term, as ml-commons looks it up."""
    if (side.weights < 0).any():
        raise ValueError("OpenSearch refuses negative query weights; this encoder's table has some")
    if side.max_active_dims is not None or side.normalized:
        raise ValueError(
            "OpenSearch takes the weights of query tokens as they stand in the table; this encoder has "
            f"max_active_dims {side.max_active_dims} and unit length {side.normalized}"
        )
    weights: dict[str, float] = {}
    for index, weight in enumerate(side.weights.tolist()[: tokenizer.get_vocab_size()]):
        text = tokenizer.decode([index], skip_special_tokens=True)
        if text and weights.setdefault(text, weight) != weight:
            raise ValueError(
                f"OpenSearch looks query terms up by their text; this encoder has several terms {text!r}, of "
                f"the weights {weights[text]} and {weight}"
            )
    table = {text: max(weight, SMALLEST_WEIGHT) for text, weight in weights.items()}
    return json.dumps(table, ensure_ascii=False, indent=0).encode()


def _zip(files: Mapping[str, bytes]) -> bytes:
    """Pack files without their dates, so that equal models have equal archives and hashes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def _load_encoded(archive: Path) -> RunTexts:
    with zipfile.ZipFile(archive) as files:
        tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
        model = load_torchscript(files.read("model.pt"))

    def run(texts: Sequence[str]) -> Tensor:
        ids, mask = token_arrays(tokenizer, texts)
        with torch.no_grad():
            return model({"input_ids": ids, "attention_mask": mask})["output"]

    return run


def _load_table(archive: Path, size: int) -> RunTexts:
    """Return the steps of ml-commons' SparseTokenizerModel over the files of the archive."""
    with zipfile.ZipFile(archive) as files:
        tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
        table = json.loads(files.read("idf.json"))

    def run(texts: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(texts), size)  # [B, V]
        for row, text in zip(rows, texts, strict=True):
            for index in set(tokenizer.encode(text).ids):
                if term := tokenizer.decode([index], skip_special_tokens=True):
                    row[index] = table.get(term, 1.0)
        return rows

    return run
