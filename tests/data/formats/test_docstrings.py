"""The docstrings corpus, read from a small made folder of Python files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lexforge.data import DataError, load_docstrings
from lexforge.data.formats.docstrings import default_roots, split_of

REST = "The list is walked from its end to its start, and every element moves to the place that it keeps."

MODULE = f'''
"""Tools that keep a list in order.

Importing this file would end the interpreter, so a test that passes shows that no code is run. {REST}
"""
raise SystemExit("imported")


def insertion(values):
    """Sort a list in place by insertion.

    Each element is moved to the left until its neighbour is smaller; the cost is quadratic.

    Examples
    --------
    >>> insertion([2, 1])
    [1, 2]

    Notes
    -----
    The order of equal elements does not change.
    """

    def inner():
        """Move one element to its place.

        It is compared with its left neighbour, and both change places until the neighbour is smaller.
        """


class Heap:
    """A binary heap that keeps the least element at its root."""

    if True:

        async def push(self, value):
            """Add one element to the heap.

            The element is put at the end and climbs while its parent is larger, at most as often as the
            tree is high.
            """


def short(values):
    """Reverse a list in place.

    Returns nothing.
    """


def contained(values):
    """Shuffle a list in place.

    This function will shuffle a list in place. {REST}
    """


def licence(values):
    """Rotate a list by one place.

    Copyright 2001 by nobody, all rights reserved. {REST}
    """


def signature(values):
    """signature(values) -> the same list again

    {REST}
    """


def copied(values):
    """Sort a list in place by insertion.

    A second function with the first one's summary is no second query for it: nobody can tell them apart.
    """
'''


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "sources" / "pack"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text(MODULE, encoding="utf-8")
    (folder / "broken.py").write_text('def f(:\n"""Sort.\n\nMore words."""\n', encoding="utf-8")
    (folder / "escape.py").write_text(
        f'"""Match a digit with \\d here.\n\n{REST} Once."""\n', encoding="utf-8"
    )
    (folder / "tests" / "inner.py").write_text(MODULE, encoding="utf-8")
    (folder / "test_pack.py").write_text(MODULE, encoding="utf-8")
    return {"pack": folder}


def test_pairs_are_the_first_paragraph_and_the_rest(tmp_path: Path, sources: dict[str, Path]) -> None:
    """Every kind of definition is found at any depth, and what is no pair is left out."""
    data = load_docstrings(tmp_path / "cache", roots=sources)
    assert data.queries == {
        "query:pack": "Tools that keep a list in order.",
        "query:pack.insertion": "Sort a list in place by insertion.",
        "query:pack.insertion.inner": "Move one element to its place.",
        "query:pack.Heap.push": "Add one element to the heap.",
        "query:pack.escape": "Match a digit with \\d here.",
    }
    assert data.corpus["pack.insertion"] == (
        "Each element is moved to the left until its neighbour is smaller; the cost is quadratic. "
        "The order of equal elements does not change."
    )
    judged = {query: documents for split in data.splits for query, documents in data.split(split).items()}
    assert judged == {f"query:{name}": {name: 1} for name in data.corpus}


def test_a_docstring_that_utf8_cannot_hold_is_left_out(tmp_path: Path) -> None:
    """One escape in one installed package must not cost the whole corpus."""
    for name, escape in (("good", ""), ("half", "\\ud800"), ("pair", "\\U0001f600")):
        text = f'"""Sort a long list of {escape} names.\n\n{name} {REST}\n"""\n'
        (tmp_path / "code" / f"{name}").mkdir(parents=True)
        (tmp_path / "code" / name / "m.py").write_text(text)
    roots = {name: tmp_path / "code" / name for name in ("good", "half", "pair")}
    assert set(load_docstrings(tmp_path / "cache", roots=roots).corpus) == {"good.m", "pair.m"}
    if os.name == "posix":  # a file's name can be any bytes
        (tmp_path / "code" / "good" / os.fsdecode(b"caf\xe9.py")).write_text(
            f'"""Sort a short list of numbers.\n\nbytes {REST}\n"""\n'
        )
        assert set(load_docstrings(tmp_path / "cache", roots=roots).corpus) == {"good.m", "pair.m"}


def test_a_module_is_on_one_side(tmp_path: Path) -> None:
    """Docstrings of one file resemble each other: in two splits they would leak."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(60):
        body = "".join(
            f'def f{part}():\n    """Do step {part} of module {word}.\n\n    {REST} {word} {part}"""\n\n\n'
            for part, word in (("one", f"w{number}"), ("two", f"w{number}"))
        )
        (folder / f"m{number}.py").write_text(body, encoding="utf-8")
    data = load_docstrings(tmp_path / "cache", roots={"": folder})
    sides: dict[str, set[str]] = {}
    for split in data.splits:
        for query in data.split(split):
            sides.setdefault(query.split(".")[0], set()).add(split)
    assert len(data.queries) == 120
    assert len(sides) == 60
    assert all(len(splits) == 1 for splits in sides.values())
    assert set(data.splits) == {"train", "dev", "test"}


def test_splits_do_not_depend_on_the_process() -> None:
    """Python's own hash differs from run to run; these values were computed with the sha256sum tool."""
    # sha256 of the name modulo 10: 0 is dev, 1 is test.
    modules = ["ast", "math", "decimal", "json", "numpy.linalg", "os"]
    assert [split_of(name) for name in modules] == ["dev", "dev", "test", "train", "train", "train"]


def test_the_cache_is_used_and_follows_the_sources(
    tmp_path: Path, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing takes most of a minute, so it happens once, but again when a package was updated."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    first = load_docstrings(roots=sources)
    (cache_file,) = (tmp_path / "xdg" / "lexforge").iterdir()
    changed = sources["pack"] / "escape.py"
    text, status = changed.read_text(encoding="utf-8"), changed.stat()
    changed.write_text(text.replace("digit", "point"), encoding="utf-8")  # parsed, it is another query
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load_docstrings(roots=sources) == first
    changed.write_text(f'"""Match one letter of a word.\n\n{REST} Once."""\n', encoding="utf-8")
    assert load_docstrings(roots=sources).queries["query:pack.escape"] == "Match one letter of a word."
    changed.unlink()
    assert len(load_docstrings(roots=sources).queries) == len(first.queries) - 1
    assert len(list(cache_file.parent.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "changed", "no header", "empty"])
def test_a_broken_cache_is_refused(tmp_path: Path, sources: dict[str, Path], damage: str) -> None:
    """A half file would silently be a smaller corpus."""
    load_docstrings(tmp_path / "cache", roots=sources)
    (cache_file,) = (tmp_path / "cache").iterdir()
    content = cache_file.read_text(encoding="utf-8")
    cache_file.write_text(
        {
            "cut": content[:-20],
            "changed": content.replace("insertion", "selection"),
            "no header": content.split("\n", 1)[1],
            "empty": "",
        }[damage],
        encoding="utf-8",
    )
    with pytest.raises(DataError, match=r"docstrings-.*\.jsonl is broken.*delete it"):
        load_docstrings(tmp_path / "cache", roots=sources)


def test_a_killed_write_leaves_no_cache(
    tmp_path: Path, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final name appears only with the whole content under it."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            load_docstrings(tmp_path / "cache", roots=sources)
    assert list((tmp_path / "cache").iterdir()) == []
    load_docstrings(tmp_path / "cache", roots=sources)


def test_max_pairs_keeps_a_fixed_choice(tmp_path: Path, sources: dict[str, Path]) -> None:
    """A quick trial should be the same on each call, and a part of a larger one."""
    two, three = (load_docstrings(tmp_path, roots=sources, max_pairs=count) for count in (2, 3))
    assert len(two.corpus) == len(two.queries) == 2
    assert set(two.corpus) < set(three.corpus)
    assert sum(len(two.split(split)) for split in two.splits) == 2


def test_what_cannot_be_read_is_refused(tmp_path: Path, sources: dict[str, Path]) -> None:
    """An empty corpus or a wrong folder must not become an empty evaluation."""
    with pytest.raises(ValueError, match="max_pairs must be at least 1; received 0"):
        load_docstrings(tmp_path, roots=sources, max_pairs=0)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_docstrings(tmp_path, roots={"pack": tmp_path / "nowhere"})
    (tmp_path / "hollow").mkdir()
    with pytest.raises(DataError, match="no docstring pair in 0 source files"):
        load_docstrings(tmp_path, roots={"pack": tmp_path / "hollow"})


def test_the_default_roots_are_found_without_an_import() -> None:
    """The standard library and the packages that lexforge needs are there on every machine."""
    roots = default_roots()
    assert (roots[""] / "json" / "decoder.py").is_file()
    assert (roots["numpy"] / "__init__.py").is_file()
    assert {"torch", "transformers", "sklearn"} <= set(roots)


def test_real_sources_give_real_pairs(tmp_path: Path) -> None:
    """The rules were chosen on real files: json must give pairs, and no document may hold its query."""
    data = load_docstrings(tmp_path, roots={"json": default_roots()[""] / "json"})
    assert len(data.corpus) >= 5
    for name, document in data.corpus.items():
        assert data.queries[f"query:{name}"].lower().rstrip(".") not in document.lower()
    for line in next(tmp_path.iterdir()).read_text(encoding="utf-8").splitlines()[1:]:
        assert json.loads(line)["module"].startswith("json")
