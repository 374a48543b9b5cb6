"""Hub data sets, read by the real `datasets` code from folders that are laid out as on the hub."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexforge.data import (
    DataError,
    SourceOptions,
    check_source,
    load_documents,
    load_label_sets,
    load_retrieval_data,
    validate_columns,
)
from lexforge.negatives import NegativeRule, judged_run, rows_of_judgements

pytest.importorskip("datasets")


def test_several_configurations_are_named(tmp_path: Path) -> None:
    """all-nli has four; the error was that of `datasets`, whose example is a call of its own."""
    card(tmp_path / "set", {name: {"train": f"{name}.jsonl"} for name in ("pair", "triplet")})
    row = {"anchor": "a b", "positive": "c d"}
    write(tmp_path / "set" / "pair.jsonl", [row])
    write(tmp_path / "set" / "triplet.jsonl", [row | {"negative": "e f"}])
    source = f"hf:{tmp_path / 'set'}"
    message = re.escape(f"expected {source}:NAME with a name out of ['pair', 'triplet']")
    for load in (load_retrieval_data, load_documents, load_label_sets):
        with pytest.raises(DataError, match=message):
            load(source)
    assert len(load_documents(f"{source}:triplet")) == 2


FIRST, SECOND = (rf", row {row} \(counted from 1\): " for row in (1, 2))


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8"
    )


def card(folder: Path, configurations: dict[str, dict[str, str]]) -> None:
    """The part of a data set's README that names its configurations and splits."""
    lines = ["---", "configs:"]
    for name, splits in configurations.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        for split, file in splits.items():
            lines += [f"  - split: {split}", f"    path: {file}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


VALIDATION = {"query-id": "2", "corpus-id": "2", "score": 2}


def beir_on_the_hub(
    folder: Path,
    judgements: list[dict[str, Any]],
    configuration: str = "default",
    validation: dict[str, Any] = VALIDATION,
) -> Path:
    card(
        folder,
        {
            configuration: {"train": "qrels/train.jsonl", "validation": "qrels/validation.jsonl"},
            "corpus": {"corpus": "corpus.jsonl"},
            "queries": {"queries": "queries.jsonl"},
        },
    )
    write(
        folder / "corpus.jsonl",
        [{"_id": "1", "title": "Heap", "text": "least"}, {"_id": "2", "text": "sort"}],
    )
    write(folder / "queries.jsonl", [{"_id": "1", "text": "least element"}, {"_id": "2", "text": "order"}])
    write(folder / "qrels" / "train.jsonl", judgements)
    write(folder / "qrels" / "validation.jsonl", [validation])
    return folder


@pytest.mark.parametrize("configuration", ["default", "qrels"])
def test_the_layout_of_beir_on_the_hub(tmp_path: Path, configuration: str) -> None:
    """Both names of the judgements are in use; grades are published as floats and ids as numbers, too."""
    judgements = [
        {"query-id": 1, "corpus-id": 1, "score": 1.0},
        {"query-id": 1, "corpus-id": 2, "score": 0.0},
    ]
    folder = beir_on_the_hub(tmp_path / "toy", judgements, configuration)
    data = load_retrieval_data(f"hf:{folder}")
    assert data.corpus == {"1": "Heap least", "2": "sort"}
    assert data.queries == {"1": "least element", "2": "order"}
    assert data.qrels == {"train": {"1": {"1": 1, "2": 0}}, "dev": {"2": {"2": 2}}}
    assert load_retrieval_data(f"hf:{folder}", ["dev"]).splits == ("dev",)
    with pytest.raises(ValueError, match=r"no split 'test'; its splits are \['train', 'dev'\]"):
        load_retrieval_data(f"hf:{folder}", ["test"])


def test_judgements_in_a_data_set_of_their_own(tmp_path: Path) -> None:
    """BEIR's own organisation publishes them as <name>-qrels."""
    folder = tmp_path / "toy"
    card(folder, {"corpus": {"corpus": "corpus.jsonl"}, "queries": {"queries": "queries.jsonl"}})
    write(folder / "corpus.jsonl", [{"_id": "1", "title": "", "text": "least"}])
    write(folder / "queries.jsonl", [{"_id": "1", "title": "", "text": "least element"}])
    write(tmp_path / "toy-qrels" / "test.jsonl", [{"query-id": 1, "corpus-id": 1, "score": 1}])
    assert load_retrieval_data(f"hf:{folder}").qrels == {"test": {"1": {"1": 1}}}


@pytest.mark.parametrize(
    ("judgement", "message"),
    [
        (
            {"query-id": "1", "corpus-id": "1", "score": 0.5},
            rf"\[train\]{FIRST}the score must be an integer .* 0\.5",
        ),
        ({"query-id": "1", "corpus-id": "1", "score": None}, rf"\[train\]{FIRST}the score must be"),
        (
            {"query-id": "1", "corpus-id": "1", "score": 1_700_000_000_000},
            rf"\[train\]{FIRST}.*; received 1700000000000",
        ),
        ({"query-id": "9", "corpus-id": "1", "score": 1}, rf"\[train\]{FIRST}the query id '9'"),
        ({"query-id": "1", "corpus-id": "9", "score": 1}, rf"\[train\]{FIRST}the document id '9'"),
        ({"query-id": "1", "corpus-id": "1", "score": 0}, "no positive judgement"),
        (
            {"query-id": None, "corpus-id": "1", "score": 1},
            "an id must be a string or an integer; received None",
        ),
        ({"query": "1", "document": "1"}, "expected the columns query-id and corpus-id"),
    ],
)
def test_wrong_judgements_are_refused(tmp_path: Path, judgement: dict[str, Any], message: str) -> None:
    """The same faults as in a folder, with the row in place of the line."""
    folder = beir_on_the_hub(tmp_path / "toy", [judgement], validation=judgement)
    with pytest.raises(DataError, match=message):
        load_retrieval_data(f"hf:{folder}")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"_id": 1, "text": "least"}, rf"\[corpus\]{FIRST}'_id' must be a string; received 1"),
        ({"_id": "1", "text": "least", "title": 0}, rf"\[corpus\]{FIRST}'title' must .*; received 0"),
        ({"_id": "1", "text": None}, rf"\[corpus\]{FIRST}'text' must be a string; received None"),
    ],
)
def test_a_text_follows_the_rule_of_a_folder(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    """A set that is read from the hub is read from its copy in a folder, and the other way round."""
    folder = beir_on_the_hub(tmp_path / "toy", [{"query-id": "1", "corpus-id": "1"}])
    write(folder / "corpus.jsonl", [record])
    with pytest.raises(DataError, match=message):
        load_retrieval_data(f"hf:{folder}")


def test_a_file_that_datasets_cannot_read_is_refused(tmp_path: Path) -> None:
    """Splits of different columns are an error deep inside `datasets`, of a kind of its own."""
    folder = beir_on_the_hub(tmp_path / "toy", [{"query": "1", "document": "1"}])
    with pytest.raises(DataError, match=r"the data set '.*toy' cannot be loaded: .*generating the dataset"):
        load_retrieval_data(f"hf:{folder}")


TRIPLETS = [
    {"anchor": "least element", "positive": "heap", "negative_1": "sort", "negative_2": "graph"},
    {"anchor": "least element", "positive": "tree", "negative_1": "heap", "negative_2": "graph"},
    {"anchor": "order", "positive": "sort", "negative_1": "heap", "negative_2": "tree"},
]


def test_triplets_become_a_retrieval_set(tmp_path: Path) -> None:
    """Equal texts are one document; a positive of a query stays one where another row has it as negative."""
    write(tmp_path / "toy" / "train.jsonl", TRIPLETS)
    data = load_retrieval_data(f"hf:{tmp_path / 'toy'}")
    texts = {
        data.queries[query]: {data.corpus[document]: grade for document, grade in grades.items()}
        for query, grades in data.split("train").items()
    }
    assert texts == {
        "least element": {"heap": 1, "tree": 1, "sort": 0, "graph": 0},
        "order": {"sort": 1, "heap": 0, "tree": 0},
    }
    assert sorted(data.corpus.values()) == ["graph", "heap", "sort", "tree"]
    rows = rows_of_judgements(data, runs=[judged_run(data)], rule=NegativeRule(per_row=2))
    assert validate_columns(rows) == ("anchor", "positive", "negative_1", "negative_2")


def test_columns_of_pairs_are_found_or_named(tmp_path: Path) -> None:
    """Published pairs call their columns many names; a guess among two would be silent."""
    write(tmp_path / "toy" / "train.jsonl", [{"question": "q", "answer": "a", "document": "d"}])
    source, options = f"hf:{tmp_path / 'toy'}", SourceOptions(positive_column="answer")
    with pytest.raises(DataError, match=r"expected one positive column .* received \['document', 'answer'\]"):
        load_retrieval_data(source)
    assert list(load_retrieval_data(source, options=options).corpus.values()) == ["a"]
    with pytest.raises(DataError, match=r"expected one anchor column out of \['query'\]; received \[\]"):
        load_retrieval_data(source, options=replace(options, query_column="query"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"anchor": "a", "positive": 3}, rf"\[train\]{SECOND}'positive' must be a string; received 3"),
        ({"anchor": None, "positive": "p"}, rf"\[train\]{SECOND}the anchor is missing"),
        ({"anchor": " ", "positive": "p"}, rf"\[train\]{SECOND}the anchor is blank"),
    ],
)
def test_wrong_pairs_are_refused(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    """A text column that is not text must not reach the tokenizer."""
    first = {key: (0 if isinstance(value, int) else f"text of {key}") for key, value in record.items()}
    write(tmp_path / "toy" / "train.jsonl", [first, record])
    if isinstance(record["positive"], int):
        message = rf"\[train\]{FIRST}'positive' must be a string; received 0"
    with pytest.raises(DataError, match=message):
        load_retrieval_data(f"hf:{tmp_path / 'toy'}")


def test_a_set_that_is_nowhere_is_one_clear_error(tmp_path: Path) -> None:
    """Offline, the hub's own message is pages long and names no set."""
    with pytest.raises(DataError, match=r"the data set '.*nowhere' cannot be loaded"):
        load_retrieval_data(f"hf:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="the data set 'nobody/has-this' cannot be loaded"):
        load_retrieval_data("hf:nobody/has-this")
    for read in (load_retrieval_data, load_documents, lambda source: check_source(source, [])):
        with pytest.raises(DataError, match=r"expected hf:organisation/name .*; received 'hf:'"):
            read("hf:")  # what a shell makes of hf:$NAME without that variable


def test_a_data_set_with_a_script_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    """Many older sets of the hub have one, which `datasets` runs no more: the error was a traceback."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "old.py").write_text("import datasets\n")
    for source in (f"hf:{tmp_path / 'old'}", f"hf:{tmp_path / 'old'}:all"):
        with pytest.raises(
            DataError, match=r"data set '.*old' cannot be loaded: Dataset scripts are no longer"
        ):
            load_retrieval_data(source)
