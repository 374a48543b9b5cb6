"""Score listed (query, document) pairs with a teacher, for distillation or to filter negatives.

    lexforge score --teacher MODEL --rows mined.jsonl --output labelled.jsonl
    lexforge score --teacher MODEL --data FOLDER --run bm25.trec --output scores.tsv

MODEL is a `CrossEncoder`, a `SparseEncoder` or a dense `SentenceTransformer`; its files say which. The first
form writes the rows of `lexforge mine` with a `label`, and `lexforge train --negatives labelled.jsonl` trains
on them. The second form scores the judged documents of a split, and of a run the best `--depth` documents of
each query; `--teacher-scores scores.tsv` reads them in `lexforge train` and `lexforge mine`. Scores are kept
in a cache as they are computed: after a kill, run it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lexforge import data, evaluation, teachers
from lexforge.common.command_line import refuse_unread
from lexforge.settings import NO_PREFIX, SourceOptions
from lexforge.storage.files import check_output_file


@dataclass(frozen=True)
class Config:
    """The teacher, and the pairs that it scores."""

    teacher: str  # a folder, a run directory or a hub name
    output: Path  # with --rows JSON lines (.gz or .zst compresses), with --data a table in qrels format
    rows: Path | None = None  # training rows, as `lexforge mine` writes them
    data: str | None = None  # a folder in BEIR layout or another name that the recipes take
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    split: str = "train"  # of --data: whose queries and judged documents are scored
    run: Path | None = None  # with --data: a TREC run, whose best documents are scored as well
    depth: int = 50  # of --run: the number of documents per query
    batch_size: int = 32  # pairs or texts per forward pass
    max_seq_length: int | None = None  # in tokens; None keeps what the model was saved with
    m3_weights: tuple[float, float, float] | None = None  # of BGE-M3's dense, sparse and several vectors
    cache: Path | None = None  # the folder of the scores; None takes the teacher's own in the user's cache


def main(cfg: Config) -> None:
    """Read the pairs, score them, write the scores."""
    if (cfg.rows is None) == (cfg.data is None):
        raise ValueError("pass either --rows or --data: one of them lists the pairs")
    if cfg.data is None:
        refuse_unread(cfg, ["source", "split", "run", "depth"], "the pairs are those of --rows")
    elif cfg.run is None:
        refuse_unread(cfg, ["depth"], "it is the depth of --run")
    check_output_file(cfg.output)
    # The pairs are read before the teacher is loaded: a wrong file fails at once.
    if cfg.rows is not None:
        rows = data.read_training_rows(cfg.rows)
        pairs = teachers.row_pairs(rows)
    elif cfg.data is not None:
        retrieval = data.load_retrieval_data(cfg.data, [cfg.split], cfg.source)
        run = None
        if cfg.run is not None:
            run = evaluation.read_run_of_split(cfg.run, retrieval, cfg.split)
        ids = teachers.listed_pairs(retrieval, cfg.split, run, cfg.depth)
        pairs = [(retrieval.queries[query], retrieval.corpus[document]) for query, document in ids]
    scorer = teachers.load_scorer(
        cfg.teacher,
        batch_size=cfg.batch_size,
        max_seq_length=cfg.max_seq_length,
        m3_weights=cfg.m3_weights,
    )
    scores = teachers.score_pairs(scorer, pairs, cfg.cache)
    if cfg.rows is not None:
        data.write_training_rows(cfg.output, teachers.label_rows(rows, scores))
    else:
        triples = ((*names, scores[pair]) for names, pair in zip(ids, pairs, strict=True))
        data.write_teacher_scores(cfg.output, triples)
    print(f"{len(pairs)} pairs scored by {cfg.teacher}: {cfg.output}")
