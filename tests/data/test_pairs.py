"""Rows of texts from every kind of table become the same training rows and the same retrieval set."""

from __future__ import annotations

import csv
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from lexforge.common.text_identity import text_identity
from lexforge.data import (
    DataError,
    SourceOptions,
    check_source,
    load_documents,
    load_retrieval_data,
    load_training_data,
    validate_columns,
)
from lexforge.negatives import judged_run

datasets = pytest.importorskip("datasets")

# Twelve queries; "NA", a number and a quotation mark are texts that readers of tables like to change.
ROWS = [
    {"query": f"ask {place}", "positive": text, "negative": f"no {place}"}
    for place, text in enumerate(["NA", "1984", 'a "quoted" word', "null", *(f"text {i}" for i in range(8))])
]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(path: Path, rows: list[dict[str, Any]], header: bool = True) -> None:
    """Write rows as CSV, or as TSV without any quoting."""
    tabs = path.suffix == ".tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        if tabs:
            names = ["\t".join(rows[0])] if header else []
            file.write("".join(f"{line}\n" for line in [*names, *("\t".join(row.values()) for row in rows)]))
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows in one format; returns what `--data` names."""
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / f"rows.{form}"
    if form in ("csv", "tsv"):
        table(path, rows)
    elif form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif form == "jsonl":
        path.write_bytes(lines(rows))
    elif form == "jsonl.gz":
        path.write_bytes(gzip.compress(lines(rows)))
    elif form == "jsonl.zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(lines(rows))
    elif form == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "jsonl", "jsonl.gz", "jsonl.zst", "saved"])
def test_every_format_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    """The issue's list of formats; no cell may turn into a number or a missing value on the way."""
    data = load_training_data(str(write(tmp_path, form, ROWS)), [])
    rows = data.training_rows()
    assert validate_columns(rows) == ("anchor", "positive", "negative_1")
    assert [dict(row) for row in rows] == [
        {"anchor": row["query"], "positive": row["positive"], "negative_1": row["negative"]} for row in ROWS
    ]
    assert list(data.documents) == data.documents[0:12] == [row["positive"] for row in ROWS]
    assert data.training_rows(negatives=False).column_names == ["anchor", "positive"]


def test_triples_of_ms_marco_have_no_header(tmp_path: Path) -> None:
    """`triples.train.small.tsv` as published: query, positive, negative, and quotation marks as they are."""
    path = tmp_path / "triples.train.small.tsv"
    table(path, ROWS, header=False)
    data = load_training_data(str(path), [])
    rows = data.training_rows()
    assert len(rows) == 12
    assert rows[2] == {"anchor": "ask 2", "positive": 'a "quoted" word', "negative_1": "no 2"}
    # A header in another language would be the first of the rows.
    assert data.notes == (f"{path} has no header: its columns were taken for queries, answers and negatives",)


@pytest.mark.parametrize(
    "line",
    ["12\twhat is a heap", "12\t7\t1", "q-12\td-7\td-9"],
    ids=["queries of LoTTE", "judgements", "triples of ids"],
)
def test_ids_without_a_header_are_no_texts(line: str, tmp_path: Path) -> None:
    """A model was trained on the numbers of queries and documents, and a note called them queries."""
    path = tmp_path / "questions.search.tsv"
    path.write_text(f"{line}\n")
    with pytest.raises(
        DataError, match=r"no header, and a column of ids, such as .*; judgements of ids make"
    ):
        load_training_data(str(path), [])
    path.write_text("1984\ta novel\nsorting\tsort a list\n")  # a number among queries is one
    assert load_training_data(str(path), []).training_rows()["anchor"] == ["1984", "sorting"]


def test_passages_in_fields_are_read(tmp_path: Path) -> None:
    """Tevatron's form, which MIRACL and Mr.TyDi have: such lists were no strings, and unknown by name."""
    row = {
        "query_id": "1",
        "query": "least element",
        "positive_passages": [{"docid": "7", "title": "Heap", "text": "the least is the root"}],
        "negative_passages": [
            {"docid": "8", "title": "", "text": "a sort"},
            {"docid": "9", "text": "a tree"},
        ],
    }
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row) + "\n")
    check_source(str(path), [])
    assert [*load_training_data(str(path), []).training_rows()] == [
        {
            "anchor": "least element",
            "positive": "Heap the least is the root",
            "negative_1": "a sort",
            "negative_2": "a tree",
        }
    ]


def test_labels_of_a_list_of_texts_are_no_scores(tmp_path: Path) -> None:
    """Each text of the list was an answer, also those that a label of 0 says are none."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"query": "a b", "passage": ["an answer", "none"], "labels": [1, 0]}) + "\n")
    with pytest.raises(DataError, match=r"rows with 0 negatives have nothing .* received \[1, 0\]"):
        load_training_data(str(path), [])


def test_scores_of_decimals_are_numbers(tmp_path: Path) -> None:
    """Databases write them into parquet; each was called no finite number."""
    path = tmp_path / "x.parquet"
    cells = {"query": ["a b"], "positive": ["c d"], "negative": ["e f"], "score": [Decimal("1.50")]}
    parquet.write_table(pyarrow.table(cells), path)
    assert load_training_data(str(path), []).training_rows()["label"] == [[1.5, 0.0]]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("x.jsonl", '{"query": "a", "positive": "b", "negative": "c", "label": null}\n'),
        ("y.jsonl", '{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": null, "neg_scores": null}\n'),
        ("z.csv", "query,positive,negative,score\na,b,c,\n"),
    ],
)
def test_a_column_without_any_score_is_not_read(tmp_path: Path, file: str, text: str) -> None:
    """Every row was refused for a score that is None."""
    (tmp_path / file).write_text(text)
    found = load_training_data(str(tmp_path / file), [])
    assert [*found.training_rows()] == [{"anchor": "a", "positive": "b", "negative_1": "c"}]
    [note] = found.notes
    assert "no score stands in" in note


def test_a_named_column_without_any_score_is_refused(tmp_path: Path) -> None:
    """Who names it expects that training reads it."""
    (tmp_path / "x.csv").write_text("query,positive,negative,score\na,b,c,\n")
    with pytest.raises(DataError, match="'score' is missing"):
        load_training_data(str(tmp_path / "x.csv"), [], SourceOptions(score_column="score"))


def test_split_scores_may_have_capital_letters(tmp_path: Path) -> None:
    """The columns of the texts were recognised so, and the scores beside them were left out in silence."""
    path = tmp_path / "x.jsonl"
    row = {"Query": "a", "Pos": ["b"], "Neg": ["c"], "Pos_Scores": [3], "Neg_Scores": [1]}
    path.write_text(json.dumps(row) + "\n")
    assert load_training_data(str(path), []).training_rows()["label"] == [[3.0, 1.0]]


def test_a_header_between_tabs_is_no_pair(tmp_path: Path) -> None:
    """Names in capital letters were trained on as the first pair; other words are, and a note tells it."""
    path = tmp_path / "pairs.tsv"
    path.write_text("Question\tAnswer\none\tanswer\n")
    found = load_training_data(str(path), [])
    assert [*found.training_rows()["anchor"]] == ["one"]
    assert found.notes == ()
    for line, taken in (
        ("frage\tantwort", "queries and answers"),
        ("a\tb\tc", "queries, answers and negatives"),
    ):
        path.write_text(f"{line}\n")
        notes = load_training_data(str(path), []).notes
        assert notes == (f"{path} has no header: its columns were taken for {taken}",)


@pytest.mark.parametrize(
    "names",
    [
        ("question", "answer", "neg"),
        ("anchor", "pos", "hard_negative_1"),
        ("query", "passage", "negative_passage"),
        ("query", "document", "hard_negative_doc"),
    ],
)
def test_the_usual_names_are_recognised(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Published sets agree on no name."""
    rows = [dict(zip(names, row.values(), strict=True)) for row in ROWS]
    found = load_training_data(str(write(tmp_path, "jsonl", rows)), []).training_rows()
    assert found.column_names == ["anchor", "positive", "negative_1"]
    assert found[5] == {"anchor": "ask 5", "positive": "text 1", "negative_1": "no 5"}


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_capital_letters_and_white_space_of_usual_names_do_not_matter(tmp_path: Path, form: str) -> None:
    """Spreadsheets write `Query`; with tabs that line became a training row, and its split was lost."""
    names = ("Query", " ANSWER ", "Hard Negative", "Split")
    splits = ["Train", "test"] * 6
    rows = [
        dict(zip(names, (*row.values(), split), strict=True)) for row, split in zip(ROWS, splits, strict=True)
    ]
    source = str(write(tmp_path, form, rows))
    data = load_retrieval_data(source)
    assert {split: len(data.split(split)) for split in data.splits} == {"train": 6, "test": 6}
    assert load_training_data(source, []).training_rows()[2] == {
        "anchor": "ask 4",
        "positive": "text 0",
        "negative_1": "no 4",
    }
    pairs = [dict(list(row.items())[:2]) for row in rows]
    assert len(load_training_data(str(write(tmp_path, form, pairs)), []).training_rows()) == 12


def test_a_name_that_is_written_as_usual_comes_first(tmp_path: Path) -> None:
    """A table may hold `query` and an older `Query`; of two other spellings either could be meant."""
    rows = [{"Query": "an older one", **row} for row in ROWS]
    found = load_training_data(str(write(tmp_path, "csv", rows)), []).training_rows()
    assert found[5]["anchor"] == "ask 5"
    rows = [{"Query": "one", "QUERY": "another", "answer": row["positive"]} for row in ROWS]
    with pytest.raises(DataError, match=r"expected one anchor column .*; received \['Query', 'QUERY'\]"):
        load_training_data(str(write(tmp_path, "csv", rows)), [])


def test_other_columns_of_a_negative_are_no_negatives(tmp_path: Path) -> None:
    """Its score or its id would be trained on as a text, because every cell of a CSV file is one."""
    rows = [{**row, "negative_score": "0.5", "negative_id": "d7"} for row in ROWS]
    found = load_training_data(str(write(tmp_path, "csv", rows)), []).training_rows()
    assert found.column_names == ["anchor", "positive", "negative_1"]


def test_each_of_several_positives_has_its_own_score(tmp_path: Path) -> None:
    """The scores are those of all positives, and then those of all negatives."""
    rows = [{"query": "q", "pos": ["p", "r"], "neg": ["n", "m"], "scores": [0.9, 0.8, 0.2, 0.1]}]
    rows.append({"query": "s", "pos": ["t"], "neg": ["n"], "scores": [0.7, 0.3]})
    found = load_training_data(str(write(tmp_path, "jsonl", rows)), []).training_rows()
    assert found["positive"] == ["p", "r", "t"]
    assert found["label"] == [[0.9, 0.2], [0.8, 0.2], [0.7, 0.3]]


def test_scores_of_negatives_that_are_not_read_are_left_alone(tmp_path: Path) -> None:
    """A list may score all columns of negatives, of which one is named."""
    rows = [{**row, "negative_2": "more", "label": "[0.9, 0.2, 0.1]"} for row in ROWS]
    path = str(write(tmp_path, "csv", rows))
    found = load_training_data(path, [], SourceOptions(negative_column="negative")).training_rows()
    assert found[0]["label"] == [0.9, 0.2]


def test_other_names_are_given(tmp_path: Path) -> None:
    """The flags of every recipe and script; without them the error names the flag."""
    rows = [{"title": row["query"], "abstract": row["positive"], "other": row["negative"]} for row in ROWS]
    path = str(write(tmp_path, "csv", rows))
    with pytest.raises(DataError, match=r"expected one anchor column .* Name it by --query-column"):
        load_training_data(path, [])
    options = SourceOptions(query_column="title", positive_column="abstract", negative_column="other")
    found = load_training_data(path, [], options).training_rows()
    assert found[5] == {"anchor": "ask 5", "positive": "text 1", "negative_1": "no 5"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "q", "positive": "p", "negative": "n", "margin": 2.5}, [("p", ["n"], [2.5, 0.0])]),
        (
            {"query": "q", "pos": ["p"], "neg": ["n", "m"], "scores": [3, 2, 1]},
            [("p", ["n", "m"], [3, 2, 1])],
        ),
        (
            {"query": "q", "pos": ["p", "r"], "neg": ["n"], "pos_scores": [4, 3], "neg_scores": [1]},
            [("p", ["n"], [4, 1]), ("r", ["n"], [3, 1])],
        ),
        (
            {"query": "q", "pos": ["p", "r"], "neg": ["n", "m"]},
            [("p", ["n", "m"], None), ("r", ["n", "m"], None)],
        ),
    ],
    ids=["margin", "list of scores", "FlagEmbedding with scores", "FlagEmbedding"],
)
def test_scored_rows_and_lists(
    tmp_path: Path, row: dict[str, Any], expected: list[tuple[str, list[str], list[float] | None]]
) -> None:
    """The forms in which distillation data are published; a margin keeps its difference."""
    found = load_training_data(
        str(write(tmp_path, "jsonl", [row, row | {"query": "other"}])), []
    ).training_rows()
    validate_columns(found)
    shown = [
        (made["positive"], [made[name] for name in made if name.startswith("negative_")], made.get("label"))
        for made in found
    ]
    assert shown == expected * 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"query": "q", "pos": "p", "neg": ["n"]}, {"query": "r", "pos": "p", "neg": []}],
            "the neg is empty",
        ),
        (
            [{"query": "q", "positive": "p", "score": 1.0}],
            "'score' was taken, because of its name, for .* rows with 0 negatives have nothing to compare",
        ),
        (
            [{"query": "q", "pos": ["p", "r"], "neg": ["n"], "scores": [0.9, 0.1]}],
            "must be a list of 3 scores",
        ),
        (
            [{"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": 0.9, "neg_scores": [0.1]}],
            "'pos_scores' must be a list of 1 scores; received 0.9",
        ),
        (
            [{"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [0.9], "neg_scores": None}],
            "'neg_scores' must be a list of 1 scores",
        ),
        (
            [
                {"query": "q", "pos": "p", "neg": ["n"], "score": 2.0},
                {"query": "r", "pos": "s", "neg": ["n"], "score": None},
            ],
            r"rows\.jsonl:2: 'score' is missing, and other rows hold scores there",
        ),
        ([{"query": "q", "positive": "p", "label": 1, "score": 1}], "several columns may hold the scores"),
        ([{"query": "q", "pos": []}, {"query": "q", "pos": ["p"]}], "the pos is blank"),
        ([{"query": " ", "positive": "p"}], r"rows\.jsonl:1: the query is blank"),
        (
            [{"query": "q", "pos": "p", "neg": ["n", " "]}, {"query": "r", "pos": "p", "neg": ["n", "m"]}],
            "the neg is blank",
        ),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    """A row that says nothing, or a score that belongs to nothing, must not reach the loss."""
    with pytest.raises(DataError, match=message):
        load_training_data(str(write(tmp_path, "jsonl", rows)), [])


def test_lists_of_different_lengths_keep_the_shortest(tmp_path: Path) -> None:
    """A batch needs one number of negatives; the loader says what it left out."""
    rows = [{"query": "q", "pos": "p", "neg": ["n", "m", "o"]}, {"query": "r", "pos": "s", "neg": ["n", "m"]}]
    found = load_training_data(str(write(tmp_path, "jsonl", rows)), []).training_rows()
    assert found.column_names == ["anchor", "positive", "negative_1", "negative_2"]


def test_a_train_split_alone_gets_held_out_queries(tmp_path: Path) -> None:
    """Most published pairs have train only; rows of one query stay on one side, as `hold_out` splits them."""
    rows = [{"query": f"ask {i % 100}", "positive": f"text {i}"} for i in range(200)]
    path = str(write(tmp_path, "jsonl", rows))
    with pytest.raises(ValueError, match=r"no split 'test'; its splits are \['train'\]: --hold-out \.05"):
        load_training_data(path, ["test"])
    data = load_training_data(path, ["test", "dev"], SourceOptions(hold_out=0.1))
    trained = set(data.training_rows()["anchor"])
    held = {split: set(data.measured.split_queries(split).values()) for split in ("test", "dev")}
    expected = load_retrieval_data(path).hold_out({"test": 0.1, "dev": 0.1}, needed=["test", "dev"])
    assert held == {split: set(expected.split_queries(split).values()) for split in ("test", "dev")}
    assert trained == set(expected.split_queries("train").values())
    assert len(data.measured.corpus) == 200, "all documents are searched"


def test_the_sample_that_is_searched_keeps_what_is_judged(tmp_path: Path) -> None:
    """A small machine cannot encode a million documents; the relevant ones must be among the sample."""
    path = str(write(tmp_path, "jsonl", [{"query": f"ask {i}", "positive": f"text {i}"} for i in range(200)]))
    measured = load_training_data(path, ["test"], SourceOptions(hold_out=0.1), documents=50).measured
    assert len(measured.corpus) == 50
    assert {found for judged in measured.split("test").values() for found in judged} <= measured.corpus.keys()
    again = load_training_data(path, ["test"], SourceOptions(hold_out=0.1), documents=50).measured
    assert again == measured


def test_a_query_with_two_positives_knows_both(tmp_path: Path) -> None:
    """Otherwise one would count as a negative of the other in a batch, as for sets of judgements."""
    rows = [{"query": q, "positive": p} for q, p in (("a", "x"), ("b", "y"), ("a", "z"), ("a", "x"))]
    found = load_training_data(str(write(tmp_path, "jsonl", rows)), []).training_rows()
    validate_columns(found)
    both = sorted([text_identity("x"), text_identity("z")])
    assert [sorted(row["relevant"]) for row in found] == [both, [text_identity("y")], both]


def test_a_configuration_of_the_hub(tmp_path: Path) -> None:
    """`hf:name:configuration`, the way most sets of sentence-transformers are published."""
    folder = tmp_path / "set"
    for name, rows in (("pair", ROWS[:3]), ("triplet", ROWS)):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_bytes(lines(rows))
    configurations = "".join(
        f"- config_name: {name}\n  data_files: {name}/train.jsonl\n" for name in ("pair", "triplet")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
    assert len(load_training_data(f"hf:{folder}:pair", []).training_rows()) == 3
    assert len(load_training_data(f"hf:{folder}:triplet", []).training_rows()) == 12


def test_the_rows_stay_on_the_disk_for_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million pairs must not be read into memory: the rows are a file that is mapped. `datasets` names it
    by the function that makes the rows, and does not see what that calls.
    """
    source = str(write(tmp_path, "jsonl", ROWS))

    def file() -> str:
        return load_training_data(source, []).training_rows().cache_files[0]["filename"]

    made = file()
    assert Path(made).is_file()
    assert file() == made
    monkeypatch.setattr("lexforge.data.pairs.__version__", "another")
    assert file() != made


def test_the_negatives_of_rows_are_judged(tmp_path: Path) -> None:
    """Mining scripts read the same file as a retrieval set, in which a negative has the grade 0."""
    path = str(write(tmp_path, "jsonl", ROWS))
    data = load_retrieval_data(path)
    texts = {data.corpus[found] for names in judged_run(data).values() for found in names}
    assert texts == {row["negative"] for row in ROWS}
    assert set(load_documents(path).values()) == texts | {row["positive"] for row in ROWS}


def test_an_id_does_not_depend_on_the_splits_that_are_read(tmp_path: Path) -> None:
    """A recipe reads the measured splits alone, and `lexforge evaluate --compare` must find their queries."""
    rows = [{"anchor": f"query {place}", "positive": f"text {place % 7}"} for place in range(40)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = SourceOptions(hold_out=0.2)
    measured = load_training_data(str(file), ["test"], options).measured
    whole = load_retrieval_data(str(file), ["train", "test"], options)
    assert measured.split_queries("test") == whole.split_queries("test")
    assert measured.split("test") == whole.split("test")
    assert measured.corpus.items() <= whole.corpus.items()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_column_that_is_only_called_as_scores_is_named_and_can_be_left_unread(
    tmp_path: Path, form: str
) -> None:
    """Grades of relevance in `label` stopped a run by its first bad row, and no option left them unread."""
    rows = [{"query": f"ask {i}", "positive": f"text {i}", "label": str(i % 2)} for i in range(4)]
    path = str(write(tmp_path, form, rows))
    message = "the column 'label' was taken, because of its name, .* received '0'.*Rename .*--score-column ''"
    for bad_rows in ("fail", "skip"):
        with pytest.raises(DataError, match=message) as refused:
            load_training_data(path, [], SourceOptions(bad_rows=bad_rows))
        assert not getattr(refused.value, "__notes__", None), "to leave such rows out would leave none"
    with pytest.raises(DataError, match="the column 'label' was named as a teacher's scores"):
        load_training_data(path, [], SourceOptions(score_column="label"))
    found = load_training_data(path, [], SourceOptions(score_column="")).training_rows()
    assert found.column_names == ["anchor", "positive"]
    assert len(found) == 4


def test_rows_of_documents_are_told_the_command_that_takes_them(tmp_path: Path) -> None:
    """As a folder of texts is; the error asked for the name of a column of queries, which there is not."""
    path = str(write(tmp_path, "jsonl", [{"id": str(i), "text": f"text {i}"} for i in range(4)]))
    for options, told in ((SourceOptions(), True), (SourceOptions(query_column="wrong"), False)):
        with pytest.raises(DataError, match="expected one anchor column") as refused:
            load_training_data(path, [], options)
        notes = "".join(getattr(refused.value, "__notes__", ()))
        assert ("`lexforge adapt --documents FILE` trains on documents alone" in notes) == told


def test_ids_in_the_place_of_texts_are_told_where_they_belong(tmp_path: Path) -> None:
    """A log of clicks was told to name its ids as the positives, and would have trained on them as texts."""
    rows = [{"query": f"ask {i}", "doc_id": f"d{i}", "clicks": i} for i in range(4)]
    path = str(write(tmp_path, "csv", rows))
    for options, told in ((SourceOptions(), True), (SourceOptions(positive_column="wrong"), False)):
        with pytest.raises(DataError, match="expected one positive column") as refused:
            load_training_data(path, [], options)
        notes = "".join(getattr(refused.value, "__notes__", ()))
        assert ("name documents by ids (doc_id) need their texts" in notes and "BEIR" in notes) == told


def test_a_file_of_judgements_is_told_where_it_belongs(tmp_path: Path) -> None:
    """A file of qrels was told that it holds documents, and to adapt a model to them."""
    path = tmp_path / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    with pytest.raises(DataError, match="expected one anchor column") as refused:
        load_training_data(str(path), [])
    (note,) = refused.value.__notes__
    assert note.startswith("judgements of ids make a folder in BEIR layout")
