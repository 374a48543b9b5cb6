"""The sample of texts whose terms are counted: given texts first, then those of the training rows."""

from __future__ import annotations

from lexforge.common.types import TextKind
from lexforge.sparsity.sample import sample_texts

GIVEN = [f"given {place}" for place in range(700)]


def trained() -> dict[TextKind, list[str]]:
    """What the rows of a training hold: some of the given texts, and many others."""
    others = [f"trained {place}" for place in range(9000)]
    return {"query": [*GIVEN[:20], *others], "document": [*GIVEN[:20], *others]}


def refused() -> dict[TextKind, list[str]]:
    raise AssertionError("the rows are not needed")


def test_enough_given_texts_are_the_sample_alone() -> None:
    """A model has other numbers of terms for texts that it was trained on, and rows may be long to read."""
    sample = sample_texts({"query": GIVEN, "document": GIVEN[:500]}, refused, seed=0)
    assert sample == {"query": GIVEN, "document": GIVEN[:500]}
    few = sample_texts({"query": GIVEN, "document": GIVEN}, refused, most=128, seed=0)
    assert len(set(few["document"])) == 128
    assert set(few["document"]) <= set(GIVEN)
    assert few["document"] != few["query"]


def test_few_given_texts_are_filled_up_and_none_are_replaced() -> None:
    """A mean of few texts is further off than that of the rows; each text counts once."""
    sample = sample_texts({"document": GIVEN[:40]}, trained, seed=0)
    assert sample["document"][:40] == GIVEN[:40]
    assert len(set(sample["document"])) == len(sample["document"]) == 500
    assert len(set(sample["query"])) == 3000
    assert sample == sample_texts({"document": GIVEN[:40]}, trained, seed=0)
    assert sample != sample_texts({"document": GIVEN[:40]}, trained, seed=1)
