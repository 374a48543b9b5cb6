"""Export an encoder to other runtimes, each export checked against the encoder before it is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from sentence_transformers import SparseEncoder

from lexforge.common.types import TextKind
from lexforge.data import RetrievalData
from lexforge.export.models import elasticsearch, fastembed, onnx, opensearch
from lexforge.export.models.check import Agreement, Written, compare
from lexforge.export.models.files import OPSET, quantize_int8
from lexforge.export.models.measure import measure_export
from lexforge.export.models.sides import EncodedSide, EncoderSide, read_sides
from lexforge.export.vectors.base import experimental
from lexforge.models import build_splade, check_model, checked_name, model_type
from lexforge.settings import ModelTargetName, Quantization
from lexforge.storage.files import check_new, new_directory

DESCRIPTION = "export.json"
# The targets that no running engine has loaded, and the names of their engines.
EXPERIMENTAL: dict[ModelTargetName, str] = {"elasticsearch": "Elasticsearch", "opensearch": "OpenSearch"}


@dataclass(frozen=True)
class Export:
    """What is known of an export.

    Args:
        agreements: The comparison of queries and of documents with the encoder.
        measures: nDCG@10 and documents per second of "encoder", "float32" and "int8", where they were asked
            for.
        limits: Sentences on what is not known of the export; they stand in its `export.json` too.
    """

    agreements: tuple[Agreement, ...]
    measures: dict[str, dict[str, float]]
    limits: tuple[str, ...]


def check_model_export(name: str, target: str, output: str | Path, quantize: str | None = None) -> None:
    """Refuse what cannot be exported, before any work.

    Args:
        name: A folder or a hub name of an encoder.
        target: Where it is to go.
        output: The folder of the export.
        quantize: "int8", or None.

    Raises:
        ValueError: If the target or the quantization is unknown or the two do not fit, or if the model is
            dense or a cross-encoder.
        FileExistsError: If the folder is in use.
        FileNotFoundError: If there is no such model.
    """
    if target not in get_args(ModelTargetName):
        raise ValueError(f"target must be one of {get_args(ModelTargetName)}; received {target!r}")
    if quantize is not None and quantize not in get_args(Quantization):
        raise ValueError(f"quantize must be one of {get_args(Quantization)} or None; received {quantize!r}")
    if quantize is not None and not target.startswith("onnx"):
        raise ValueError(f"only ONNX targets are quantized; received quantize={quantize!r} for {target!r}")
    check_new(output)
    check_model(name)
    found = model_type(checked_name(name))
    if found != "sparse":
        raise ValueError(
            f"an export needs a SPLADE encoder, and {name} is "
            + {"dense": "a dense model", "cross-encoder": "a CrossEncoder"}.get(
                found, "no masked language model"
            )
        )


def export_model(
    name: str,
    target: ModelTargetName,
    output: str | Path,
    *,
    queries: Sequence[str],
    documents: Sequence[str],
    quantize: Quantization | None = None,
    max_seq_length: int | None = None,
    measured_on: tuple[RetrievalData, str] | None = None,
) -> Export:
    """Write an encoder for another runtime and compare what that runtime computes with the encoder.

    Args:
        name: A folder or a hub name: a saved SPLADE `SparseEncoder` (symmetric, or asymmetric with a
            `Router`) or a bare masked language model.
        target: "onnx" (vectors), "onnx-pairs" (Anserini), "onnx-logits" (fastembed), "elasticsearch" or
            "opensearch".
        output: A new or empty folder.
        queries: Texts that the export is checked with; their number decides how long that takes.
        documents: The same for documents.
        quantize: "int8" stores the weights of an ONNX target in 8 bits.
        max_seq_length: Texts are cut after this many tokens; None keeps what the encoder was saved with.
        measured_on: A retrieval set and the split whose queries are searched: the encoder and its export are
            measured on it, before and after quantization.

    Returns:
        The export.

    Raises:
        ValueError: If `check_model_export` refuses it, if the encoder has something that the target lacks,
            or if the vectors of the export differ from those of the encoder; nothing is left behind.
        FileExistsError: If the folder is in use.
        ImportError: If a package of the extra `export` is missing.
    """
    check_model_export(name, target, output, quantize)
    model = build_splade(name, max_seq_length=max_seq_length, fused=False, device="cpu")
    saved_in = sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()} - {"float32"})
    model.float()
    sides = read_sides(model)
    title = Path(name).resolve().name if Path(name).exists() else name.rsplit("/", 1)[-1]
    with new_directory(output) as folder:
        written = _write(target, sides, folder, title)
        texts: dict[TextKind, Sequence[str]] = {"query": queries, "document": documents}
        agreements = _compare(model, written, texts)
        measures = {}
        if measured_on is not None:
            measures["encoder"] = measure_export(model, None, *measured_on)
            measures["float32"] = measure_export(model, written, *measured_on)
        if quantize is not None:
            for each in written:
                if isinstance(each.side, EncodedSide):
                    quantize_int8(each.folder / onnx.MODEL_FILE)
            agreements = _compare(model, written, texts, quantized=True)
            if measured_on is not None:
                measures[quantize] = measure_export(model, written, *measured_on)
        limits = [experimental(EXPERIMENTAL[target])] if target in EXPERIMENTAL else []
        if saved_in:
            limits.append(
                f"The encoder was saved in {' and '.join(saved_in)}. It was exported and compared in "
                "float32, so its own vectors differ by that rounding."
            )
        description = _describe(model, title, target, written, agreements, quantize, limits)
        (folder / DESCRIPTION).write_text(
            json.dumps(description, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    return Export(agreements, measures, tuple(limits))


def _write(
    target: ModelTargetName, sides: Sequence[EncoderSide], folder: Path, title: str
) -> Sequence[Written]:
    """Write each side in its folder, or for fastembed both in one."""
    if target == "onnx-logits":
        return fastembed.write_logits(sides, folder)
    writers: dict[ModelTargetName, Callable[[EncoderSide, Path], Written]] = {
        "onnx": onnx.write_pooled,
        "onnx-pairs": onnx.write_pairs,
        "elasticsearch": partial(elasticsearch.write_elasticsearch, name=title),
        "opensearch": partial(opensearch.write_opensearch, name=title),
    }
    return [writers[target](side, folder / side.folder) for side in sides]


def _compare(
    model: SparseEncoder,
    written: Sequence[Written],
    texts: dict[TextKind, Sequence[str]],
    quantized: bool = False,
) -> tuple[Agreement, ...]:
    return tuple(
        compare(model, each, texts[kind], kind, quantized=quantized)
        for each in written
        for kind in each.side.kinds
    )


def _describe(
    model: SparseEncoder,
    title: str,
    target: ModelTargetName,
    written: Sequence[Written],
    agreements: Sequence[Agreement],
    quantize: Quantization | None,
    limits: Sequence[str],
) -> dict[str, Any]:
    """Return what a program must know that reads the files without lexforge."""
    sides = {
        each.side.folder or ".": {
            "texts": list(each.side.kinds),
            "prompts": each.side.prompts,
            "max_seq_length": each.side.max_seq_length,
            "vocabulary_size": each.side.vocabulary_size,
            "special_tokens_weigh_0": bool(each.zeroed_ids),
        }
        for each in written
    }
    return {
        "format": "lexforge-export",
        "model": title,
        "target": target,
        "limits": limits,
        "opset": OPSET if target.startswith("onnx") else None,
        "quantization": quantize,
        "similarity": model.similarity_fn_name,
        "sides": sides,
        "compared_with_the_encoder": [asdict(agreement) for agreement in agreements],
        "versions": {package: version(package) for package in ("lexforge", "torch", "transformers")},
    }
