"""What engines refuse and round: found before a file is written, and written as documented."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.export import VECTOR_TARGETS, Queries, export_vectors
from lexforge.export.vectors.base import Survey, cut_bits
from lexforge.export.vectors.bulk import OpenSearchSparseVector


def ones(rows: int, columns: int) -> sparse.csr_array:
    return sparse.csr_array(np.ones((rows, columns), np.float32))


@pytest.mark.parametrize(
    ("target", "vectors", "ids", "message"),
    [
        ("pgvector", ones(2, 16_001), ["a", "b"], "at most 16000 weights; 'a' has 16001"),
        ("pgvector", ones(1, 3), ["a\0"], "no NUL character"),
        ("ciff", ones(2, 3), ["a", "b\nc"], r"as one line; received 'b\\nc'"),
        ("ciff", ones(1, 3), ["a\u2028"], r"as one line; received 'a\\u2028'"),
        ("opensearch-sparse-vector", ones(1, 65_537), ["a"], "modulo 65536.*received 65537"),
        ("opensearch-sparse-vector", ones(1, 3), ["가" * 171], "ids of at most 512 bytes"),
        ("elasticsearch", ones(1, 3), ["i" * 513], "Elasticsearch takes ids of at most 512 bytes"),
        ("opensearch", ones(1, 3), ["i" * 513], "OpenSearch takes ids of at most 512 bytes"),
    ],
)
def test_documents_that_an_engine_refuses_are_named(
    target: str, vectors, ids: list[str], message: str, store, tmp_path: Path
) -> None:
    """The engine would refuse the whole request, hours later."""
    corpus = store(tmp_path / "corpus", vectors, ids)
    terms = [f"t{i}" for i in range(vectors.shape[1])]
    with pytest.raises(ValueError, match=message):
        export_vectors(corpus, tmp_path / "out", target, terms=terms)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["opensearch", "elasticsearch"])
def test_a_query_above_the_limit_of_lucene_is_named(target: str, store, tmp_path: Path) -> None:
    """Lucene takes weights of features up to 64."""
    corpus = store(tmp_path / "corpus", ones(2, 3), ["a", "b"])
    queries = Queries(sparse.csr_array(np.float32([[0, 64, 0], [0, 0, 65]])), ["q1", "q2"])
    with pytest.raises(ValueError, match=r"up to 64; query 'q2' has 65\.0"):
        export_vectors(corpus, tmp_path / "out", target, terms=["x", "y", "z"], queries=queries)


@pytest.mark.parametrize("target", ["anserini", "ciff"])
def test_a_scale_that_rounds_the_weights_to_nothing_is_not_taken(target: str, store, tmp_path: Path) -> None:
    """With fewer documents than the recall's 10, all would count as found, whatever rounding leaves."""
    generator = np.random.default_rng(0)
    weights = generator.uniform(0, 0.02, (8, 50)) * (generator.random((8, 50)) < 0.3)  # at 20, all become 0
    corpus = store(tmp_path / "corpus", sparse.csr_array(weights.astype(np.float32)), [*"abcdefgh"])
    terms = [f"t{i}" for i in range(50)]
    assert export_vectors(corpus, tmp_path / "out", target, terms=terms).survey.scale > 20


@pytest.mark.parametrize(("target", "name"), [("anserini", "queries.tsv"), ("ciff", "queries.txt")])
def test_queries_whose_weights_round_to_nothing_are_left_out(
    target: str, name: str, store, tmp_path: Path
) -> None:
    """Anserini's reader of topics fails on the whole file for one id without a term."""
    corpus = store(tmp_path / "corpus", sparse.csr_array(np.float32([[1, 1, 0]])), ["a"])
    terms, out = ["x", "y", "of no document"], tmp_path / "out"
    weights = sparse.csr_array(np.float32([[0, 0, 0.001], [0, 0, 0], [0, 0.1, 0], [0.1, 0.001, 0]]))
    survey = export_vectors(corpus, out, target, terms=terms, queries=Queries(weights, [*"pqrs"])).survey
    assert (survey.scale, survey.left_out) == (20, 2)
    separator = VECTOR_TARGETS[target].separator
    assert (out / name).read_text() == f"r{separator}y y\ns{separator}x x\n"
    assert next(out.glob("example-query.*")).read_text() == f"r{separator}y y\n"
    page = (out / "README.md").read_text()
    assert f"`{name}` holds 2 queries.\n2 queries have no term whose weight is kept" in page


@pytest.mark.parametrize(("target", "separator"), [("anserini", "\t"), ("ciff", ":")])
def test_an_id_that_would_be_cut_in_the_file_of_queries_is_named(
    target: str, separator: str, store, tmp_path: Path
) -> None:
    """The engine would take the rest of the id for terms, and its run would name another query."""
    corpus = store(tmp_path / "corpus", ones(2, 3), ["a:1\tx", "b"])  # ids of documents are no matter
    for wrong in (f"q{separator}1", "q\n1"):
        queries = Queries(ones(2, 3), ["q-0 x", wrong])
        with pytest.raises(ValueError, match=r"must hold neither that nor a line break; received 'q"):
            export_vectors(corpus, tmp_path / "out", target, terms=["x", "y", "z"], queries=queries)
    export_vectors(
        corpus, tmp_path / "out", target, terms=["x", "y", "z"], queries=Queries(ones(1, 3), ["q-0 x"])
    )


def test_bits_are_cut_as_in_lucene_and_vespa() -> None:
    """Lucene's FeatureField shifts the bits of a float by 15, Vespa's BFloat16 by 16; neither rounds."""
    weights = np.random.default_rng(0).uniform(0, 5, 200).astype(np.float32)
    for dropped in (15, 16):
        expected = []
        for weight in weights.tolist():
            bits = struct.unpack("<I", struct.pack("<f", weight))[0] >> dropped << dropped
            expected.append(struct.unpack("<f", struct.pack("<I", bits))[0])
        np.testing.assert_array_equal(cut_bits(weights, dropped), np.float32(expected))
    assert cut_bits(np.float32([1.99999]), 15) == 1.99609375  # 1.11111111 in binary
    assert cut_bits(np.float32([1.99999]), 16) == 1.9921875  # 1.1111111


def test_bytes_are_those_of_opensearchs_own_test() -> None:
    """Of a ceiling of 3: 0, 1.5 and 3 become 0, 128 and 255, and what lies above is cut."""
    target, survey = OpenSearchSparseVector(None, 4), Survey(3.0, 6.0, 4)
    weights = np.float32([0, 1.5, 3, 9])
    assert target.stored_weights(weights, survey).tolist() == [0, 128, 255, 255]
    assert target.query_weights(weights, survey).tolist() == [0, 64, 128, 255]


def test_the_ceilings_of_bytes_are_the_largest_weights(store, tmp_path: Path) -> None:
    """By OpenSearch's defaults of 3 and 16, documents would be cut and light query terms would be lost."""
    corpus = store(tmp_path / "corpus", sparse.csr_array(np.float32([[1, 0], [0, 4.5]])), ["a", "b"])
    queries = Queries(sparse.csr_array(np.float32([[7, 0]])), ["q"])
    for name, asked, ceiling, byte in (("with", queries, 7.0, 36), ("without", None, 4.5, 57)):
        exported = export_vectors(corpus, tmp_path / name, "opensearch-sparse-vector", queries=asked)
        mapping = json.loads((tmp_path / name / "index.json").read_text())
        parameters = mapping["mappings"]["properties"]["vector"]["method"]["parameters"]
        assert parameters == {"quantization_ceiling_ingest": 4.5, "quantization_ceiling_search": ceiling}
        assert ("sets 4.5 for documents and 7 for" if asked else "sets 4.5 for documents and the same") in (
            exported.limits[1]
        )
        # The recall is measured with that ceiling, and not with the largest weight of the sample.
        kept = OpenSearchSparseVector(None, 2).query_weights(np.float32([1]), exported.survey)
        assert kept.tolist() == [byte]


def test_an_hnsw_index_is_offered_only_where_pgvector_builds_one(store, tmp_path: Path) -> None:
    """pgvector refuses an index over vectors with more than 1,000 weights."""
    for width in (1000, 1001):
        corpus = store(tmp_path / f"corpus-{width}", ones(1, width), ["a"])
        export_vectors(corpus, tmp_path / str(width), "pgvector")
        assert (tmp_path / str(width) / "index.sql").exists() == (width == 1000)


# What the documentation of the three engines without a server here allows, written down once more.
BODIES = {
    "opensearch": {"mappings": {"properties": {"vector": {"type": "rank_features"}}}},
    "elasticsearch": {
        "mappings": {"properties": {"vector": {"type": "sparse_vector", "index_options": {"prune": False}}}}
    },
}
SEARCHES = {
    "opensearch": {"neural_sparse": {"vector": {"query_tokens": {"x": 0.5, "[1]": 2.0}}}},
    "elasticsearch": {"sparse_vector": {"field": "vector", "query_vector": {"x": 0.5, ".": 2.0}}},
    "opensearch-sparse-vector": {
        "neural_sparse": {
            "vector": {
                "query_tokens": {"0": 0.5, "1": 2.0},
                "method_parameters": {"k": 10, "top_n": 10, "heap_factor": 1.0},
            }
        }
    },
}


@pytest.mark.parametrize("target", sorted(SEARCHES))
def test_mappings_and_queries_are_those_documented(target: str, store, tmp_path: Path) -> None:
    """No server of these engines installs here: their documented requests are all that can be compared."""
    corpus = store(tmp_path / "corpus", ones(2, 2), ["a", "b"])
    queries = Queries(sparse.csr_array(np.float32([[0.5, 2]])), ["q"])
    export_vectors(corpus, tmp_path / "out", target, terms=["x", "."], queries=queries)
    mapping = json.loads((tmp_path / "out" / "index.json").read_text())
    if target in BODIES:
        assert mapping == BODIES[target]
    else:
        assert mapping["settings"] == {"index": {"sparse": True}}
        assert mapping["mappings"]["properties"]["vector"]["type"] == "sparse_vector"
        assert mapping["mappings"]["properties"]["vector"]["method"]["name"] == "seismic"
    expected = {"size": 10, "query": SEARCHES[target]}
    assert json.loads((tmp_path / "out" / "example-query.json").read_text()) == expected
    lines = (tmp_path / "out" / "queries.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "q", "body": expected}]


def test_the_query_of_vespa_fits_its_schema(store, tmp_path: Path) -> None:
    """The rank profile, its input and the field must have one name each, in three files."""
    corpus = store(tmp_path / "corpus", ones(2, 2), ["a", "b"])
    export_vectors(corpus, tmp_path / "out", "vespa", terms=["x", "."])
    schema = (tmp_path / "out" / "application" / "schemas" / "lexforge.sd").read_text()
    query = json.loads((tmp_path / "out" / "example-query.json").read_text())
    assert f"rank-profile {query['ranking']} " in schema
    assert "query(q) tensor<float>(token{})" in schema
    assert "field vector type tensor<bfloat16>(token{})" in schema
    assert query["input.query(q)"] == {"x": 1.0, ".": 1.0}
    assert query["yql"] == "select document_id from lexforge where true"
    services = (tmp_path / "out" / "application" / "services.xml").read_text()
    assert '<document type="lexforge" mode="index"/>' in services


@pytest.mark.parametrize("target", sorted(VECTOR_TARGETS))
def test_every_export_says_its_commands_and_limits(target: str, store, tmp_path: Path) -> None:
    """A folder that someone finds later must say how it is loaded; it names only files that exist."""
    corpus = store(tmp_path / "corpus", ones(2, 2), ["a", "b"])
    exported = export_vectors(corpus, tmp_path / "out", target, terms=["x", "y"])
    page = (tmp_path / "out" / "README.md").read_text()
    assert all(sentence in page for sentence in exported.limits)
    assert len(exported.limits) >= 2
    assert "Recall@10" in page
    assert ("Experimental: " in page) == (target not in ("anserini", "ciff", "pgvector"))  # test_engines.py
    for name in (path.name for path in (tmp_path / "out").glob("example-query.*")):
        assert name in page
    assert exported.files[0].split("-")[0] in page
