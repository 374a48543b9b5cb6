"""Search in a Qdrant collection of sparse vectors, which a server keeps or a folder of this machine."""

from __future__ import annotations

import time
import weakref
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

FORMAT = "lexforge-qdrant-index"
VECTOR = "vector"  # the name of the vector of a point
WINDOW = 4096  # points per answer when the ids are read
QUERIES = 256  # queries per request
ATTEMPTS = 4  # how often a request is sent before its failure is raised
FIRST_DELAY_S = 0.5  # the pause before the second attempt; it doubles with every further one
_BUSY = {408, 429, 500, 502, 503, 504}  # statuses after which the same request may succeed

_open_folders: dict[str, tuple[Any, int]] = {}  # the client of each folder, and how many indexes share it


class QdrantIndex(ServerIndex):
    """Exact search for the k best documents in a collection of sparse vectors that Qdrant keeps.

    `ServerIndex` says what holds for every engine.

    Args:
        uri: `http://host:6333`, or the name of a folder that ends in `.qdrant`, which the client keeps and
            searches in this process by numpy, for tests and small corpora.
        token: An API key. The other arguments are those of `ServerIndex`.
    """

    engine, format, holds = "Qdrant", FORMAT, ("sparse",)
    local_name, local_ending = "folder", ".qdrant"

    def _connect(self, token: str) -> tuple[Any, Callable[[], object]]:
        folder = self._local_path(self.uri)
        try:
            from qdrant_client import QdrantClient
        except ImportError as error:
            raise missing_extra("QdrantIndex", "qdrant", error) from None
        if folder is None:
            options = {"api_key": token or None, "timeout": TIMEOUT_S, "check_compatibility": False}
            client = QdrantClient(url=self.uri, **options)
        elif folder in _open_folders:
            client = _open_folders[folder][0]
        else:
            try:
                client = QdrantClient(path=folder)
            except RuntimeError as error:
                raise ConnectionError(f"the folder {self.uri} cannot be opened: {error}") from error
        if folder is not None:
            _open_folders[folder] = (client, _open_folders.get(folder, (client, 0))[1] + 1)
        return client, weakref.finalize(self, _disconnect, client, folder)

    def _description(self) -> dict[str, Any] | None:
        if not self._call("collection_exists"):
            return None
        fields = (self._call("get_collection").config.metadata or {})[PROPERTY]
        return {**fields, "vector_type": "sparse"}

    @property
    def _drop(self) -> str:
        argument = "url" if self._local_path(self.uri) is None else "path"
        return f"QdrantClient({argument}={self.uri!r}).delete_collection({self.collection!r})"

    def _count(self) -> int:
        return int(self._call("count", exact=True).count)

    def _documents(self) -> Iterator[tuple[int, str, int]]:
        after = None
        while True:  # the points come in the order of their numbers
            points, after = self._call("scroll", limit=WINDOW, offset=after, with_payload=True)
            for point in points:
                yield point.id, point.payload["document"], point.payload["weights"]
            if after is None:
                break

    def _create(self, vector_type: VectorType, width: int) -> None:
        from qdrant_client.models import SparseVectorParams

        self._call(
            "create_collection",
            vectors_config={},
            sparse_vectors_config={VECTOR: SparseVectorParams()},
            metadata={PROPERTY: self._described(vector_type, width)},
        )

    def _send(self, vectors: sparse.csr_array, names: list[str]) -> int:
        from qdrant_client.models import PointStruct

        points = [
            PointStruct(
                id=len(self) + i,
                vector={VECTOR: vector},
                payload={"document": name, "weights": len(vector.indices)},
            )
            for i, (name, vector) in enumerate(zip(names, _vectors(vectors), strict=True))
        ]
        self._call("upsert", points=points, wait=True)
        return int(vectors.nnz)

    def _search(
        self, vectors: Any, rows: NDArray[np.int64], depth: int
    ) -> Iterator[tuple[int, RankedPositions]]:
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
            ConnectionError: If all attempts failed, or Qdrant refuses the request.
        """
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        send = partial(getattr(self.client, method), self.collection, **arguments)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return send()
            except (
                ResponseHandlingException,
                UnexpectedResponse,
            ) as error:  # no answer, or a failure's status
                if isinstance(error, UnexpectedResponse) and error.status_code not in _BUSY:
                    text = " ".join(str(error).split())
                    raise ConnectionError(f"Qdrant at {self.uri} refused {method}: {text}") from error
                if attempt == ATTEMPTS:
                    raise ConnectionError(
                        f"no answer of Qdrant at {self.uri} to {method} in {ATTEMPTS} attempts: {error}"
                    ) from error
            time.sleep(FIRST_DELAY_S * 2 ** (attempt - 1))


def _vectors(matrix: sparse.csr_array) -> list[Any]:
    """Return the rows of a CSR matrix as Qdrant's sparse vectors."""
    from qdrant_client.models import SparseVector

    columns, weights, bounds = matrix.indices.tolist(), matrix.data.tolist(), matrix.indptr.tolist()
    return [
        SparseVector(indices=columns[start:end], values=weights[start:end]) for start, end in pairwise(bounds)
    ]


def _disconnect(client: Any, folder: str | None) -> None:
    """Close the client; the client of a folder is closed by the last index on it."""
    if folder is not None:
        count = _open_folders[folder][1] - 1
        if count:
            _open_folders[folder] = (client, count)
            return
        del _open_folders[folder]
    client.close()
