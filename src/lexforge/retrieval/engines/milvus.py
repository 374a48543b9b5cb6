"""Search in a Milvus collection: a Milvus Lite file in this process or the user's server, by one client."""

from __future__ import annotations

import json
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexforge.common.files import new_directory
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import DocumentIds, Hits, check_k, read_ids, write_ids
from lexforge.retrieval.engines.milvus_format import (
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
from lexforge.retrieval.faiss import HNSW, IVF, TIE_MARGIN, Flat

FORMAT = "lexforge-milvus-index"
PROPERTY = "lexforge"  # of the collection: what the vectors are, as JSON
MAX_HITS = 16384  # Milvus's own limit on the hits of a query and the rows of an answer
ATTEMPTS = 4
FIRST_DELAY_S = 0.5  # doubled after each attempt

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
_open_files: Counter[str | None] = Counter()  # indexes of this process on each Milvus Lite file


class MilvusIndex:
    """Top-k over a collection of sparse or dense vectors that Milvus keeps.

    A row's primary key is the document's position, and rows are upserted: a batch sent twice, or again after
    a kill, changes nothing. An index opened on a collection goes on from the documents that are there;
    `build` starts at position 0 again. Sparse vectors and `Flat()` are searched exactly. `close()`, or a
    `with` statement, disconnects, and the last index on a Milvus Lite file stops its server; at exit that
    happens by itself.

    Args:
        uri: `http://host:19530`, or a file whose name ends in `.db`, which Milvus Lite opens in this process;
            one process at a time can hold it.
        collection: Name of the collection; created by the first documents.
        similarity: `dot`, or `cosine`: normalised here; None is the collection's, `dot` for a new one.
        layout: Of dense vectors; None is the collection's, `Flat()` for a new one.
        origin: Names what made the vectors; a collection of another origin is refused. None does not ask.
        token: `user:password` or an API key, where the server wants it; never written anywhere.
        batch_rows: Documents sent at once.
        timeout_s: Seconds a request may take; a failing one is tried `ATTEMPTS` times.

    Raises:
        ImportError: The extra `milvus` is not installed.
        ConnectionError: No server answers, or the file cannot be opened.
        ValueError: The collection is not lexforge's, or was made otherwise than asked for here.
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
            raise ValueError(f"batch_rows is {batch_rows} and timeout_s {timeout_s}; both must be above 0")
        self.uri, self.collection, self.where = uri, collection, f"collection {collection!r} of {uri}"
        self.batch_rows, self.timeout_s = batch_rows, timeout_s
        self._ids = DocumentIds()
        self._weights = 0  # numbers in the vectors, where sparse those that are not zero
        self._kind: Kind | None = None
        self._width = 0
        self._torn = False
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
    def build(
        cls, documents: Any, ids: list[str], similarity: Similarity = "dot", *, uri: str, **options: Any
    ) -> MilvusIndex:
        """Write the documents to a collection, which then holds them and no others.

        A collection that is there already must hold the same documents, up to where an earlier build came.

        Args:
            documents: CSR `[N, V]`, finite and >= 0, or an array `[N, D]` of finite floats.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            uri: As for the class.
            options: The class's other arguments.

        Returns:
            The index.

        Raises:
            TypeError: The documents are neither CSR nor an array of floats.
            ValueError: Vectors or ids that `InvertedIndex` and `FaissIndex` refuse as well, or a collection
                that holds other documents.
            ImportError, ConnectionError: As for the class.
        """
        index = cls(uri, similarity=similarity, **options)
        try:
            there, index._ids, index._weights = index._ids.names, DocumentIds(), 0
            for position, (old, new) in enumerate(zip(there, ids, strict=False)):
                if old != new:
                    raise ValueError(
                        f"{index.where} holds {old!r} at position {position}, these documents {new!r}: drop "
                        "that collection, or choose another name"
                    )
            index._torn = index._torn or len(there) > len(ids)
            index.add(documents, ids)
        except BaseException:
            index.close()
            raise
        return index

    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents, `batch_rows` at a time; those sent before a failure stay, and `len` counts them.

        Rows beyond a missing position, which a failure can leave, are deleted first.

        Args:
            documents: CSR `[N, V]`, finite and >= 0, or an array `[N, D]` of finite floats.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            TypeError, ValueError, ConnectionError: As for `build`, and another kind or width than the
                collection's.
        """
        kind, width = (self._kind, self._width) if self._kind else kind_and_width(documents)
        vectors = checked(documents, "documents", kind, width, self.similarity)
        self._ids.check(ids, vectors.shape[0])
        if self._kind is None:
            self._create(kind, width)
        if self._torn:
            self._call("delete", filter=f"position >= {len(self)}")
            self._torn = False
        for start in range(0, len(ids), self.batch_rows):
            batch, names = vectors[start : start + self.batch_rows], ids[start : start + self.batch_rows]
            rows = rows_of(batch, names, len(self))
            self._call("upsert", data=rows)
            self._ids.extend(names)
            self._weights += sum(row["weights"] for row in rows)

    def search(self, queries: Any, k: SupportsIndex) -> Hits:
        """The k documents of highest similarity to each query; ties in the order of document position.

        Args:
            queries: Of the kind and width of the documents.
            k: Hits wanted, at least 1; all documents where it is above their number.

        Returns:
            The hits. Sparse: no document of score 0, an empty row for a query without a weight.

        Raises:
            ValueError: As for `add`, k below 1, or more hits than Milvus returns (16384).
            ConnectionError: The server does not answer.
        """
        self._check_whole()
        wanted = min(check_k(k), len(self))
        if wanted > MAX_HITS:
            raise ValueError(f"k is {wanted}; Milvus returns at most {MAX_HITS} hits")
        kind = self._kind
        vectors = checked(queries, "queries", kind, self._width, self.similarity) if kind else queries
        ids: list[list[str]] = [[] for _ in range(vectors.shape[0])]
        scores = [np.zeros(0, np.float32) for _ in ids]
        pending = np.diff(vectors.indptr).nonzero()[0] if kind == "sparse" else np.arange(len(ids))
        depth = wanted + TIE_MARGIN
        while len(pending) and wanted:
            depth = min(depth, len(self), MAX_HITS)
            cut = []
            for row, (positions, values) in self._search(vectors, pending, depth):
                full = len(values) == depth < min(len(self), MAX_HITS) and isinstance(self.layout, Flat)
                if full and values[wanted - 1] == values[-1]:
                    cut.append(row)  # the tie at rank k may go on beyond what was returned
                    continue
                order = np.lexsort((positions, -values))[:wanted]
                ids[row] = [self._ids.names[position] for position in positions[order].tolist()]
                scores[row] = values[order]
            pending, depth = np.array(cut, np.int64), 4 * depth
        return Hits(ids, scores)

    def save(self, directory: str | Path) -> None:
        """Write where the collection is, and the ids; the vectors stay in Milvus.

        Args:
            directory: New or empty.

        Raises:
            FileExistsError: The directory holds something.
        """
        self._check_whole()
        lite = lite_file(self.uri)
        uri = self.uri if lite is None else os.path.relpath(lite, Path(directory).resolve())
        fields = {"uri": uri, "lite": lite is not None, "collection": self.collection}
        with new_directory(directory) as path:
            write_ids(path, self._ids)
            write_manifest(path, FORMAT, fields)

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False, token: str = "") -> MilvusIndex:
        """Open the collection that `save` wrote down, if it still holds the same documents.

        Args:
            directory: What `save` wrote. A Milvus Lite file is found from there by its relative path.
            verify: Changes nothing here: every file is read, and compared with its checksum, in any case.
            token: Credentials.

        Raises:
            FileNotFoundError: No index there, or the Milvus Lite file is gone.
            ValueError: A damaged or foreign file, or a collection that has changed.
            ConnectionError: The server does not answer.
        """
        fields = read_manifest(directory, FORMAT, verify)
        try:
            uri, lite, collection = str(fields["uri"]), fields["lite"], str(fields["collection"])
            ids = read_ids(Path(directory))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{directory} is not a Milvus index of lexforge: {error}") from error
        if lite:
            uri = str((Path(directory).resolve() / uri).resolve())
            if not Path(uri).exists():
                raise FileNotFoundError(f"the Milvus Lite file {uri} of {directory} does not exist")
        index = cls(uri, collection, token=token)
        if index._ids.names != ids.names:
            index.close()
            raise ValueError(
                f"{index.where} holds {len(index)} documents, not the {len(ids)} that {directory} names: it "
                "was changed or dropped"
            )
        return index

    def __enter__(self) -> MilvusIndex:
        """The index itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, as `close` does."""
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._ids)

    @property
    def ids(self) -> list[str]:
        """The ids of the documents, in the order of their positions."""
        return list(self._ids.names)

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors as they are sent; what Milvus adds of its own is not told to clients."""
        return self._weights * (8 if self._kind == "sparse" else 4)

    def _open(self, similarity: str | None, layout: Flat | HNSW | IVF | None, origin: str | None) -> None:
        """Take over what the collection is and which documents it holds."""
        try:
            fields = json.loads(self._call("describe_collection")["properties"][PROPERTY])
            self._kind, self._width, self.origin = fields["kind"], int(fields["width"]), fields["origin"]
            self.similarity = check_similarity(fields["similarity"])
            self.layout = layout_from(fields["layout"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.where} was not made by lexforge: {error!r}") from error
        for name, wanted in (("similarity", similarity), ("layout", layout), ("origin", origin)):
            if wanted not in (None, getattr(self, name)):
                raise ValueError(f"{self.where} has {name} {getattr(self, name)!r}, not {wanted!r}")
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
        """Refuse to read a collection that a failure left with only some rows of a batch."""
        if self._torn:
            raise ValueError(f"{self.where} lacks position {len(self)}: add the documents from there on")

    def _create(self, kind: Kind, width: int) -> None:
        """Make the collection with its index on the vectors."""
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
        options = {"consistency_level": "Strong"}  # a search sees what was written before it
        self._call("create_collection", schema=schema, index_params=params, properties=properties, **options)
        self._kind, self._width = kind, width

    def _search(self, vectors: Any, rows: NDArray[np.int64], depth: int) -> Iterator[tuple[int, Found]]:
        """Each row with the positions and scores of its `depth` best documents, in Milvus's order."""
        size = max(1, MAX_HITS // depth)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            answer = self._call(
                "search",
                data=dictionaries(vectors[part]) if self._kind == "sparse" else list(vectors[part]),
                anns_field="vector",
                limit=depth,
                output_fields=["position"],  # without it, Milvus Lite sends the vectors along
                search_params={"metric_type": "IP", "params": search_options(self.layout, depth)},
            )
            for row, hits in zip(part.tolist(), answer, strict=True):
                positions = np.array([hit["position"] for hit in hits], np.int64)
                scores = np.array([hit["distance"] for hit in hits], np.float32)
                found = scores > (0 if self._kind == "sparse" else -np.inf)
                yield row, (positions[found], scores[found])

    def _call(self, method: str, **arguments: Any) -> Any:
        """A request to the collection, tried again while the failure may pass."""
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
                if not is_transient(error):
                    raise RuntimeError(f"Milvus at {self.uri} refused {method}: {message(error)}") from error
        raise ConnectionError(
            f"Milvus at {self.uri} did not answer {method} in {ATTEMPTS} attempts: {message(failure)}"
        ) from failure


def _connect(index: MilvusIndex, uri: str, token: str, timeout_s: float) -> tuple[Any, Callable[[], object]]:
    """A client, and how to let go of it, which happens at the latest when the index or the process ends."""
    file = lite_file(uri)
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        if file is not None:
            import milvus_lite  # noqa: F401 - the client imports it, and reports its absence as a bad address
    except ImportError as error:
        raise ImportError(
            f"MilvusIndex needs the extra 'milvus': pip install 'lexforge[milvus]' ({error})"
        ) from None
    try:
        client = MilvusClient(file or uri, token=token, timeout=timeout_s)
    except MilvusException as error:
        hint = "is another process using the file?" if file else "is the server there?"
        raise ConnectionError(f"no Milvus at {uri}; {hint} {message(error)}") from error
    _open_files[file] += 1
    return client, weakref.finalize(index, _disconnect, client, file)


def _disconnect(client: Any, file: str | None) -> None:
    """Close the client; the last one on a Milvus Lite file stops its server and so frees the file."""
    client.close()
    _open_files[file] -= 1
    if file is not None and not _open_files[file]:
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(file)
