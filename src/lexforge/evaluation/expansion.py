"""The own terms of texts and their expansion: what a sparse encoder adds to the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from scipy import sparse
from sentence_transformers import SparseEncoder

from lexforge.corpus.own_tokens import own_token_ids


def keep_own_terms(model: SparseEncoder, vectors: sparse.csr_array, texts: Sequence[str]) -> sparse.csr_array:
    """Drop every active term that is not a token of its text; what is left searches as a bag of words does.

    Args:
        model: The encoder that made the vectors.
        vectors: `[N, V]` CSR, the vectors of the texts.
        texts: N texts. Tokens beyond the model's `max_seq_length` do not count.

    Returns:
        `[N, V]` CSR with the weights of the own terms as they are.
    """
    rows = own_token_ids(model, texts)
    columns = list(chain.from_iterable(rows))
    ends = np.cumsum([0, *map(len, rows)])
    tokens = sparse.csr_array((np.ones(len(columns), np.float32), columns, ends), shape=vectors.shape)
    tokens.sum_duplicates()
    tokens.data[:] = 1.0  # a token that is repeated is one term
    return sparse.csr_array(vectors.multiply(tokens))


def expansion_share(own: sparse.csr_array, vectors: sparse.csr_array) -> float:
    """Return the share of the active terms of all texts that are not tokens of their text, from 0 to 1.

    Args:
        own: `[N, V]` CSR, what `keep_own_terms` has left.
        vectors: `[N, V]` CSR, all active terms; where there are none, the share is 0.
    """
    return 1 - int(own.count_nonzero()) / max(int(vectors.count_nonzero()), 1)
