"""How many documents of a collection activate each term of an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder

from lexforge.common.samples import evenly_spaced
from lexforge.corpus.encoding import encode

SAMPLE = 2000  # documents that are encoded at most


def active_document_frequency(
    model: SparseEncoder, documents: Sequence[str]
) -> tuple[NDArray[np.int64], int]:
    """Count in how many documents each term is active, over evenly spaced documents of the collection.

    Args:
        model: A SPLADE encoder.
        documents: The collection, one text per document; at least one. At most `SAMPLE` are encoded.

    Returns:
        `[V]` int64 and the number of documents that were encoded.

    Raises:
        ValueError: If there is no document.
    """
    if not documents:
        raise ValueError("there must be at least one document; received none")
    places = evenly_spaced(len(documents), SAMPLE)
    vectors = encode(model, [documents[place] for place in places], "document")  # CSR [sample, V]
    # A stored entry of a SPLADE vector is above 0, so the entries of a column count its documents.
    return np.bincount(vectors.indices, minlength=vectors.shape[1]).astype(np.int64), len(places)
