"""An index whose vectors a server keeps: what is the same for each engine."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import (
    DocumentIds,
    Hits,
    Index,
    RankedPositions,
    check_ids,
    check_k,
    complete_ties,
    read_ids,
    write_ids,
)
from lexforge.retrieval.vectors import dense_vectors, dense_width, sparse_vectors, sparse_width
from lexforge.settings import VectorType
from lexforge.storage.files import new_directory
from lexforge.storage.manifest import MALFORMED, read_manifest, write_manifest

PROPERTY = "lexforge"  # the entry of a collection's own properties that describes its vectors
BATCH_ROWS = 1000  # documents that one request sends
TIMEOUT_S = 30  # seconds that a request may take


class ServerIndex(Index):
    """Search for the k best documents in a collection of vectors that a server keeps, or a local store.

    The key of a row is the document's position, and rows are upserted, so a request that is sent twice
    changes nothing. An index that is opened on a collection adds documents after those that are there;
    `build` wants a new collection. One index at a time may add: another that was opened before it would
    write over its documents, and is refused where their number shows it. `close()`, or the end of a `with`
    statement, disconnects; at the exit of the process it happens by itself.

    Args:
        uri: The address of a server, or the name of a local store.
        collection: Name of the collection, which is created when the first documents are added.
        similarity: `dot` or `cosine`; None takes that of the collection, and `dot` for a new one. For
            `cosine` the index scales documents and queries to unit length.
        token: What the server wants as a password, if it wants one. It is never written to a file.

    Raises:
        ImportError: If the extra of the engine is not installed.
        ConnectionError: If no server answers, it refuses a request, or the local store cannot be opened.
        FileNotFoundError: If the folder of the local store does not exist.
        ValueError: If the uri is no such address, lexforge did not make the collection, it has another
            similarity than the argument says, or its build was interrupted.
    """

    engine: ClassVar[str]
    """The name of the engine, for messages."""

    format: ClassVar[str]
    """The format of a saved index."""

    local_name: ClassVar[str]
    """What a local store is, for messages."""

    local_ending: ClassVar[str]
    """The ending of the name of a local store."""

    most_hits: ClassVar[int | None] = None
    """The most hits per query; None for no limit."""

    def __init__(
        self, uri: str, collection: str = "lexforge", similarity: Similarity | None = None, *, token: str = ""
    ) -> None:
        self.uri, self.collection, self.where = uri, collection, f"collection {collection!r} of {uri}"
        self._ids = DocumentIds()
        self._weights = 0  # the number of stored numbers in all vectors; zeros of sparse ones are not stored
        self._vector_type: VectorType | None = None  # None until the collection is there
        self._width = 0  # until then
        self._tried = 0  # documents up to the last that this index tried to send
        self.similarity: Similarity = check_similarity(similarity or "dot")
        self.close: Callable[[], object]
        self.client, self.close = self._connect(token)
        try:
            self._open_collection(similarity)
        except BaseException:
            self.close()
            raise

    @classmethod
    def check_available(cls, **options: Any) -> None:
        """Raise now what would stop a build.

        Args:
            options: The arguments of the class.

        Raises:
            ImportError: If the extra of the engine is not installed.
            ConnectionError: If no server answers, or the local store cannot be opened.
            FileNotFoundError: If the folder of the local store does not exist.
            ValueError: If there is a collection of this name.
        """
        cls._new(options).close()

    @classmethod
    def build(
        cls, documents: Any, ids: list[str], similarity: Similarity = "dot", *, uri: str, **options: Any
    ) -> Self:
        """Write the documents to a new collection.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0, or, where the engine takes dense vectors, an
                array `[N, D]` of finite floats.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            uri: The address of a server or the name of a local store, as the class takes it.
            options: The other arguments of the class.

        Returns:
            The index.

        Raises:
            ImportError: If the extra of the engine is not installed.
            ConnectionError: If no server answers, or the local store cannot be opened.
            TypeError: If the engine cannot store such vectors (sparse or dense).
            ValueError: If `InvertedIndex` or `FaissIndex` would refuse the vectors or ids as well, or there
                is a collection of this name, such as that of an interrupted build.
        """
        index = cls._new({"uri": uri, "similarity": similarity, **options})
        try:
            index.add(documents, ids)
        except BaseException:
            index.close()
            raise
        return index

    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents, `BATCH_ROWS` per request; what was sent before a failure stays and is counted.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0, or an array `[N, D]` of finite floats, as the
                collection holds.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the documents are of another type (sparse or dense) than the collection.
            ValueError: If `build` would refuse the documents or ids, their width is not that of the
                collection, an id is in the index already, or another index has added documents.
        """
        vectors, vector_type = self._checked(documents, "documents")
        check_ids(ids, vectors.shape[0], self._ids.positions)
        if self._vector_type is None:
            self._create(vector_type, vectors.shape[1])
            self._vector_type, self._width = vector_type, vectors.shape[1]
        elif (stored := self._count()) > max(len(self), self._tried):
            raise ValueError(
                f"{self.where} holds {stored} documents and {len(self)} when this index last looked: another "
                "writer has added some; open the collection again"
            )
        for start in range(0, len(ids), BATCH_ROWS):
            batch, names = vectors[start : start + BATCH_ROWS], ids[start : start + BATCH_ROWS]
            self._tried = len(self) + len(names)  # a request that failed may have been carried out
            sent = self._send(batch, names)
            self._ids.extend(names)
            self._weights += sent

    def search(self, queries: Any, k: SupportsIndex) -> Hits:
        """Find the k documents of highest similarity to each query; ties stand in the order of positions.

        Args:
            queries: Vectors of the same type and width as the documents.
            k: Number of hits wanted per query, at least 1; above the number of documents it means all of
                them.

        Returns:
            The hits. For sparse vectors no document has score 0, and a query without a weight has no hit.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the queries are of another type than the documents.
            ValueError: If a query holds a value that is not finite (or is negative, for sparse vectors), the
                width differs, or k is below 1 or above the most hits of the engine.
        """
        wanted = min(check_k(k), len(self))
        limit = len(self) if self.most_hits is None else min(len(self), self.most_hits)
        if wanted > limit:
            raise ValueError(f"k must be at most {limit}, the most hits of {self.engine}; received {wanted}")
        vectors, vector_type = self._checked(queries, "queries")
        # A sparse query without a weight has no hit, and some engines refuse it.
        is_sparse = vector_type == "sparse"
        rows = np.diff(vectors.indptr).nonzero()[0] if is_sparse else np.arange(vectors.shape[0])
        search = partial(self._search, vectors)
        return self._ids.hits(*complete_ties(search, rows, vectors.shape[0], wanted, limit, exact=True))

    def save(self, directory: str | Path) -> None:
        """Write down the address of the collection and the ids; the vectors stay where they are.

        Args:
            directory: A new or empty directory.

        Raises:
            FileExistsError: If the directory is not empty.
        """
        local = self._local_path(self.uri)
        uri = self.uri if local is None else os.path.relpath(local, Path(directory).resolve())
        fields = {"uri": uri, "local": local is not None, "collection": self.collection}
        with new_directory(directory) as path:
            write_ids(path, self._ids)
            write_manifest(path, self.format, fields)

    @classmethod
    def load(
        cls, directory: str | Path, verify: bool = False, *, uri: str | None = None, token: str = ""
    ) -> Self:
        """Open the collection that `save` wrote down, if it still holds the same documents.

        Args:
            directory: The directory that `save` wrote. It names a local store by a relative path.
            verify: Changes nothing here, because every file is read and compared with its checksum anyway.
            uri: The address of the collection; None takes the one that was written down, to which no token is
                sent.
            token: What the server wants as a password, if it wants one.

        Returns:
            The index.

        Raises:
            ConnectionError: If the server does not answer.
            FileNotFoundError: If the directory holds no index, or the local store does not exist.
            ValueError: If a file is damaged or foreign, the collection has changed, or there is a token
                without a uri.
        """
        fields = read_manifest(directory, cls.format, verify)
        try:
            saved, local, collection = str(fields["uri"]), fields["local"], str(fields["collection"])
            ids = read_ids(Path(directory))
        except MALFORMED as error:
            raise ValueError(f"{directory} is not a {cls.engine} index of lexforge: {error}") from error
        if local:
            saved = str((Path(directory).resolve() / saved).resolve())
        if uri is None and local and not Path(saved).exists():
            raise FileNotFoundError(f"the {cls.local_name} {saved} of {directory} does not exist")
        # Whoever can write to the folder of an index can write an address into it, and would get the token.
        if uri is None and token and not local:
            raise ValueError(
                f"a token is sent only to an address that the caller names; received a token and no uri, and "
                f"{directory} names {saved}: pass uri (--uri) if that is the right server"
            )
        index = cls(saved if uri is None else uri, collection, token=token)
        if list(index._ids) != list(ids):
            index.close()
            raise ValueError(
                f"{index.where} must hold the {len(ids)} documents that {directory} names; it holds "
                f"{len(index)} and was changed or dropped"
            )
        return index

    def __enter__(self) -> Self:
        """Return the index itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, as `close` does."""
        self.close()

    @property
    def nbytes(self) -> int:
        """The number of bytes of the vectors as they are sent; engines do not report what they add."""
        return self._weights * (8 if self._vector_type == "sparse" else 4)

    @abstractmethod
    def _connect(self, token: str) -> tuple[Any, Callable[[], object]]:
        """Return a client, and the function that closes it, which the end of the index calls at the latest.

        Raises:
            ConnectionError: If no server answers, or the local store cannot be opened.
            ImportError: If the extra of the engine is not installed.
        """

    @classmethod
    def _local_path(cls, uri: str) -> str | None:
        """Return the absolute path of a local store, or None for the address of a server.

        Raises:
            FileNotFoundError: If the folder in which the store lies does not exist.
            ValueError: If `uri` is neither, or an address that contains credentials.
        """
        if uri.startswith(("http://", "https://")):
            if "@" in uri:
                raise ValueError(
                    f"the uri of {cls.engine} must not contain credentials, because it is saved with the "
                    "index; pass them as `token`, and the uri as http://host:port"
                )
            return None
        if not uri.endswith(cls.local_ending):
            raise ValueError(
                f"uri must be http://host:port, or the name of a {cls.local_name} that ends in "
                f"{cls.local_ending}; received {uri!r}"
            )
        if not Path(uri).resolve().parent.is_dir():
            raise FileNotFoundError(f"the folder of {uri} does not exist")
        return os.path.abspath(uri)

    @abstractmethod
    def _description(self) -> dict[str, Any] | None:
        """Return what `_create` wrote into the properties of the collection; None if it is not there.

        Raises:
            KeyError: If the collection has no such property.
            TypeError: If the property is of another type.
            ValueError: If the property cannot be read.
        """

    @property
    @abstractmethod
    def _drop(self) -> str:
        """The call of the engine's own client that drops the collection, for messages."""

    @abstractmethod
    def _count(self) -> int:
        """Return how many documents the collection holds."""

    @abstractmethod
    def _documents(self) -> Iterator[tuple[int, str, int]]:
        """Yield position, id and number of stored numbers of the documents, in the order of positions."""

    @abstractmethod
    def _create(self, vector_type: VectorType, width: int) -> None:
        """Create the collection with its index on the vectors, and describe it in its properties."""

    @abstractmethod
    def _send(self, vectors: Any, names: list[str]) -> int:
        """Upsert documents from position `len(self)` on; return the number of stored numbers in them."""

    @abstractmethod
    def _search(
        self, vectors: Any, rows: NDArray[np.int64], depth: int
    ) -> Iterator[tuple[int, RankedPositions]]:
        """Yield each row with the positions and scores of its `depth` best documents, best first."""

    @classmethod
    def _new(cls, options: Mapping[str, Any]) -> Self:
        """Make an index of a collection that is not there yet.

        Raises:
            ValueError: If there is a collection of this name.
        """
        index = cls(**options)
        if index._vector_type is not None:
            index.close()
            raise ValueError(
                f"{index.where} holds {len(index)} documents, perhaps of an interrupted build: drop it "
                f"({index._drop}), or choose another name"
            )
        return index

    def _described(self, vector_type: VectorType, width: int) -> dict[str, Any]:
        """Return the description that every collection carries."""
        return {"vector_type": vector_type, "width": width, "similarity": self.similarity}

    def _open_collection(self, similarity: Similarity | None) -> None:
        """Read what the collection is and which documents it holds, if it is there.

        Raises:
            ValueError: If lexforge did not make the collection, it has another similarity (None takes any),
                or a position is missing, because a batch was interrupted.
        """
        try:
            fields = self._description()
            if fields is None:
                return
            self._vector_type, self._width = fields["vector_type"], int(fields["width"])
            self.similarity = check_similarity(fields["similarity"])
        except MALFORMED as error:
            raise ValueError(f"{self.where} was not made by lexforge: {error!r}") from error
        if similarity not in (None, self.similarity):
            raise ValueError(f"{self.where} has similarity {self.similarity!r}; received {similarity!r}")
        for position, name, weights in self._documents():
            if position != len(self):
                raise ValueError(
                    f"{self.where} lacks position {len(self)}, so its build was interrupted: drop it "
                    f"({self._drop}) and build it again"
                )
            self._ids.extend([name])
            self._weights += weights

    def _checked(self, matrix: Any, what: str) -> tuple[Any, VectorType]:
        """Return vectors ready to be sent, and their type.

        Raises:
            TypeError: If they are of another type than those of the collection, or than the engine takes.
            ValueError: If a value or the width is refused.
        """
        vector_type = self._vector_type
        if vector_type is None:  # these are the first
            vector_type = "sparse" if sparse.issparse(matrix) or "dense" not in self.holds else "dense"
        if vector_type == "sparse":
            width = self._width or sparse_width(matrix, what)
            return sparse_vectors(matrix, what, width, self.similarity), vector_type
        width = self._width or dense_width(matrix, what)
        return dense_vectors(matrix, what, width, self.similarity), vector_type
