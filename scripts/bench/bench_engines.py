"""Search engines over one corpus: what each finds, how fast, and how large it is, beside `InvertedIndex`.

    .venv-engines/bin/python scripts/bench/bench_engines.py --model MODEL --data FOLDER --results engines

The corpus and the judged queries of a split are encoded, exported by `lexforge.export` for each engine that
is installed (`make test-engines` installs them), and searched in one run. Rows go to `results/engines.csv`:
recall@10 against exact search, nDCG@10, queries per second, bytes, and seconds to load. Each engine gets all
queries at once where it takes batches. Lucene and PISA search on one thread, the others as they come.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import common
import numba
import tyro
from engine_runners import ENGINES, Found
from scipy import sparse

from lexforge.corpus import EncodedCorpus, encode, encode_corpus
from lexforge.data import load_beir
from lexforge.evaluation import evaluate_run
from lexforge.export.vectors import VECTOR_TARGETS, export_vectors, term_names
from lexforge.export.vectors_survey import Queries
from lexforge.models import load_encoder
from lexforge.retrieval import InvertedIndex


@dataclass(frozen=True)
class Config:
    """What is searched, by which model."""

    model: str
    data: Path  # a folder in BEIR layout
    split: str = "test"
    max_seq_length: int = 128
    documents: int | None = None  # the first so many documents; None takes all
    queries: int | None = None  # the first so many judged queries; None takes all
    k: int = 10
    repeats: int = 3
    results: str | None = None  # the name of a file in results/; None only prints


def ranked(found: Found) -> dict[str, dict[str, float]]:
    """Return what an engine found as a run, whose scores are the ranks from below."""
    return {query: {name: -float(i) for i, name in enumerate(names)} for query, names in found.items()}


def main(cfg: Config) -> None:
    """Encode, export, and search by every engine in turn."""
    data = load_beir(cfg.data, splits=[cfg.split])
    qrels = data.split(cfg.split)
    chosen = list(data.split_queries(cfg.split).items())[: cfg.queries]
    corpus = dict(list(data.corpus.items())[: cfg.documents])
    model = load_encoder(cfg.model, cfg.max_seq_length)
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        encode_corpus(model, corpus, folder / "vectors", name="model", show_progress_bar=True)
        stored = EncodedCorpus(folder / "vectors")
        terms = term_names(model, stored)
        asked = encode(model, [text for _, text in chosen], "query", show_progress_bar=True)
        queries = Queries(asked, [query for query, _ in chosen])
        documents, ids = stored.merged()
        judged = {query: qrels[query] for query in queries.ids}

        start = time.perf_counter()
        index = InvertedIndex.build(documents, ids, stored.manifest.similarity)
        build_s = time.perf_counter() - start
        exact = index.search(asked, cfg.k)
        seconds = []
        for _ in range(cfg.repeats):
            start = time.perf_counter()
            index.search(asked, cfg.k)
            seconds.append(time.perf_counter() - start)
        kth = [float(scores[-1]) if len(scores) else 0.0 for scores in exact.scores]
        wanted = sum(len(names) for names in exact.ids)
        place = {document: i for i, document in enumerate(ids)}

        def row(
            engine: str, versions: str, found: Found, seconds: list[float], build_s: float, size: int
        ) -> None:
            """Append the numbers of one engine; a hit counts if its exact score reaches that at rank k."""
            reached = 0
            for i, query in enumerate(queries.ids):
                places = [place[document] for document in found[query]]
                scores = (documents[places] @ sparse.csr_array(asked[[i]]).T).toarray().ravel()
                reached += int((scores >= kth[i] * (1 - 1e-5)).sum())
            quality = evaluate_run(ranked(found), judged, ["nDCG@10"])["nDCG@10"]
            middle = statistics.median(seconds)
            rows.append(
                {
                    "data": cfg.data.resolve().name,
                    "engine": engine,
                    "packages": versions,
                    "documents": len(ids),
                    "active": round(documents.nnz / len(ids), 1),
                    "queries": len(queries.ids),
                    "k": cfg.k,
                    "recall": round(reached / wanted, 4),
                    "ndcg10": round(quality, 4),
                    "queries_per_s": round(len(queries.ids) / middle, 1),
                    "min_s": round(min(seconds), 4),
                    "max_s": round(max(seconds), 4),
                    "build_s": round(build_s, 2),
                    "index_bytes": size,
                }
            )
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)

        found = dict(zip(queries.ids, exact.ids, strict=True))
        threads = f"{numba.get_num_threads()} threads"
        row("lexforge InvertedIndex", threads, found, seconds, build_s, index.nbytes)
        for engine in ENGINES:
            if reason := engine.missing():
                print(f"{engine.name} is left out: {reason}")
                continue
            export, work = folder / engine.target, folder / f"{engine.name}-work"
            if not export.exists():
                named = terms if VECTOR_TARGETS[engine.target].named else None
                export_vectors(stored, export, engine.target, terms=named, queries=queries)
            work.mkdir()
            searcher = engine(export, work)
            try:
                start = time.perf_counter()
                searcher.build()
                build_s = time.perf_counter() - start
                found, _ = searcher.search(cfg.k)
                seconds = [searcher.search(cfg.k)[1] for _ in range(cfg.repeats)]
                row(engine.name, engine.versions(), found, seconds, build_s, searcher.nbytes())
            finally:
                searcher.close()
    if cfg.results is not None:
        common.append_rows(cfg.results, rows)


if __name__ == "__main__":
    main(tyro.cli(Config))
