"""The names of the targets of a model, which a command line shows before torch is loaded."""

from __future__ import annotations

from typing import Literal, TypeAlias

Target: TypeAlias = Literal["onnx", "onnx-pairs", "onnx-logits", "elasticsearch", "opensearch"]
"""What a model can be exported for; docs/export.md describes each target."""

Quantization: TypeAlias = Literal["int8"]
"""How the weights of an exported model can be made smaller."""
