"""How well the teachers of `lexforge adapt` rank, alone and averaged, on judged queries of dev.

    python scripts/bench/bench_teachers.py --data ../shared/data --sets scifact newwiki \
        --model ../shared/models/splade-tiny --teachers MINILM

Each teacher orders the union of the best 100 documents of BM25 and of the model, which is what a student can
learn from it. `start` is the model. Several are averaged in units of their spread over each query, as
`lexforge adapt` does. Rows go to results/teachers.csv, one per set and group of teachers.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

from common import append_rows

from lexforge import adapt, corpus, data, evaluation, models, retrieval, teachers

MEASURES = ("nDCG@10", "R@100")
DEPTH = 100


def measure(name: str, args: argparse.Namespace) -> None:
    """Append the rows of one set."""
    judged = data.load_retrieval_data(str(Path(args.data) / name), [args.split])
    texts = {key: text for key, text in judged.corpus.items() if text.strip()}
    queries = judged.split_queries(args.split)
    model = models.load_encoder(args.model, args.length)
    words = retrieval.BM25Index.build(list(texts.values()), list(texts))
    bm25 = words.search(list(queries.values()), DEPTH).to_run(list(queries))
    documents = corpus.encode(model, list(texts.values()), "document", show_progress_bar=True)
    index = retrieval.build_exact(documents, list(texts), models.check_encoder(model))
    vectors = corpus.encode(model, list(queries.values()), "query")
    start = index.search(vectors, DEPTH).to_run(list(queries))
    pools = adapt.candidate_pools([bm25, start], queries, {}, 2 * DEPTH)
    scores = {
        "start": adapt.scores_in_index(index, vectors, pools),
        "bm25": adapt.scores_in_index(words.index, words.query_vectors(list(queries.values())), pools),
    }
    for teacher in args.teachers:
        label = args.labels.get(teacher, Path(teacher).name)
        loaded = teachers.load_teacher(teacher, list(texts.values()))
        scores[label] = teachers.candidate_scorer(loaded, queries, texts)(pools)
    for number in range(1, len(scores) + 1):
        for names in combinations(scores, number):
            run = teachers.average_in_spreads([scores[each] for each in names])
            found = evaluation.evaluate_run(run, judged.split(args.split), MEASURES)
            row = {"set": name, "split": args.split, "model": Path(args.model).name, "length": args.length}
            row |= {"teachers": " ".join(names), **{key: round(value, 4) for key, value in found.items()}}
            append_rows("teachers", [row])


def main() -> None:
    """Measure all sets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of folders in BEIR layout")
    parser.add_argument("--model", required=True, help="the start")
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument(
        "--teachers", nargs="*", default=[], help="as --teacher of lexforge adapt; NAME=PATH names one"
    )
    parser.add_argument("--split", default="dev")
    parser.add_argument("--length", type=int, default=128, help="tokens per text of the model")
    args = parser.parse_args()
    named = [teacher.rpartition("=")[::2] for teacher in args.teachers]
    args.teachers, args.labels = [path for _, path in named], {path: name for name, path in named if name}
    for name in args.sets:
        measure(name, args)


if __name__ == "__main__":
    main()
