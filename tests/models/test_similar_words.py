"""Words that are spelled alike: the forms of a word, and not what merely shares an ending."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.models.similar_words import similar_words

TERMS = [
    "[CLS]", "[SEP]", "delete", "deleted", "deletes", "return", "returned", "returning", "##ed", "##ing",
    "##index", "index", "reading", "looking", "a", "of", "색인", "색인의",
]  # fmt: skip


def pairs(least: float) -> dict[tuple[str, str], float]:
    first, second, cosines = similar_words(TERMS, least)
    return {(TERMS[i], TERMS[j]): float(c) for i, j, c in zip(first, second, cosines, strict=True)}


def test_forms_of_a_word_are_found_in_both_orders() -> None:
    found = pairs(0.3)
    for one, other in [("delete", "deleted"), ("return", "returning"), ("index", "##index")]:
        assert found[one, other] == found[other, one] >= 0.3
    assert found["delete", "deletes"] > found["return", "returning"]  # a longer ending is less alike


def test_what_many_terms_have_makes_no_pair() -> None:
    """ "ing" is in four of the terms, and says less than a beginning."""
    found = pairs(0.3)
    assert ("reading", "looking") not in found
    assert ("##ing", "reading") not in found
    assert not {one for pair in found for one in pair} & {"[CLS]", "[SEP]", "a", "of"}


@pytest.mark.parametrize("least", [0.2, 0.5, 0.9])
def test_cosines_are_those_of_the_weighted_ngrams(least: float) -> None:
    """Against the definition, one pair at a time."""

    def grams(term: str) -> set[str]:
        if term[0] == "[":
            return set()
        marked = term[2:] + ">" if term.startswith("##") else f"<{term}>"
        return {marked[i:j] for i in range(len(marked)) for j in range(i + 3, i + 6) if j <= len(marked)}

    own = {term: grams(term) or ({f"{term}>"} if term[0] != "[" else set()) for term in TERMS}
    weight = {
        gram: np.log(len(TERMS) / sum(gram in other for other in own.values()))
        for one in own.values()
        for gram in one
    }
    norm = {term: sum(weight[gram] ** 2 for gram in grams) ** 0.5 for term, grams in own.items()}
    expected = {}
    for one in TERMS:
        for other in TERMS:
            shared = sum(weight[gram] ** 2 for gram in own[one] & own[other])
            if one != other and shared >= least * norm[one] * norm[other] > 0:
                expected[one, other] = shared / (norm[one] * norm[other])
    assert pairs(least) == pytest.approx(expected)


def test_a_vocabulary_of_special_tokens_has_no_pairs() -> None:
    first, second, cosines = similar_words(["[PAD]", "[CLS]"], 0.5)
    assert len(first) == len(second) == len(cosines) == 0
