"""Search in a Milvus collection, which a server keeps or a Milvus Lite file that this process opens."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.extras import missing_extra
from lexforge.retrieval.base import RankedPositions
from lexforge.retrieval.servers.server import PROPERTY, TIMEOUT_S, ServerIndex
from lexforge.settings import VectorType

FORMAT = "lexforge-milvus-index"
MAX_HITS = 16384  # Milvus's own limit on the hits per query and on the rows per answer
CONNECT_FAILED = 2  # pymilvus's own code of an address at which no server answers

_open_files: Counter[str | None] = Counter()  # the number of indexes of this process per Milvus Lite file


class MilvusIndex(ServerIndex):
    """Search for the k best documents in a collection of sparse or dense vectors that Milvus keeps.

    Sparse and dense vectors are searched exactly. The last index on a Milvus Lite file also stops its server
    when it is closed. `ServerIndex` says what holds for every engine.

    Args:
        uri: `http://host:19530`, or the name of a file that ends in `.db`, which Milvus Lite opens in this
            process. Only one process at a time can open a file.
        token: `user:password` or an API key. The other arguments are those of `ServerIndex`.
    """

    engine, format, holds = "Milvus", FORMAT, ("sparse", "dense")
    local_name, local_ending = "Milvus Lite file", ".db"
    most_hits = MAX_HITS

    def _connect(self, token: str) -> tuple[Any, Callable[[], object]]:
        file = self._local_path(self.uri)
        try:
            from pymilvus import MilvusClient
            from pymilvus.exceptions import MilvusException

            if file is not None:
                import milvus_lite  # noqa: F401 - the client would report its absence as a bad address
        except ImportError as error:
            raise missing_extra("MilvusIndex", "milvus", error) from None
        try:
            client = MilvusClient(file or self.uri, token=token, timeout=TIMEOUT_S)
        except MilvusException as error:
            raise self._no_server(error) from error
        _open_files[file] += 1
        return client, partial(_close, weakref.finalize(self, _disconnect, client, file), file)

    def _description(self) -> dict[str, Any] | None:
        if not self._call("has_collection"):
            return None
        self._call("load_collection")
        return dict(json.loads(self._call("describe_collection")["properties"][PROPERTY]))

    @property
    def _drop(self) -> str:
        return f"MilvusClient({self.uri!r}).drop_collection({self.collection!r})"

    def _count(self) -> int:
        return int(self._call("query", output_fields=["count(*)"])[0]["count(*)"])

    def _documents(self) -> Iterator[tuple[int, str, int]]:
        # The rows are read in windows of positions, because an answer holds at most MAX_HITS rows.
        count = self._count()
        columns = ["position", "document", "weights"]
        for start in range(0, count, MAX_HITS // 2):
            window = f"position >= {start} and position < {start + MAX_HITS // 2}"
            answer = self._call("query", filter=window, output_fields=columns)
            yield from sorted((row["position"], row["document"], row["weights"]) for row in answer)

    def _create(self, vector_type: VectorType, width: int) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("position", DataType.INT64, is_primary=True)
        schema.add_field("document", DataType.VARCHAR, max_length=65535)
        schema.add_field("weights", DataType.INT64)
        params = MilvusClient.prepare_index_params()
        if vector_type == "sparse":
            schema.add_field("vector", DataType.SPARSE_FLOAT_VECTOR)
            params.add_index("vector", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        else:
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
            params.add_index("vector", index_type="FLAT", metric_type="IP")
        properties = {PROPERTY: json.dumps(self._described(vector_type, width))}
        options = {"consistency_level": "Strong"}  # a search finds everything that was written before it
        self._call("create_collection", schema=schema, index_params=params, properties=properties, **options)

    def _send(self, vectors: Any, names: list[str]) -> int:
        rows = collection_rows(vectors, names, len(self))
        self._call("upsert", data=rows)
        return sum(row["weights"] for row in rows)

    def _search(
        self, vectors: Any, rows: NDArray[np.int64], depth: int
    ) -> Iterator[tuple[int, RankedPositions]]:
        size = max(1, MAX_HITS // depth)  # queries per request, so that an answer holds at most MAX_HITS rows
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            answer = self._call(
                "search",
                data=dictionaries(vectors[part]) if self._vector_type == "sparse" else list(vectors[part]),
                anns_field="vector",
                limit=depth,
                output_fields=["position"],  # without this, Milvus Lite also sends the vectors
                search_params={"metric_type": "IP"},
            )
            for row, hits in zip(part.tolist(), answer, strict=True):
                positions = np.array([hit["position"] for hit in hits], np.int64)
                scores = np.array([hit["distance"] for hit in hits], np.float32)
                found = scores > (0 if self._vector_type == "sparse" else -np.inf)
                yield row, (positions[found], scores[found])

    def _call(self, method: str, **arguments: Any) -> Any:
        """Send a request to the collection; pymilvus sends it again while its failure may be temporary.

        Raises:
            ConnectionError: If the request failed.
        """
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        try:
            return getattr(self.client, method)(self.collection, timeout=TIMEOUT_S, **arguments)
        except (MilvusException, RpcError) as error:
            if getattr(error, "code", None) == CONNECT_FAILED:  # some clients connect at their first request
                raise self._no_server(error) from error
            raise ConnectionError(f"Milvus at {self.uri} failed at {method}: {message(error)}") from error

    def _no_server(self, error: Exception) -> ConnectionError:
        """Return the error for an address at which no server answers, or a file that cannot be opened."""
        hint = "is another process using the file?" if self._local_path(self.uri) else "is the server there?"
        return ConnectionError(f"no Milvus at {self.uri}; {hint} {message(error)}")


def _disconnect(client: Any, file: str | None) -> None:
    client.close()
    _open_files[file] -= 1


def _close(disconnect: Callable[[], object], file: str | None) -> None:
    """Close the client; the last one on a Milvus Lite file also stops its server, which frees the file.

    An index that is only forgotten leaves the server running until the next one is closed or the process
    ends. To stop it takes locks of thread pools, and the garbage collector may come while they are held.
    """
    disconnect()
    if file is not None and not _open_files[file]:
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(file)


def collection_rows(
    vectors: sparse.csr_array | NDArray[np.float32], ids: list[str], position: int
) -> list[dict[str, Any]]:
    """Return documents as rows of a collection.

    A sparse row without a weight gets one in a column that no query has, because servers before 2.4.12 refuse
    an empty vector.

    Args:
        vectors: `[N, width]`, as `ServerIndex` checks them.
        ids: The N ids of the documents.
        position: The position of the first document.

    Returns:
        One dictionary per document with its `position`, its id `document`, the `vector` and the number of
        stored numbers in it, `weights`.
    """
    if isinstance(vectors, np.ndarray):
        values: list[Any] = list(vectors)
        counts = [vectors.shape[1]] * len(vectors)
    else:
        values = [terms or {vectors.shape[1]: 1.0} for terms in dictionaries(vectors)]
        counts = np.diff(vectors.indptr).tolist()
    return [
        {"position": position + i, "document": name, "weights": count, "vector": value}
        for i, (name, count, value) in enumerate(zip(ids, counts, values, strict=True))
    ]


def dictionaries(vectors: sparse.csr_array) -> list[dict[int, float]]:
    """Return the rows of a CSR matrix as `{column: weight}`."""
    columns, weights, bounds = vectors.indices.tolist(), vectors.data.tolist(), vectors.indptr.tolist()
    return [dict(zip(columns[start:end], weights[start:end], strict=True)) for start, end in pairwise(bounds)]


def message(error: Exception | None) -> str:
    """Return the message of a failure on one line."""
    details = getattr(error, "details", None)
    text = getattr(error, "message", None) or (details() if callable(details) else None) or str(error)
    return " ".join(str(text).split())
