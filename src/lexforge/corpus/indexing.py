"""From passages and an encoder to an index on the disk, in one call that a kill interrupts without loss."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers.base.model import BaseModel

from lexforge.common.types import Passage
from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.encoding import vector_type
from lexforge.corpus.stored_index import build_index, check_store_place
from lexforge.retrieval import Index
from lexforge.retrieval.backends import exact_name, find_backend
from lexforge.settings import IndexName
from lexforge.storage.files import check_new


def index_passages(
    model: BaseModel,
    passages: Mapping[str, Passage],
    directory: str | Path,
    *,
    name: str,
    repeated: Mapping[str, Passage] | None = None,
    index_name: IndexName | None = None,
    batch_size: int = 32,
    show_progress_bar: bool = False,
    **options: Any,
) -> Index:
    """Encode passages and make an index of them, which keeps their texts.

    The vectors lie in `<directory>.unfinished` until the index is complete, so the same call goes on where a
    killed one was.

    Args:
        model: The encoder.
        passages: Passage id -> passage.
        directory: A new or empty directory.
        name: The folder or hub name of the encoder, by which a search loads it. A folder is kept with its
            whole path.
        repeated: Passage id -> passage that is left out, because it repeats one of `passages`. It takes the
            place of that one when a change deletes it.
        index_name: Name of the index; None takes the exact one of the model's vectors.
        batch_size: Number of texts per forward pass.
        show_progress_bar: Show progress bars.
        options: Options of the index, such as the `uri` of Milvus.

    Returns:
        The index.

    Raises:
        FileExistsError: If the directory is not empty.
        ValueError: If there is no passage, or `encode_corpus` or `build_index` refuses what it is given.
    """
    directory, vectors_are = Path(directory).resolve(), vector_type(model)  # `.` itself has no name
    index_name = index_name or exact_name(vectors_are)
    # What would fail after the long work is checked before it.
    check_new(directory)
    check_store_place(directory, options)
    find_backend(index_name, vectors_are, options)
    blocks = directory.with_name(f"{directory.name}.unfinished")  # no name that a user gives to vectors
    encode_corpus(
        model,
        {key: passage.joined for key, passage in passages.items()},
        blocks,
        name=name,
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
    )
    index = build_index(
        EncodedCorpus(blocks),
        directory,
        index_name,
        passages=passages,
        repeated=repeated,
        show_progress_bar=show_progress_bar,
        **options,
    )
    shutil.rmtree(blocks)
    return index
