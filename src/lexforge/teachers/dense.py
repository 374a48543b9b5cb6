"""A dense `SentenceTransformer` as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError, TextKind

_SCORE_PAIRS = (
    ", and dense embeddings are needed here; compute its scores of listed candidates with "
    "`lexforge score` and pass those"
)
# What each kind of model is, where it is no dense encoder, and what can be done with it.
_REFUSED = {
    "sparse": f"a SparseEncoder{_SCORE_PAIRS}",
    "cross-encoder": f"a CrossEncoder{_SCORE_PAIRS}",
    "multi-vector": "a MultiVectorEncoder, and one dense embedding per text is needed here",
    "unknown": "a bare transformer, which says nothing about its pooling; save it as a SentenceTransformer "
    "with the pooling that it was trained with",
}


class SentenceTransformerTeacher:
    """A dense `SentenceTransformer` as the teacher; queries and documents get the prompts saved with it.

    Args:
        model_name_or_path: A name on the hub or a folder, as `SentenceTransformer` takes it.
        batch_size: The number of texts per forward pass.
        max_seq_length: Texts are cut after this many tokens; None keeps the model's own limit.
        device: Where the model is put; None leaves the choice to sentence-transformers.
        model_kwargs: Arguments for loading the transformer, such as `{"dtype": "bfloat16"}`.
        prompts: Prompts by name, such as `{"query": "Instruct: ..."}`, for a model that was saved without
            them. None keeps those that were saved with it.

    Raises:
        DataError: If the model cannot be loaded, or if it is no dense encoder; the message says what can be
            used instead.
        ValueError: If `max_seq_length` leaves no room for a word or exceeds the model's positions.
    """

    def __init__(
        self,
        model_name_or_path: str = "BAAI/bge-m3",
        *,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        device: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        prompts: dict[str, str] | None = None,
    ) -> None:
        from sentence_transformers import SentenceTransformer

        from lexforge.models.fingerprint import fingerprint
        from lexforge.models.names import checked_name, model_type
        from lexforge.models.structure import set_max_seq_length

        try:
            name = checked_name(model_name_or_path)
            # SentenceTransformer loads anything and takes the mean over its tokens, which is no teacher.
            refused = _REFUSED.get(model_type(name))
            if refused is None:
                self._encoder = SentenceTransformer(
                    name, device=device, model_kwargs=model_kwargs, prompts=prompts
                )
        except (OSError, ValueError) as error:
            raise DataError(
                f"the teacher {model_name_or_path!r} cannot be loaded; pass a folder or a model name that "
                f"the hub or its local cache has, or use LsaTeacher, which needs no model ({error})"
            ) from error
        if refused is not None:
            raise DataError(f"the teacher {model_name_or_path!r} is {refused}")
        if max_seq_length is not None:
            set_max_seq_length(self._encoder, max_seq_length)
        self._batch_size = batch_size
        # The fingerprint covers weights, tokenizer and prompts, so no cache can mix two teachers.
        self.name = f"{Path(model_name_or_path).name}-{fingerprint(self._encoder)}"

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Embed N texts of one kind: `[N, D]` float32, rows of L2 norm 1."""
        from lexforge.models.prompts import encode_kind

        options = {"batch_size": self._batch_size, "normalize_embeddings": True, "show_progress_bar": False}
        embeddings = encode_kind(self._encoder, texts, kind, **options)
        return np.asarray(embeddings, dtype=np.float32)
