"""A dense `SentenceTransformer` as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError, TextKind


class SentenceTransformerTeacher:
    """A dense `SentenceTransformer` as the teacher; queries and documents get the prompts saved with it.

    Args:
        model_name_or_path: A name on the hub or a folder, as `SentenceTransformer` takes it.
        device: Where the model is put; None leaves the choice to sentence-transformers.

    Raises:
        DataError: If the model cannot be loaded, or if it is no dense encoder; the message says what can be
            used instead.
    """

    def __init__(self, model_name_or_path: str = "BAAI/bge-m3", *, device: str | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        from lexforge.models.fingerprint import fingerprint
        from lexforge.models.names import checked_name, model_type

        try:
            name = checked_name(model_name_or_path)
            # SentenceTransformer loads anything and takes the mean over its tokens, which is no teacher.
            found = model_type(name)
            if found == "dense":
                self._encoder = SentenceTransformer(name, device=device)
        except (OSError, ValueError) as error:
            raise DataError(
                f"the teacher {model_name_or_path!r} cannot be loaded; pass a folder or a model name that "
                f"the hub or its local cache has, or use LsaTeacher, which needs no model ({error})"
            ) from error
        if found == "unknown":
            raise DataError(
                f"the teacher {model_name_or_path!r} is a bare transformer, which says nothing about its "
                "pooling; save it as a SentenceTransformer with the pooling that it was trained with"
            )
        if found != "dense":
            raise DataError(
                f"the teacher {model_name_or_path!r} is a {found} model, and dense embeddings are needed "
                "here; `load_teacher` loads it"
            )
        # The fingerprint covers weights, tokenizer and prompts, so no cache can mix two teachers.
        self.name = f"{Path(model_name_or_path).name}-{fingerprint(self._encoder)}"

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Embed N texts of one kind: `[N, D]` float32, rows of L2 norm 1."""
        from lexforge.models.prompts import encode_kind

        options = {"normalize_embeddings": True, "show_progress_bar": False}
        embeddings = encode_kind(self._encoder, texts, kind, **options)
        return np.asarray(embeddings, dtype=np.float32)
