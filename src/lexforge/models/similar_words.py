"""Which terms of a vocabulary are spelled alike, such as the forms of a word."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array

_LENGTHS = range(3, 6)  # of the character n-grams, as in fastText
_AT_ONCE = 2000  # terms that are compared with all others; all at once would take gigabytes


def similar_words(
    terms: Sequence[str], least: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Find the pairs of terms that share most of their character n-grams.

    A term is compared as its set of n-grams of three to five characters, its marked start and end included.
    An n-gram weighs the more, the fewer terms have it: "ing" says little.

    Args:
        terms: WordPiece terms: "##" begins a piece that goes on with a word, "[" and "]" enclose a special
            token, which is like no other.
        least: Pairs with a smaller cosine are left out; above 0.

    Returns:
        The first and the second terms of the pairs, `[P] int64`, in both orders, and their cosines,
        `[P] float32`.

    Source: Bojanowski et al., "Enriching Word Vectors with Subword Information" (arXiv 1607.04606), section
    3.2, for the n-grams.
    """
    grams = [_ngrams(term) for term in terms]
    frequency = Counter(gram for own in grams for gram in own)
    column = {gram: number for number, gram in enumerate(frequency)}
    weights = np.array([math.log(len(terms) / count) for count in frequency.values()])
    columns = np.array([column[gram] for own in grams for gram in sorted(own)], np.int64)
    starts = np.cumsum([0, *map(len, grams)])
    rows = csr_matrix((weights[columns], columns, starts), (len(terms), len(column)))
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    rows = csr_matrix(diags_array(1 / np.where(norms > 0, norms, 1.0)) @ rows)
    pairs = []
    for start in range(0, len(terms), _AT_ONCE):
        block = (rows[start : start + _AT_ONCE] @ rows.T).tocoo()
        kept = (block.data >= least) & (block.row + start != block.col)
        pairs.append((block.row[kept] + start, block.col[kept], block.data[kept]))
    first, second, cosines = map(np.concatenate, zip(*pairs, strict=True))
    return first.astype(np.int64), second.astype(np.int64), cosines.astype(np.float32)


def _ngrams(term: str) -> set[str]:
    if term.startswith("[") and term.endswith("]"):
        return set()
    marked = term[2:] + ">" if term.startswith("##") else f"<{term}>"
    found = {marked[at : at + n] for n in _LENGTHS for at in range(len(marked) - n + 1)}
    return found or {marked}
