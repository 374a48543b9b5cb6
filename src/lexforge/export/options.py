"""What a command line says of exports and of the model card; `--help` reads it before it loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ModelTargetName: TypeAlias = Literal["onnx", "onnx-pairs", "onnx-logits", "elasticsearch", "opensearch"]
"""What a model can be exported for; docs/export.md describes each target."""

Quantization: TypeAlias = Literal["int8"]
"""How the weights of an exported model can be made smaller."""

VectorTargetName: TypeAlias = Literal[
    "anserini", "ciff", "opensearch", "opensearch-sparse-vector", "elasticsearch", "vespa", "pgvector"
]
"""The engine that vectors can be exported for; docs/engines.md describes each target."""

UNKNOWN = "unknown"


@dataclass(frozen=True)
class CardOptions:
    """What nobody but the caller knows of a model, for its card, and where the model is uploaded.

    Args:
        text_language: Language of the texts (ISO 639-1), for the model's card.
        license: Licence of the model, as the Hugging Face hub writes it (apache-2.0, ...), for the model's
            card.
        push_to_hub: `organisation/name`: the model is uploaded there, to a private repository if there is
            none yet.
    """

    text_language: str = UNKNOWN
    license: str = UNKNOWN
    push_to_hub: str | None = None
