"""What is sent to Milvus and what its failures mean, without a Milvus."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval.faiss import HNSW, IVF, Flat
from lexforge.retrieval.servers.milvus_format import (
    index_options,
    is_transient,
    layout_fields,
    layout_from,
    lite_file,
    message,
    rows_of,
    search_options,
)

GRPC = Enum("GRPC", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED"])


def failure(code: Any, **others: Any) -> Exception:
    error = Exception("a  text\nof two lines")
    error.__dict__.update({"code": code, **others})
    return error


def test_rows_of_sparse_documents() -> None:
    """A row without a weight has one in a column behind the last, where no query has any, and counts none."""
    vectors = sparse.csr_array(np.array([[0, 0.5, 2], [0, 0, 0]], np.float32))
    assert rows_of(vectors, ["a", "b"], 7) == [
        {"position": 7, "document": "a", "weights": 2, "vector": {1: 0.5, 2: 2.0}},
        {"position": 8, "document": "b", "weights": 0, "vector": {3: 1.0}},
    ]


def test_rows_of_dense_documents() -> None:
    (row,) = rows_of(np.array([[1, 2, 3]], np.float32), ["a"], 0)
    assert (row["position"], row["document"], row["weights"]) == (0, "a", 3)
    assert row["vector"].tolist() == [1, 2, 3]
    assert row["vector"].dtype == np.float32


@pytest.mark.parametrize("layout", [Flat(), HNSW(neighbours=5, ef_search=9), IVF(lists=4, probes=2)], ids=str)
def test_a_layout_survives_the_manifest(layout: Any) -> None:
    assert layout_from(json.loads(json.dumps(layout_fields(layout)))) == layout


def test_layouts_by_milvus_names() -> None:
    """HNSW must look at as many candidates as hits are asked for."""
    assert index_options(HNSW(neighbours=5, ef_construction=11)) == ("HNSW", {"M": 5, "efConstruction": 11})
    assert index_options(IVF(lists=4)) == ("IVF_FLAT", {"nlist": 4})
    assert index_options(Flat()) == ("FLAT", {})
    assert search_options(HNSW(ef_search=9), 5) == {"ef": 9}
    assert search_options(HNSW(ef_search=9), 50) == {"ef": 50}
    assert search_options(IVF(probes=2), 50) == {"nprobe": 2}
    assert search_options(Flat(), 50) == {}


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (failure(GRPC.UNAVAILABLE), True),
        (failure(lambda: GRPC.DEADLINE_EXCEEDED), True),
        (failure(GRPC.PERMISSION_DENIED), False),
        (failure(8), True),
        (failure(1), False),
        (failure(1, retriable=True), True),
        (ValueError("a bad row"), False),
    ],
)
def test_what_may_succeed_later(error: Exception, transient: bool) -> None:
    """A wrong request sent again hides its error behind minutes of waiting."""
    assert is_transient(error) is transient


def test_a_failure_says_one_line() -> None:
    assert message(failure(1)) == "a text of two lines"
    assert message(failure(1, message="the\nserver's")) == "the server's"
    assert message(failure(1, details=lambda: "gRPC's  own")) == "gRPC's own"


def test_addresses_of_servers_are_no_files() -> None:
    for uri in ("http://localhost:19530", "https://h", "tcp://h:1", "unix:/s"):
        assert lite_file(uri) is None
