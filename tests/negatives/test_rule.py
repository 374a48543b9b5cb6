"""Mining beside a naive search, the filters worked by hand, and what may never be a negative."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.data import DataError, RetrievalData
from lexforge.negatives import NegativeMiner, NegativeRule

CORPUS = {name: f"text of {name}" for name in "abcdefghij"}
DATA = RetrievalData(
    "sample",
    CORPUS,
    {"q": "a question", "r": "another", "s": "a question", "other": "unused"},
    {"train": {"q": {"c": 1, "j": 0}, "r": {"a": 2, "b": 1}, "s": {"e": 1}}, "test": {"other": {"a": 1}}},
)
# Scores 10, 9, .. 1 for a .. j.
RUN = {"q": {name: 10.0 - place for place, name in enumerate(CORPUS)}}


def mine(run=RUN, data: RetrievalData = DATA, teacher=None, **rule):
    return NegativeMiner(data, NegativeRule(**rule)).mine(run, teacher)


def negatives(**options) -> str:
    """The negatives of q's only row, as one word."""
    (row,) = mine(**options)
    assert (row.query, row.positive) == ("q", "c")
    return "".join(row.negatives[: row.mined])


def test_the_window_counts_every_rank() -> None:
    """Ranks 2 to 7 are b .. g; c is the positive, e that of a query of the same text; j no answer."""
    assert negatives(per_row=4, first_rank=2, last_rank=7, choice="top") == "bdfg"
    assert negatives(per_row=6, first_rank=1, last_rank=8, choice="top") == "abdfgh"
    assert negatives(per_row=1, first_rank=10, last_rank=99, choice="top") == "j"


def test_the_order_is_that_of_the_scores_and_ties_keep_the_runs() -> None:
    """A run file's lines may stand in any order."""
    run = {"q": {"d": 1.0, "a": 2.0, "f": 3.0, "b": 2.0, "c": 0.5}}
    assert negatives(run=run, per_row=4, choice="top") == "fabd"


def test_the_margin_is_a_share_of_the_positives_score() -> None:
    """c scores 8: with a margin of a quarter a negative may score 6 (e, not allowed here), 5 (f) and less."""
    assert negatives(per_row=2, margin=0.25, choice="top", last_rank=7) == "fg"
    assert negatives(per_row=2, margin=0.0, choice="top", last_rank=4) == "d"
    absent = {"q": {name: score for name, score in RUN["q"].items() if name != "c"}}
    assert negatives(run=absent, per_row=2, margin=0.0) == ""
    below_zero = {"q": {"c": -4.0, "d": -4.5, "f": -5.0}}
    assert negatives(run=below_zero, per_row=2, margin=0.25, choice="top") == "f"  # -4 - .25 * 4 = -5


def test_a_teacher_takes_out_what_it_takes_for_an_answer() -> None:
    """The teacher gives c .8 and a margin of .1: .72 is the limit."""
    teacher = {"q": {"c": 0.8, "a": 0.73, "b": 0.72, "d": 0.9, "f": -1.0}}
    options = {"teacher": teacher, "teacher_margin": 0.1, "choice": "top"}
    assert negatives(per_row=2, last_rank=6, **options) == "bf"
    with pytest.raises(DataError, match="query 'q': there is no teacher score for the document 'g'"):
        mine(last_rank=7, **options)


def test_rows_stand_for_pairs_and_never_hold_a_positive_of_the_query() -> None:
    """r has two positives: two rows, and neither answer is a negative of the other."""
    run = {"r": dict.fromkeys("abcd", 1.0), **RUN}
    rows = mine(run, per_row=2, choice="top")
    assert [(row.query, row.positive) for row in rows] == [("r", "a"), ("r", "b"), ("q", "c")]
    assert rows[0].negatives == rows[1].negatives == ("c", "d")
    assert NegativeMiner(DATA, NegativeRule()).pairs == [("q", "c"), ("r", "a"), ("r", "b"), ("s", "e")]


def test_no_text_of_the_query_or_a_positive_nor_a_text_twice() -> None:
    """Copies under another id, blank documents and the query itself in the corpus."""
    corpus = {**CORPUS, "a": "a question", "b": CORPUS["c"], "d": "", "g": CORPUS["f"]}
    data = RetrievalData("copies", corpus, DATA.queries, DATA.qrels)
    assert negatives(data=data, per_row=3, choice="top") == "fhi"
    filled = mine(data=data, per_row=4, last_rank=1)[0]
    assert filled.mined == 0
    assert sorted(corpus[document] for document in filled.negatives) == [corpus[name] for name in "fhij"]


@pytest.mark.parametrize("blank", ["", "   ", "\u3000", "\u200b\n"])
def test_a_text_that_shows_nothing_is_no_negative(blank: str) -> None:
    """Neither from the ranking nor among the random ones; a model would learn from nothing."""
    data = RetrievalData("blank", {**CORPUS, "a": blank, "d": blank + "\n"}, DATA.queries, DATA.qrels)
    assert negatives(data=data, per_row=2, choice="top", last_rank=6) == "bf"
    (filled,) = mine({"q": {}}, data=data, per_row=6)
    assert set(filled.negatives) == set("bfghij")


@pytest.mark.parametrize("choice", ["random", "top"])
def test_short_rows_are_filled_with_random_documents_or_dropped(choice: str) -> None:
    """The first of a row are mined; the rest are other documents that may be negatives."""
    (row,) = mine(per_row=5, last_rank=3, choice=choice)
    assert set(row.negatives[:2]) == {"a", "b"}
    assert row.mined == 2
    assert len(set(row.negatives)) == 5
    assert set(row.negatives[2:]) <= set("dfghij")
    assert mine(per_row=5, last_rank=3, choice=choice, shortage="drop") == []
    (empty,) = mine({"q": {}}, per_row=8)
    assert set(empty.negatives) == set("abdfghij")
    with pytest.raises(DataError, match="only 8 documents can be negatives of query 'q'; received per_row=9"):
        mine(per_row=9)


def test_every_document_that_is_left_is_drawn_alike() -> None:
    """A draw that favours the best rank would be `top` by another name."""
    drawn = [negatives(per_row=1, last_rank=6, seed=seed) for seed in range(400)]
    counts = {name: drawn.count(name) for name in "abdf"}
    assert sum(counts.values()) == 400
    assert all(70 < count < 130 for count in counts.values())  # 100 expected, standard deviation 8.7
    filled = [mine({"q": {}}, seed=seed)[0].negatives[0] for seed in range(400)]
    assert set(filled) == set("abdfghij")  # the rarest has a chance of 1 in 10 each time
    both = [mine({"r": RUN["q"]}, seed=seed) for seed in range(20)]  # the two rows of a query draw apart
    assert any(first.negatives != second.negatives for first, second in both)


def test_the_same_rows_however_the_queries_are_cut() -> None:
    """Blocks bound the memory; they must not change the result. Another seed must."""
    rng = np.random.default_rng(0)
    documents = {f"d{i}": f"document {i}" for i in range(60)}
    queries = {f"q{i}": f"query {i}" for i in range(12)}
    qrels = {query: {f"d{i}": 1} for i, query in enumerate(queries)}
    data = RetrievalData("random", documents, queries, {"train": qrels})
    run = {query: dict(zip(documents, rng.normal(size=60).tolist(), strict=True)) for query in queries}
    miner = NegativeMiner(data, NegativeRule(per_row=3, last_rank=20, seed=4))
    whole = miner.mine(run)
    parts = [row for query in run for row in miner.mine({query: run[query]})]
    assert whole == parts
    assert NegativeMiner(data, NegativeRule(per_row=3, last_rank=20, seed=5)).mine(run) != whole
    for row in whole:  # a naive search
        best = sorted(documents, key=lambda document: -run[row.query][document])[:20]
        assert set(row.negatives) <= set(best) - set(qrels[row.query])


def test_the_candidates_are_the_documents_whose_teacher_scores_are_read() -> None:
    """The window without what can be no negative, and every positive, also one that the run lacks."""
    miner = NegativeMiner(DATA, NegativeRule(first_rank=2, last_rank=7, teacher_margin=0.1))
    run = {**RUN, "r": {}}
    found = miner.candidates(run)
    assert found == {"q": ["b", "d", "f", "g", "c"], "r": ["a", "b"]}
    scores = {query: dict.fromkeys(pool, 1.0) for query, pool in found.items()}
    assert len(miner.mine(run, scores)) == 3
    for query, pool in found.items():
        for document in pool:
            less = {**scores, query: {key: 1.0 for key in pool if key != document}}
            with pytest.raises(DataError, match=f"no teacher score for the document '{document}'"):
                miner.mine(run, less)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_row": 0}, "per_row must be at least 1; received 0"),
        ({"first_rank": 0}, "1 <= first_rank <= last_rank; received 0 and 50"),
        ({"first_rank": 9, "last_rank": 8}, "received 9 and 8"),
        ({"margin": -0.1}, "margin is a share"),
        ({"margin": 1.0}, "margin is a share"),
        ({"margin": float("nan")}, "margin is a share"),
        ({"teacher_margin": 2}, "teacher_margin is a share"),
        ({"choice": "best"}, "choice must be one of"),
        ({"shortage": "raise"}, "shortage must be one of"),
        ({"teacher_margin": 0.1}, "teacher_margin=0.1 without scores"),
        ({"teacher": {"q": {}}}, "teacher_margin=None with scores"),
        ({"run": {"nobody": {}}}, "names query 'nobody'"),
        ({"run": {"other": {}}}, "names query 'other'"),
        ({"run": {"q": {"z": 1.0}}}, "names document 'z' for query 'q'"),
        ({"run": {"q": {"a": float("nan")}}}, "scores document 'a' of query 'q' as nan"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    """A run of other data, or a rule that says nothing, must not become training data."""
    with pytest.raises(ValueError, match=message):
        mine(**options)


def test_a_query_without_a_positive_is_refused() -> None:
    """No row could be made of it."""
    data = RetrievalData("sample", CORPUS, {"q": "a"}, {"train": {"q": {"a": 0}}})
    with pytest.raises(DataError, match="sample, split 'train', query 'q': no positive"):
        NegativeMiner(data, NegativeRule())


def test_a_blank_positive_makes_no_row() -> None:
    """A split for measuring may judge a blank document, and its row was refused after all was ranked."""
    data = RetrievalData("sample", {**CORPUS, "empty": " "}, {"q": "a"}, {"dev": {"q": {"empty": 1, "a": 1}}})
    miner = NegativeMiner(data, NegativeRule(), "dev")
    rows = miner.mine({"q": {"b": 2.0, "empty": 1.0}})
    assert [row.positive for row in rows] == ["a"]
    assert miner.summary(rows).endswith("0 dropped, 1 left out because the positive is blank")
