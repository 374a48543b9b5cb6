"""The closing report shows what was measured, and nothing else."""

from __future__ import annotations

import pytest
from sentence_transformers import SparseEncoder
from transformers.utils import logging

from lexforge.evaluation import RetrievalEvaluator
from lexforge.evaluation.tables import example_searches, metrics_table, split_terms


def test_the_table_has_a_row_a_system_and_a_dash_for_what_was_not_measured() -> None:
    """A missing value shown as 0 would be read as a result."""
    table = metrics_table({"bm25": {"nDCG@10": 0.41234}, "trained": {"nDCG@10": 0.5, "flops": 12.345}})
    assert table.splitlines() == [
        "         nDCG@10  flops",
        "bm25      0.4123      -",
        "trained   0.5000   12.3",
    ]


def test_a_search_shows_its_terms_and_marks_relevant_hits(tiny_splade: SparseEncoder) -> None:
    """The expansion must hold no term of the query itself, and hits stand in the order of their scores."""
    corpus = {"a": "first text", "b": "second text", "c": "third text", "d": "fourth text"}
    evaluator = RetrievalEvaluator({"q": "sort list"}, corpus, {"q": {"b": 1, "c": 0}})
    text = example_searches(tiny_splade, evaluator, {"q": {"b": 1.0, "a": 2.0, "d": 0.2, "c": 0.5}})
    lines = text.strip().splitlines()
    assert lines[0] == "query: sort list"
    expansion = {pair.rsplit(":", 1)[0] for pair in lines[2].removeprefix("  expansion: ").split()}
    assert expansion
    assert not expansion & {"sort", "list"}
    assert [line.split()[0] for line in lines[3:]] == ["1.", "2.*", "3."]
    assert [line.split()[2] for line in lines[3:]] == ["a", "b", "c"]


def test_texts_without_spaces_are_cut(tiny_splade: SparseEncoder) -> None:
    """Chinese and Japanese were shown as three dots."""
    evaluator = RetrievalEvaluator({"q": "水" * 100}, {"a": "川" * 100}, {"q": {"a": 0}})
    text = example_searches(tiny_splade, evaluator, {"q": {"a": 1.0}})
    assert f"query: {'水' * 87}...\n" in text
    assert text.endswith(f"a  {'川' * 87}...")


def test_a_corpus_gives_the_terminal_no_commands(tiny_splade: SparseEncoder) -> None:
    """A text from the web that hides the lines above it, or that types, was printed as it is."""
    corpus = {"a\x1b[8m": "first \x9b31m text\x07 한국"}
    evaluator = RetrievalEvaluator({"q": "sort \x1b[2J list"}, corpus, {"q": dict.fromkeys(corpus, 0)})
    text = example_searches(tiny_splade, evaluator, {"q": dict.fromkeys(corpus, 1.0)})
    assert "a\\x1b[8m  first \\x9b31m text\\x07 한국" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_own_terms_are_those_that_the_encoder_reads(
    tiny_splade: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text is cut: its end is not read, and transformers must not warn that it would be."""
    tiny_splade.tokenizer.model_max_length = tiny_splade.max_seq_length
    warned: list[str] = []
    logger = logging.get_logger("transformers.tokenization_utils_base")
    monkeypatch.setattr(logger, "warning", lambda message, *_: warned.append(message))
    text = "sort " * 100 + "list"
    own, others = split_terms(tiny_splade, text, [("sort", 2.0), ("list", 1.0), ("first", 0.5)])
    assert own == [("sort", 2.0)]
    assert others == [("list", 1.0), ("first", 0.5)]
    assert warned == []
