"""A corpus in blocks on disk: the rows of one encoding, whatever the ranks, kills and damages between."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from encoded_batches import batches_of

from lexforge.corpus import encoded_corpus, encoding
from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from lexforge.corpus.encoding import encode
from lexforge.storage.manifest import pack_manifest

TEXTS = (
    "search index|a|sort the list of words in the file||vector|hash of a key|서울 검색|open file|tree".split(
        "|"
    )
)
WRITER = f"12-{'ab' * 8}"  # of a file that is half written: process and random digits
CORPUS = {f"d{number}": text for number, text in enumerate(TEXTS)}


def write(model, directory: Path, corpus: dict[str, str] = CORPUS, **settings) -> int:
    return encode_corpus(
        model, corpus, directory, name="tiny", **{"block_rows": 2, "batch_size": 2} | settings
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_blocks_hold_the_rows_of_the_corpus_in_order(
    vector_type: str, tiny_splade, tiny_dense, tmp_path
) -> None:
    """A row in another document's place is a wrong answer that nothing else would notice."""
    model = tiny_splade if vector_type == "sparse" else tiny_dense
    assert write(model, tmp_path) == 5
    stored = EncodedCorpus(tmp_path)
    vectors, ids = stored.merged()
    whole = encode(model, TEXTS, "document")
    dense = (lambda rows: rows.toarray()) if vector_type == "sparse" else np.asarray
    np.testing.assert_allclose(dense(vectors), dense(whole), rtol=1e-5, atol=1e-5)  # padding changes the sums
    assert vectors.dtype == np.float32
    assert ids == list(CORPUS)
    assert len(stored) == 9
    assert (stored.manifest.vector_type, stored.manifest.model) == (vector_type, "tiny")


@pytest.mark.parametrize(("rows", "sizes"), [(1, [2, 2, 2, 2, 1]), (5, [4, 4, 1]), (100, [9])])
def test_blocks_are_joined_up_to_the_rows_asked_for(rows: int, sizes, tiny_splade, tmp_path) -> None:
    """An index is faster for large blocks, and memory bounds them."""
    write(tiny_splade, tmp_path)
    groups = list(EncodedCorpus(tmp_path).blocks(rows))
    assert [vectors.shape[0] for vectors, _ in groups] == [len(ids) for _, ids in groups] == sizes
    assert [key for _, ids in groups for key in ids] == list(CORPUS)


def test_ranks_write_the_bytes_of_one_process(tiny_splade, tmp_path: Path) -> None:
    """Block boundaries must not depend on how many processes there are."""
    write(tiny_splade, tmp_path / "one")
    assert [write(tiny_splade, tmp_path / "three", rank=rank, ranks=3) for rank in (2, 0, 1)] == [1, 2, 2]
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


def test_only_what_is_missing_is_encoded(tiny_splade, tmp_path: Path) -> None:
    """What a kill left is kept, half-written files are not, and the end is the undisturbed one."""
    write(tiny_splade, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    (tmp_path / "killed" / "block-000003.safetensors").unlink()
    for leftover in (f"block-000003.safetensors.{WRITER}.partial", f"manifest.json.{WRITER}.partial"):
        (tmp_path / "killed" / leftover).write_bytes(b"half")
        os.utime(tmp_path / "killed" / leftover, (0, 0))
    with pytest.raises(FileNotFoundError, match="1 of 5 blocks are missing, the first is 3"):
        EncodedCorpus(tmp_path / "killed")
    assert write(tiny_splade, tmp_path / "killed") == 1
    assert contents(tmp_path / "killed") == whole
    assert write(tiny_splade, tmp_path / "killed") == 0


def test_the_same_command_started_twice_spoils_nothing(tiny_splade, tmp_path: Path, monkeypatch) -> None:
    """The second begins and ends in the middle of any writing of the first."""
    write(tiny_splade, tmp_path / "whole")
    replace, starts = os.replace, []

    def start_again(beside: Path, path: Path) -> None:
        if path.name not in starts:
            starts.append(path.name)
            write(tiny_splade, tmp_path / "twice")
        replace(beside, path)

    monkeypatch.setattr(os, "replace", start_again)
    write(tiny_splade, tmp_path / "twice")
    assert starts == ["manifest.json", *(f"block-00000{number}.safetensors" for number in range(5))]
    assert contents(tmp_path / "twice") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": {**CORPUS, "d0": "other"}}, "texts have changed"),
        (
            {"corpus": {"x" if key == "d0" else key: text for key, text in CORPUS.items()}},
            "texts have changed",
        ),
        ({"block_rows": 3}, "block_rows was 2 and is now 3"),
        ({"batch_size": 3}, "batch_size was 2 and is now 3"),
        ({"precision": "bf16"}, "precision was 'fp32' and is now 'bf16'"),
    ],
)
def test_another_corpus_or_setting_is_refused(
    change: dict, message: str, tiny_splade, tmp_path, monkeypatch
) -> None:
    """Blocks of two corpora in one folder would be an index of neither."""
    monkeypatch.setattr(encoding, "multiplies_bfloat16", lambda: True)  # nothing is encoded in it here
    write(tiny_splade, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"begun with other settings: .*{message}.* or delete the folder"):
        write(tiny_splade, tmp_path, **change)
    assert contents(tmp_path) == before


def test_another_model_is_refused(tiny_splade, tiny_dense, tmp_path: Path) -> None:
    """The name is not what counts: a model trained further under the same name is another one."""
    write(tiny_splade, tmp_path)
    tiny_splade.max_seq_length = 7
    with pytest.raises(ValueError, match=r"fingerprint was .*max_seq_length was 32 and is now 7"):
        write(tiny_splade, tmp_path)
    with pytest.raises(ValueError, match="vector_type was 'sparse' and is now 'dense'"):
        write(tiny_dense, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "swapped", "other corpus"])
def test_a_damaged_block_is_refused(damage: str, tiny_splade, tmp_path: Path) -> None:
    """By the reader and by the process that goes on, whichever comes first."""
    write(tiny_splade, tmp_path / "blocks")
    path = tmp_path / "blocks" / "block-000001.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "swapped":
        shutil.copyfile(path.with_name("block-000002.safetensors"), path)
    else:
        write(tiny_splade, tmp_path / "other", {**CORPUS, "d8": "graph"})
        shutil.copyfile(tmp_path / "other" / path.name, path)
    for read in (
        lambda: EncodedCorpus(tmp_path / "blocks").merged(),
        lambda: write(tiny_splade, tmp_path / "blocks"),
    ):
        with pytest.raises(ValueError, match=r"block-000001.* is cut, altered, or of another corpus"):
            read()


def test_no_name_in_the_manifest_leads_out_of_the_folder(tiny_splade, tmp_path: Path) -> None:
    """File names follow from numbers; a manifest that brings names or impossible numbers is refused."""
    write(tiny_splade, tmp_path)
    path = tmp_path / "manifest.json"
    fields = json.loads(path.read_text())["fields"]
    assert not any("/" in str(value) or "safetensors" in str(value) for value in fields.values())
    for change in ({"files": ["../x"]}, {"block_rows": 0}, {"documents": "9"}):
        path.write_text(pack_manifest(encoded_corpus.FORMAT, {**fields, **change}))
        with pytest.raises(ValueError, match="is not the manifest of an encoded corpus"):
            EncodedCorpus(tmp_path)
    for text in (pack_manifest("other", fields), json.dumps(fields), "{"):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not the manifest of an encoded corpus"):
            EncodedCorpus(tmp_path)


def test_an_altered_manifest_fits_no_block(tiny_splade, tmp_path: Path) -> None:
    """It lacks its own checksum; and where that was made to fit, every setting is part of each block's."""
    write(tiny_splade, tmp_path)
    path = tmp_path / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"dot"', '"cosine"'))
    with pytest.raises(ValueError, match="does not have its own checksum"):
        EncodedCorpus(tmp_path)
    changed = json.loads(text)["fields"] | {"similarity": "cosine"}
    path.write_text(pack_manifest(encoded_corpus.FORMAT, changed))
    with pytest.raises(ValueError, match="it belongs to"):
        EncodedCorpus(tmp_path).merged()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": {}}, "at least one document; received none"),
        ({"block_rows": 0}, "block_rows 0"),
        ({"rank": 2, "ranks": 2}, "rank 2"),
        ({"corpus": {"": "no id"}}, "must be a string that is not empty; received ''"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(settings, message, tiny_splade, tmp_path) -> None:
    """A mistake must not leave a folder that the corrected call refuses."""
    with pytest.raises(ValueError, match=message):
        write(tiny_splade, tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_is_refused(tiny_splade, tmp_path: Path) -> None:
    """A typing error must not fill a folder of the user's files with blocks."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        write(tiny_splade, tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        write(tiny_splade, tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        EncodedCorpus(tmp_path)


def test_memory_holds_one_block(tiny_splade, tmp_path: Path) -> None:
    """No call encodes more texts than a block has, whatever the batch could hold."""
    batches = batches_of(tiny_splade)
    write(tiny_splade, tmp_path, batch_size=9)
    assert [len(batch) for batch in batches] == [2, 2, 2, 2, 1]
