"""What is sent to Milvus and what its failures mean, without a Milvus."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from lexforge.retrieval.servers.milvus import MilvusIndex, collection_rows, message


def failure(code: Any, **others: Any) -> Exception:
    error = Exception("a  text\nof two lines")
    error.__dict__.update({"code": code, **others})
    return error


def test_rows_of_sparse_documents() -> None:
    """A row without a weight has one in a column behind the last, where no query has any, and counts none."""
    vectors = sparse.csr_array(np.array([[0, 0.5, 2], [0, 0, 0]], np.float32))
    assert collection_rows(vectors, ["a", "b"], 7) == [
        {"position": 7, "document": "a", "weights": 2, "vector": {1: 0.5, 2: 2.0}},
        {"position": 8, "document": "b", "weights": 0, "vector": {3: 1.0}},
    ]


def test_rows_of_dense_documents() -> None:
    (row,) = collection_rows(np.array([[1, 2, 3]], np.float32), ["a"], 0)
    assert (row["position"], row["document"], row["weights"]) == (0, "a", 3)
    assert row["vector"].tolist() == [1, 2, 3]
    assert row["vector"].dtype == np.float32


def test_a_failure_says_one_line() -> None:
    assert message(failure(1)) == "a text of two lines"
    assert message(failure(1, message="the\nserver's")) == "the server's"
    assert message(failure(1, details=lambda: "gRPC's  own")) == "gRPC's own"


def test_addresses_of_servers_are_no_files() -> None:
    for uri in ("http://localhost:19530", "https://h"):
        assert MilvusIndex._local_path(uri) is None
