"""How well and how fast an exported model retrieves."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import sparse
from sentence_transformers import SparseEncoder
from torch import Tensor

from lexforge.common.types import TextKind
from lexforge.data import RetrievalData
from lexforge.evaluation import evaluate_run
from lexforge.export.models.check import Written
from lexforge.export.models.sides import EncodedSide, read_sides, reference_vectors
from lexforge.models import check_encoder, fuse_splade_head
from lexforge.retrieval import InvertedIndex

BATCH = 32
METRIC = "nDCG@10"


def measure_export(
    model: SparseEncoder, written: Sequence[Written] | None, data: RetrievalData, split: str
) -> dict[str, float]:
    """Encode a corpus and the queries of a split, search exactly, and measure.

    Args:
        model: The encoder.
        written: Its export; None measures the encoder itself.
        data: The retrieval set.
        split: The split whose queries are searched.

    Returns:
        `nDCG@10`, and `documents_per_second`: documents of the corpus per second of encoding, in batches of
        32 texts of similar length.
    """
    if written is None and all(
        side.pooling == "max" for side in read_sides(model) if isinstance(side, EncodedSide)
    ):
        model = fuse_splade_head(copy.deepcopy(model))  # as the package encodes
    queries = data.split_queries(split)
    documents, seconds = _encode(model, written, list(data.corpus.values()), "document")
    asked, _ = _encode(model, written, list(queries.values()), "query")
    index = InvertedIndex.build(documents, list(data.corpus), similarity=check_encoder(model))
    run = index.search(asked, k=10).to_run(list(queries))
    found = evaluate_run(run, data.split(split), [METRIC])
    return found | {"documents_per_second": len(data.corpus) / seconds}


def _encode(
    model: SparseEncoder, written: Sequence[Written] | None, texts: list[str], kind: TextKind
) -> tuple[sparse.csr_array, float]:
    """Return the vectors `[N, V]` in the order of the texts, and the seconds that the runtime took."""
    run: Callable[[Sequence[str]], Tensor]
    if written is None:
        run, prompt = partial(reference_vectors, model, kind=kind), ""  # it adds the prompt itself
    else:
        side = next(each for each in written if kind in each.side.kinds)
        run, prompt = side.load(), side.side.prompts[kind]
    order = np.argsort([-len(text) for text in texts], kind="stable")
    rows = []
    seconds = 0.0
    for start in range(0, len(texts), BATCH):
        batch = [texts[place] for place in order[start : start + BATCH]]
        began = time.perf_counter()
        found = run([prompt + text for text in batch])
        seconds += time.perf_counter() - began
        rows.append(sparse.csr_array(found.numpy()))
    return sparse.csr_array(sparse.vstack(rows, format="csr"))[np.argsort(order)], seconds
