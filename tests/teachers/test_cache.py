"""The cache of teacher embeddings: encoded once, found by text, never wrong."""

from __future__ import annotations

import logging
import os
import shutil
import time
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lexforge.common import progress
from lexforge.common.similarity import Similarity
from lexforge.data import DataError
from lexforge.teachers import TeacherCache
from lexforge.teachers import cache as module

TEXTS = [f"text {number}" for number in range(10)]


class CountingTeacher:
    """Vectors that follow from the text alone, and a list of what was asked."""

    similarity: Similarity = "cosine"

    def __init__(self, name: str = "counting", dimension: int = 4) -> None:
        self.name, self.dimension = name, dimension
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        self.asked += texts
        return np.stack([expected(text, self.dimension, kind) for text in texts])


def expected(text: str, dimension: int = 4, kind: str = "document") -> np.ndarray:
    vector = (
        np.random.default_rng(zlib.crc32(f"{kind} {text}".encode())).normal(size=dimension).astype(np.float32)
    )
    return vector / np.linalg.norm(vector)


def rows(texts: Sequence[str]) -> np.ndarray:
    return np.stack([expected(text) for text in texts]).astype(np.float16)


def test_each_distinct_text_is_encoded_once_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document is a positive here and a negative there; a lookup has an order and repeats of its own."""
    monkeypatch.setattr(module, "BLOCK_TEXTS", 3)
    teacher = CountingTeacher()
    cache = TeacherCache.build(teacher, [], TEXTS + TEXTS[:5], tmp_path / "cache")
    assert teacher.asked == TEXTS
    assert (cache.dimension, cache.teacher) == (4, "counting")
    asked = ["text 7", "text 0", "text 7", "text 9"]
    assert cache.lookup(asked, "document").dtype == np.float16
    np.testing.assert_array_equal(cache.lookup(asked, "document"), rows(asked))
    assert cache.lookup([], "document").shape == (0, 4)


def test_a_second_run_reuses_the_cache_and_adds_what_is_missing(tmp_path: Path) -> None:
    """Encoding is hours with a large teacher; only new texts may cost anything."""
    TeacherCache.build(CountingTeacher(), [], TEXTS[:6], tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    second = CountingTeacher()
    TeacherCache.build(second, [], TEXTS[:6], tmp_path)
    assert second.asked == []
    cache = TeacherCache.build(second, [], TEXTS, tmp_path)
    assert second.asked == TEXTS[6:]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    np.testing.assert_array_equal(cache.lookup(TEXTS, "document"), rows(TEXTS))
    np.testing.assert_array_equal(TeacherCache(tmp_path).lookup(TEXTS, "document"), rows(TEXTS))


def test_a_text_of_both_kinds_has_two_vectors(tmp_path: Path) -> None:
    """E5 and its kin prompt queries and documents differently; one vector for both teaches the wrong one."""
    teacher = CountingTeacher()
    cache = TeacherCache.build(teacher, TEXTS[:3], TEXTS[2:], tmp_path)
    assert teacher.asked == TEXTS[:3] + TEXTS[2:]
    for kind in ("query", "document"):
        vector = expected("text 2", kind=kind).astype(np.float16)
        np.testing.assert_array_equal(cache.lookup(["text 2"], kind)[0], vector)
    with pytest.raises(KeyError, match=r"'text 0' is not in the teacher cache .* as a document"):
        cache.lookup(["text 0"], "document")
    with pytest.raises(ValueError, match=r"kind must be one of .* received 'anchor'"):
        cache.lookup(["text 0"], "anchor")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a list of texts; received the single text 'text 3'"):
        cache.lookup("text 3", "document")


def test_the_texts_of_training_rows_have_the_kind_of_their_column(tmp_path: Path) -> None:
    """Anchors are queries, positives and negatives documents; a label and other columns are no texts."""
    row = {"anchor": "a", "positive": "b", "negative_1": "a", "label": [1.0, 0.5], "judged": [7]}
    cache = TeacherCache.build_for_rows(CountingTeacher(), [row, {**row, "anchor": "c"}], tmp_path)
    assert cache.lookup(["a", "c"], "query").shape == (2, 4)
    assert cache.lookup(["b", "a"], "document").shape == (2, 4)


def test_embeddings_stay_on_disk(tmp_path: Path) -> None:
    """The ranks of a machine share the pages of one file; a copy each would not fit."""
    teacher = CountingTeacher(dimension=100_000)
    size = len(TEXTS) * teacher.dimension * np.dtype(np.float16).itemsize
    for make in (lambda: TeacherCache.build(teacher, [], TEXTS, tmp_path), lambda: TeacherCache(tmp_path)):
        tracemalloc.start()
        cache = make()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < size / 4
        assert cache.lookup(TEXTS, "document").nbytes == size


def test_a_killed_run_keeps_its_finished_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed run left must be right, and its successor goes on where it stopped."""

    class Killed(CountingTeacher):
        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            if "text 6" in texts:
                raise KeyboardInterrupt
            return super().encode(texts, kind)

    monkeypatch.setattr(module, "BLOCK_TEXTS", 3)
    with pytest.raises(KeyboardInterrupt):
        TeacherCache.build(Killed(), [], TEXTS, tmp_path)
    killed = tmp_path / f"block-{'0' * 16}.12-{'a' * 16}.partial"  # of a run that was killed while it wrote
    killed.mkdir()
    (killed / "keys.npy").write_bytes(b"half")
    teacher = CountingTeacher()
    cache = TeacherCache.build(teacher, [], TEXTS, tmp_path)
    assert teacher.asked == TEXTS[6:]
    np.testing.assert_array_equal(cache.lookup(TEXTS, "document"), rows(TEXTS))
    assert killed.exists()  # as far as anyone knows, another process is still writing it
    two_hours_ago = time.time() - 7200
    for path in (killed / "keys.npy", killed):
        os.utime(path, (two_hours_ago, two_hours_ago))
    TeacherCache.build(teacher, [], [*TEXTS, "another"], tmp_path)
    assert not killed.exists()


@pytest.mark.parametrize("damage", ["changed", "no manifest"])
def test_a_broken_block_is_refused(tmp_path: Path, damage: str) -> None:
    """Disks fill up and copies are cut, as test_manifest.py has it; the message names what to delete."""
    TeacherCache.build(CountingTeacher(), [], TEXTS, tmp_path)
    (block,) = tmp_path.iterdir()
    if damage == "changed":
        np.save(block / "keys.npy", np.load(block / "keys.npy")[::-1])
    else:
        (block / "manifest.json").unlink()
    for use in (TeacherCache, lambda folder: TeacherCache.build(CountingTeacher(), [], TEXTS, folder)):
        with pytest.raises(DataError, match=rf"{block.name} is broken.*delete it"):
            use(tmp_path)


def test_a_foreign_cache_is_refused(tmp_path: Path) -> None:
    """Two teachers' vectors in one space would distil nonsense."""
    TeacherCache.build(CountingTeacher(), [], TEXTS[:5], tmp_path / "one")
    with pytest.raises(
        DataError, match=r"cache of the teacher 'counting'; received 'other'. Delete it or choose"
    ):
        TeacherCache.build(CountingTeacher("other"), [], TEXTS, tmp_path / "one")
    with pytest.raises(DataError, match=r"must return \[5, 4\] numbers; received \(5, 3\)"):
        TeacherCache.build(CountingTeacher(dimension=3), [], TEXTS, tmp_path / "one")
    TeacherCache.build(CountingTeacher("other"), [], TEXTS, tmp_path / "two")
    (foreign,) = (tmp_path / "two").iterdir()
    shutil.copytree(foreign, tmp_path / "one" / foreign.name)
    with pytest.raises(DataError, match=r"of the teacher '\w+', .* of '\w+'; delete one of them"):
        TeacherCache(tmp_path / "one")


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    """A run directory given by mistake must not be filled with blocks."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"no teacher cache: it holds 'config\.json'"):
        TeacherCache.build(CountingTeacher(), [], TEXTS, tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no teacher cache"):
        TeacherCache(tmp_path / "nowhere")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    """1e6 is finite in float32 and not in the float16 of the cache."""

    class Wrong(CountingTeacher):
        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            embeddings = super().encode(texts, kind)
            embeddings[2, 1] = value
            return embeddings

    with pytest.raises(DataError, match="not finite for 'text 2'"):
        TeacherCache.build(Wrong(), [], TEXTS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    """No text is a caller's mistake, and a teacher that loses a text would shift all others."""

    class Short(CountingTeacher):
        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            return super().encode(texts, kind)[1:]

    with pytest.raises(ValueError, match="at least one text"):
        TeacherCache.build(CountingTeacher(), [], [], tmp_path)
    with pytest.raises(DataError, match=r"must return \[10, D\] numbers; received \(9, 4\)"):
        TeacherCache.build(Short(), [], TEXTS, tmp_path)


def test_without_a_folder_the_cache_is_the_user_s_own_and_named_after_the_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run of a recipe, in another run directory, must not encode again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (
        TeacherCache.build(CountingTeacher(), [], TEXTS).folder
        == tmp_path / "lexforge" / "teachers" / "counting"
    )
    again = CountingTeacher()
    TeacherCache.build(again, [], TEXTS)
    assert again.asked == []


def test_texts_are_encoded_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million pairs do not fit beside a teacher: at most two blocks of texts wait, however many follow."""
    read = 0

    def rows_from_disk() -> Iterator[dict[str, str]]:
        nonlocal read
        for number in range(100):
            read += 1
            yield {"anchor": f"query {number}", "positive": f"document {number % 40}"}

    class Watching(CountingTeacher):
        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            assert len(texts) <= 10
            waiting.append(read - len([text for text in self.asked if text.startswith("query")]))
            return super().encode(texts, kind)

    waiting: list[int] = []
    teacher = Watching()
    monkeypatch.setattr(module, "BLOCK_TEXTS", 10)
    cache = TeacherCache.build_for_rows(teacher, rows_from_disk(), tmp_path)
    assert max(waiting[:-1]) <= 20
    assert sorted(teacher.asked) == sorted(
        [f"query {number}" for number in range(100)] + [f"document {number}" for number in range(40)]
    )
    assert cache.lookup(["query 99"], "query").shape == (1, 4)
    np.testing.assert_array_equal(cache.lookup(["document 39"], "document"), rows(["document 39"]))


def test_progress_ends_at_the_number_of_all_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bar that knows no total tells nobody how long it takes, and one that stops early looks broken: texts
    that are known and texts that repeat others count too.
    """
    monkeypatch.setattr(module, "BLOCK_TEXTS", 3)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    documents = TEXTS + TEXTS[:5]
    for counts in (
        (3, 6, 9, 11, 14, 15),  # three blocks; two and three that repeat others; the tenth text
        (3, 6, 9, 12, 15),  # all are known
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            TeacherCache.build(CountingTeacher(), [], documents, tmp_path)
        assert caplog.messages == [f"teacher counting: {count} of 15 texts" for count in counts]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        TeacherCache.build(CountingTeacher(), iter(["new"]), documents, tmp_path)
    assert caplog.messages[-1] == "teacher counting: 16 texts in all"
