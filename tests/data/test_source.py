"""A command line's `--data` reaches the loader its form asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from beir_folders import write_beir, write_lines
from pyarrow import parquet

from lexforge.data import (
    RetrievalData,
    SourceOptions,
    TrainingData,
    check_source,
    load_documents,
    load_label_sets,
    load_library,
    load_retrieval_data,
    load_sts,
    load_training_data,
)
from lexforge.data.formats import options_of
from lexforge.settings import MultiLabelOptions, StsOptions


def test_other_queries_are_neither_trained_on_nor_tested() -> None:
    """Numbers of terms are made exact on them: those of trained queries differ, and test is for measuring."""
    queries = {"a": "trained", "b": "of dev", "c": "tested", "d": "judged nowhere"}
    judged = {"train": {"a": {"x": 1}}, "dev": {"b": {"x": 1}}, "test": {"c": {"x": 1}}}
    whole = RetrievalData("set", {"x": "text"}, queries, judged)
    assert TrainingData(whole.only(["test"]), ["text"], whole).other_queries() == ["of dev", "judged nowhere"]
    assert TrainingData(whole.only(["test"]), ["text"]).other_queries() == []


ROWS = [{"frage": f"ask {place}", "antwort": f"text {place}"} for place in range(12)]
NAMES = ["--query-column", "frage", "--positive-column", "antwort"]
COLUMNS = SourceOptions(query_column="frage", positive_column="antwort", hold_out=0.4)


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        write_lines(path, rows)
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(f"{mark.join(row)}\n" for row in [rows[0], *(row.values() for row in rows)]))
    return path


def small_set(folder: Path, *splits: str) -> Path:
    return write_beir(folder, {"d": ("T", "body")}, {"q": "query"}, {one: {"q": {"d": 1}} for one in splits})


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "a folder"])
def test_a_mistake_in_the_options_is_told_as_the_loader_tells_it(form: str, tmp_path: Path) -> None:
    """The early check must neither pass what the loader refuses for its columns nor refuse what it takes."""
    if form == "a folder":
        source = write_rows(tmp_path / "set" / "train.csv", ROWS).parent
        write_rows(source / "test.jsonl", ROWS)
    else:
        source = write_rows(tmp_path / f"rows.{form}", ROWS)
    check_source(str(source), ["train", "test"], COLUMNS)
    assert load_training_data(str(source), ["test"], COLUMNS).pairs is not None
    for options in (
        SourceOptions(query_column="wrong", positive_column="antwort", hold_out=0.4),
        SourceOptions(query_column="frage", positive_column="antwort", negative_column="wrong", hold_out=0.4),
        SourceOptions(query_column="frage", positive_column="antwort", score_column="wrong", hold_out=0.4),
        SourceOptions(query_column="frage", positive_column="antwort"),  # no split test, or no split dev
    ):
        with pytest.raises(ValueError) as late:  # noqa: PT011  # its text is compared
            load_training_data(str(source), ["test", "dev"], options)
        with pytest.raises(type(late.value)) as early:
            check_source(str(source), ["train", "test", "dev"], options)
        assert str(early.value) == str(late.value)


def test_a_column_that_is_named_for_data_without_columns_is_refused(tmp_path: Path) -> None:
    """It was ignored, and whoever named it believed that it was read."""
    source, options = str(small_set(tmp_path / "set", "train", "test")), SourceOptions(query_column="title")
    for load in (
        lambda: check_source(source, ["test"], options),
        lambda: load_training_data(source, ["test"], options),
        lambda: load_retrieval_data(source, ["test"], options),
        lambda: load_documents(source, options),
        lambda: load_library(source, options),
    ):
        with pytest.raises(ValueError, match=r"--query-column title would be ignored: .* a folder in BEIR"):
            load()
    with pytest.raises(ValueError, match=r"--score-column title would be ignored: .* docstrings"):
        load_sts("docstrings", None, StsOptions(score_column="title"))
    with pytest.raises(ValueError, match=r"--labels-column title would be ignored: .* docstrings"):
        load_label_sets("docstrings", None, MultiLabelOptions(labels_column="title"))


@pytest.mark.parametrize(
    ("form", "refused"),
    [
        ("BEIR", {"encoding", "delimiter"}),
        ("MS MARCO", {"encoding", "delimiter"}),
        ("hf:set", {"encoding", "delimiter"}),
        ("docstrings", {"encoding", "delimiter"}),
        ("rows.parquet", {"encoding", "delimiter"}),
        ("rows.jsonl", {"delimiter"}),
        ("texts.txt", {"delimiter"}),
        ("rows.csv", set()),
    ],
)
def test_a_form_of_text_that_nothing_reads_is_refused(form: str, refused: set[str], tmp_path: Path) -> None:
    """Whoever named an encoding believed that the texts were read in it."""
    source = str(tmp_path / form)
    if form == "BEIR":
        small_set(tmp_path / form, "train", "test")
    elif form == "MS MARCO":
        for name, line in {"collection": "0\ttext", "queries.dev": "1\tq", "qrels.dev": "1 0 0 1"}.items():
            (tmp_path / form).mkdir(exist_ok=True)
            (tmp_path / form / f"{name}.tsv").write_text(f"{line}\n")
    elif form.startswith("rows"):
        write_rows(tmp_path / form, ROWS)
    elif form == "texts.txt":
        (tmp_path / form).write_text("a text\n")
    else:
        source = form
    for name, value in {"encoding": "cp1252", "delimiter": ","}.items():
        options = replace(COLUMNS if form.startswith("rows") else SourceOptions(), **{name: value})
        for load in (load_documents, load_library):
            if name not in refused:
                load(source, options)
                continue
            with pytest.raises(
                ValueError, match=rf"--{name} {value} would be ignored: it is for .*, and nothing of "
            ):
                load(source, options)


def test_a_form_of_text_reaches_the_source_that_reads_it(tmp_path: Path) -> None:
    """Documents in cp1252 beside judged queries in BEIR's layout, or the reverse, have one command."""
    beir, texts = str(small_set(tmp_path / "set", "dev")), str(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("cp1252"))
    given = SourceOptions(encoding="cp1252", delimiter=";", query_column="frage")
    assert options_of(texts, given, texts, beir) == SourceOptions(encoding="cp1252", delimiter=";")
    assert options_of(beir, given, texts, beir) == replace(given, encoding=None)
    assert options_of(beir, given, beir, texts) == SourceOptions(delimiter=";")
    assert options_of(beir, given, beir, None) == options_of(beir, given, beir, beir) == given
    assert options_of(beir, given, beir, None, lines=True) == replace(given, encoding=None)


@pytest.mark.parametrize(
    "missing", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "qrels", "", "rows.csv"]
)
def test_a_missing_file_is_told_as_the_loader_tells_it(missing: str, tmp_path: Path) -> None:
    """A folder in BEIR layout has at least four files, and a name may be mistyped."""
    source = small_set(tmp_path / "set", "train", "test")
    check_source(str(source), ["train", "test"])
    if missing == "qrels":
        for file in (source / "qrels").iterdir():
            file.unlink()
    elif missing in ("", "rows.csv"):
        source = tmp_path / f"other{missing}"
    else:
        (source / missing).unlink()
    with pytest.raises((ValueError, OSError)) as late:
        load_training_data(str(source), ["test"])
    with pytest.raises(type(late.value)) as early:
        check_source(str(source), ["train", "test"])
    assert str(early.value) == str(late.value)


def test_what_only_the_rows_tell_is_left_to_the_loader(tmp_path: Path) -> None:
    """The splits of a column `split`, an array of JSON objects, and sets without files of their own."""
    source = write_rows(tmp_path / "rows.csv", [row | {"split": "test"} for row in ROWS])
    check_source(str(source), ["train", "test"], SourceOptions(None, "frage", "antwort"))
    (tmp_path / "array.json").write_text(json.dumps(ROWS))
    check_source(str(tmp_path / "array.json"), ["train"], COLUMNS)
    late = write_rows(tmp_path / "late.jsonl", [*ROWS, *(row | {"split": "test"} for row in ROWS)])
    check_source(str(late), ["train", "test"], SourceOptions(None, "frage", "antwort"))  # no split at first
    for name in ("docstrings", "hf:organisation/name"):
        check_source(name, ["train", "test"])


def test_a_first_row_that_is_left_out_is_not_asked_for_columns(tmp_path: Path) -> None:
    """The early check refused a file of JSON lines whose first row is bad, which the loader reads."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"query": "no answer"}\n{"query": "ask", "positive": "a text"}\n')
    skip = SourceOptions(bad_rows="skip")
    check_source(str(file), ["train"], skip)
    assert len(load_training_data(str(file), [], skip).training_rows()) == 1


MISTAKES = [
    (["--data", "rows.csv", "--query-column", "wrong"], "rows.csv: expected one anchor column out of"),
    (["--data", "rows.csv", *NAMES], "rows.csv has no split 'test'; its splits are ['train']"),
    (["--data", "header.csv", "--hold-out", ".1"], "header.csv holds no row"),
    (["--data", "blank.jsonl", "--hold-out", ".1"], "blank.jsonl holds no row"),
    (["--data", "set"], "there is no file set/queries.jsonl, plain or compressed (.gz, .zst)"),
    (["--data", "documents"], "documents: the folder holds documents (1 .md) without judged queries"),
    (["--data", "nowhere"], "there is no file or folder nowhere; expected docstrings (the embedded corpus)"),
    (["--teacher", "lsa", "--preset", "v22"], "reads no teacher, so --teacher lsa would be ignored"),
    (["--negatives", "nowhere.jsonl"], "there is no such file"),
    (["--query-terms", "8", "--inference-free"], "--query-terms needs a query encoder"),
    (["--language", "xx"], "there are no stop words for the language 'xx'"),
]
# Makes each mistake of its argument in turn; prints how the command ended, and what it has loaded by then.
MISTAKEN = """
import json, sys
from lexforge.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(["train", *words])
    except SystemExit as end:
        print(json.dumps([end.code, [name for name in sys.modules if "." not in name]]))
"""


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, set[str]]]:
    """How `lexforge train` ended after each mistake, and the packages that were loaded by then."""
    folder = tmp_path_factory.mktemp("mistaken")
    write_rows(folder / "rows.csv", ROWS)
    (folder / "header.csv").write_text("query,positive\n")
    (folder / "blank.jsonl").write_text("\n")
    (small_set(folder / "set", "train", "test") / "queries.jsonl").unlink()
    (folder / "documents").mkdir()
    (folder / "documents" / "a.md").write_text("text")
    command = [sys.executable, "-c", MISTAKEN, json.dumps([words for words, _ in MISTAKES])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    return [(code, set(loaded)) for code, loaded in ends]


@pytest.mark.parametrize("place", range(len(MISTAKES)), ids=lambda place: " ".join(MISTAKES[place][0]))
def test_training_tells_a_mistake_before_it_loads_torch(
    place: int, mistaken: list[tuple[str, set[str]]]
) -> None:
    """Loading torch and transformers takes many times as long as finding a mistake in the options."""
    assert len(mistaken) == len(MISTAKES)
    said, loaded = mistaken[place]
    assert said.startswith("error: ")
    assert MISTAKES[place][1] in said
    assert "numpy" in loaded
    assert not {"torch", "transformers", "datasets", "sentence_transformers"} & loaded
