"""ONNX files: written by torch, made smaller by onnxruntime, and run by it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lexforge.common.extras import missing_extra

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
    except ImportError as error:
        raise missing_extra("an ONNX file", "export", error) from error
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra("an ONNX file", "export", error) from error
    axes = {1: "length"} if one_text else {0: "batch", 1: "length"}
    noise = logging.getLogger("torch.onnx")
    level = noise.level
    noise.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # The exporter warns of the insides of torch. What it writes is run and compared afterwards.
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
    finally:
        noise.setLevel(level)


def _weight_bytes(graph: nn.Module) -> int:
    tensors = {t.data_ptr(): t for t in (*graph.parameters(), *graph.buffers())}  # tied ones once
    return sum(t.numel() * t.element_size() for t in tensors.values())


def quantize_int8(source: Path, target: Path) -> None:
    """Store the weights of matrix products and embeddings in 8 bits; activations are rounded when it runs.

    Args:
        source: An ONNX file.
        target: The smaller one.

    Raises:
        ImportError: If onnxruntime or onnx is missing.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise missing_extra("an ONNX file with 8-bit weights", "export", error) from error
    noise = logging.getLogger()
    level = noise.level
    noise.setLevel(logging.ERROR)  # it recommends a preparation that changes nothing for these graphs
    try:
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8, per_channel=True)
    finally:
        noise.setLevel(level)


class OnnxSession:
    """A file that onnxruntime runs on the CPU.

    Args:
        path: The ONNX file.
        threads: Number of threads; None leaves the choice to onnxruntime.

    Raises:
        ImportError: If onnxruntime is missing.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise missing_extra("an ONNX file", "export", error) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [each.name for each in self._session.get_inputs()]

    def run(self, input_ids: Tensor, attention_mask: Tensor) -> list[NDArray[Any]]:
        """Run the graph.

        Args:
            input_ids: `[B, L] int64`.
            attention_mask: `[B, L] int64`.

        Returns:
            Its outputs. Token types, where the graph asks for them, are 0: each text is the first of a pair.
        """
        values = {
            "input_ids": input_ids.numpy(),
            "attention_mask": attention_mask.numpy(),
            "token_type_ids": np.zeros(input_ids.shape, dtype=np.int64),
        }
        return self._session.run(None, {name: values[name] for name in self.inputs})
