"""An index of an encoded corpus on disk, with the name of the model that made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from lexforge.common.files import check_new, new_directory
from lexforge.common.manifest import pack_manifest, unpack_manifest
from lexforge.common.progress import Progress
from lexforge.corpus.encoded_corpus import EncodedCorpus, Manifest
from lexforge.corpus.encoding import Vectors
from lexforge.retrieval import HNSW, IVF, FaissIndex, Flat, Index, InvertedIndex, MilvusIndex, SeismicIndex

SOURCE = "source.json"
FORMAT = "lexforge-stored-index"
IndexKind = Literal["inverted", "faiss-flat", "faiss-hnsw", "faiss-ivf", "seismic", "milvus"]
LAYOUTS: dict[str, Flat | HNSW | IVF] = {"faiss-flat": Flat(), "faiss-hnsw": HNSW(), "faiss-ivf": IVF()}
SPARSE_KINDS = {"inverted", "seismic", "milvus"}
DENSE_KINDS = {*LAYOUTS, "milvus"}


def check_kind(kind: str, vectors: Literal["sparse", "dense"], options: Mapping[str, Any]) -> None:
    """Refuse, before any work, an index that cannot be built.

    Args:
        kind: A name of `IndexKind`.
        vectors: What it is to hold.
        options: Further arguments of its `build`; Milvus needs `uri`, the others take none.

    Raises:
        ConnectionError: No Milvus answers.
        ImportError: The extra that the index needs is not installed.
        ValueError: An unknown name, one that does not hold these vectors, or options that are not its own.
    """
    if kind not in get_args(IndexKind):
        raise ValueError(f"the index is {kind!r}; allowed are {', '.join(get_args(IndexKind))}")
    allowed = SPARSE_KINDS if vectors == "sparse" else DENSE_KINDS
    if kind not in allowed:
        raise ValueError(f"a {kind} index does not hold {vectors} vectors; {', '.join(sorted(allowed))} do")
    if (kind == "milvus") != ("uri" in options):
        raise ValueError(f"a Milvus address belongs to a milvus index, and only there; the index is {kind}")
    if kind == "milvus":
        MilvusIndex(**options).close()
    if kind == "seismic":
        SeismicIndex(1)


def index_builder(
    kind: IndexKind, vectors: Literal["sparse", "dense"], **options: Any
) -> Callable[..., Index]:
    """`build` of the class that a name on the command line stands for.

    Args:
        kind: What to build.
        vectors: What it is to hold.
        options: Further arguments of that `build`, such as Milvus's `uri`.

    Returns:
        `(documents, ids, similarity) -> Index`.

    Raises:
        ConnectionError, ImportError, ValueError: As for `check_kind`.
    """
    check_kind(kind, vectors, options)
    if kind in LAYOUTS:
        return partial(FaissIndex.build, layout=LAYOUTS[kind])
    if kind == "milvus":
        return partial(MilvusIndex.build, **options)
    return InvertedIndex.build if kind == "inverted" else SeismicIndex.build


@dataclass(frozen=True)
class Source:
    """What an index was made of.

    Args:
        kind: The index.
        model: Name of the encoder when the corpus was encoded.
        fingerprint: Digest of everything that decides its vectors.
        max_seq_length: Tokens a text was cut after.
        corpus: Digest of ids and texts.
    """

    kind: IndexKind
    model: str
    fingerprint: str
    max_seq_length: int | None
    corpus: str


def build_index(
    corpus: EncodedCorpus,
    directory: str | Path,
    kind: IndexKind,
    *,
    rows: int = 65536,
    show_progress_bar: bool = False,
    **options: Any,
) -> Index:
    """Make an index of an encoded corpus and save it; a milvus index goes on where a killed call ended.

    Args:
        corpus: Complete.
        directory: New or empty.
        kind: What to build.
        rows: Documents read and added at once (whole blocks, one at least).
        show_progress_bar: Show how many documents are in.
        options: Further arguments of the index's `build`, such as Milvus's `uri`.

    Returns:
        The index.

    Raises:
        FileExistsError: The directory holds something.
        ConnectionError, ImportError, ValueError: As for `check_kind`; also ValueError for damaged blocks, and
            for a Milvus collection of something else.
    """
    manifest = corpus.manifest
    check_kind(kind, manifest.kind, options)
    check_new(directory)
    blocks = corpus.blocks(rows)
    first = next(blocks)
    index = _empty(kind, first[0].shape[1], manifest, options)
    there: list[str] = index.ids if isinstance(index, MilvusIndex) else []
    with Progress(len(corpus), "Index", show=show_progress_bar) as progress:
        progress.update(len(there))
        for vectors, ids in _without(there, chain([first], blocks)):
            index.add(vectors, ids)
            progress.update(len(ids))
    if len(index) != len(corpus):
        raise ValueError(f"the collection holds {len(index)} documents, the corpus {len(corpus)}: drop it")
    source = Source(kind, manifest.model, manifest.fingerprint, manifest.max_seq_length, manifest.corpus)
    with new_directory(directory) as path:
        index.save(path / "index")
        (path / SOURCE).write_text(pack_manifest(FORMAT, vars(source)) + "\n", encoding="utf-8")
    return index


def open_index(directory: str | Path, token: str = "", verify: bool = False) -> tuple[Index, Source]:
    """Load what `build_index` saved.

    Args:
        directory: The same.
        token: Credentials of a Milvus server.
        verify: Compare every file with its checksum, also large ones that were not written since.

    Returns:
        The index, and what it was made of.

    Raises:
        FileNotFoundError: No index there, or one whose building was interrupted.
        ValueError: A damaged file.
    """
    path = Path(directory) / SOURCE
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no finished index: {SOURCE} is missing")
    try:
        source = Source(**unpack_manifest(path.read_bytes(), FORMAT))
        if source.kind not in get_args(IndexKind):
            raise ValueError(f"an index {source.kind!r}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not describe an index of lexforge: {error}") from error
    folder = Path(directory) / "index"
    if source.kind == "milvus":
        return MilvusIndex.load(folder, verify, token=token), source
    if source.kind == "seismic":
        return SeismicIndex.load(folder, verify), source
    return (InvertedIndex if source.kind == "inverted" else FaissIndex).load(folder, verify), source


def _empty(kind: IndexKind, width: int, manifest: Manifest, options: Mapping[str, Any]) -> Index:
    """An index without documents; Milvus's may hold what a killed call left."""
    if kind == "milvus":
        return MilvusIndex(similarity=manifest.similarity, origin=manifest.key, **options)
    if kind == "inverted":
        return InvertedIndex(width, manifest.similarity)
    if kind == "seismic":
        return SeismicIndex(width, manifest.similarity)
    return FaissIndex(width, manifest.similarity, LAYOUTS[kind])


def _without(
    there: list[str], blocks: Iterable[tuple[Vectors, list[str]]]
) -> Iterator[tuple[Vectors, list[str]]]:
    """The documents after those that a collection holds already, which must be the first ones."""
    start = 0
    for vectors, ids in blocks:
        known = there[start : start + len(ids)]
        if known != ids[: len(known)]:
            raise ValueError("the Milvus collection holds other documents: drop it, or choose another name")
        if len(known) < len(ids):
            yield vectors[len(known) :], ids[len(known) :]
        start += len(ids)
