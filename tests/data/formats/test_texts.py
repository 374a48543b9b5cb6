"""Folders of text, Markdown, HTML and PDF files."""

from __future__ import annotations

import codecs
import io
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lexforge.data import DataError, SourceOptions, check_source, load_documents, load_retrieval_data
from lexforge.data.formats import texts
from lexforge.data.text_files import FileText, UnreadableFile, read_file

pypdf = pytest.importorskip("pypdf", reason="the extra `documents` is not installed")
pytest.importorskip("lxml", reason="the extra `documents` is not installed")


def make_pdf(*lines: str, title: str = "") -> bytes:
    """A PDF of one page per line, written by hand."""
    count = len(lines)
    kids = " ".join(f"{4 + 2 * place} 0 R" for place in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for place, line in enumerate(lines):
        stream = f"BT /F1 12 Tf 72 720 Td ({line}) Tj ET" if line else ""
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * place} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    objects.append(f"<< /Title ({title}) >>")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n"
    end += (
        f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    )
    return out + end.encode()


def encrypted_pdf() -> bytes:
    writer, out = pypdf.PdfWriter(io.BytesIO(make_pdf("secret"))), io.BytesIO()
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def read(folder: Path, name: str, data: bytes | str) -> FileText:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_file(path)


def notes_of(source: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    notes: list[str] = []
    found = list(texts.titled(str(source), SourceOptions(), notes))
    return [record[1:] for record in found], notes


@pytest.mark.parametrize(
    ("name", "text", "title", "body"),
    [
        ("my_first-note.txt", "one\n\ntwo", "my first note", "one\n\ntwo"),
        ("note.txt", "Note\n\nnot the title", "note", "Note\n\nnot the title"),  # another word
        ("A note.txt", "A note\r\n\r\nbody\r\n", "A note", "body"),
        ("x.md", "before\n\n# The *head* #\n\nbody", "The head", "before\n\nbody"),
        ("x.md", "The head\n========\n\nbody\n\n## Sub\nmore", "The head", "body\n\nSub\n\nmore"),
        ("x.md", "---\ntitle: >-\n  Folded\n  title\ntags: a\n---\nbody", "Folded title", "body"),
        ("x.md", "---\ntitle: |\n  Literal title\n---\nbody", "Literal title", "body"),
        ("x.md", "---\ntitle: |2+\n---\nbody", "x", "body"),
        ("x.md", "---\ntitle: > 5 apples\n---\nbody", "> 5 apples", "body"),
        ("x.markdown", "---\ntitle: 'Front'\ntags: a\n---\n# Head\nbody", "Front", "Head\n\nbody"),
        ("x.md", "---\n\nbody\n\n---\nend", "x", "body\n\nend"),  # rules, and no settings
        ("x.md", "```sh\n# a comment\nls [a](b)\n```\n# Head", "Head", "# a comment\nls [a](b)"),
        ("x.md", "~~~\na\n```\n~~~\n#tag\n####### seven", "x", "a\n```\n\n#tag\n####### seven"),
        ("x.md", "text\n```\ncode\n```\n---\nend", "x", "text\n\ncode\n\nend"),
        ("x.md", "see [the docs](http://x/(y) 'z') ![pic](p.png)", "x", "see the docs pic"),
        ("x.md", "[![alt](a.png)](b) rows[0](1) [open](", "x", "alt rows0 [open]("),
        ("x.md", "see [it][1]\n\n[1]: http://x\nend", "x", "see it\n\nend"),
        ("x.rst", "Head\n====\n\na `b <http://x>`_", "x", "Head\n====\n\na `b <http://x>`_"),  # plain text
        ("x.html", "<title>A &amp; B</title><h1>A &amp; B</h1><p>one<p>two", "A & B", "one\n\ntwo"),
        ("x.HTM", "<h1>Head <b>line</b></h1><div>1 &lt; 2<br>x</div>", "Head line", "1 < 2\nx"),
        (
            "x.html",
            "<nav>n</nav><script>s</script><style>t</style>a<p hidden>h</p> b<!-- c -->",
            "x",
            "a\n\nb",
        ),
        ("x.html", "<ul><li>a<li>b</ul><table><tr><td>c<td>d</table>", "x", "a\n\nb\n\nc d"),
        ("x.html", "<p>a\n  b</p><pre>c\nd</pre><p>&eacute;&#233;&nbsp;e", "x", "a b\n\nc\nd\n\néé e"),
        ("x.html", "just words", "x", "just words"),
        ("x.html", "<p>a</p><svg><title>icon</title></svg>", "x", "a"),
    ],
)
def test_title_and_body_of_each_kind_of_file(
    name: str, text: str, title: str, body: str, tmp_path: Path
) -> None:
    """The title is searched with every passage, so it must be the right one and stand there once."""
    assert read(tmp_path, name, text) == FileText(title, body)


def test_a_pdf_gives_its_pages_and_a_title_that_a_person_wrote(tmp_path: Path) -> None:
    """Programs put the name of a file into the title, which would be searched as words."""
    assert read(tmp_path, "a_b.pdf", make_pdf("first page", "second")) == FileText(
        "a b", "first page\n\nsecond"
    )
    assert read(tmp_path, "x.pdf", make_pdf("Head", title="Head")) == FileText("Head", "")
    assert read(tmp_path, "x.pdf", make_pdf("text", title="Heat pumps")).title == "Heat pumps"
    for made_up in ("Microsoft Word - x.doc", "report.docx", "untitled", "Document1", "12/3"):
        assert read(tmp_path, "x.pdf", make_pdf("text", title=made_up)).title == "x"


def test_a_page_that_is_broken_is_counted_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One font that the parser does not know must not cost a whole book."""
    extract = pypdf.PageObject.extract_text

    def fail(page: Any) -> str:
        text = extract(page)
        if text == "second":
            raise KeyError("/Font")
        return text

    monkeypatch.setattr(pypdf.PageObject, "extract_text", fail)
    (tmp_path / "x.pdf").write_bytes(make_pdf("first", "second", "third"))
    assert read_file(tmp_path / "x.pdf") == FileText("x", "first\n\nthird", broken_pages=1)
    assert notes_of(tmp_path)[1] == ["PDF files with broken pages, which were left out: 1, namely x.pdf (1)"]


FRENCH = "Le café est fermé à Noël, dit-elle.\nEn été il est ouvert."
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. " * 4
RUSSIAN = "Привет, как дела? Это простой текст. "
JAPANESE = "これは日本語の文書です。検索モデルを訓練する。"
KOREAN = "이것은 한국어 문서입니다. 검색 모델을 훈련한다."


@pytest.mark.parametrize(
    ("data", "text", "how"),
    [
        (codecs.BOM_UTF8 + KOREAN.encode(), KOREAN, ""),
        (KOREAN.encode("utf-16"), KOREAN, ""),
        (codecs.BOM_UTF16_BE + KOREAN.encode("utf-16-be"), KOREAN, ""),
        (FRENCH.encode("latin-1"), FRENCH, "cp1252"),
        (b"plain\n" * 300_000 + FRENCH.encode("cp1252"), "plain\n" * 300_000 + FRENCH, "cp1252"),
        (CZECH.encode("cp1250"), CZECH.strip(), "cp1250"),
        (RUSSIAN.encode("koi8_r"), RUSSIAN.strip(), "koi8_r"),
        (JAPANESE.encode("shift_jis"), JAPANESE, "cp932"),
        (JAPANESE.encode("euc_jp"), JAPANESE, "euc_jp"),
        (KOREAN.encode("euc_kr"), KOREAN, "cp949"),
        (KOREAN.encode() + b"\xec", KOREAN + "\ufffd", "UTF-8 with wrong bytes: 1"),  # cut in a letter
    ],
)
def test_the_encoding_is_found(data: bytes, text: str, how: str, tmp_path: Path) -> None:
    """Half of the folders that people have hold files older than UTF-8, far behind a plain beginning."""
    assert read(tmp_path, "x.txt", data) == FileText("x", text, how)


def test_the_encoding_that_the_user_names_is_not_guessed(tmp_path: Path) -> None:
    """One short word fits many encodings, so the guess may be wrong, and the user knows better."""
    (tmp_path / "a.txt").write_bytes("жа".encode("koi8-r"))
    (tmp_path / "b.txt").write_bytes("\ufeffжа".encode("utf-16-le"))  # its mark says more
    notes: list[str] = []
    found = list(texts.titled(str(tmp_path), SourceOptions(encoding="KOI8-R"), notes))
    assert [body for *_, body in found] == ["жа", "жа"]
    assert notes == []
    (tmp_path / "c.txt").write_bytes(b"\x98")
    list(texts.titled(str(tmp_path), SourceOptions(encoding="cp1251"), notes))
    assert notes == ["files that could not be read: 1, namely c.txt (not cp1251)"]


def test_html_is_read_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    """A few letters are too few to guess from; a wrong declaration is common, and must not stop anything."""
    page = '<meta charset="{}"><p>{}'
    for encoding in ("iso-8859-2", "windows-1251"):
        data = page.format(encoding, "ža" if encoding == "iso-8859-2" else "жа").encode(encoding)
        assert read(tmp_path, "x.html", data).decoded_as == encoding
        assert read(tmp_path, "x.html", data).body in ("ža", "жа")
    assert read(tmp_path, "x.html", page.format("latin1", "„é“").encode("cp1252")).body == "„é“"
    assert read(tmp_path, "x.html", page.format("latin1", KOREAN)).body == KOREAN  # it is UTF-8
    assert (
        read(tmp_path, "x.html", page.format("no-such-code", FRENCH).encode("cp1252")).decoded_as == "cp1252"
    )


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.txt", b"\x00\x01\x02", "binary"),
        ("x.txt", b"text\x00text", "binary"),
        ("x.txt", "text\0".encode("utf-16"), "binary"),
        ("x.txt", codecs.BOM_UTF16_LE + b"\x00\xd8\x00", "not UTF-16 after its byte order mark"),
        ("x.md", bytes(range(128, 256)) * 9, "binary or in an unknown encoding"),
        ("x.txt", b" \n\t", "no text"),
        ("x.txt", b"", "no text"),
        ("x.html", b"", "no text"),
        ("x.html", b"<!-- c -->", "no text"),
        ("x.html", b"<script>x</script>", "no text"),
        ("x.pdf", b"no PDF at all", "broken PDF"),
        ("x.pdf", make_pdf("text")[:300], "broken PDF"),
        ("x.pdf", make_pdf(""), "PDF without text"),  # scanned pages
        ("x.pdf", encrypted_pdf(), "encrypted"),
    ],
)
def test_a_file_without_a_text_says_why(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    """The reason tells whether to mend the file or to leave it."""
    with pytest.raises(UnreadableFile, match=f"^{reason}$"):
        read(tmp_path, name, data)


def test_one_bad_file_stops_nothing_and_is_named(tmp_path: Path) -> None:
    """A folder of thousands of files has a few that cannot be read; silence about them would be worse."""
    folder = tmp_path / "set"
    (folder / "x.txt").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name, data in {
        "b.txt": b"b",
        "a.txt": b"a",
        "x.txt/in.txt": b"inner",
        "x.txt.md": b"beside",
        ".hidden.txt": b"hidden",
        ".git/c.txt": b"hidden",
        "latin.txt": FRENCH.encode("latin-1"),
        "z.jpg": b"\xff",
        "binary.txt": b"\0",
        "broken.pdf": b"%PDF-",
        "locked.pdf": encrypted_pdf(),
        "scan.pdf": make_pdf(""),
    }.items():
        (folder / name).write_bytes(data)
    (tmp_path / "outside.txt").write_text("not in the folder")
    (folder / "loop").symlink_to(folder)
    (folder / "x.txt" / "up").symlink_to(tmp_path)
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    os.mkfifo(folder / "pipe.txt")
    found, notes = notes_of(folder)
    read = [key for key, title, body in found if title or body]
    assert read == ["a.txt", "b.txt", "latin.txt", "x.txt.md", "x.txt/in.txt"]
    assert [one for one in found if one[0] not in read] == [("scan.pdf", "", "")]
    assert notes == [
        "files that could not be read: 6, such as "
        "binary.txt (binary), broken.pdf (broken PDF), gone.txt (no file)",
        "files that are not UTF-8, read in the encoding that fits: 1, namely latin.txt (cp1252)",
        "files of other kinds, which were not read: 1, namely z.jpg",
    ]


def test_a_linked_folder_is_read_once(tmp_path: Path) -> None:
    """Folders of links are how large data are shared; links of two folders to each other have no end."""
    for name in ("a", "b", "set"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(name)
    (tmp_path / "a" / "other").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "other").symlink_to(tmp_path / "a")
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "a")
    assert load_documents(str(tmp_path / "set")) == {
        "linked/other/x.txt": "x b",
        "linked/x.txt": "x a",
        "x.txt": "x set",
    }


def test_names_are_ids_whatever_bytes_they_hold(tmp_path: Path) -> None:
    """An id is written into files in UTF-8; a note is printed, and a terminal obeys an escape character."""
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    (tmp_path / "x\x1b[2J.txt").write_bytes(b"\0")
    found, (note,) = notes_of(tmp_path)
    assert found == [("caf\\udce9.txt", "caf\\udce9", "text")]
    assert note == r"files that could not be read: 1, namely x\x1b[2J.txt (binary)"


def test_one_file_is_a_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A book is one file; its id is its name, and what is odd about it is logged."""
    (tmp_path / "my_book.txt").write_bytes(FRENCH.encode("latin-1"))
    assert load_documents(f"{tmp_path}/my_book.txt") == {"my_book.txt": f"my book {FRENCH}"}
    assert "read in the encoding that fits: 1, namely my_book.txt (cp1252)" in caplog.text


def test_a_file_without_text_is_no_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An empty vector would be searched for nothing; what was left out is logged."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_text(" ")
    assert load_documents(str(tmp_path)) == {"a.txt": "a text"}
    assert "files without text, which were left out: 1, namely b.txt" in caplog.text


def test_nothing_readable_is_one_error_that_lists_what_was_found(tmp_path: Path) -> None:
    """A folder of scans looks like a folder of documents."""
    (tmp_path / "a.pdf").write_bytes(make_pdf(""))
    (tmp_path / "b.txt").write_bytes(b" ")
    with pytest.raises(DataError) as raised:
        load_documents(str(tmp_path))
    expected = f"{tmp_path}: no file can be read: 2, namely a.pdf (PDF without text), b.txt (no text)"
    assert str(raised.value) == expected


@pytest.mark.parametrize("form", ["folder", "file", "corpus"])
def test_training_is_told_what_it_lacks(form: str, tmp_path: Path) -> None:
    """Whoever has documents alone must hear of the command for them, and before minutes of loading."""
    folder = tmp_path / "my docs"
    folder.mkdir()
    (folder / "a.md").write_text("text")
    (folder / "b.TXT").write_text("text")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "body"}\n')
    source, found = {
        "folder": (folder, "the folder holds documents (1 .md, 1 .txt)"),
        "file": (folder / "a.md", "the file holds documents (1 .md)"),
        "corpus": (tmp_path / "corpus.jsonl", "the file holds documents"),
    }[form]
    quoted = f"'{source}'" if form != "corpus" else source
    message = (
        f"{source}: {found} without judged queries; training needs judged queries or rows. "
        f"`lexforge adapt --documents {quoted}` trains on documents alone"
    )
    for load in (lambda name: check_source(name, ["train"]), load_retrieval_data):
        with pytest.raises(DataError) as raised:
            load(str(source))
        assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.md", "[a](" * 50_000),
        ("x.md", "](" + "[" * 100_000),
        ("x.md", "[a](" + "x" * 2_000_000),
        ("x.md", "#" + " " * 2_000_000 + "x"),
        ("x.md", "a\n-\n\n" * 200_000),
        ("x.html", "<div>" * 200_000 + "deep"),
        ("x.html", "<p>a<b>" * 200_000),
        ("x.html", "<!--" * 500_000 + "x"),
        ("x.html", "<p>a&amp" * 200_000),
        ("x.txt", "\xe9" * 2_000_000),
        ("x.txt", "a\xe9 " * 700_000),
    ],
)
def test_hostile_files_take_time_in_proportion(name: str, text: str, tmp_path: Path) -> None:
    """Patterns that try every pair of places need hours for a megabyte; 20 s are for slow machines."""
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    start = time.process_time()
    with suppress(UnreadableFile):
        read_file(tmp_path / name)
    assert time.process_time() - start < 20
