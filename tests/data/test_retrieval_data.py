"""The retrieval set itself: its splits, and queries held out of one."""

from __future__ import annotations

import pytest

from lexforge.data import RetrievalData, sample_corpus

DATA = RetrievalData(
    "toy",
    {"d1": "one", "d2": "two"},
    {f"q{number}": f"question {number}" for number in range(400)},
    {"train": {f"q{number}": {"d1": 1} for number in range(400)}},
)


def test_an_unknown_split_names_those_that_exist() -> None:
    """A wrong split must stop before training, with the choice."""
    with pytest.raises(ValueError, match=r"toy has no split 'dev'; its splits are \['train'\]"):
        DATA.split("dev")
    with pytest.raises(ValueError, match="no split"):
        DATA.split_queries("dev")


def test_split_queries_are_those_judged() -> None:
    """Queries without judgements are kept in the set and not evaluated."""
    data = RetrievalData("toy", {"d1": "one"}, {"q1": "a", "q2": "b"}, {"test": {"q2": {"d1": 1}}})
    assert data.split_queries("test") == {"q2": "b"}


def test_hold_out_parts_the_queries() -> None:
    """Every query falls to exactly one split, about as many as asked, the same ones each time."""
    parts = DATA.hold_out({"dev": 0.1, "test": 0.2}, needed=["dev", "test"])
    ids = [query_id for split in parts.splits for query_id in parts.split(split)]
    assert sorted(ids) == sorted(DATA.queries)
    # Three standard deviations of a binomial draw of 400: 18 and 24.
    assert abs(len(parts.split("dev")) - 40) < 18
    assert abs(len(parts.split("test")) - 80) < 24
    assert parts == DATA.hold_out({"dev": 0.1, "test": 0.2}, needed=["dev", "test"])
    assert DATA.splits == ("train",)


def test_equal_queries_stay_together() -> None:
    """The same question on two sides would leak."""
    data = RetrievalData(
        "toy",
        {"d1": "one"},
        {f"q{number}": f"question {number % 20}" for number in range(200)},
        {"train": {f"q{number}": {"d1": 1} for number in range(200)}},
    )
    parts = data.hold_out({"test": 0.4}, needed=["test"])
    texts = {split: set(parts.split_queries(split).values()) for split in parts.splits}
    assert not texts["train"] & texts["test"]


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ({"dev": 0.5, "test": 0.5}, "sum to less than 1"),
        ({"dev": 0.0}, "above 0"),
        ({"train": 0.1}, "already"),
        ({"dev": 1e-9}, "no query of the split 'train' falls to 'dev'"),
    ],
)
def test_hold_out_refuses_what_leaves_a_split_empty(fractions: dict[str, float], message: str) -> None:
    """An empty test split would be found only after training."""
    with pytest.raises(ValueError, match=message):
        DATA.hold_out(fractions, needed=list(fractions))


def small_set() -> RetrievalData:
    corpus = {f"d{i}": f"text {i}" for i in range(20)}
    qrels = {"train": {"q0": {"d0": 1}}, "test": {"q1": {"d5": 1, "d6": 0}}, "dev": {"q2": {"d7": 1}}}
    return RetrievalData("small", corpus, {f"q{i}": f"query {i}" for i in range(3)}, qrels)


def test_a_sample_of_the_corpus_keeps_what_is_judged() -> None:
    """A relevant document that is missing could never be found, and the measure would fall for no reason."""
    sample = sample_corpus(small_set(), 8, ["test", "dev"])
    assert len(sample.corpus) == 8
    assert {"d5", "d6", "d7"} <= sample.corpus.keys()
    assert list(sample.corpus) == sorted(sample.corpus, key=lambda name: int(name[1:])), "the order stays"
    assert sample.splits == ("test", "dev")
    assert sample == sample_corpus(small_set(), 8, ["test", "dev"]), "each call draws the same documents"
    assert set(sample_corpus(small_set(), 2, ["test", "dev"]).corpus) == {"d5", "d6", "d7"}
    assert sample_corpus(small_set(), None, ["test"]).corpus == small_set().corpus
    assert len(sample_corpus(small_set(), 99, ["test"]).corpus) == 20
    with pytest.raises(ValueError, match="at least 1 document; received 0"):
        sample_corpus(small_set(), 0, ["test"])
    with pytest.raises(ValueError, match="no split 'validation'"):
        sample_corpus(small_set(), 5, ["validation"])
