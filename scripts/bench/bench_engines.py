"""Search engines over one corpus: what each finds, how fast, and how large it is, beside `InvertedIndex`.

    .venv-engines/bin/python scripts/bench/bench_engines.py --model MODEL --data FOLDER ... --results engines

The corpora and the judged queries of a split are encoded and exported by `lexforge.export` for each engine
that is installed (`make test-engines` installs them). Then each engine loads and searches them, one after the
other. Rows go to `results/engines.csv`: recall@10 against exact search, nDCG@10, queries per second, bytes,
and seconds to load. Each engine gets all queries at once where it takes batches. Lucene and PISA search on
one thread and PostgreSQL in one process.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numba
import tyro
from engine_runners import ENGINES, Engine, Ranked
from scipy import sparse

from lexforge.common.types import Qrels
from lexforge.corpus import EncodedCorpus, encode, encode_corpus
from lexforge.data import load_retrieval_data
from lexforge.evaluation import evaluate_run
from lexforge.export import VECTOR_TARGETS, Queries, export_vectors, term_names
from lexforge.models import load_encoder
from lexforge.retrieval import InvertedIndex


@dataclass(frozen=True)
class Config:
    """What is searched, by which model."""

    model: str
    data: tuple[Path, ...]  # folders in BEIR layout
    split: str = "test"
    max_seq_length: int = 128
    documents: int | None = None  # the first so many documents; None takes all
    queries: int | None = None  # the first so many judged queries; None takes all
    k: int = 10
    repeats: int = 3
    results: str | None = None  # the name of a file in results/; None only prints


@dataclass(frozen=True)
class Set:
    """One encoded set, whose exports lie in `folder`."""

    name: str
    folder: Path
    corpus: EncodedCorpus
    queries: Queries
    judged: Qrels


def prepare(cfg: Config, path: Path, folder: Path, engines: list[type[Engine]]) -> Set:
    """Encode one set, and export it for each engine."""
    data = load_retrieval_data(str(path), [cfg.split])
    chosen = dict(list(data.split_queries(cfg.split).items())[: cfg.queries])
    model = load_encoder(cfg.model, cfg.max_seq_length)
    documents = dict(list(data.corpus.items())[: cfg.documents])
    encode_corpus(model, documents, folder / "vectors", name="model")
    corpus = EncodedCorpus(folder / "vectors")
    asked = encode(model, list(chosen.values()), "query", show_progress_bar=True)
    queries = Queries(asked, list(chosen))
    for target in dict.fromkeys(engine.target for engine in engines):
        terms = term_names(model, corpus) if VECTOR_TARGETS[target].named else None
        export_vectors(corpus, folder / target, target, terms=terms, queries=queries)
    judged = {query: data.split(cfg.split)[query] for query in chosen}
    return Set(path.resolve().name, folder, corpus, queries, judged)


class Own:
    """`InvertedIndex`, searched as an engine is."""

    def __init__(self, data: Set) -> None:
        self.data = data

    def build(self) -> None:
        """Build the index in memory."""
        self.index = InvertedIndex.build(*self.data.corpus.merged(), self.data.corpus.manifest.similarity)

    def search(self, k: int) -> tuple[Ranked, float]:
        """Return the k best documents of each query, and the seconds that the search took."""
        start = time.perf_counter()
        hits = self.index.search(self.data.queries.vectors, k)
        seconds = time.perf_counter() - start
        return dict(zip(self.data.queries.ids, hits.ids, strict=True)), seconds

    def nbytes(self) -> int:
        """Return the bytes of the index."""
        return self.index.nbytes


def measure(cfg: Config, data: Set, engines: list[type[Engine]]) -> list[dict[str, Any]]:
    """Load and search one set by `InvertedIndex`, on all threads and on one, and by each engine."""
    documents, ids = data.corpus.merged()
    place = {document: i for i, document in enumerate(ids)}
    names, vectors = data.queries.ids, data.queries.vectors
    similarity = data.corpus.manifest.similarity
    exact = InvertedIndex.build(documents, ids, similarity).search(vectors, cfg.k)  # compiles, too
    least = [float(scores[-1]) if len(scores) else 0.0 for scores in exact.scores]

    def row(name: str, packages: str, engine: Own | Engine) -> dict[str, Any]:
        """Measure one engine; a hit counts if its exact score reaches that at rank k."""
        start = time.perf_counter()
        engine.build()
        build_s = time.perf_counter() - start
        found, _ = engine.search(cfg.k)
        seconds = [engine.search(cfg.k)[1] for _ in range(cfg.repeats)]
        reached = 0
        for i, query in enumerate(names):
            places = [place[document] for document in found.get(query, ())]
            scores = (documents[places] @ sparse.csr_array(vectors[[i]]).T).toarray().ravel()
            reached += int((scores >= least[i] * (1 - 1e-5)).sum())  # float32 sums differ in the last bits
        run = {query: {name: -float(rank) for rank, name in enumerate(hits)} for query, hits in found.items()}
        numbers = {
            "data": data.name,
            "engine": name,
            "packages": packages,
            "documents": len(ids),
            "active": round(documents.nnz / len(ids), 1),
            "queries": len(names),
            "k": cfg.k,
            "recall": round(reached / sum(map(len, exact.ids)), 4),
            "ndcg10": round(evaluate_run(run, data.judged, ["nDCG@10"])["nDCG@10"], 4),
            "queries_per_s": round(len(names) / statistics.median(seconds), 1),
            "min_s": round(min(seconds), 4),
            "max_s": round(max(seconds), 4),
            "build_s": round(build_s, 2),
            "index_bytes": engine.nbytes(),
            "command": "python scripts/bench/bench_engines.py " + shlex.join(sys.argv[1:]),
        }
        print("  ".join(f"{key}={value}" for key, value in numbers.items()), flush=True)
        return numbers

    rows, threads = [], numba.get_num_threads()
    for count in dict.fromkeys((threads, 1)):
        numba.set_num_threads(count)
        name = f"lexforge InvertedIndex, {count} thread" + "s" * (count > 1)
        rows.append(row(name, f"numba {version('numba')}", Own(data)))
    numba.set_num_threads(threads)
    for engine in engines:
        work = data.folder / f"{engine.name}-work"
        work.mkdir()
        searcher = engine(data.folder / engine.target, work)
        try:
            rows.append(row(engine.name, engine.versions(), searcher))
        finally:
            searcher.close()
    return rows


def main(cfg: Config) -> None:
    """Encode and export all sets, then measure them."""
    missing = {engine: engine.missing() for engine in ENGINES}
    for engine, reason in missing.items():
        if reason:
            print(f"{engine.name} is left out: {reason}")
    engines = [engine for engine, reason in missing.items() if not reason]
    with TemporaryDirectory() as folder:
        sets = [prepare(cfg, path, Path(folder) / str(i), engines) for i, path in enumerate(cfg.data)]
        print("all sets are encoded and exported; the measured part begins", flush=True)
        rows = [row for data in sets for row in measure(cfg, data, engines)]
    if cfg.results is not None:
        common.append_rows(cfg.results, rows)


if __name__ == "__main__":
    main(tyro.cli(Config))
