"""Search in a Qdrant collection of sparse vectors, which a server keeps or a folder of this machine."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.files import new_directory
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import DocumentIds, Found, Hits, check_k, complete_ties, read_ids, write_ids
from lexforge.retrieval.engines.address import check_address, check_same_documents, chosen_address
from lexforge.retrieval.vectors import Matrix, sparse_vectors, sparse_width

FORMAT = "lexforge-qdrant-index"
PROPERTY = "lexforge"  # the entry of a collection's metadata that describes its vectors
VECTOR = "vector"  # the name of the vector of a point
WINDOW = 4096  # points per answer when the ids are read
QUERIES = 256  # queries per request
ATTEMPTS = 4  # how often a request is sent before its failure is raised
FIRST_DELAY_S = 0.5  # the pause before the second attempt; it doubles with every further one
_BUSY = {408, 429, 500, 502, 503, 504}  # statuses after which the same request may succeed

_open_folders: dict[str, tuple[Any, int]] = {}  # the client of each folder, and how many indexes share it


class QdrantIndex:
    """Exact search for the k best documents in a collection of sparse vectors that Qdrant keeps.

    The number of a point is the document's position, and points are upserted, so a batch that is sent twice,
    or again after a kill, changes nothing. An index that is opened on a collection continues after the
    documents that are there; `build` starts at position 0 again. `close()`, or the end of a `with` statement,
    disconnects; at the exit of the process it happens by itself.

    Args:
        uri: `http://host:6333`, or the name of a folder that ends in `.qdrant`, which the client keeps and
            searches in this process by numpy, for tests and small corpora.
        collection: Name of the collection. It is created with the first documents.
        similarity: `dot` or `cosine`; None takes that of the collection, and `dot` for a new one. For
            `cosine` the index scales documents and queries to unit length.
        origin: Names what made the vectors; a collection of another origin is refused. None accepts any.
        token: An API key, if the server wants one. It is never written to a file.
        batch_rows: Number of documents that are sent per request.
        timeout_s: Seconds that a request may take. A request that fails is sent up to `ATTEMPTS` times.

    Raises:
        ImportError: If the extra `qdrant` is not installed.
        ConnectionError: If no server answers, or another process uses the folder.
        ValueError: If the uri is no such address, lexforge did not make the collection, or it has another
            similarity or origin than the arguments say.
    """

    def __init__(
        self,
        uri: str,
        collection: str = "lexforge",
        similarity: Similarity | None = None,
        *,
        origin: str | None = None,
        token: str = "",
        batch_rows: int = 1000,
        timeout_s: int = 30,
    ) -> None:
        if batch_rows < 1 or timeout_s < 1:
            raise ValueError(
                f"batch_rows and timeout_s must be at least 1; received {batch_rows} and {timeout_s}"
            )
        self.uri, self.collection, self.where = uri, collection, f"collection {collection!r} of {uri}"
        self.batch_rows, self.timeout_s = batch_rows, timeout_s
        self._ids = DocumentIds()
        self._weights = 0  # the number of stored weights
        self._width = 0
        self._created = False
        self._beyond: list[int] = []  # points behind a missing position, as a failure can leave them
        self.similarity: Similarity = check_similarity(similarity or "dot")
        self.origin = origin
        self._client, self.close = _connect(self, uri, token, timeout_s)
        try:
            if self._call("collection_exists"):
                self._open(similarity, origin)
        except BaseException:
            self.close()
            raise

    @classmethod
    def check_available(cls, **options: Any) -> None:
        """Raise now what would stop a build.

        Args:
            options: The arguments of the class.

        Raises:
            ImportError: If the extra `qdrant` is not installed.
            ConnectionError: If no server answers, or another process uses the folder.
            ValueError: If the collection was made otherwise than the arguments say.
        """
        cls(**options).close()

    @classmethod
    def create(
        cls, width: int, similarity: Similarity, origin: str, *, uri: str, **options: Any
    ) -> QdrantIndex:
        """Open a collection to which a corpus is added block by block.

        Args:
            width: Not needed: the first documents decide the width of a new collection.
            similarity: `dot` or `cosine`.
            origin: Names what made the vectors; a collection of another origin is refused.
            uri: The address of a server or the name of a folder, as the class takes it.
            options: The other arguments of the class.

        Returns:
            The index; it holds the documents that an interrupted call with the same origin has sent.

        Raises:
            ImportError: If the extra `qdrant` is not installed.
            ConnectionError: If no server answers, or another process uses the folder.
            ValueError: If the collection has another origin or similarity.
        """
        return cls(uri, similarity=similarity, origin=origin, **options)

    @classmethod
    def build(
        cls, documents: Matrix, ids: list[str], similarity: Similarity = "dot", *, uri: str, **options: Any
    ) -> QdrantIndex:
        """Write the documents to a collection, which then holds them and no others.

        A collection that exists already must hold the same documents, as far as an earlier build came.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            uri: The address of a server or the name of a folder, as the class takes it.
            options: The other arguments of the class.

        Returns:
            The index.

        Raises:
            ImportError: If the extra `qdrant` is not installed.
            ConnectionError: If no server answers, or another process uses the folder.
            TypeError: If the documents are not CSR.
            ValueError: If `InvertedIndex` would refuse the vectors or ids as well, or the collection holds
                other documents.
        """
        index = cls(uri, similarity=similarity, **options)
        try:
            # The documents are sent from position 0 on, over the points that an earlier build has written.
            there, index._ids, index._weights = index._ids.names, DocumentIds(), 0
            check_same_documents(index.where, there, ids)
            index._beyond += range(len(ids), len(there))
            index.add(documents, ids)
        except BaseException:
            index.close()
            raise
        return index

    def add(self, documents: Matrix, ids: list[str]) -> None:
        """Append documents, `batch_rows` per request; what was sent before a failure stays and is counted.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the documents are not CSR.
            ValueError: If `build` would refuse the documents or ids, their width is not that of the
                collection, or an id is in the index already.
        """
        width = self._width if self._created else sparse_width(documents, "documents")
        vectors = sparse_vectors(documents, "documents", width, self.similarity)
        self._ids.check(ids, vectors.shape[0])
        from qdrant_client.models import PointStruct

        if not self._created:
            self._create(width)
        if self._beyond:
            # Points behind a missing position belong to a batch that failed; they are sent again.
            self._call("delete", points_selector=self._beyond, wait=True)
            self._beyond = []
        for start in range(0, len(ids), self.batch_rows):
            batch, names = vectors[start : start + self.batch_rows], ids[start : start + self.batch_rows]
            points = [
                PointStruct(
                    id=len(self) + i,
                    vector={VECTOR: vector},
                    payload={"document": name, "weights": len(vector.indices)},
                )
                for i, (name, vector) in enumerate(zip(names, _vectors(batch), strict=True))
            ]
            self._call("upsert", points=points, wait=True)
            self._ids.extend(names)
            self._weights += batch.nnz

    def search(self, queries: Matrix, k: SupportsIndex) -> Hits:
        """Find the k documents of highest similarity to each query; ties stand in the order of positions.

        Args:
            queries: CSR `[Q, V]` with finite weights >= 0.
            k: Number of hits wanted per query, at least 1; above the number of documents it means all of
                them.

        Returns:
            The hits. No document has score 0, and a query without a weight has no hit.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the queries are not CSR.
            ValueError: If a weight is negative or not finite, the width differs, k is below 1, or the
                collection lacks a position.
        """
        self._check_whole()
        wanted = min(check_k(k), len(self))
        width = self._width if self._created else sparse_width(queries, "queries")
        vectors = sparse_vectors(queries, "queries", width, self.similarity)
        asked = np.diff(vectors.indptr).nonzero()[0]
        found = complete_ties(
            partial(self._search, vectors), asked, vectors.shape[0], wanted, len(self), exact=True
        )
        return self._ids.hits(*found)

    def save(self, directory: str | Path) -> None:
        """Write down the address of the collection and the ids; the vectors stay in Qdrant.

        Args:
            directory: A new or empty directory.

        Raises:
            FileExistsError: If the directory is not empty.
            ValueError: If the collection lacks a position, because a batch failed.
        """
        self._check_whole()
        folder = local_folder(self.uri)
        uri = self.uri if folder is None else os.path.relpath(folder, Path(directory).resolve())
        fields = {"uri": uri, "local": folder is not None, "collection": self.collection}
        with new_directory(directory) as path:
            write_ids(path, self._ids)
            write_manifest(path, FORMAT, fields)

    @classmethod
    def load(
        cls, directory: str | Path, verify: bool = False, *, uri: str | None = None, token: str = ""
    ) -> QdrantIndex:
        """Open the collection that `save` wrote down, if it still holds the same documents.

        Args:
            directory: The directory that `save` wrote. It names a folder by a relative path.
            verify: Changes nothing here, because every file is read and compared with its checksum anyway.
            uri: The address of the collection; None takes the one that was written down, to which no token is
                sent.
            token: An API key, if the server wants one.

        Returns:
            The index.

        Raises:
            ConnectionError: If the server does not answer.
            FileNotFoundError: If the directory holds no index, or the folder of the vectors does not exist.
            ValueError: If a file is damaged or foreign, the collection has changed, or there is a token
                without a uri.
        """
        fields = read_manifest(directory, FORMAT, verify)
        try:
            saved, local, collection = str(fields["uri"]), fields["local"], str(fields["collection"])
            ids = read_ids(Path(directory))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{directory} is not a Qdrant index of lexforge: {error}") from error
        if local:
            saved = str((Path(directory).resolve() / saved).resolve())
        address = chosen_address(directory, saved, uri, token, is_file=local)
        if local and address == saved and not Path(saved).exists():
            raise FileNotFoundError(f"the folder {saved} of {directory} does not exist")
        index = cls(address, collection, token=token)
        if index._ids.names != ids.names:
            index.close()
            raise ValueError(
                f"{index.where} must hold the {len(ids)} documents that {directory} names; it holds "
                f"{len(index)} and was changed or dropped"
            )
        return index

    def __enter__(self) -> QdrantIndex:
        """Return the index itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, as `close` does."""
        self.close()

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ids)

    @property
    def ids(self) -> list[str]:
        """The ids of the documents, in the order of their positions."""
        return list(self._ids.names)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the vectors as they are sent; Qdrant does not report what it adds."""
        return 8 * self._weights

    def _open(self, similarity: str | None, origin: str | None) -> None:
        """Read from the server what the collection is and which documents it holds.

        Raises:
            ValueError: If lexforge did not make the collection, or it is not what the arguments say.
        """
        try:
            fields = (self._call("get_collection").config.metadata or {})[PROPERTY]
            self._width, self.origin = int(fields["width"]), fields["origin"]
            self.similarity = check_similarity(fields["similarity"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.where} was not made by lexforge: {error!r}") from error
        self._created = True
        for name, wanted in (("similarity", similarity), ("origin", origin)):
            if wanted not in (None, getattr(self, name)):
                raise ValueError(f"{self.where} has {name} {getattr(self, name)!r}; received {wanted!r}")
        after = None
        while True:  # the points come in the order of their numbers
            points, after = self._call("scroll", limit=WINDOW, offset=after, with_payload=True)
            for point in points:
                if point.id == len(self) and not self._beyond:
                    self._ids.extend([point.payload["document"]])
                    self._weights += point.payload["weights"]
                else:
                    self._beyond.append(point.id)
            if after is None:
                return

    def _check_whole(self) -> None:
        """Refuse to read a collection that a failure has left with only some points of a batch.

        Raises:
            ValueError: If a position is missing.
        """
        if self._beyond:
            raise ValueError(
                f"{self.where} lacks position {len(self)}; add the documents from there on again"
            )

    def _create(self, width: int) -> None:
        """Create the collection."""
        from qdrant_client.models import SparseVectorParams

        fields = {"width": width, "similarity": self.similarity, "origin": self.origin}
        self._call(
            "create_collection",
            vectors_config={},
            sparse_vectors_config={VECTOR: SparseVectorParams()},
            metadata={PROPERTY: fields},
        )
        self._width, self._created = width, True

    def _search(
        self, vectors: sparse.csr_array, rows: NDArray[np.int64], depth: int
    ) -> Iterator[tuple[int, Found]]:
        """Yield each row with the positions and scores of its `depth` best documents, in Qdrant's order."""
        from qdrant_client.models import QueryRequest

        for start in range(0, len(rows), QUERIES):
            part = rows[start : start + QUERIES]
            requests = [
                QueryRequest(query=vector, using=VECTOR, limit=depth, with_payload=False)
                for vector in _vectors(vectors[part])
            ]
            answers = self._call("query_batch_points", requests=requests)
            for row, answer in zip(part.tolist(), answers, strict=True):
                positions = np.array([point.id for point in answer.points], np.int64)
                scores = np.array([point.score for point in answer.points], np.float32)
                yield row, (positions[scores > 0], scores[scores > 0])

    def _call(self, method: str, **arguments: Any) -> Any:
        """Send a request to the collection, and send it again while its failure may be temporary.

        Raises:
            ConnectionError: If all attempts failed.
            RuntimeError: If Qdrant refuses the request.
        """
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(FIRST_DELAY_S * 2 ** (attempt - 1))
            try:
                return getattr(self._client, method)(self.collection, **arguments)
            except ResponseHandlingException as error:  # no answer came
                failure = error
            except UnexpectedResponse as error:
                if error.status_code not in _BUSY:
                    text = " ".join(str(error).split())
                    raise RuntimeError(f"Qdrant at {self.uri} refused {method}: {text}") from error
                failure = error
        raise ConnectionError(
            f"no answer of Qdrant at {self.uri} to {method} in {ATTEMPTS} attempts: {failure}"
        ) from failure


def local_folder(uri: str) -> str | None:
    """Return the absolute path of a folder of vectors, or None for the address of a server.

    Raises:
        FileNotFoundError: If the parent of the folder does not exist.
        ValueError: If `uri` is neither, or an address that contains credentials.
    """
    if uri.startswith(("http://", "https://")):
        check_address(uri, "Qdrant", "http://host:6333")
        return None
    if not uri.endswith(".qdrant"):
        raise ValueError(
            f"uri must be http://host:port, or a folder name that ends in .qdrant; received {uri!r}"
        )
    if not Path(uri).resolve().parent.is_dir():
        raise FileNotFoundError(f"the folder of {uri} does not exist")
    return os.path.abspath(uri)


def _vectors(matrix: sparse.csr_array) -> list[Any]:
    """Return the rows of a CSR matrix as Qdrant's sparse vectors."""
    from qdrant_client.models import SparseVector

    columns, weights, bounds = matrix.indices.tolist(), matrix.data.tolist(), matrix.indptr.tolist()
    return [
        SparseVector(indices=columns[start:end], values=weights[start:end]) for start, end in pairwise(bounds)
    ]


def _connect(index: QdrantIndex, uri: str, token: str, timeout_s: int) -> tuple[Any, Callable[[], object]]:
    """Return a client and the function that closes it, which is called at the latest with the index's end.

    Raises:
        ConnectionError: If another process uses the folder.
        ImportError: If the extra `qdrant` is not installed.
    """
    folder = local_folder(uri)
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise ImportError(
            f"QdrantIndex needs the extra 'qdrant': pip install 'lexforge[qdrant]' ({error})"
        ) from None
    if folder is None:
        client = QdrantClient(url=uri, api_key=token or None, timeout=timeout_s, check_compatibility=False)
    elif folder in _open_folders:
        client = _open_folders[folder][0]
    else:
        try:
            client = QdrantClient(path=folder)
        except RuntimeError as error:
            raise ConnectionError(f"the folder {uri} cannot be opened: {error}") from error
    if folder is not None:
        _open_folders[folder] = (client, _open_folders.get(folder, (client, 0))[1] + 1)
    return client, weakref.finalize(index, _disconnect, client, folder)


def _disconnect(client: Any, folder: str | None) -> None:
    """Close the client; the client of a folder is closed by the last index on it."""
    if folder is not None:
        count = _open_folders[folder][1] - 1
        if count:
            _open_folders[folder] = (client, count)
            return
        del _open_folders[folder]
    client.close()
