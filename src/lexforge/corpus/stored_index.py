"""An index of an encoded corpus on disk, together with the name of the model that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lexforge.common.progress import Progress
from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.retrieval import Index, IndexName
from lexforge.retrieval.backends import BACKENDS, find_backend
from lexforge.storage.files import check_new, new_directory
from lexforge.storage.manifest import pack_manifest, unpack_manifest

SOURCE = "source.json"
FORMAT = "lexforge-stored-index"


@dataclass(frozen=True)
class Source:
    """What an index was made of.

    Args:
        kind: Name of the index.
        model: Name of the encoder when the corpus was encoded.
        fingerprint: Digest of everything that decides the vectors of the encoder.
        max_seq_length: Number of tokens after which a text was cut; None if the model set no limit.
        corpus: Digest of all ids and texts.
    """

    kind: IndexName
    model: str
    fingerprint: str
    max_seq_length: int | None
    corpus: str


def build_index(
    corpus: EncodedCorpus,
    directory: str | Path,
    kind: IndexName,
    *,
    rows: int = 65536,
    show_progress_bar: bool = False,
    **options: Any,
) -> Index:
    """Make an index of an encoded corpus and save it.

    Args:
        corpus: The encoded corpus.
        directory: A new or empty directory.
        kind: Name of the index.
        rows: Number of documents that are read and added at once, in whole blocks and at least one block.
        show_progress_bar: Show how many documents have been added.
        options: Options of the index, such as the `uri` of Milvus.

    Returns:
        The index.

    Raises:
        ConnectionError: If the server of the index does not answer.
        FileExistsError: If the directory is not empty.
        ImportError: If a package that the index needs is not installed.
        ValueError: If the index does not hold such vectors or take such options, a block is damaged, or a
            server has a collection of the same name, such as that of an interrupted build.
    """
    manifest = corpus.manifest
    backend = find_backend(kind, manifest.kind, options)
    check_new(directory)
    # The first block is read before the index is made, because it says how wide the vectors are.
    blocks = corpus.blocks(rows)
    first = next(blocks)
    width = first[0].shape[1]
    index = backend.index.create(width, manifest.similarity, **backend.settings, **options)
    with Progress(len(corpus), "Index", show=show_progress_bar) as progress:
        for vectors, ids in chain([first], blocks):
            index.add(vectors, ids)
            progress.update(len(ids))
    source = Source(kind, manifest.model, manifest.fingerprint, manifest.max_seq_length, manifest.corpus)
    with new_directory(directory) as path:
        index.save(path / "index")
        (path / SOURCE).write_text(pack_manifest(FORMAT, vars(source)) + "\n", encoding="utf-8")
    return index


def open_index(
    directory: str | Path,
    verify: bool = False,
    *,
    uri: str | None = None,
    tokens: Mapping[IndexName, str] | None = None,
) -> tuple[Index, Source]:
    """Load an index that `build_index` saved.

    Args:
        directory: The directory that `build_index` wrote.
        verify: Compare every file with its checksum, including large ones that seem unchanged since they were
            written.
        uri: The address of the server that keeps the vectors; None takes the one in the directory, to which
            no token is sent.
        tokens: Name of an index -> credentials for its server.

    Returns:
        The index, and what it was made of.

    Raises:
        ConnectionError: If the server of the index does not answer.
        FileNotFoundError: If the directory holds no index, or one whose building was interrupted.
        ValueError: If a file is damaged, no server keeps the vectors and there is a uri, or there is a token
            for the server and no uri.
    """
    path = Path(directory) / SOURCE
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no finished index: {SOURCE} is missing")
    try:
        source = Source(**unpack_manifest(path.read_bytes(), FORMAT))
        if source.kind not in BACKENDS:
            raise ValueError(f"kind must be one of {', '.join(BACKENDS)}; received {source.kind!r}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not describe an index of lexforge: {error}") from error
    backend = BACKENDS[source.kind]
    if "uri" in backend.options:
        address = {"uri": uri, "token": (tokens or {}).get(source.kind, "")}
        return backend.index.load(Path(directory) / "index", verify, **address), source
    if uri is not None:
        raise ValueError(
            f"{directory} holds the index {source.kind!r}, which has no address; received {uri!r}"
        )
    return backend.index.load(Path(directory) / "index", verify), source
