"""Graphs as files: ONNX, which onnxruntime runs, and TorchScript for OpenSearch and Elasticsearch."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lexforge.common.extras import missing_extra
from lexforge.common.silent import silent
from lexforge.export.models.sides import EncodedSide, EncoderSide

EXAMPLE_TEXTS = ["a text that is traced", "another one"]  # with which graphs are traced
OPSET = 20  # in onnxruntime since 1.17
EXTERNAL_BYTES = 1_800_000_000  # a protobuf file holds 2 GiB; more weights stand in a file beside it


def write_onnx(
    graph: nn.Module,
    path: Path,
    example: Mapping[str, Tensor],
    outputs: Sequence[str],
    *,
    one_text: bool = False,
) -> None:
    """Trace a module and save it, with dynamic batch and length.

    Args:
        graph: The module, in evaluation mode.
        path: The file; weights above `EXTERNAL_BYTES` stand beside it in `<name>.data`.
        example: Name to tensor `[B, L]` of each input, in the order of the module's arguments.
        outputs: Names of the outputs.
        one_text: Whether the graph takes one text at a time, `[1, L]`.

    Raises:
        ImportError: If the package onnx or onnxscript is missing.
    """
    try:  # the exporter of torch imports both
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra("an ONNX file", "export", error) from error
    axes = {1: "length"} if one_text else {0: "batch", 1: "length"}
    # The exporter warns of the insides of torch. What it writes is run and compared afterwards.
    with silent("torch.onnx"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            tuple(example.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_shapes=tuple(axes for _ in example),
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=_weight_bytes(graph) > EXTERNAL_BYTES)


def _weight_bytes(graph: nn.Module) -> int:
    tensors = {t.data_ptr(): t for t in (*graph.parameters(), *graph.buffers())}  # tied ones once
    return sum(t.numel() * t.element_size() for t in tensors.values())


def quantize_int8(path: Path) -> None:
    """Store the weights of matrix products and embeddings in 8 bits; activations are rounded when it runs.

    Args:
        path: An ONNX file, whose place the smaller one takes.

    Raises:
        ImportError: If onnxruntime or onnx is missing.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise missing_extra("an ONNX file with 8-bit weights", "export", error) from error
    with silent():  # it recommends a preparation that changes nothing for these graphs
        quantize_dynamic(path, path, weight_type=QuantType.QInt8, per_channel=True)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # weights that stood beside it


def load_onnx(path: Path, threads: int | None = None) -> Callable[[Tensor, Tensor], list[NDArray[Any]]]:
    """Return what runs a file in onnxruntime on the CPU.

    Args:
        path: The ONNX file.
        threads: Number of threads; None leaves the choice to onnxruntime.

    Returns:
        input_ids and attention_mask, each `[B, L] int64`, to the outputs. Token types, where the graph asks
        for them, are 0: each text is the first of a pair.

    Raises:
        ImportError: If onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("an ONNX file", "export", error) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )
    inputs = [each.name for each in session.get_inputs()]

    def run(input_ids: Tensor, attention_mask: Tensor) -> list[NDArray[Any]]:
        values = {
            "input_ids": input_ids.numpy(),
            "attention_mask": attention_mask.numpy(),
            "token_type_ids": np.zeros(input_ids.shape, dtype=np.int64),
        }
        return session.run(None, {name: values[name] for name in inputs})

    return run


def portable_side(side: EncoderSide) -> EncoderSide:
    """Return a copy of a side whose attention is written in plain matrix products.

    The engines bring their own, often older, version of PyTorch's runtime; OpenSearch's has no fused
    attention.

    Args:
        side: The side of an encoder.

    Returns:
        The copy; a table is returned as it is.
    """
    if not isinstance(side, EncodedSide):
        return side
    model = copy.deepcopy(side.model)
    cast(Any, model).set_attn_implementation("eager")
    return replace(side, model=model)


def torchscript_bytes(graph: nn.Module, example: Any, *, freeze: bool) -> bytes:
    """Trace a module.

    Args:
        graph: The module, in evaluation mode.
        example: Its arguments: a tuple, or one dictionary.
        freeze: Whether weights become constants, as eland does it.

    Returns:
        What `torch.jit.load` reads.
    """
    with warnings.catch_warnings(), torch.no_grad():
        # torch announces the end of TorchScript, but the engines load nothing else; and it warns of Python
        # conditions in the trace, for which the written file is run over texts of other lengths.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(graph, example, strict=False, check_trace=False)
        if freeze:
            traced = torch.jit.freeze(traced)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
    return buffer.getvalue()


def load_torchscript(content: bytes) -> Any:
    """Return a module that `torchscript_bytes` wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        return torch.jit.load(io.BytesIO(content), map_location="cpu")
