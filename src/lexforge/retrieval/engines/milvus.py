"""Search in a Milvus collection, which a server keeps or a Milvus Lite file that this process opens."""

from __future__ import annotations

import json
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexforge.common.files import new_directory
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import DocumentIds, Found, Hits, check_k, complete_ties, read_ids, write_ids
from lexforge.retrieval.engines.address import check_same_documents, chosen_address
from lexforge.retrieval.engines.milvus_format import (
    CONNECT_FAILED,
    Kind,
    checked,
    dictionaries,
    index_options,
    is_transient,
    kind_and_width,
    layout_fields,
    layout_from,
    lite_file,
    message,
    rows_of,
    search_options,
)
from lexforge.retrieval.faiss import HNSW, IVF, Flat

FORMAT = "lexforge-milvus-index"
PROPERTY = "lexforge"  # the property of a collection that describes its vectors, as JSON
MAX_HITS = 16384  # Milvus's own limit on the hits per query and on the rows per answer
ATTEMPTS = 4  # how often a request is sent before its failure is raised
FIRST_DELAY_S = 0.5  # the pause before the second attempt; it doubles with every further one

_open_files: Counter[str | None] = Counter()  # the number of indexes of this process per Milvus Lite file


class MilvusIndex:
    """Search for the k best documents in a collection of sparse or dense vectors that Milvus keeps.

    The primary key of a row is the document's position, and rows are upserted, so a batch that is sent twice,
    or again after a kill, changes nothing. An index that is opened on a collection continues after the
    documents that are there; `build` starts at position 0 again. Sparse vectors and `Flat()` are searched
    exactly. `close()`, or the end of a `with` statement, disconnects; the last index on a Milvus Lite file
    also stops its server. At the exit of the process both happen by themselves.

    Args:
        uri: `http://host:19530`, or the name of a file that ends in `.db`, which Milvus Lite opens in this
            process. Only one process at a time can open a file.
        collection: Name of the collection. It is created with the first documents.
        similarity: `dot` or `cosine`; None takes that of the collection, and `dot` for a new one. For
            `cosine` the index scales documents and queries to unit length.
        layout: Layout of dense vectors; None takes that of the collection, and `Flat()` for a new one.
        origin: Names what made the vectors; a collection of another origin is refused. None accepts any.
        token: `user:password` or an API key, if the server wants one. It is never written to a file.
        batch_rows: Number of documents that are sent per request.
        timeout_s: Seconds that a request may take. A request that fails is sent up to `ATTEMPTS` times.

    Raises:
        ImportError: If the extra `milvus` is not installed.
        ConnectionError: If no server answers, or the file cannot be opened.
        FileNotFoundError: If the folder of the file does not exist.
        ValueError: If lexforge did not make the collection, or it has another similarity, layout or origin
            than the arguments say.
    """

    def __init__(
        self,
        uri: str,
        collection: str = "lexforge",
        similarity: Similarity | None = None,
        *,
        layout: Flat | HNSW | IVF | None = None,
        origin: str | None = None,
        token: str = "",
        batch_rows: int = 1000,
        timeout_s: float = 30.0,
    ) -> None:
        if batch_rows < 1 or not timeout_s > 0:
            raise ValueError(
                f"batch_rows and timeout_s must be above 0; received {batch_rows} and {timeout_s}"
            )
        self.uri, self.collection, self.where = uri, collection, f"collection {collection!r} of {uri}"
        self.batch_rows, self.timeout_s = batch_rows, timeout_s
        self._ids = DocumentIds()
        self._weights = 0  # the number of stored numbers in all vectors; zeros of sparse ones are not stored
        self._kind: Kind | None = None
        self._width = 0
        self._torn = False  # whether rows follow behind a missing position, as a failure can leave them
        self.similarity: Similarity = check_similarity(similarity or "dot")
        self.layout: Flat | HNSW | IVF = layout or Flat()
        self.origin = origin
        self._client, self.close = _connect(self, uri, token, timeout_s)
        try:
            if self._call("has_collection"):
                self._call("load_collection")
                self._open(similarity, layout, origin)
        except BaseException:
            self.close()
            raise

    @classmethod
    def check_available(cls, **options: Any) -> None:
        """Raise now what would stop a build.

        Args:
            options: The arguments of the class.

        Raises:
            ImportError: If the extra `milvus` is not installed.
            ConnectionError: If no server answers, or the file cannot be opened.
            FileNotFoundError: If the folder of the file does not exist.
            ValueError: If the collection was made otherwise than the arguments say.
        """
        cls(**options).close()

    @classmethod
    def create(
        cls, width: int, similarity: Similarity, origin: str, *, uri: str, **options: Any
    ) -> MilvusIndex:
        """Open a collection to which a corpus is added block by block.

        Args:
            width: Not needed: the first documents decide the width of a new collection.
            similarity: `dot` or `cosine`.
            origin: Names what made the vectors; a collection of another origin is refused.
            uri: The address of a server or the name of a file, as the class takes it.
            options: The other arguments of the class.

        Returns:
            The index; it holds the documents that an interrupted call with the same origin has sent.

        Raises:
            ImportError: If the extra `milvus` is not installed.
            ConnectionError: If no server answers, or the file cannot be opened.
            ValueError: If the collection has another origin or similarity.
        """
        return cls(uri, similarity=similarity, origin=origin, **options)

    @classmethod
    def build(
        cls, documents: Any, ids: list[str], similarity: Similarity = "dot", *, uri: str, **options: Any
    ) -> MilvusIndex:
        """Write the documents to a collection, which then holds them and no others.

        A collection that exists already must hold the same documents, as far as an earlier build came.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0, or an array `[N, D]` of finite floats.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            uri: The address of a server or the name of a file, as the class takes it.
            options: The other arguments of the class.

        Returns:
            The index.

        Raises:
            ImportError: If the extra `milvus` is not installed.
            ConnectionError: If no server answers, or the file cannot be opened.
            TypeError: If the documents are neither CSR nor a 2-dimensional array of floats.
            ValueError: If `InvertedIndex` or `FaissIndex` would refuse the vectors or ids as well, or the
                collection holds other documents.
        """
        index = cls(uri, similarity=similarity, **options)
        try:
            # The documents are sent from position 0 on, over the rows that an earlier build has written.
            there, index._ids, index._weights = index._ids.names, DocumentIds(), 0
            check_same_documents(index.where, there, ids)
            index._torn = index._torn or len(there) > len(ids)
            index.add(documents, ids)
        except BaseException:
            index.close()
            raise
        return index

    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents, `batch_rows` per request; what was sent before a failure stays and is counted.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0, or an array `[N, D]` of finite floats, as the
                collection holds.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the documents are of another kind than those of the collection.
            ValueError: If `build` would refuse the documents or ids, their width is not that of the
                collection, or an id is in the index already.
        """
        kind, width = (self._kind, self._width) if self._kind else kind_and_width(documents)
        vectors = checked(documents, "documents", kind, width, self.similarity)
        self._ids.check(ids, vectors.shape[0])
        if self._kind is None:
            self._create(kind, width)
        if self._torn:
            # Rows behind a missing position belong to a batch that failed; they are sent again.
            self._call("delete", filter=f"position >= {len(self)}")
            self._torn = False
        for start in range(0, len(ids), self.batch_rows):
            batch, names = vectors[start : start + self.batch_rows], ids[start : start + self.batch_rows]
            rows = rows_of(batch, names, len(self))
            self._call("upsert", data=rows)
            self._ids.extend(names)
            self._weights += sum(row["weights"] for row in rows)

    def search(self, queries: Any, k: SupportsIndex) -> Hits:
        """Find the k documents of highest similarity to each query; ties stand in the order of positions.

        Args:
            queries: Vectors of the same kind and width as the documents.
            k: Number of hits wanted per query, at least 1; above the number of documents it means all of
                them.

        Returns:
            The hits. For sparse vectors no document has score 0, and a query without a weight has no hit.

        Raises:
            ConnectionError: If the server does not answer.
            TypeError: If the queries are of another kind than the documents.
            ValueError: If a query holds a value that is not finite (or is negative, for sparse vectors), the
                width differs, k is below 1 or above the most hits that Milvus returns (16384), or the
                collection lacks a position.
        """
        self._check_whole()
        wanted = min(check_k(k), len(self))
        if wanted > MAX_HITS:
            raise ValueError(f"k must be at most {MAX_HITS}, the most hits of Milvus; received {wanted}")
        kind = self._kind
        vectors = checked(queries, "queries", kind, self._width, self.similarity) if kind else queries
        rows = vectors.shape[0]
        # Milvus refuses a sparse query without a weight, which has no hit.
        asked = np.diff(vectors.indptr).nonzero()[0] if kind == "sparse" else np.arange(rows)
        limit, exact = min(len(self), MAX_HITS), isinstance(self.layout, Flat)
        found = complete_ties(partial(self._search, vectors), asked, rows, wanted, limit, exact)
        return self._ids.hits(*found)

    def save(self, directory: str | Path) -> None:
        """Write down the address of the collection and the ids; the vectors stay in Milvus.

        Args:
            directory: A new or empty directory.

        Raises:
            FileExistsError: If the directory is not empty.
            ValueError: If the collection lacks a position, because a batch failed.
        """
        self._check_whole()
        lite = lite_file(self.uri)
        uri = self.uri if lite is None else os.path.relpath(lite, Path(directory).resolve())
        fields = {"uri": uri, "lite": lite is not None, "collection": self.collection}
        with new_directory(directory) as path:
            write_ids(path, self._ids)
            write_manifest(path, FORMAT, fields)

    @classmethod
    def load(
        cls, directory: str | Path, verify: bool = False, *, uri: str | None = None, token: str = ""
    ) -> MilvusIndex:
        """Open the collection that `save` wrote down, if it still holds the same documents.

        Args:
            directory: The directory that `save` wrote. It names a Milvus Lite file by a relative path.
            verify: Changes nothing here, because every file is read and compared with its checksum anyway.
            uri: The address of the collection; None takes the one that was written down, to which no token is
                sent.
            token: `user:password` or an API key, if the server wants one.

        Returns:
            The index.

        Raises:
            ConnectionError: If the server does not answer.
            FileNotFoundError: If the directory holds no index, or the Milvus Lite file does not exist.
            ValueError: If a file is damaged or foreign, the collection has changed, or there is a token
                without a uri.
        """
        fields = read_manifest(directory, FORMAT, verify)
        try:
            saved, lite, collection = str(fields["uri"]), fields["lite"], str(fields["collection"])
            ids = read_ids(Path(directory))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{directory} is not a Milvus index of lexforge: {error}") from error
        if lite:
            saved = str((Path(directory).resolve() / saved).resolve())
        address = chosen_address(directory, saved, uri, token, is_file=lite)
        if lite and address == saved and not Path(saved).exists():
            raise FileNotFoundError(f"the Milvus Lite file {saved} of {directory} does not exist")
        index = cls(address, collection, token=token)
        if index._ids.names != ids.names:
            index.close()
            raise ValueError(
                f"{index.where} must hold the {len(ids)} documents that {directory} names; it holds "
                f"{len(index)} and was changed or dropped"
            )
        return index

    def __enter__(self) -> MilvusIndex:
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
        """The number of bytes of the vectors as they are sent; Milvus does not report what it adds."""
        return self._weights * (8 if self._kind == "sparse" else 4)

    def _open(self, similarity: str | None, layout: Flat | HNSW | IVF | None, origin: str | None) -> None:
        """Read from the server what the collection is and which documents it holds.

        Raises:
            ValueError: If lexforge did not make the collection, or it is not what the arguments say.
        """
        try:
            fields = json.loads(self._call("describe_collection")["properties"][PROPERTY])
            self._kind, self._width, self.origin = fields["kind"], int(fields["width"]), fields["origin"]
            self.similarity = check_similarity(fields["similarity"])
            self.layout = layout_from(fields["layout"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.where} was not made by lexforge: {error!r}") from error
        for name, wanted in (("similarity", similarity), ("layout", layout), ("origin", origin)):
            if wanted not in (None, getattr(self, name)):
                raise ValueError(f"{self.where} has {name} {getattr(self, name)!r}; received {wanted!r}")
        # The ids are read in windows of positions, because an answer holds at most MAX_HITS rows. Reading
        # stops at the first position that is missing.
        count = int(self._call("query", output_fields=["count(*)"])[0]["count(*)"])
        columns = ["position", "document", "weights"]
        for start in range(0, count, MAX_HITS // 2):
            window = f"position >= {start} and position < {start + MAX_HITS // 2}"
            answer = self._call("query", filter=window, output_fields=columns)
            rows = {row["position"]: row for row in answer}
            while len(self) in rows:
                row = rows[len(self)]
                self._ids.extend([row["document"]])
                self._weights += row["weights"]
        self._torn = len(self) != count

    def _check_whole(self) -> None:
        """Refuse to read a collection that a failure has left with only some rows of a batch.

        Raises:
            ValueError: If a position is missing.
        """
        if self._torn:
            raise ValueError(
                f"{self.where} lacks position {len(self)}; add the documents from there on again"
            )

    def _create(self, kind: Kind, width: int) -> None:
        """Create the collection with its index on the vectors."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("position", DataType.INT64, is_primary=True)
        schema.add_field("document", DataType.VARCHAR, max_length=65535)
        schema.add_field("weights", DataType.INT64)
        params = MilvusClient.prepare_index_params()
        if kind == "sparse":
            schema.add_field("vector", DataType.SPARSE_FLOAT_VECTOR)
            params.add_index("vector", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        else:
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
            name, build_options = index_options(self.layout)
            params.add_index("vector", index_type=name, metric_type="IP", params=build_options)
        fields = {"kind": kind, "width": width, "similarity": self.similarity, "origin": self.origin}
        properties = {PROPERTY: json.dumps({**fields, "layout": layout_fields(self.layout)})}
        options = {"consistency_level": "Strong"}  # a search finds everything that was written before it
        self._call("create_collection", schema=schema, index_params=params, properties=properties, **options)
        self._kind, self._width = kind, width

    def _search(self, vectors: Any, rows: NDArray[np.int64], depth: int) -> Iterator[tuple[int, Found]]:
        """Yield each row with the positions and scores of its `depth` best documents, in Milvus's order."""
        size = max(1, MAX_HITS // depth)  # queries per request, so that an answer holds at most MAX_HITS rows
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            answer = self._call(
                "search",
                data=dictionaries(vectors[part]) if self._kind == "sparse" else list(vectors[part]),
                anns_field="vector",
                limit=depth,
                output_fields=["position"],  # without this, Milvus Lite also sends the vectors
                search_params={"metric_type": "IP", "params": search_options(self.layout, depth)},
            )
            for row, hits in zip(part.tolist(), answer, strict=True):
                positions = np.array([hit["position"] for hit in hits], np.int64)
                scores = np.array([hit["distance"] for hit in hits], np.float32)
                found = scores > (0 if self._kind == "sparse" else -np.inf)
                yield row, (positions[found], scores[found])

    def _call(self, method: str, **arguments: Any) -> Any:
        """Send a request to the collection, and send it again while its failure may be temporary.

        Raises:
            ConnectionError: If all attempts failed.
            RuntimeError: If Milvus refuses the request.
        """
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(FIRST_DELAY_S * 2 ** (attempt - 1))
            try:
                return getattr(self._client, method)(self.collection, timeout=self.timeout_s, **arguments)
            except (MilvusException, RpcError) as error:
                failure = error
                if (
                    getattr(error, "code", None) == CONNECT_FAILED
                ):  # some clients connect at their first request only
                    raise _no_server(self.uri, error) from error
                if not is_transient(error):
                    raise RuntimeError(f"Milvus at {self.uri} refused {method}: {message(error)}") from error
        raise ConnectionError(
            f"Milvus at {self.uri} did not answer {method} in {ATTEMPTS} attempts: {message(failure)}"
        ) from failure


def _no_server(uri: str, error: Exception) -> ConnectionError:
    """Return the error for an address at which no server answers, or a file that cannot be opened."""
    hint = "is another process using the file?" if lite_file(uri) else "is the server there?"
    return ConnectionError(f"no Milvus at {uri}; {hint} {message(error)}")


def _connect(index: MilvusIndex, uri: str, token: str, timeout_s: float) -> tuple[Any, Callable[[], object]]:
    """Return a client and the function that closes it, which is called at the latest with the index's end.

    Raises:
        ConnectionError: If no server answers, or the file cannot be opened.
        ImportError: If the extra `milvus` is not installed.
    """
    file = lite_file(uri)
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        if file is not None:
            import milvus_lite  # noqa: F401 - the client would report its absence as a bad address
    except ImportError as error:
        raise ImportError(
            f"MilvusIndex needs the extra 'milvus': pip install 'lexforge[milvus]' ({error})"
        ) from None
    try:
        client = MilvusClient(file or uri, token=token, timeout=timeout_s)
    except MilvusException as error:
        raise _no_server(uri, error) from error
    _open_files[file] += 1
    return client, weakref.finalize(index, _disconnect, client, file)


def _disconnect(client: Any, file: str | None) -> None:
    """Close the client; the last one on a Milvus Lite file also stops its server, which frees the file."""
    client.close()
    _open_files[file] -= 1
    if file is not None and not _open_files[file]:
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(file)
