"""A dense `SentenceTransformer` as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError, TextKind


class SentenceTransformerTeacher:
    """A dense `SentenceTransformer` as the teacher; queries and documents get the prompts saved with it.

    Its texts are compared by its own similarity, as it was trained: the order by cosine of a model that was
    trained by dot products is another one.

    Args:
        model_name_or_path: A name on the hub or a folder, as `SentenceTransformer` takes it.

    Raises:
        DataError: If the model cannot be loaded, if it is no dense encoder, or if its similarity is neither
            cosine nor dot product; the message says what can be used instead.
    """

    def __init__(self, model_name_or_path: str = "BAAI/bge-m3") -> None:
        from lexforge.models.fingerprint import fingerprint
        from lexforge.models.load import check_encoder, load_encoder
        from lexforge.models.names import checked_name, model_type

        try:
            name = checked_name(model_name_or_path)
            # sentence-transformers loads anything and takes the mean over its tokens, which is no teacher.
            found = model_type(name)
            if found == "dense":
                self._encoder: Any = load_encoder(name)
                self.similarity = check_encoder(self._encoder)
        except (OSError, ValueError) as error:
            raise DataError(
                f"the teacher {model_name_or_path!r} cannot be loaded; pass a folder or a model name that "
                f"the hub or its local cache has, or the teacher lsa, which needs no model ({error})"
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
        suffix = "-dot" if self.similarity == "dot" else ""
        self.name = f"{Path(model_name_or_path).name}-{fingerprint(self._encoder)}{suffix}"

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Embed N texts of one kind: `[N, D]` float32, of L2 norm 1 if they are compared by cosine."""
        from lexforge.models.prompts import encode_kind

        options = {"normalize_embeddings": self.similarity == "cosine", "show_progress_bar": False}
        embeddings = encode_kind(self._encoder, texts, kind, **options)
        return np.asarray(embeddings, dtype=np.float32)
