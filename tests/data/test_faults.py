"""Data that nobody cleaned: one error lists all that is wrong, or one summary says what was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from lexforge.common.command_line import run_command
from lexforge.data import (
    DataError,
    SourceOptions,
    check_source,
    load_documents,
    load_retrieval_data,
    load_sts,
    load_training_data,
)
from lexforge.data.faults import Faults
from lexforge.settings import StsOptions

datasets = pytest.importorskip("datasets")

CLICKS = b"""query;passage
ask;a text
;no query
again;
 ;\x20
same text; same  text
three;cells;here
caf\xe9;not UTF-8
ask;a text
more;words
"""
SUMMARY = """\
  more cells than columns: 1, namely line 7 (['three', 'cells', 'here'])
  not UTF-8: 1, namely line 8 ('caf\\xe9')
  blank texts: 3, namely line 3, line 4, line 5
  query and text identical: 1, namely line 6 ('same text')
"""
SKIP = SourceOptions(bad_rows="skip")


def write(path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def pairs_of(source: str, options: SourceOptions | None = None) -> list[tuple[str, str]]:
    rows = load_training_data(source, [], options).training_rows()
    return [(row["anchor"], row["positive"]) for row in rows]


def test_one_error_lists_all_that_is_wrong(tmp_path: Path) -> None:
    """Whoever cleans a file of clicks would else start the run once per mistake."""
    source = write(tmp_path / "clicks.csv", CLICKS)
    with pytest.raises(DataError) as raised:
        load_training_data(source, [])
    assert str(raised.value) == (
        f"{source}:7: expected 2 cells, as in the first line; received ['three', 'cells', 'here']\n"
        f"In all 6 of 9 rows of {source} are bad:\n{SUMMARY}"
        "  repeated rows, which count once: 1, namely line 9"
    )
    assert raised.value.__notes__ == [
        f"{source} was read with the delimiter ';' (--delimiter names another)",
        '--bad-rows skip leaves such rows out (bad_rows="skip" in Python)',
    ]


def test_bad_rows_are_left_out_with_one_summary(tmp_path: Path) -> None:
    """A repeated pair counts once. The summary is the same when `datasets` finds the rows in its cache."""
    source = write(tmp_path / "clicks.csv", CLICKS)
    for _ in range(2):
        loaded = load_training_data(source, [], SKIP)
        rows = loaded.training_rows()
        assert [tuple(row.values()) for row in rows] == [("ask", "a text"), ("more", "words")]
        assert "\n".join(loaded.notes) == (
            f"{source} was read with the delimiter ';' (--delimiter names another)\n"
            f"{source}: 6 of 9 rows are bad and left out:\n{SUMMARY}"
            "  repeated rows, which count once: 1, namely line 9"
        )


@pytest.mark.parametrize("bad_rows", ["fail", "skip"])
def test_repeated_rows_count_once(bad_rows: Literal["fail", "skip"], tmp_path: Path) -> None:
    """The number told is that of the rows left out, whatever is to become of bad rows; weights are added."""
    source = write(tmp_path / "x.csv", "query,positive,clicks\na,b,3\n a,b ,1\nc,d,1\na,b,2\n")
    options = SourceOptions(bad_rows=bad_rows, weight_column="clicks")
    loaded = load_training_data(source, [], options)
    assert loaded.notes == (
        f"{source}: 4 rows, among them",
        "  repeated rows, which count once: 2, namely line 3, line 5",
    )
    assert len(loaded.training_rows()) == 4 - 2
    assert loaded.weights is not None
    assert loaded.weights.tolist() == [6, 1]


def test_the_command_line_prints_the_list(tmp_path: Path) -> None:
    """A list on one line cannot be read; errors of libraries stay on one line."""
    source = write(tmp_path / "clicks.csv", CLICKS)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda cfg: load_training_data(source, [], cfg), SourceOptions, "Read.", arguments=[])
    lines = str(ended.value.code).splitlines()
    assert lines[0].startswith(f"error: {source}:7: expected 2 cells")
    assert lines[2] == "  more cells than columns: 1, namely line 7 (['three', 'cells', 'here'])"
    assert lines[-1].endswith('(bad_rows="skip" in Python) (--debug shows the traceback)')


def test_many_bad_rows_show_three_examples() -> None:
    """The number tells the size, and the places where to look."""
    faults = Faults("x.csv", "skip")
    faults.rows = 10
    for line in range(2, 7):
        faults.bad("blank texts", f"x.csv:{line}", "blank")
    assert faults.finish() == [
        "x.csv: 5 of 10 rows are bad and left out:",
        "  blank texts: 5, such as line 2, line 3, line 4",
    ]


def test_the_summary_shows_what_stands_in_bad_rows(tmp_path: Path) -> None:
    """A cell tells why it is wrong; a long one is cut, and a terminal obeys none of its characters."""
    long = "a long query " * 9
    rows = [f"{long},{long},n,1", "a,b,n,many\x1b[2J\u2028", "\u200b,b,n,1", "c,d,n,", "e,f,n,2"]
    source = write(tmp_path / "x.csv", "query,positive,negative,margin\n" + "\n".join(rows) + "\n")
    assert load_training_data(source, [], SKIP).notes[1:] == (
        "  query and text identical: 1, namely line 2 ('a long query a long query a long query ...)",
        r"  wrong values: 2, namely line 3 ('many\x1b[2J\u2028'), line 5",
        "  blank texts: 1, namely line 4",
    )
    source = write(tmp_path / "y.csv", b"query,positive\n" + b"word " * 40 + b"caf\xe9 here,b\na,b\n")
    assert load_training_data(source, [], SKIP).notes[1] == (
        r"  not UTF-8: 1, namely line 2 ('d word word word caf\xe9 here')"
    )


def test_all_rows_bad_is_an_error_also_where_they_are_skipped(tmp_path: Path) -> None:
    """An empty data set would fail later and say nothing of its cause."""
    for name, content in (
        ("x.csv", "query,positive\n,\n ,b\n"),
        ("y.csv", "query,positive\na,b,c\n"),
        ("z.jsonl", '{"query"\n'),
    ):
        source = write(tmp_path / name, content)
        with pytest.raises(DataError, match=r"holds no row that can be used\n.* rows are bad and left out"):
            load_training_data(source, [], SKIP)


def test_a_quote_that_never_ends_says_what_is_lost(tmp_path: Path) -> None:
    """All lines behind it are one cell; to leave out one row is not all that happens."""
    source = write(tmp_path / "x.csv", 'query,positive\na,b\nc,"d\ne,f\ng,h\n')
    loaded = load_training_data(source, [], SKIP)
    assert loaded.notes[1] == "  a quoted cell that does not end, with 2 lines behind it: 1, namely line 3"
    assert len(loaded.training_rows()) == 1


JSON_LINES = (
    b'{"query": "ask", "positive": "a text"}\n{"query": "ask"\n\n{"query": "a", "positive": 5}\n'
    b'{"query": "a", "positive": null}\n{"query": "caf\xe9", "positive": "b"}\n'
)


def test_json_lines_and_folders(tmp_path: Path) -> None:
    """Other faults, and the places of a folder name their file."""
    source = write(tmp_path / "x.jsonl", JSON_LINES)
    loaded = load_training_data(source, [], SKIP)
    assert [note.strip() for note in loaded.notes[1:]] == [
        """no JSON object: 1, namely line 2 ('{"query": "ask"')""",
        r"""not UTF-8: 1, namely line 6 ('{"query": "caf\xe9", "positive": "b"}')""",
        "wrong values: 1, namely line 4 (5)",
        "blank texts: 1, namely line 5",
    ]
    write(tmp_path / "set" / "train.jsonl", JSON_LINES)
    write(tmp_path / "set" / "test.csv", CLICKS)
    notes = load_training_data(str(tmp_path / "set"), ["test"], SKIP).notes
    assert any(
        note.startswith(r"  not UTF-8: 2, namely test.csv:8 ('caf\xe9'), train.jsonl:6 (") for note in notes
    )
    assert f"{tmp_path}/set: 10 of 14 rows are bad and left out:" in notes


def test_a_blank_cell_is_no_negative(tmp_path: Path) -> None:
    """A blank text would be trained on as if it were a wrong answer, and be searched as a document."""
    source = write(tmp_path / "x.csv", "query,positive,negative\nq,p,n\nr,p,\ns,p\n")
    loaded = load_training_data(source, [], SKIP)
    assert loaded.notes[1] == "  blank texts: 2, namely line 3, line 4"
    assert len(loaded.training_rows()) == 1


def test_lists_of_negatives_that_are_empty_are_bad_rows(tmp_path: Path) -> None:
    """Where they are skipped, the other rows keep their negatives."""
    rows = [{"query": f"q{i}", "pos": "p", "neg": ["n", "m"] if i else []} for i in range(3)]
    source = write(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_training_data(source, [], SKIP)
    assert loaded.notes[1] == "  blank texts: 1, namely line 1"
    assert loaded.training_rows().column_names == ["anchor", "positive", "negative_1", "negative_2"]


def test_held_out_rows_keep_their_places(tmp_path: Path) -> None:
    """A message about a training row names the line that it was made of."""
    lines = "".join(f"q{i},p{i}\n" for i in range(40))
    source = write(tmp_path / "x.csv", f"query,positive\n,blank\n{lines}")
    pairs = load_training_data(source, ["test"], SourceOptions(hold_out=0.3, bad_rows="skip")).pairs
    assert pairs is not None
    for split in ("train", "test"):
        rows, place = pairs.split(split), pairs.places(split)
        assert [str(place(row)) for row in range(len(rows))] == [
            f"{source}:{3 + int(found['anchor'][1:])}" for found in rows
        ]


def test_other_loaders_skip_and_tell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Evaluation, documents and scored pairs read the same files."""
    source = write(tmp_path / "clicks.csv", CLICKS)
    assert len(load_retrieval_data(source, options=SKIP).corpus) == 2
    assert "6 of 9 rows are bad and left out" in caplog.text
    caplog.clear()
    assert sorted(load_documents(source, SKIP).values()) == ["a text", "words"]
    assert "6 of 9 rows are bad and left out" in caplog.text
    caplog.clear()
    scored = write(tmp_path / "sts.csv", "sentence1;sentence2;score\na;b;1\n;b;2\na;b;much\nc;d;2\n")
    notes: list[str] = []
    assert len(load_sts(scored, options=StsOptions(bad_rows="skip"), notes=notes)["train"]) == 2
    assert notes[2:] == ["  blank texts: 1, namely line 3", "  wrong values: 1, namely line 4 ('much')"]
    assert not caplog.text
    with pytest.raises(DataError, match="In all 2 of 4 rows"):
        load_sts(scored)


@pytest.mark.parametrize(("name", "half"), [("x.jsonl", r"\uD800"), ("x.json", r"\udc00")])
def test_half_of_a_surrogate_pair_is_a_bad_row(name: str, half: str, tmp_path: Path) -> None:
    """UTF-8 cannot hold it, and a UnicodeEncodeError of the copy in the cache named neither file nor line."""
    good, bad = r'{"_id": "\\ud800 \ud83d\ude00", "text": "b"}', f'{{"_id": "x{half}", "text": "a"}}'
    source = write(tmp_path / name, f"{good}\n{bad}\n")
    where = rf"{name}:2: expected texts that UTF-8 can hold; received .*x\\ud[8c]00"
    with pytest.raises(DataError, match=where):
        load_documents(source)
    rows = f"{good}\n{bad}\n".replace("_id", "query").replace('"text"', '"positive"')
    pairs = write(tmp_path / f"pairs-{name}", rows)
    with pytest.raises(DataError, match=where):
        load_training_data(pairs, [])
    assert load_documents(source, SKIP) == {"\\ud800 \U0001f600": "b"}


@pytest.mark.parametrize("half", [r"\ud800", r"\uDC00"])
def test_half_of_a_surrogate_pair_in_an_array_is_refused(half: str, tmp_path: Path) -> None:
    """UTF-8 cannot hold it, and an array has no lines by which bad rows could be left out."""
    good, bad = r'{"_id": "\\ud800 \ud83d\ude00", "text": "b"}', f'{{"_id": "x{half}", "text": "a"}}'
    source = write(tmp_path / "bad.json", f"[{good},\n{bad}]")
    with pytest.raises(DataError, match=r"bad\.json, row 2 .* texts that UTF-8 can hold; received"):
        load_documents(source)
    assert load_documents(write(tmp_path / "good.json", f"[{good}]")) == {"\\ud800 \U0001f600": "b"}


# Encodings and delimiters.

GERMAN = "query;positive\nWie groß ist der Bär?;Er ist sehr groß\nschön;häßlich\n"
KOREAN = "query,positive\n" + "".join(f"질문 {i}입니다,대답 {i}번 입니다\n" for i in range(5))


@pytest.mark.parametrize(
    ("content", "encoding", "note"),
    [
        (GERMAN, "utf-8", "the delimiter ';' (--delimiter names another)"),
        (
            GERMAN,
            "cp1252",
            "the delimiter ';' (--delimiter names another) and the encoding cp1252 "
            "(--encoding names another)",
        ),
        (GERMAN.replace(";", "\t"), "utf-8-sig", r"the delimiter '\t' (--delimiter names another)"),
        (GERMAN.replace(";", ","), "utf-16", "the encoding utf-16 (--encoding names another)"),
        (KOREAN, "cp949", "the encoding cp949 (--encoding names another)"),
    ],
)
def test_delimiter_and_encoding_are_found_and_told(
    content: str, encoding: str, note: str, tmp_path: Path
) -> None:
    """A spreadsheet writes what its country uses."""
    source = write(tmp_path / "x.csv", content.encode(encoding))
    check_source(source, ["train"])
    loaded = load_training_data(source, [])
    assert loaded.notes == (f"{source} was read with {note}",)
    first = tuple(content.splitlines()[1].replace(";", ",").replace("\t", ",").split(","))
    assert tuple(loaded.training_rows()[0].values()) == first


@pytest.mark.parametrize("codec", ["cp949", "utf-16"])
def test_json_lines_in_another_encoding(codec: str, tmp_path: Path) -> None:
    """The reader of JSON would pass the bytes on as they are."""
    rows = [{"query": f"질문 {i}입니다", "positive": f"대답 {i}번"} for i in range(3)]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    source = write(tmp_path / "x.jsonl", content.encode(codec))
    assert pairs_of(source) == [tuple(row.values()) for row in rows]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("x.csv", "query#positive\nä#b\n".encode("cp1252"), {"delimiter": "#", "encoding": "cp1252"}),
        ("x.csv", "query\tpositive\nä\tb\n".encode(), {"delimiter": "tab"}),
        ("x.tsv", 'query;positive\n"ä";b\n'.encode(), {"delimiter": ";"}),
        ("x.jsonl", '{"query": "ä", "positive": "b"}\n'.encode("cp1252"), {"encoding": "cp1252"}),
    ],
)
def test_a_form_that_is_named_is_taken(name: str, content: bytes, options: dict, tmp_path: Path) -> None:
    """And nothing is told of it."""
    source = write(tmp_path / name, content)
    loaded = load_training_data(source, [], SourceOptions(**options))
    assert loaded.notes == ()
    assert pairs_of(source, SourceOptions(**options)) == [("ä", "b")]


def test_what_cannot_be_found_says_what_to_pass(tmp_path: Path) -> None:
    """One line of another encoding is too little to guess by, and a first line without a delimiter too."""
    source = write(tmp_path / "x.csv", "query,positive\nask,b\nschön,ein Text\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"x\.csv:3: not UTF-8: the byte 0xf6; .* such as --encoding cp1252"):
        load_training_data(source, [])
    source = write(tmp_path / "y.csv", "query#positive\na#b\n")
    for read in (lambda: load_training_data(source, []), lambda: check_source(source, ["train"])):
        with pytest.raises(DataError, match=r"y\.csv:1: .*received 'query#positive'. Name it by --delimiter"):
            read()
    source = write(tmp_path / "z.csv", "Größe,positive\na,b\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"z\.csv:1: not UTF-8.* name the encoding by --encoding"):
        load_training_data(source, [])
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match=r"empty\.csv holds no row: it is empty"):
        load_training_data(str(tmp_path / "empty.csv"), [])
    source = write(tmp_path / "blank.csv", "\nquery,positive\na,b\n")
    with pytest.raises(DataError, match=r"blank\.csv:1: expected names of columns; the line is blank"):
        load_training_data(source, [])
    for codec in ("utf-32", "utf-16-le", "utf-16-be"):  # the last two without a mark
        source = write(tmp_path / "wide.csv", "query,positive\nask,b\n".encode(codec))
        with pytest.raises(DataError, match=r"wide\.csv:1: .* 0x00; .* by --encoding, such as .* utf-16-le"):
            load_training_data(source, [])


@pytest.mark.parametrize(("mark", "named"), [(";", ";"), ("\t", "tab"), ("|", "|")])
def test_a_comma_in_the_header_hides_no_delimiter(mark: str, named: str, tmp_path: Path) -> None:
    """The name of the column would be asked for, where the delimiter is what must be named."""
    source = write(tmp_path / "x.csv", "query;positive;note, if any\nask;a text;n\n".replace(";", mark))
    for read in (lambda: load_training_data(source, []), lambda: check_source(source, ["train"])):
        with pytest.raises(DataError) as raised:
            read()
        assert str(raised.value).endswith(f'such as --delimiter "{named}"')
    assert pairs_of(source, SourceOptions(delimiter=named)) == [("ask", "a text")]
    source = write(tmp_path / "y.csv", "frage,antwort\na,b\n")
    with pytest.raises(DataError, match=r"(?m)Name it by --query-column \(columns= in Python\)$"):
        load_training_data(source, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad_rows": "keep"}, "bad_rows must be one of"),
        ({"delimiter": ", "}, "delimiter must be one character"),
        ({"delimiter": '"'}, "delimiter must be one character"),
        ({"encoding": "utf-9"}, "encoding must be one that Python knows"),
        ({"encoding": "base64"}, "encoding must be one that Python knows"),  # a codec, and of no text
    ],
)
def test_a_wrong_option_is_refused(options: dict, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=message):
        SourceOptions(**options)


# Judgements.


def write_beir(folder: Path, **judgements: str) -> Path:
    write(folder / "corpus.jsonl", "".join(f'{{"_id": "d{i}", "text": "text {i}"}}\n' for i in range(3)))
    write(folder / "queries.jsonl", "".join(f'{{"_id": "q{i}", "text": "ask {i}"}}\n' for i in range(4)))
    for split, rows in judgements.items():
        write(folder / "qrels" / f"{split}.tsv", f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


TRAIN = "q0\td0\t1\nq0\tgone\t1\nq1\tgone\t1\nq1\td2\t0\nq2\td1\t1\n"


def test_training_goes_on_without_documents_that_are_missing(tmp_path: Path) -> None:
    """Judgements of a cut collection name many; a query without another positive teaches nothing."""
    folder = write_beir(tmp_path / "set", train=TRAIN, test="q3\td1\t1\n")
    loaded = load_training_data(str(folder), ["test"])
    assert loaded.retrieval is not None
    assert loaded.retrieval.split("train") == {"q0": {"d0": 1}, "q2": {"d1": 1}}
    assert loaded.notes == (
        f"{folder}: 6 rows, among them",
        "  judgements of documents that the corpus lacks, left out of train: 2, "
        "namely qrels/train.tsv:3 (gone), qrels/train.tsv:4 (gone)",
        "  queries of train without a document that is left: 1, namely qrels/train.tsv:4 (q1)",
    )
    with pytest.raises(DataError, match=r"train\.tsv:2: .*'gone' is not in the corpus, and no positive"):
        load_retrieval_data(str(write_beir(tmp_path / "none", train="q1\tgone\t1\n")))


def test_an_answer_without_a_text_is_left_out_of_train(tmp_path: Path) -> None:
    """It would stop a run after the corpus was encoded and searched, by the number of a row."""
    folder = write_beir(tmp_path, train="q0\td0\t1\nq1\td1\t1\n")
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    blank = [line | ({"text": " "} if line["_id"] == "d0" else {}) for line in lines]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in blank))
    loaded = load_training_data(str(folder), [])
    assert loaded.retrieval is not None
    assert set(loaded.retrieval.split("train")) == {"q1"}
    assert any("answers without text" in note and "d0" in note for note in loaded.notes)


def test_evaluation_refuses_documents_that_are_missing(tmp_path: Path) -> None:
    """Its measures would change without a word; whoever skips them is told."""
    rows = "q3\tgone\t1\nq3\td1\t1\nq9\td1\t1\nq2\td1\t1\nq2\td1\t2\nq1\tgone\t2\n"
    folder = write_beir(tmp_path / "set", train="q0\td0\t1\n", test=rows)
    with pytest.raises(DataError) as raised:
        load_retrieval_data(str(folder), ["test"])
    assert str(raised.value).startswith(f"{folder}/qrels/test.tsv:2: the document id 'gone' is not in the")
    assert "In all 4 of 6 rows" in str(raised.value)
    loaded = load_training_data(str(folder), ["test"], SKIP)
    assert loaded.measured.split("test") == {"q3": {"d1": 1}, "q2": {"d1": 1}}
    assert [note.split(":")[0].strip() for note in loaded.notes[1:]] == [
        "judgements of documents that the corpus lacks",
        "judgements of unknown queries",
        "repeated judgements",
    ]


def test_all_lines_of_a_file_of_judgements_are_told_at_once(tmp_path: Path) -> None:
    """One error a run would take as many runs as a file has wrong lines."""
    rows = "q0\td0\t1\nq2\td2\thigh\nq2 d2\nq2\td2\t1\nq2\td1\t0.5\nq9\td1\t1\n"
    folder = write_beir(tmp_path / "set", train=rows, test="q3\td1\t1\n")
    with pytest.raises(DataError) as raised:
        load_retrieval_data(str(folder), ["train"])
    first, *summary = str(raised.value).splitlines()
    assert first.startswith(f"{folder}/qrels/train.tsv:3: the score must be an integer grade from")
    assert summary == [
        f"In all 4 of 6 rows of {folder} are bad:",
        "  wrong grades: 2, namely qrels/train.tsv:3 ('high'), qrels/train.tsv:6 ('0.5')",
        "  judgements of other columns: 1, namely qrels/train.tsv:4 ('q2 d2')",
        "  judgements of unknown queries: 1, namely qrels/train.tsv:7 (q9)",
    ]
    loaded = load_training_data(str(folder), ["test"], SKIP)
    assert loaded.retrieval is not None
    assert loaded.retrieval.split("train") == {"q0": {"d0": 1}, "q2": {"d2": 1}}


@pytest.mark.parametrize(("weights", "told"), [("1.200 3 15", True), ("1.200 0.5 15", False)])
def test_weights_that_may_be_thousands_are_told(weights: str, told: bool, tmp_path: Path) -> None:
    """A spreadsheet writes 1200 so in many countries, and a click in a thousand was drawn in silence."""
    path = tmp_path / "x.csv"
    rows = [f"q{place};p {place};{weight}" for place, weight in enumerate(weights.split())]
    path.write_text("\n".join(["query;positive;clicks", *rows]))
    notes = load_training_data(str(path), [], SourceOptions(weight_column="clicks")).notes
    note = f"{path}:2: 1.200 in 'clicks' is read with a decimal point; write thousands without it"
    assert (note in notes) == told
