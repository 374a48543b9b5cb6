"""Negatives that a model mines once, before it is trained, into a file of ordinary training rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch.distributed as dist
from sentence_transformers.base.model import BaseModel

from lexforge.common.progress import Progress
from lexforge.common.ranks import from_first_rank, world_size
from lexforge.common.types import Run, TextKind
from lexforge.corpus import Vectors, encode, join_vectors
from lexforge.data import RetrievalData, read_training_rows, write_training_rows
from lexforge.models.load import check_encoder
from lexforge.negatives.rows import mined_columns
from lexforge.negatives.rule import NegativeMiner, NegativeRule
from lexforge.retrieval import build_exact
from lexforge.retrieval.base import Hits

logger = logging.getLogger(__name__)

Search: TypeAlias = Callable[[Any, int], Hits]
"""Finds the k best documents of each query, such as `BM25Index.search`."""
QUERIES = 4096  # that are searched at a time


def rankings(
    search: Search,
    queries: Mapping[str, Any],
    depth: int,
) -> Iterator[Run]:
    """Search queries in blocks of `QUERIES`, which bounds the memory of the rankings.

    Args:
        search: What ranks the documents.
        queries: Query id -> what `search` takes of a query: its text or its vector.
        depth: The number of documents of each ranking.

    Yields:
        The run of each block.
    """
    names = list(queries)
    with Progress(len(names), "Search", "queries") as progress:
        for start in range(0, len(names), QUERIES):
            block = names[start : start + QUERIES]
            yield search([queries[name] for name in block], depth).to_run(block)
            progress.update(len(block))


def mine_once(model: BaseModel, data: RetrievalData, rule: NegativeRule, path: Path) -> list[dict[str, Any]]:
    """Let a model rank the corpus for the queries of train, and write the rows that the rule makes of it.

    Every rank must call this. All ranks encode; the first one searches, chooses and writes. If the file is
    there already, which is so in a resumed run, its rows are taken and nothing is mined.

    Args:
        model: A SparseEncoder or a SentenceTransformer, whole on every rank.
        data: The retrieval set.
        rule: Which documents become negatives, without a `teacher_margin`.
        path: The file, as `write_training_rows` writes it; all ranks must see it.

    Returns:
        The rows of the file, which are the same on every rank.

    Raises:
        DataError: If a query has no positive, the corpus is too small to fill a row, or the file is broken.
    """
    if not from_first_rank(path.is_file):
        miner = NegativeMiner(data, rule)
        documents = _encode_by_ranks(model, list(data.corpus.values()), "document")
        vectors = _encode_by_ranks(model, list(miner.queries.values()), "query")

        def mine() -> None:
            index = build_exact(documents, list(data.corpus), check_encoder(model))
            places = {name: place for place, name in enumerate(miner.queries)}
            runs = rankings(lambda block, k: index.search(vectors[block], k), places, rule.last_rank)
            rows = [row for run in runs for row in miner.mine(run)]
            write_training_rows(path, mined_columns(miner, rows))
            logger.info("%s: %s", path.name, miner.summary(rows))

        from_first_rank(mine)
    return read_training_rows(path)


def _encode_by_ranks(model: BaseModel, texts: list[str], kind: TextKind) -> Vectors:
    """Let each rank encode its share; the first rank returns the vectors of all texts, the others theirs."""
    ranks = world_size()
    if ranks == 1 or len(texts) < ranks:
        return encode(model, texts, kind, show_progress_bar=True)
    rank = dist.get_rank()
    own = encode(model, texts[rank::ranks], kind, show_progress_bar=rank == 0)
    parts: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(own, parts, dst=0)
    if parts is None:
        return own
    # Rank r encoded the texts r, r + ranks, r + 2 * ranks and so on; put them back into their order.
    back = np.argsort(np.concatenate([np.arange(first, len(texts), ranks) for first in range(ranks)]))
    return join_vectors(parts)[back]
