"""Where the training rows of a recipe and their negatives come from, option by option."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import BertTokenizerFast

from lexforge.common.types import DataError
from lexforge.data import (
    RetrievalData,
    SourceOptions,
    TrainingData,
    load_retrieval_data,
    load_training_data,
    write_training_rows,
)
from lexforge.evaluation import RetrievalEvaluator
from lexforge.settings import check_negatives
from lexforge.training import case_notes, check_triplet_rows, choose_negatives, load_rows, unknown_rows

CORPUS = {"d0": "red apple", "d1": "red pear", "d2": "green apple", "d3": "blue sky", "d4": "red apple tree"}
QUERIES = {"q0": "red apple", "q1": "blue"}
JUDGED = RetrievalData("fruit", CORPUS, QUERIES, {"train": {"q0": {"d0": 1, "d1": 0}, "q1": {"d3": 1}}})


def judged_data() -> TrainingData:
    return TrainingData(JUDGED, list(CORPUS.values()), JUDGED)


def searching(corpus: dict[str, str]) -> RetrievalEvaluator:
    return RetrievalEvaluator(QUERIES, corpus, {"q0": {"d0": 1}})


@pytest.fixture
def table(tmp_path: Path) -> TrainingData:
    """Rows of texts with a negative and a score each, as they come without a corpus."""
    rows = [
        {"query": f"question {i}", "positive": f"answer {i}", "negative": f"other {i}", "margin": i + 0.5}
        for i in range(8)
    ]
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return load_training_data(str(tmp_path / "data"), ["test"])


@pytest.mark.parametrize(
    ("negatives", "expected"),
    [
        ("none", set()),
        ("given", set()),
        ("mined", set()),
        ("judged", {"red pear"}),  # q0 judges d1 not relevant
        ("bm25", {"red apple tree", "green apple"}),  # its hits without a judgement
    ],
)
def test_each_name_takes_its_own_negatives(negatives: Any, expected: set[str]) -> None:
    """A recipe that drew others would train on wrong rows without an error."""
    rows = load_rows(judged_data(), searching(CORPUS), negatives)
    assert [row["anchor"] for row in rows] == ["red apple", "blue"]
    if not expected:
        assert all("negative_1" not in row for row in rows)
    else:
        assert rows[0]["negative_1"] in expected


def test_bm25_negatives_come_from_the_whole_corpus() -> None:
    """The index of a run holds only the documents that are evaluated, here the answer and an unlike one."""
    sample = searching({key: CORPUS[key] for key in ("d0", "d3")})
    rows = load_rows(judged_data(), sample, "bm25")
    assert rows[0]["negative_1"] in ("red apple tree", "green apple")


def test_rows_of_texts_keep_their_negatives_and_scores_only_where_they_are_given(table: TrainingData) -> None:
    """`--negatives none` over such rows trains on pairs."""
    assert set(load_rows(table, searching(CORPUS), "given").column_names) >= {"negative_1", "label"}
    assert set(load_rows(table, searching(CORPUS), "none").column_names) == {"anchor", "positive"}


def test_a_file_replaces_the_rows_of_the_data(tmp_path: Path) -> None:
    """Mined rows hold texts, so nothing of the data is looked up."""
    file = tmp_path / "mined.jsonl"
    write_training_rows(file, [{"anchor": "a", "positive": "b", "negative_1": "c"}])
    check_negatives(file, None)
    assert load_rows(judged_data(), searching(CORPUS), file)[0]["negative_1"] == "c"


def test_mined_rows_of_queries_that_were_held_out_are_refused(tmp_path: Path) -> None:
    """Rows that were mined without the share of `--hold-out` hold the queries that are measured."""
    pairs = [{"query": f"question {i}", "positive": f"answer {i}"} for i in range(40)]
    source, file = tmp_path / "rows.jsonl", tmp_path / "mined.jsonl"
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    loaded = load_training_data(str(source), ["test"], SourceOptions(hold_out=0.2))
    assert loaded.held_out == ("test", "dev")
    columns = ({"anchor": pair["query"], "positive": pair["positive"]} for pair in pairs)
    rows = [{**row, "negative_1": "other"} for row in columns]
    write_training_rows(file, rows)
    tested = len(loaded.measured.queries)
    with pytest.raises(DataError, match=f"{tested} of 40 rows have a query of the split 'test', which"):
        load_rows(loaded, searching(CORPUS), file)
    train = load_retrieval_data(str(source), ["train"], SourceOptions(hold_out=0.2))  # as `mine` reads it
    asked = set(train.split_queries("train").values())
    write_training_rows(file, [row for row in rows if row["anchor"] in asked])
    assert len(load_rows(loaded, searching(CORPUS), file)) == len(asked) < 40 - tested


def test_mined_rows_of_a_measured_split_are_refused(tmp_path: Path) -> None:
    """Those of `lexforge mine --split test` were trained on, and the test then found what it had taught."""
    whole = RetrievalData("fruit", CORPUS, QUERIES, {"train": {"q0": {"d0": 1}}, "test": {"q1": {"d3": 1}}})
    loaded, file = TrainingData(whole.only(["test"]), list(CORPUS.values()), whole), tmp_path / "mined.jsonl"
    row = {"positive": "a text", "negative_1": "other"}
    write_training_rows(file, [{"anchor": "red apple", **row}, {"anchor": "blue", **row}])
    with pytest.raises(DataError, match="1 of 2 rows have a query of the split 'test', which is measured"):
        load_rows(loaded, searching(CORPUS), file)
    write_training_rows(file, [{"anchor": "red apple", **row}])
    assert len(load_rows(loaded, searching(CORPUS), file)) == 1


def test_the_preset_decides_where_the_user_and_the_data_leave_it_open(table: TrainingData) -> None:
    """Hard negatives are part of a preset; rows of texts keep their own, and a named source is the user's."""

    def chosen(negatives: Any, of_preset: Any, loaded: TrainingData) -> Any:
        return choose_negatives(negatives, of_preset, loaded, per_batch=1, say=pytest.fail)

    assert chosen("given", "mined", judged_data()) == "mined"
    assert chosen("given", "none", judged_data()) == "none"
    assert chosen("judged", "mined", judged_data()) == "judged"
    assert chosen("none", "mined", judged_data()) == "none"
    assert chosen("given", "mined", table) == "given"


def test_rows_without_negatives_are_told(tmp_path: Path) -> None:
    """A preset is known for its hard negatives, so a run without any must say so."""
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"query": f"question {i}", "positive": f"answer {i}"}) + "\n" for i in range(4)),
        encoding="utf-8",
    )
    (tmp_path / "test.jsonl").write_text('{"query": "question", "positive": "answer"}\n', encoding="utf-8")
    rows, said = load_training_data(str(tmp_path), ["test"]), []
    assert choose_negatives("given", "mined", rows, per_batch=1, say=said.append) == "given"
    assert said == [
        "no negatives: the preset takes them (mined), and the rows hold none (`lexforge mine` makes rows "
        "that do)"
    ]
    assert choose_negatives("given", "none", rows, per_batch=1, say=pytest.fail) == "given"


def test_a_small_collection_trains_without_the_negatives_of_the_preset() -> None:
    """With them, its batches would repeat texts, and a run on a dozen documents would take no step."""
    said: list[str] = []
    chosen = choose_negatives("given", "bm25", judged_data(), per_batch=2, say=said.append)
    assert chosen == "none"
    assert len(said) == 1
    assert said[0].startswith(
        "no negatives: the preset takes them (bm25) where the collection holds 8 documents"
    )
    assert choose_negatives("bm25", "bm25", judged_data(), per_batch=2, say=pytest.fail) == "bm25"


def test_only_judgements_can_be_mined(table: TrainingData) -> None:
    """Rows of texts have no set of documents that a model could rank."""
    with pytest.raises(ValueError, match="holds rows of texts"):
        load_rows(table, searching(CORPUS), "mined")


def test_a_triplet_needs_a_third_text() -> None:
    """The loss would fail at its first step, after minutes of preparation."""
    check_triplet_rows([{"anchor": "a", "positive": "b"}], 0.0, "fruit")
    check_triplet_rows([{"anchor": "a", "positive": "b", "negative_1": "c"}], 1.0, "fruit")
    with pytest.raises(ValueError, match="the rows of fruit have none"):
        check_triplet_rows([{"anchor": "a", "positive": "b"}], 1.0, "fruit")


# The oldest `datasets` leaves a CSV file open until it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_in_an_unknown_script_are_told_with_their_lines(tmp_path: Path, tiny_splade) -> None:
    """A multilingual file and a model of one language: nothing else would say why a part is not learned."""
    path = tmp_path / "x.csv"
    path.write_text(
        "query,positive\nsort list,sort the list\n☃ ☂ ☁,read file\nopen,☃ ☃ file\n☃ open file,read\n"
    )
    [line] = unknown_rows(tiny_splade, load_training_data(str(path), []))
    assert f"in 2 of 4 rows that were looked at, namely {path}:3, {path}:4: it may" in line
    path.write_text("query,positive\nsort list,sort the list\n")
    assert unknown_rows(tiny_splade, load_training_data(str(path), [])) == []


def test_judged_queries_in_an_unknown_script_are_told_by_their_ids(tiny_splade) -> None:
    """Judgements have no rows with lines."""
    queries = {"q0": "☃ ☂", "q1": "open file"}
    judged = RetrievalData("set", {"d0": "read file"}, queries, {"train": {"q0": {"d0": 1}, "q1": {"d0": 2}}})
    [line] = unknown_rows(tiny_splade, TrainingData(judged, ["read file"], judged))
    assert "in 1 of 2 rows that were looked at, namely the query q0: " in line


@pytest.mark.parametrize("lower", [True, False])
def test_a_cased_tokenizer_is_told(lower: bool) -> None:
    """To it `Women` and `women` are terms that do not match."""
    words = {word: place for place, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "Women", "women"))}
    model: Any = SimpleNamespace(tokenizer=BertTokenizerFast(vocab=words, do_lower_case=lower))
    assert ["keeps case" in line for line in case_notes(model)] == [True] * (not lower)
