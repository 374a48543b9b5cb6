"""An index of an encoded corpus on disk, with the name of the model that made it and the texts that it finds.

`source.json` names the folder of the current generation, which holds the index and the passages. A change of
the documents writes a further generation and then replaces `source.json`, so a reader sees the old state or
the new one, and a killed change leaves the old one, as does a power cut.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentence_transformers.base.model import BaseModel

from lexforge.common.progress import Progress
from lexforge.common.text_identity import text_digest
from lexforge.common.types import Passage
from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.encoding import Vectors, vector_type
from lexforge.corpus.passage_file import StoredPassages, write_passages
from lexforge.retrieval import Index
from lexforge.retrieval.backends import BACKENDS, exact_name, find_backend
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.servers.server import ServerIndex
from lexforge.settings import IndexName
from lexforge.storage.files import check_new, new_directory, sync, write_file
from lexforge.storage.manifest import MALFORMED, pack_manifest, unpack_manifest

SOURCE = "source.json"
INDEX = "index"
PASSAGES = "corpus.jsonl"
FORMAT = "lexforge-stored-index"
ROWS = 262_144  # documents that are read and added at once: a segment of a large inverted index


@dataclass(frozen=True)
class Source:
    """What an index was made of.

    Args:
        index_name: Name of the index.
        model: Name of the encoder when the corpus was encoded.
        fingerprint: Digest of everything that decides the vectors of the encoder.
        max_seq_length: What the model said of itself, for `load_encoder`; None if it set no limit.
        passages: SHA-256 of the file of the texts; None if the index keeps none.
        generation: Number of the state of the documents; each change of them adds 1.
        state: Random digits of this state, because an index that was made again counts from 1 again.
    """

    index_name: IndexName
    model: str
    fingerprint: str
    max_seq_length: int | None
    passages: str | None
    generation: int
    state: str

    @property
    def folder(self) -> str:
        """The name of the folder of this generation."""
        return f"generation-{self.generation}"


def index_passages(
    model: BaseModel,
    passages: Mapping[str, Passage],
    directory: str | Path,
    *,
    name: str,
    repeated: Mapping[str, Passage] | None = None,
    index_name: IndexName | None = None,
    batch_size: int = 32,
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
        options: Options of the index, such as the `uri` of Milvus.

    Returns:
        The index.

    Raises:
        FileExistsError: If the directory is not empty.
        ValueError: If there is no passage, or `encode_corpus` or `build_index` refuses what it is given.
    """
    directory, vectors_are = Path(directory).resolve(), vector_type(model)  # `.` itself has no name
    # What would fail after the long work is checked before it.
    find_backend(index_name or exact_name(vectors_are), vectors_are, options)
    check_new(directory)  # now, because a local store may lie there
    blocks = directory.with_name(f"{directory.name}.unfinished")  # no name that a user gives to vectors
    encode_corpus(
        model,
        {key: passage.joined for key, passage in passages.items()},
        blocks,
        name=name,
        batch_size=batch_size,
    )
    index = build_index(
        EncodedCorpus(blocks),
        directory,
        index_name,
        passages=passages,
        repeated=repeated,
        **options,
    )
    shutil.rmtree(blocks)
    return index


def build_index(
    corpus: EncodedCorpus,
    directory: str | Path,
    index_name: IndexName | None = None,
    *,
    passages: Mapping[str, Passage] | None = None,
    repeated: Mapping[str, Passage] | None = None,
    **options: Any,
) -> Index:
    """Make an index of an encoded corpus and save it.

    Args:
        corpus: The encoded corpus.
        directory: A new or empty directory.
        index_name: Name of the index; None takes the exact one of such vectors.
        passages: Passage id -> the passage that was encoded, which the index keeps for people to read; None
            keeps no texts.
        repeated: Passage id -> passage that was not encoded, because it repeats one of `passages`. It takes
            the place of that one when a change deletes it.
        options: Options of the index, such as the `uri` of Milvus.

    Returns:
        The index.

    Raises:
        ConnectionError: If the server of the index does not answer.
        FileExistsError: If the directory is not empty.
        ImportError: If a package that the index needs is not installed.
        ValueError: If the index does not hold such vectors or take such options, a block is damaged, the
            passages are not those that were encoded, or a server has a collection of the same name, such as
            that of an interrupted build.
    """
    # A new folder takes the place of an empty one: where that is the current folder, `.` leads nowhere then.
    directory, manifest = Path(directory).resolve(), corpus.manifest
    index_name = index_name or exact_name(manifest.vector_type)
    backend = find_backend(index_name, manifest.vector_type, options)
    if passages is not None:
        encoded = text_digest(part for key, one in passages.items() for part in (key, one.joined))
        if encoded != manifest.corpus:
            raise ValueError(
                f"the documents must be those that were encoded, {len(corpus)} of them; received others, "
                f"{len(passages)} in all"
            )
    source = Source(
        index_name,
        manifest.model,
        manifest.fingerprint,
        manifest.max_seq_length,
        passages=None,
        generation=1,
        state="",
    )
    index = None
    with (
        new_directory(directory) as path,
        new_generation(path, source, passages, repeated) as folder,
        Progress(len(corpus), "Index") as progress,
    ):

        def blocks() -> Iterator[tuple[Vectors, list[str]]]:
            for vectors, ids in corpus.blocks(ROWS):
                yield vectors, ids
                progress.update(len(ids))

        if issubclass(backend.index, InvertedIndex):
            InvertedIndex.write(folder, blocks(), corpus.width, len(corpus), manifest.similarity)
        else:
            pieces = blocks()
            vectors, ids = next(pieces)
            index = backend.index.build(vectors, ids, manifest.similarity, **backend.settings, **options)
            for vectors, ids in pieces:
                index.add(vectors, ids)
            index.save(folder)
    return open_index(directory)[0] if index is None else index


@contextmanager
def new_generation(
    directory: Path,
    source: Source,
    passages: Mapping[str, Passage] | None,
    repeated: Mapping[str, Passage] | None,
) -> Iterator[Path]:
    """A block that writes a state of an index, which becomes the current one at its end.

    Args:
        directory: The directory of the index.
        source: What the index was made of; its digest of the passages and its state are filled in.
        passages: The texts of its documents, in their order; None keeps none.
        repeated: The texts that the index leaves out, because they repeat others.

    Yields:
        The folder to which the block saves the index.
    """
    digest, folder = None, directory / source.folder
    with new_directory(folder) as path:
        yield path / INDEX
        if passages is not None:
            digest = write_passages(path / PASSAGES, {**passages, **(repeated or {})})
    source = replace(source, passages=digest, state=secrets.token_hex(8))
    text = pack_manifest(FORMAT, vars(source)) + "\n"
    change = source.generation > 1  # the old state goes then, and a power cut must not take both
    if change:
        for path in (folder, *folder.rglob("*")):
            sync(path)
    write_file(directory / SOURCE, text.encode(), durable=change)


def read_source(directory: str | Path) -> Source:
    """Read what an index was made of, and which generation is the current one.

    Args:
        directory: The directory that `build_index` wrote.

    Raises:
        FileNotFoundError: If the directory holds no index, or one whose building was interrupted.
        ValueError: If the file is damaged, or was written by another version.
    """
    path = Path(directory) / SOURCE
    if not path.is_file():
        inner = path.parent / "index"  # where `lexforge adapt` puts it
        hint = f"; {inner} is one" if (inner / SOURCE).is_file() else ""
        raise FileNotFoundError(f"{directory} holds no finished index: {SOURCE} is missing{hint}")
    try:
        source = Source(**unpack_manifest(path.read_bytes(), FORMAT))
        if source.index_name not in BACKENDS:
            raise ValueError(
                f"index_name must be one of {', '.join(BACKENDS)}; received {source.index_name!r}"
            )
    except MALFORMED as error:
        raise ValueError(
            f"{path} does not describe an index of this version of lexforge, so make it again: {error}"
        ) from error
    return source


def open_index(
    directory: str | Path,
    verify: bool = False,
    *,
    uri: str | None = None,
    tokens: Mapping[IndexName, str] | None = None,
) -> tuple[Index, Source, StoredPassages | None]:
    """Load an index that `build_index` saved.

    Args:
        directory: The directory that `build_index` wrote.
        verify: Compare every file with its checksum, including large ones that seem unchanged since they were
            written.
        uri: The address of the server that keeps the vectors; None takes the one in the directory, to which
            no token is sent.
        tokens: Name of an index -> credentials for its server.

    Returns:
        The index, what it was made of, and the texts of its documents, if it keeps them.

    Raises:
        ConnectionError: If the server of the index does not answer.
        FileNotFoundError: If the directory holds no index, or one whose building was interrupted.
        ValueError: If a file is damaged, no server keeps the vectors and there is a uri, or there is a token
            for the server and no uri.
    """
    source = read_source(directory)
    while True:
        try:
            return _open(Path(directory) / source.folder, source, verify, uri, tokens or {})
        except FileNotFoundError:
            before, source = source, read_source(directory)
            if source == before:  # otherwise another process has changed the documents meanwhile
                raise


def _open(
    folder: Path, source: Source, verify: bool, uri: str | None, tokens: Mapping[IndexName, str]
) -> tuple[Index, Source, StoredPassages | None]:
    """Load one generation."""
    index_class = BACKENDS[source.index_name].index
    if issubclass(index_class, ServerIndex):
        token = tokens.get(source.index_name, "")
        index: Index = index_class.load(folder / INDEX, verify, uri=uri, token=token)
    elif uri is not None:
        raise ValueError(
            f"{folder.parent} holds the index {source.index_name!r}, which has no address; received {uri!r}"
        )
    else:
        index = index_class.load(folder / INDEX, verify)
    if source.passages is None:
        return index, source, None
    return index, source, StoredPassages(folder / PASSAGES, index.ids, source.passages)
