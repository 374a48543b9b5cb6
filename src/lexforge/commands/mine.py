"""Mine hard negatives for a split and write the trainer's columns, which `lexforge train` reads.

    lexforge mine --data FOLDER --model MODEL --output mined.jsonl --max-seq-length 128
    lexforge train --data FOLDER --model MODEL --negatives mined.jsonl

MODEL ranks the corpus for each query. It is a saved `SparseEncoder` or `SentenceTransformer`, a bare masked
language model, or `bm25`. In its place, `--run` takes a ranking that was made elsewhere, in TREC format. With
a teacher, documents that it scores nearly as high as the positive are left out. A cross-encoder, a
`MultiVectorEncoder` or a SPLADE encoder scores every document between the two ranks as a pair. The same
command always writes the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lexforge import corpus, data, evaluation, models, negatives, retrieval, teachers
from lexforge.common.command_line import refuse_unread
from lexforge.common.types import DataError, Run
from lexforge.negatives import NEGATIVE_RULE, NegativeRule
from lexforge.settings import BM25, NO_PREFIX, SourceOptions
from lexforge.storage.files import check_output_file

if TYPE_CHECKING:
    from lexforge.negatives.mining import Search


@dataclass(frozen=True)
class Config:
    """What ranks the documents, and which of them become negatives."""

    data: str  # a folder in BEIR layout or another name that the recipes take
    output: Path  # JSON lines of anchor, positive, negative_1 to negative_n; .gz or .zst compresses
    model: str | None = None  # a folder, a run directory, a name on the hub, or `bm25`
    run: Path | None = None  # a TREC run of the split's queries, in the place of a model
    split: str = "train"
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    rule: Annotated[NegativeRule, NO_PREFIX] = NEGATIVE_RULE
    # For --teacher-margin: `bm25`, `lsa`, `lsa-char`, or a dense, sparse, multi-vector or cross-encoder.
    teacher: str | None = None
    teacher_scores: Path | None = None  # precomputed scores in qrels format, in the place of a teacher
    teacher_cache: Path | None = None  # keeps what the teacher computes; None takes the user's cache
    max_seq_length: int | None = None  # tokens after which a text is cut; None keeps the model's own limit
    batch_size: int = 32  # texts per forward pass
    cache_dir: Path | None = None  # keeps the vectors of the corpus for the next call with the same model


def searcher(cfg: Config, name: str, loaded: data.RetrievalData) -> Search:
    """Return the function that ranks the corpus for query texts, by BM25 or by an encoder."""
    ids, texts = list(loaded.corpus), list(loaded.corpus.values())
    if name == "bm25":
        return retrieval.BM25Index.build(texts, ids, show_progress_bar=True).search
    model = models.load_encoder(name, cfg.max_seq_length)
    similarity = models.check_encoder(model)
    encoder = corpus.CorpusEncoder(texts, cfg.batch_size, cfg.cache_dir)
    index = retrieval.build_exact(encoder.encode(model, show_progress_bar=True)[0], ids, similarity)

    def search(block: list[str], k: int) -> retrieval.Hits:
        return index.search(corpus.encode(model, block, "query", batch_size=cfg.batch_size), k)

    return search


def ranked_blocks(cfg: Config, miner: negatives.NegativeMiner) -> Iterable[Run]:
    """Return the runs of the split's queries, block by block."""
    if cfg.run is None:
        search = searcher(cfg, str(cfg.model), miner.data)
        return negatives.rankings(search, miner.queries, cfg.rule.last_rank)
    run = evaluation.read_run_of_split(cfg.run, miner.data, cfg.split)
    return [{query: run.get(query, {}) for query in miner.queries}]


def scorer(cfg: Config, miner: negatives.NegativeMiner) -> Callable[[Any], Any] | None:
    """Return the function that scores the documents of a run by the teacher, or None without a teacher."""
    loaded = miner.data
    if cfg.teacher_scores is not None:
        scores = data.load_teacher_scores(cfg.teacher_scores, loaded)
        return lambda run: scores
    if cfg.teacher is None:
        return None
    teacher = teachers.load_teacher(cfg.teacher, list(loaded.corpus.values()))
    score = teachers.candidate_scorer(teacher, miner.queries, loaded.corpus, cfg.teacher_cache)
    return lambda run: score(miner.candidates(run))


def main(cfg: Config) -> None:
    """Rank the corpus for each query, choose the negatives and write them."""
    if (cfg.model is None) == (cfg.run is None):
        raise ValueError(f"pass either --model or --run; received {cfg.model!r} and {cfg.run}")
    if cfg.teacher is not None and cfg.teacher_scores is not None:
        raise ValueError(f"pass --teacher or --teacher-scores; received both, {cfg.teacher!r} and a file")
    if (cfg.rule.teacher_margin is None) != (cfg.teacher is None and cfg.teacher_scores is None):
        raise ValueError(
            "--teacher-margin and a teacher (--teacher or --teacher-scores) need each other; received margin "
            f"{cfg.rule.teacher_margin}, teacher {cfg.teacher!r}, scores {cfg.teacher_scores}"
        )
    if cfg.teacher is None:
        refuse_unread(cfg, ["teacher_cache"], "it keeps the embeddings of a --teacher")
    elif cfg.teacher == BM25:
        refuse_unread(cfg, ["teacher_cache"], f"the teacher {BM25} scores texts as they come")
    if cfg.model in (None, BM25):
        unread = ["cache_dir", "max_seq_length", "batch_size"]
        refuse_unread(cfg, unread, "only a --model that encodes the texts reads it")
    check_output_file(cfg.output)
    loaded = data.load_retrieval_data(cfg.data, [cfg.split], cfg.source)
    miner = negatives.NegativeMiner(loaded, cfg.rule, cfg.split)
    score = scorer(cfg, miner)
    rows = []
    for run in ranked_blocks(cfg, miner):
        rows += miner.mine(run, score(run) if score else None)
    if not rows:
        raise DataError(f"{cfg.data}, split {cfg.split!r}: no row is left to write: {miner.summary(rows)}")
    data.write_training_rows(cfg.output, negatives.mined_columns(miner, rows))
    print(miner.summary(rows))
