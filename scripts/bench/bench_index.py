"""Sparse search: the inverted index, scipy, sparse_dot_topn, PISA, Seismic, BMP and sentence-transformers.

    pip install sparse_dot_topn pyseismic-lsr pyterrier-pisa bmp
    python scripts/bench/bench_index.py --vectors FILE --model MODEL --data FOLDER FOLDER ...
    python scripts/bench/bench_index.py --vectors FILE --sizes 8841823 --searches sparse_dot_topn pisa

With `--model` the vectors are recorded first: MODEL encodes the corpora and queries of the BEIR folders into
FILE. Without it FILE is read. A size of `--sizes` up to the number of recorded documents takes the first of
them, shuffled; a larger one takes simulated documents (`simulated.py`), which are kept in a file and mapped
into memory. An exact search must find the k best documents before it is timed. For an approximate one the
recall is recorded: the share of the k best that it finds, where any document of equal score counts. A search
whose package is not installed is named and left out. `--searches` and `--sizes` select a part of the work;
lexforge is timed in every part. Above two million documents it writes its index to the disk, as
`bench_index_memory.py` measures it.

FAISS is not compared, because it has no sparse vectors: as dense rows of vocabulary width, the smaller corpus
alone would take 5 GB.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numba
import numpy as np
import torch
import tyro
from engine_runners import pisa_bytes, pisa_index
from scipy import sparse
from sentence_transformers.util import dot_score, semantic_search
from simulated import Simulation

from lexforge.corpus import encode
from lexforge.corpus.stored_index import ROWS
from lexforge.data import load_retrieval_data
from lexforge.models import build_splade
from lexforge.retrieval import InvertedIndex

SLOW_QUERIES = 64  # queries for semantic_search, which would take minutes for all of them
IN_MEMORY = 2_000_000  # documents of an index of lexforge that is built in memory
TOLERANCE = 1e-5  # between sums of float32 in two orders
PART = 2**24  # postings that are counted at a time
CHUNK = 64  # queries per product of scipy; the scores of all queries at once would not fit into memory
SEARCHES = ("scipy", "semantic_search", "sparse_dot_topn", "pisa", "seismic", "bmp")
FIELDS = ("data", "indices", "indptr", "shape")
PISA = ("maxscore", "block_max_wand")  # its ways to leave out documents
SEISMIC = tuple(itertools.product((5, 10, 20), (0.9, 0.7)))  # query terms, heap factor: more and more exact


@dataclass(frozen=True)
class Config:
    """What to search, by which searches, and how often."""

    vectors: Path  # the file of recorded vectors
    model: str | None = None  # the encoder that records them; None reads the file
    data: tuple[Path, ...] = ()  # BEIR folders to encode
    queries: int = 1000  # queries that are recorded and searched
    sizes: tuple[int, ...] = (43_113, 262_144, 1_048_576)
    searches: tuple[str, ...] = SEARCHES
    ks: tuple[int, ...] = (10, 100, 1000)
    max_seq_length: int = 128
    repeats: int = 3
    seed: int = 0


@dataclass(frozen=True)
class Search:
    """A search that is ready to be timed.

    Args:
        name: Value of the column `search`.
        setting: Parameters of the search, for the column `setting`.
        queries: Number of queries that are searched.
        call: The function that is timed; its argument is the number of hits wanted per query.
        positions: Converts what `call` returns to the positions of each query's hits, best first.
        build_s: Seconds that building the index took.
        nbytes: Bytes of the index; an empty string if they are not known.
        exact: Whether the search must find the k best.
    """

    name: str
    setting: str
    queries: int
    call: Callable[[int], Any]
    positions: Callable[[Any], list[list[int]]]
    build_s: float
    nbytes: int | str
    exact: bool


def encoded(model: Any, folders: tuple[Path, ...], count: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield the vectors of all documents, and those of an equal share of `count` queries per folder."""
    sets = [load_retrieval_data(str(folder)) for folder in folders]
    corpora = [encode(model, list(data.corpus.values()), "document", show_progress_bar=True) for data in sets]
    yield "documents", corpora
    share = -(-count // len(sets))
    yield "queries", [encode(model, list(data.queries.values())[:share], "query") for data in sets]


def record(cfg: Config) -> None:
    """Encode the corpora and queries of the folders into the file."""
    model = build_splade(cfg.model or "", max_seq_length=cfg.max_seq_length)
    arrays = {}
    for name, parts in encoded(model, cfg.data, cfg.queries):
        matrix = sparse.csr_array(sparse.vstack(parts, format="csr"))
        arrays |= {
            f"{name}_{field}": getattr(matrix, field) for field in ("data", "indices", "indptr", "shape")
        }
    cfg.vectors.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cfg.vectors, **arrays)


def read(path: Path, name: str) -> sparse.csr_array:
    """Read a matrix of the recorded file."""
    with np.load(path) as file:
        data, indices, indptr, shape = (file[f"{name}_{field}"] for field in FIELDS)
    matrix = sparse.csr_array((data.astype(np.float32), indices, indptr), shape=tuple(shape))
    matrix.sort_indices()
    return matrix


def documents_of_size(vectors: sparse.csr_array, rows: int, seed: int, folder: Path) -> sparse.csr_array:
    """Return some of the real documents, or as many simulated ones as there are not of these.

    Simulated ones are mapped from files of the folder, so that memory holds no more of them than is read.
    """
    if rows <= vectors.shape[0]:
        return vectors[np.random.default_rng(seed).permutation(vectors.shape[0])[:rows]]
    types, lengths = {"data": np.float32, "indices": np.int32}, []
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in types}
        for block in Simulation(vectors).blocks(rows, seed):
            for name, file in files.items():
                getattr(block, name).astype(types[name]).tofile(file)
            lengths.append(np.diff(block.indptr))
    ends = np.append(0, np.cumsum(np.concatenate(lengths), dtype=np.int64))
    if ends[-1] > np.iinfo(np.int32).max:  # scipy would copy all positions into 64 bits
        raise ValueError(f"{rows:,} documents have {ends[-1]:,} weights, above 32 bits")
    data, indices = (np.asarray(np.memmap(folder / name, types[name], "r")) for name in types)
    return sparse.csr_array((data, indices, ends.astype(np.int32)), shape=(rows, vectors.shape[1]))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and the seconds that it took."""
    start = time.perf_counter()
    result = call()
    return result, round(time.perf_counter() - start, 2)


def index_search(queries: Any, documents: Any, folder: Path) -> Search:
    """Return a search by the index of the package, whose document ids are positions."""
    rows = documents.shape[0]
    ids = [str(row) for row in range(rows)]

    def build() -> InvertedIndex:
        if rows <= IN_MEMORY:
            return InvertedIndex.build(documents, ids)
        parts = (
            (documents[first : first + ROWS], ids[first : first + ROWS]) for first in range(0, rows, ROWS)
        )
        InvertedIndex.write(folder, parts, documents.shape[1], rows)
        return InvertedIndex.load(folder)

    InvertedIndex.build(documents[:64], ids[:64])  # compiles the construction before it is timed
    index, build_s = timed(build)

    def positions(hits: Any) -> list[list[int]]:
        return [[int(name) for name in row] for row in hits.ids]

    def call(k: int) -> Any:
        return index.search(queries, k)

    return Search("lexforge", "", queries.shape[0], call, positions, build_s, index.nbytes, True)


def scipy_search(queries: sparse.csr_array, documents: sparse.csr_array) -> Search:
    """Return a search by sparse products of scipy and a partial sort of their rows."""
    by_term, build_s = timed(lambda: sparse.csr_array(documents.T.tocsr()))

    def call(k: int) -> np.ndarray:
        best = []
        for start in range(0, queries.shape[0], CHUNK):
            scores = (queries[start : start + CHUNK] @ by_term).toarray()
            top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1)
            best.append(np.take_along_axis(top, order, axis=1))
        return np.concatenate(best)

    size = by_term.data.nbytes + by_term.indices.nbytes
    return Search("scipy", "", queries.shape[0], call, lambda found: found.tolist(), build_s, size, True)


def semantic_searches(queries: sparse.csr_array, documents: sparse.csr_array) -> Search:
    """Return the search of sentence-transformers over the tensors that its encoder returns."""

    def tensor(matrix: sparse.csr_array) -> torch.Tensor:
        coo = matrix.tocoo()
        indices = np.stack(coo.coords)
        return torch.sparse_coo_tensor(indices, coo.data, coo.shape, check_invariants=False).coalesce()

    few, corpus = tensor(queries[:SLOW_QUERIES]), tensor(documents)

    def positions(found: Any) -> list[list[int]]:
        return [[hit["corpus_id"] for hit in row] for row in found]

    def call(k: int) -> Any:
        return semantic_search(few, corpus, top_k=k, score_function=dot_score)

    return Search("semantic_search", "", few.shape[0], call, positions, 0.0, "", True)


def topn_search(queries: sparse.csr_array, documents: sparse.csr_array) -> Search:
    """Return a search by sparse_dot_topn on all threads."""
    from sparse_dot_topn import sp_matmul_topn

    right, build_s = timed(lambda: sparse.csr_matrix(documents.T.tocsr()))
    left, threads = sparse.csr_matrix(queries), numba.get_num_threads()

    def call(k: int) -> Any:
        return sp_matmul_topn(left, right, top_n=k, sort=True, n_threads=threads)

    def positions(found: Any) -> list[list[int]]:
        return [part.tolist() for part in np.split(found.indices, found.indptr[1:-1])]

    return Search("sparse_dot_topn", "", queries.shape[0], call, positions, build_s, "", True)


def seismic_searches(
    queries: sparse.csr_array, documents: sparse.csr_array, folder: Path
) -> Iterator[Search]:
    """Yield searches of one Seismic index, which stores weights in half precision.

    The index has the parameters that its authors recommend for SPLADE vectors.

    Source: Bruch, Nardini, Rulli and Venturini, "Efficient inverted indexes for approximate retrieval over
    learned sparse representations" (SIGIR 2024).
    """
    import seismic

    rows, threads = queries.shape[0], numba.get_num_threads()
    suffix = "LV" if documents.shape[1] > 2**16 else ""  # the plain classes name a term by 16 bits

    def build() -> Any:
        dataset = getattr(seismic, f"SeismicDataset{suffix}")(dim=documents.shape[1])
        names = [str(position) for position in range(documents.shape[0])]
        offsets = documents.indptr.astype(np.int64)
        dataset.add_documents_by_id(names, documents.indices.astype(np.int64), documents.data, offsets)
        return getattr(seismic, f"SeismicIndex{suffix}").build_from_dataset(
            dataset, n_postings=3500, centroid_fraction=0.1, summary_energy=0.4, num_threads=threads
        )

    index, build_s = timed(build)
    index.save(str(folder / "terms"))  # Seismic appends `.index.seismic`
    size = (folder / "terms.index.seismic").stat().st_size
    text, cuts = seismic.get_seismic_string(), queries.indptr[1:-1]  # its numpy type of strings
    asked = (
        np.flatnonzero(np.diff(queries.indptr)).astype(text),  # it refuses a query without a term
        [terms for terms in np.split(queries.indices.astype(text), cuts) if len(terms)],
        [weights for weights in np.split(queries.data, cuts) if len(weights)],
    )

    def positions(found: Any) -> list[list[int]]:
        hits: list[list[int]] = [[] for _ in range(rows)]
        for ranked in filter(None, found):  # of (query, score, document); the queries come in any order
            best_first = sorted(ranked, key=lambda hit: -hit[1])
            hits[int(ranked[0][0])] = [int(document) for _, _, document in best_first]
        return hits

    for terms, factor in SEISMIC:

        def call(k: int, terms: int = terms, factor: float = factor) -> Any:
            return index.batch_search(*asked, k=k, query_cut=terms, heap_factor=factor, num_threads=threads)

        setting = f"query_terms={terms} heap_factor={factor}"
        yield Search("seismic", setting, rows, call, positions, build_s, size, False)


def pisa_searches(queries: sparse.csr_array, documents: sparse.csr_array, folder: Path) -> Iterator[Search]:
    """Yield searches of PISA over weights of 8 bits, which it finds the best of exactly."""
    import pandas as pd

    scale, threads = documents.data.max() / 255, numba.get_num_threads()

    def build() -> Any:
        by_term = sparse.csr_array(documents.T.tocsr())
        np.divide(by_term.data, scale, out=by_term.data)  # in place, because nine million are 4.5 GB
        levels = np.maximum(np.rint(by_term.data, out=by_term.data), 1, out=by_term.data).astype(np.uint8)
        spans = {str(term): pair for term, pair in enumerate(itertools.pairwise(by_term.indptr))}
        postings = {
            term: (by_term.indices[first:last], levels[first:last])
            for term, (first, last) in sorted(spans.items())  # PISA looks a term up by halving
            if first < last
        }
        lengths = np.zeros(documents.shape[0], np.int64)
        for first in range(0, len(levels), PART):
            part = slice(first, first + PART)
            lengths += np.bincount(by_term.indices[part], levels[part], documents.shape[0]).astype(np.int64)
        index = pisa_index(folder, postings, dict(zip(map(str, range(len(lengths))), lengths, strict=True)))
        index.quantized(num_results=1, threads=threads)(frame[:1])  # compresses, and computes the bounds
        return index

    rows = [
        dict(zip(map(str, queries.indices[first:last]), queries.data[first:last].tolist(), strict=True))
        for first, last in itertools.pairwise(queries.indptr)
    ]
    frame = pd.DataFrame({"qid": [str(row) for row in range(len(rows))], "query_toks": rows})
    index, build_s = timed(build)
    size = pisa_bytes(folder)

    def positions(found: Any) -> list[list[int]]:
        hits: list[list[int]] = [[] for _ in rows]
        for row, name in zip(found.qid, found.docno, strict=True):
            hits[int(row)].append(int(name))
        return hits

    for algorithm in PISA:

        def call(k: int, algorithm: str = algorithm) -> Any:
            return index.quantized(num_results=k, threads=threads, query_algorithm=algorithm)(frame)

        yield Search("pisa", f"8-bit {algorithm}", len(rows), call, positions, build_s, size, False)


def bmp_search(queries: sparse.csr_array, documents: sparse.csr_array, folder: Path) -> Search:
    """Return a search by BMP over weights of 8 bits, on one thread, because a call takes a single query."""
    from bmp import Indexer, Searcher

    file, scale = folder / "index.bmp", documents.data.max() / 255
    levels = np.maximum(np.rint(documents.data / scale), 1).astype(int)

    def vectors(matrix: sparse.csr_array, values: np.ndarray) -> Iterator[dict[str, Any]]:
        for first, last in itertools.pairwise(matrix.indptr):
            yield dict(zip(map(str, matrix.indices[first:last]), values[first:last].tolist(), strict=True))

    def build() -> Any:
        indexer = Indexer(str(file), 8, True)
        for number, vector in enumerate(vectors(documents, levels)):
            indexer.add_document(str(number), vector)
        indexer.finish()
        return Searcher(str(file))

    searcher, build_s = timed(build)
    asked = list(vectors(queries, queries.data))

    def positions(found: Any) -> list[list[int]]:
        return [[int(name) for name in names] for names, _ in found]

    def call(k: int) -> Any:
        return [searcher.search(query, k, 1.0, 1.0) for query in asked]

    return Search("bmp", "8-bit", len(asked), call, positions, build_s, file.stat().st_size, False)


def searches(queries: Any, documents: Any, wanted: tuple[str, ...], folder: Path) -> Iterator[Search]:
    """Yield lexforge and then the other searches that are wanted; each is built when its turn comes."""
    index = folder / "index"
    yield index_search(queries, documents, index)
    shutil.rmtree(index, ignore_errors=True)  # the disk must hold the next one beside the documents
    makers: dict[str, tuple[str, Callable[[], Iterable[Search]]]] = {
        "scipy": ("scipy", lambda: [scipy_search(queries, documents)]),
        "semantic_search": ("torch", lambda: [semantic_searches(queries, documents)]),
        "sparse_dot_topn": ("sparse_dot_topn", lambda: [topn_search(queries, documents)]),
        "pisa": ("pyterrier_pisa", lambda: pisa_searches(queries, documents, folder)),
        "seismic": ("seismic", lambda: seismic_searches(queries, documents, folder)),
        "bmp": ("bmp", lambda: [bmp_search(queries, documents, folder)]),
    }
    for name, (package, make) in makers.items():
        if name in wanted and importlib.util.find_spec(package) is None:
            print(f"{name} is left out: {package} is not installed")
        elif name in wanted:
            yield from make()


def scores_of(found: list[list[int]], queries: Any, documents: Any) -> list[np.ndarray]:
    """Return the exact scores of each query's hits, which are positions of documents."""
    return [
        (documents[positions] @ queries[[row]].T).toarray().ravel() for row, positions in enumerate(found)
    ]


def bench(queries: Any, documents: Any, cfg: Config, folder: Path) -> None:
    """Append the rows of one corpus to the results; an exact search must find the k best first."""
    last: dict[int, np.ndarray] = {}  # k -> the exact score of each query's last hit
    for search in searches(queries, documents, cfg.searches, folder):
        for k in cfg.ks:
            scores = scores_of(search.positions(search.call(k)), queries, documents)
            last.setdefault(k, np.array([found.min() for found in scores]))  # lexforge comes first
            reach = last[k] * (1 - TOLERANCE)
            reached = sum(
                np.count_nonzero(found >= least) for found, least in zip(scores, reach, strict=False)
            )
            share = reached / (search.queries * k)
            if search.exact and (
                share != 1
                or not np.allclose([found.min() for found in scores], last[k][: len(scores)], TOLERANCE)
            ):
                raise AssertionError(f"{search.name} finds {share:.4f} of the {k} best of lexforge")
            time_and_peak = common.measure(functools.partial(search.call, k), cfg.repeats)
            common.append_rows(
                "index",
                [
                    {
                        "search": search.name,
                        "setting": search.setting,
                        "documents": documents.shape[0],
                        "active": round(documents.nnz / documents.shape[0], 1),
                        "queries": search.queries,
                        "query_active": round(queries.nnz / queries.shape[0], 1),
                        "k": k,
                        "threads": 1 if search.name == "bmp" else numba.get_num_threads(),
                        **time_and_peak,
                        "queries_per_s": round(search.queries / time_and_peak["median_s"], 1),
                        "recall": round(share, 4),
                        "build_s": search.build_s,
                        "index_bytes": search.nbytes,
                    }
                ],
            )
        del search  # the next index needs its memory


def main(cfg: Config) -> None:
    """Record the vectors if a model is given, then search corpora of each size."""
    if cfg.model is not None:
        record(cfg)
    documents, queries = read(cfg.vectors, "documents"), read(cfg.vectors, "queries")
    rng = np.random.default_rng(cfg.seed)
    queries = queries[np.sort(rng.permutation(queries.shape[0])[: cfg.queries])]
    for size in cfg.sizes:
        with TemporaryDirectory() as folder:
            bench(queries, documents_of_size(documents, size, cfg.seed, Path(folder)), cfg, Path(folder))


if __name__ == "__main__":
    main(tyro.cli(Config))
