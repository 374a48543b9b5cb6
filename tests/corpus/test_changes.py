"""Documents that come and go: after any changes an index answers as one that was made of what is left."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from encoded_batches import batches_of
from warm_processes import WarmProcesses

from lexforge.common.types import Passage
from lexforge.corpus import Change, change_index, encode, index_passages, open_index, read_source
from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.stored_index import build_index
from lexforge.retrieval import faiss as faiss_index
from lexforge.retrieval import inverted
from lexforge.storage import lock

TEXTS = "search index|sort the list|file|vector|hash of a key|검색 서울|open|tree node|search the tree".split(
    "|"
)
PASSAGES = {f"d{number}": Passage("", text, f"d{number}") for number, text in enumerate(TEXTS)}


@pytest.fixture
def index(tiny_splade, tmp_path: Path) -> Path:
    index_passages(tiny_splade, PASSAGES, tmp_path / "index", name="tiny")
    return tmp_path / "index"


def assert_equal_to_a_new_one(model, folder: Path, passages: dict[str, Passage], tmp_path: Path) -> None:
    """Compare the index on the disk with one that is made of the passages."""
    index_passages(model, passages, tmp_path / "new", name="tiny")
    (changed, _, texts), (new, _, _) = open_index(folder), open_index(tmp_path / "new")
    assert changed.ids == new.ids == list(texts) == list(passages)
    assert dict(texts) == passages
    kind = "query" if len(passages) else "document"
    queries = encode(model, ["search tree", "list of files", "서울"], kind)
    found, expected = changed.search(queries, 20), new.search(queries, 20)
    assert found.ids == expected.ids
    for first, second in zip(found.scores, expected.scores, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5)


def test_documents_are_added_replaced_and_deleted(tiny_splade, index: Path, tmp_path: Path) -> None:
    """A document that comes again with other passages loses the old ones; equal ones are not encoded."""
    parts = {"d2#1": Passage("File", "open the file", "d2"), "d2#2": Passage("File", "vector", "d2")}
    added = {**parts, "d0": PASSAGES["d0"], "e": Passage("", "sort of key", "e")}
    assert change_index(index, tiny_splade, added, ["d1", "d5"]) == Change(added=3, unchanged=1, deleted=3)
    left = {key: one for key, one in PASSAGES.items() if key not in ("d1", "d2", "d5")}
    assert_equal_to_a_new_one(tiny_splade, index, {**left, **parts, "e": added["e"]}, tmp_path)
    assert read_source(index).generation == 2
    assert sorted(path.name for path in index.glob("generation-*")) == ["generation-2"]
    # A document goes with all its passages, a passage alone.
    assert change_index(index, tiny_splade, None, ["d2", "e"]) == Change(0, 0, 3)
    assert open_index(index)[0].ids == list(left)


def test_only_new_texts_are_encoded(tiny_splade, index: Path) -> None:
    """Twenty more documents do not mean encoding all again."""
    batches = batches_of(tiny_splade)
    change_index(index, tiny_splade, {**PASSAGES, "e": Passage("Key", "open", "e")})
    assert change_index(index, tiny_splade, PASSAGES) == Change(0, 9, 0)
    assert [batch.tolist() for batch in batches] == [tiny_splade.tokenizer(["Key open"])["input_ids"]]
    assert read_source(index).generation == 2  # nothing came or went


def test_a_title_that_was_stored_in_the_text_makes_no_text_new(tiny_splade, tmp_path: Path) -> None:
    """An index of vectors stores title and text as one; adding its file again would encode every document."""
    joined = Passage("", "Key open", "e")
    index_passages(tiny_splade, {"e": joined}, tmp_path / "index", name="tiny")
    assert change_index(tmp_path / "index", tiny_splade, {"e": Passage("Key", "open", "e")}) == Change(
        0, 1, 0
    )


@pytest.mark.parametrize("index_name", ["faiss-flat", "faiss-hnsw"])
def test_dense_indexes_change_as_well(index_name, tiny_dense, tmp_path: Path) -> None:
    """The vectors come out of FAISS as they went in, and are searched by the similarity of the model."""
    index_passages(tiny_dense, PASSAGES, tmp_path / "index", name="tiny", index_name=index_name)
    change_index(tmp_path / "index", tiny_dense, {"e": Passage("", "sort of key", "e")}, ["d3"])
    index, source, _ = open_index(tmp_path / "index")
    assert source.index_name == index_name
    expected = encode(tiny_dense, [TEXTS[0], "sort of key"], "document")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(["d0", "e"]), expected, atol=1e-5)
    assert [row[0] for row in index.search(expected, 1).ids] == ["d0", "e"]


def test_a_reader_keeps_the_state_that_it_has_opened(tiny_splade, index: Path) -> None:
    """A running server goes on with the old documents until it opens the new generation."""
    old, _, passages = open_index(index)
    queries = encode(tiny_splade, ["file"], "query")
    before = old.search(queries, 9).ids
    change_index(index, tiny_splade, None, ["d2"])
    assert old.search(queries, 9).ids == before
    assert passages["d2"].text == "file"
    assert "d2" not in open_index(index)[0].ids


def test_a_document_that_comes_again_without_passages_loses_its_old_ones(tiny_splade, index: Path) -> None:
    """A text that is blank now, or repeats another one, is left out of what is added."""
    added = {"d0": Passage("", "sort of key", "d0"), "d1": PASSAGES["d1"]}
    change = change_index(index, tiny_splade, added, replaced=["d0", "d1", "d2", "never there"])
    assert change == Change(added=1, unchanged=1, deleted=2)
    assert open_index(index)[0].ids == ["d1", *list(PASSAGES)[3:], "d0"]


def found_texts(model, folder: Path) -> list[dict[str, float]]:
    """What each of three queries finds: text, without the number of its spaces -> score."""
    index, _, passages = open_index(folder)
    found = index.search(encode(model, ["search tree", "list of files", "hash"], "query"), 20)
    return [
        {passages[key].text.replace("  ", " "): score for key, score in zip(*row, strict=True)}
        for row in zip(found.ids, found.scores, strict=True)
    ]


def test_many_repeated_passages_come_and_go(tiny_splade, tmp_path: Path) -> None:
    """A text is found, once, as long as any document has it, whichever of them came and went."""
    draw = random.Random(3)
    folder, left = tmp_path / "index", {"start": Passage("", TEXTS[0], "start")}
    index_passages(tiny_splade, left, folder, name="tiny")
    for step in range(20):
        added = {}
        for document in draw.sample("uvwxyz", draw.randint(0, 3)):
            for number in range(draw.randint(1, 3)):
                text = draw.choice(TEXTS).replace(" ", draw.choice([" ", "  "]))
                added[f"{document}#{number}"] = Passage("", text, document)
        renewed = {passage.document for passage in added.values()}
        deleted = set(draw.sample(sorted(left), 1) + draw.sample([one.document for one in left.values()], 1))
        after = {
            key: passage
            for key, passage in left.items()
            if not {key, passage.document} & deleted and passage.document not in renewed
        } | added
        if not after:
            continue
        left = after
        change = change_index(folder, tiny_splade, added, deleted)
        assert change.added + change.unchanged == len(added)
        _, _, passages = open_index(folder)
        assert {**passages, **passages.repeated} == left
        once = {passage.text.replace("  ", " "): passage for passage in left.values()}
        assert len(passages) == len(once)
        new = tmp_path / f"new-{step}"
        index_passages(tiny_splade, {f"{n}": one for n, one in enumerate(once.values())}, new, name="tiny")
        expected = [pytest.approx(row, rel=1e-5) for row in found_texts(tiny_splade, new)]  # float32
        assert found_texts(tiny_splade, folder) == expected


def test_threads_change_an_index_one_at_a_time(tiny_splade, index: Path) -> None:
    """The system's lock keeps out other processes alone, and of two changes at once one would be lost."""
    is_inside, may_go = threading.Event(), threading.Event()

    def wait(*_) -> None:
        is_inside.set()
        assert may_go.wait(60)

    tiny_splade[0].register_forward_pre_hook(wait)
    first, second = ({key: Passage("", f"sort {key}", key)} for key in ("first", "second"))
    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change_index, index, tiny_splade, first)
        assert is_inside.wait(60)
        try:
            with pytest.raises(BlockingIOError, match=r"this process is writing in .*index already"):
                change_index(index, tiny_splade, None, ["d0"])
        finally:
            may_go.set()
        assert changing.result() == Change(1, 0, 0)
    assert change_index(index, tiny_splade, second) == Change(1, 0, 0)
    assert open_index(index)[0].ids == [*PASSAGES, "first", "second"]


@pytest.mark.parametrize("name", ["read_manifest", "read_ids"])
@pytest.mark.parametrize("index_name", ["inverted", "faiss-flat"])
def test_a_state_that_goes_while_it_is_opened_gives_way_to_the_next(
    index_name: str, name: str, tiny_splade, tiny_dense, tmp_path: Path, monkeypatch
) -> None:
    """Another process changes the index between two files, and deletes those that are not read yet."""
    model, module = (tiny_splade, inverted) if index_name == "inverted" else (tiny_dense, faiss_index)
    index_passages(model, PASSAGES, tmp_path / "index", name="tiny", index_name=index_name)
    changed = shutil.copytree(tmp_path / "index", tmp_path / "changed")
    change_index(changed, model, None, ["d0"])
    real = getattr(module, name)

    def changing(*arguments):
        found = real(*arguments)
        if (tmp_path / "index" / "generation-1").is_dir():
            shutil.rmtree(tmp_path / "index")
            changed.rename(tmp_path / "index")
        return found

    monkeypatch.setattr(module, name, changing)
    index, source, _ = open_index(tmp_path / "index")
    assert (index.ids, source.generation) == (list(PASSAGES)[1:], 2)


DIES_BEFORE_THE_END = """
import os, signal, sys
from sentence_transformers import SparseEncoder
from lexforge.corpus import change_index, stored_index
stored_index.write_file = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
change_index(sys.argv[1], SparseEncoder(sys.argv[2], device="cpu"), None, ["d0"])
"""


def test_a_killed_change_changes_nothing(warm: WarmProcesses, tiny_splade, tmp_path: Path) -> None:
    """The last step makes the new state the current one; before it there is the old one, and a next call."""
    tiny_splade.save_pretrained(str(tmp_path / "model"))
    model = str(tmp_path / "model")
    index = tmp_path / "index"
    index_passages(tiny_splade, PASSAGES, index, name=model)
    assert warm.run("-c", [DIES_BEFORE_THE_END, index, model]) == [-signal.SIGKILL], warm.log.read_text()
    assert (index / "generation-2").is_dir()
    assert open_index(index)[0].ids == list(PASSAGES)
    change_index(index, tiny_splade, None, ["d1"])
    assert open_index(index)[0].ids == [key for key in PASSAGES if key != "d1"]
    assert [path.name for path in index.glob("generation-*")] == ["generation-2"]


def test_a_change_is_on_the_disk_before_the_old_state_goes(
    tiny_splade, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the name of a state without its files would be all that is left of an index."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to tell a file by its descriptor")
    synced: list[str] = []

    def spy(descriptor: int) -> None:
        assert (index / "generation-1").is_dir()
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), index))

    monkeypatch.setattr(os, "fsync", spy)
    change_index(index, tiny_splade, {"d99": Passage("", "another text", "d99")})
    new = index / "generation-2"
    assert {f"generation-2/{path.relative_to(new)}" for path in new.rglob("*")} < set(synced)
    assert synced[-2].startswith("source.json"), "the state is named when its files are there"
    assert synced[-1] == "."
    assert not (index / "generation-1").exists()


def test_a_document_cannot_be_named_like_a_passage_of_another(tiny_splade, tmp_path: Path) -> None:
    """Whoever deleted the one lost the passage of the other."""
    long = {f"a#{part}": Passage("", f"sort list {part}", "a") for part in (1, 2)}
    index_passages(tiny_splade, long, tmp_path / "index", name="tiny")
    other = {f"a#2#{part}": Passage("", f"open file {part}", "a#2") for part in (1, 2)}
    with pytest.raises(ValueError, match="'a#2' belongs to a passage of the document 'a'; received it for"):
        change_index(tmp_path / "index", tiny_splade, other)
    assert open_index(tmp_path / "index")[0].ids == list(long)


def test_bad_changes_are_refused(
    warm: WarmProcesses, tiny_splade, tiny_dense, index: Path, tmp_path: Path
) -> None:
    """Each names what it received, and the index stays as it was."""
    with pytest.raises(ValueError, match=r"has no document 'x', 'y'$"):
        change_index(index, tiny_splade, None, ["x", "d1", "y"])
    with pytest.raises(ValueError, match=r"no document of .* would be left"):
        change_index(index, tiny_splade, None, list(PASSAGES))
    with pytest.raises(
        ValueError, match="'d1' belongs to a passage of the document 'd1'; received it for one of 'z'"
    ):
        change_index(index, tiny_splade, {"d1": Passage("", "x", "z"), "new": Passage("", "other", "z")})
    with pytest.raises(ValueError, match="the model must be tiny, which made the index"):
        change_index(index, tiny_dense, None, ["d1"])
    with pytest.raises(FileNotFoundError, match="holds no finished index"):
        change_index(tmp_path, tiny_splade, None, ["d1"])
    assert not (tmp_path / lock.LOCK_FILE).exists()
    encode_corpus(tiny_splade, {"a": "file"}, tmp_path / "blocks", name="tiny")
    build_index(EncodedCorpus(tmp_path / "blocks"), tmp_path / "bare", "inverted")
    with pytest.raises(ValueError, match="keeps no texts"):
        change_index(tmp_path / "bare", tiny_splade, None, ["a"])
    with lock.locked(index):
        code = "import sys; from lexforge.corpus import change_index; change_index(sys.argv[1], None)"
        refused = warm.completed("-c", code, index)
    assert refused.returncode == 1
    said = refused.stderr.splitlines()[-1]
    assert re.match(r"BlockingIOError: process \d+ on .* is writing in .*index", said), said
    with lock.locked(index):  # it was given back
        pass
    assert read_source(index).generation == 1
