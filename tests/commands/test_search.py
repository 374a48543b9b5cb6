"""From a corpus to an answer on the command line: encode, build, search."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from beir_folders import write_lines
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoTokenizer
from warm_processes import WarmProcesses

from lexforge.commands import encode, evaluate, index, search
from lexforge.common.types import DataError
from lexforge.corpus import open_index, read_source, stored_index
from lexforge.settings import SourceOptions
from lexforge.storage.manifest import write_manifest


@pytest.mark.parametrize("index_name", ["inverted", "milvus"])
def test_the_text_of_a_document_finds_it(
    index_name: str, vectors: Path, corpus_folder: Path, tmp_path: Path, capsys
) -> None:
    """The three commands as the README gives them; each line of the input is answered."""
    uri = None
    if index_name == "milvus":
        pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
        pytest.importorskip("milvus_lite", reason="the extra `milvus` is not installed")
        uri = str(tmp_path / "vectors.db")
    documents = str(corpus_folder)
    index.main(
        index.Config(tmp_path / "index", documents=documents, vectors=vectors, index=index_name, uri=uri)
    )
    assert "index of 7 passages" in capsys.readouterr().out
    search.main(search.Config(tmp_path / "index", "parse a tree", k=7))
    out = capsys.readouterr().out
    assert out.startswith("query: parse a tree\n  1.")
    assert "d2  parse a tree" in out
    assert " more" in out
    search.main(search.Config(tmp_path / "index", k=1), lines=["open the file\n", "key"])
    assert capsys.readouterr().out.count("query: ") == 2


def test_each_line_is_answered_before_the_next_one_comes(
    vectors: Path, corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that waits for the answer to its line would wait for ever."""
    index.main(index.Config(tmp_path / "index", documents=str(corpus_folder), vectors=vectors))
    out = tmp_path / "out.txt"
    with out.open("w") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)  # which keeps what is written until it is flushed
        search.main(search.Config(tmp_path / "index"), lines=answered(out))
    assert out.read_text().count("query: ") == 3


def answered(out: Path) -> Iterator[str]:
    """Lines to search for, each after the answer to the one before it is there."""
    for number, line in enumerate(("open the file", "key", "tree")):
        assert out.read_text().count("query: ") == number
        yield line


def test_an_index_of_one_passage_says_so(tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    """It said "1 passages"."""
    (tmp_path / "a.txt").write_text("parse a tree")
    documents = str(tmp_path / "a.txt")
    index.main(index.Config(tmp_path / "index", documents=documents, model=str(tiny_checkpoint)))
    assert "index of 1 passage, " in capsys.readouterr().out


def test_a_text_without_spaces_is_cut(
    tiny_checkpoint: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chinese and Japanese were shown as three dots."""
    monkeypatch.setattr(search, "WIDTH", 50)
    (tmp_path / "a.txt").write_text("key " + "川" * 300, encoding="utf-8")
    documents = str(tmp_path / "a.txt")
    index.main(index.Config(tmp_path / "index", documents=documents, model=str(tiny_checkpoint)))
    search.main(search.Config(tmp_path / "index", "key"))
    assert "  a key " + "川" * 41 + "...\n" in capsys.readouterr().out


def test_a_corpus_gives_the_terminal_no_commands(tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    """A text from the web that hides the lines above it, or that types, was printed as it is; so was one
    that shows what stands behind it from right to left.
    """
    record = {"_id": "d\x1b[8m", "text": "parse \x1b]0;title\x07 a \x9b2J tree \u202e\u2067"}
    folder = write_lines(tmp_path / "data" / "corpus.jsonl", [record]).parent
    index.main(index.Config(tmp_path / "index", documents=str(folder), model=str(tiny_checkpoint)))
    capsys.readouterr()
    search.main(search.Config(tmp_path / "index", "parse \x1b[2J tree"))
    out = capsys.readouterr().out
    assert "query: parse \\x1b[2J tree" in out
    assert "d\\x1b[8m  parse \\x1b]0;title\\x07 a \\x9b2J tree \\u202e\\u2067\n" in out
    assert all(character.isprintable() or character == "\n" for character in out)


def test_a_line_that_is_no_query_costs_no_other_line(
    vectors, corpus_folder, tmp_path, capsys, monkeypatch
) -> None:
    """The lines of a file stand for themselves; the command still fails, and says at which line."""
    index.main(index.Config(tmp_path / "index", vectors=vectors))
    stdin = io.TextIOWrapper(io.BytesIO("tree\n\n caf\xe9\n".encode("latin-1") + "서울\n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ValueError, match="2 of 4 lines were not searched for: line 2 is blank"):
        search.main(search.Config(tmp_path / "index", k=1))
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith("query")] == ["query: tree", "query: 서울"]
    assert "line 2 is blank" in err
    assert "line 3 is not UTF-8: ' caf\\udce9" in err


def test_a_byte_order_mark_is_no_part_of_the_first_query(
    vectors, corpus_folder, tmp_path, capsys, monkeypatch
) -> None:
    """Windows tools write it at the start of a file, which is then piped into the search."""
    index.main(index.Config(tmp_path / "index", vectors=vectors))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufefftree\nkey\n".encode())))
    search.main(search.Config(tmp_path / "index", k=1))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("query")] == ["query: tree", "query: key"]


def test_options_of_documents_are_refused_where_none_are_read(vectors: Path, tmp_path: Path) -> None:
    """Vectors alone hold no text, so an encoding of theirs was not looked at."""
    cfg = index.Config(tmp_path / "index", vectors=vectors, source=SourceOptions(encoding="cp1252"))
    with pytest.raises(ValueError, match="--encoding cp1252 would be ignored: --vectors alone read no doc"):
        index.main(cfg)


def test_a_damaged_array_is_found_when_asked_for(vectors, corpus_folder, tmp_path) -> None:
    """A failing disk leaves size and time of a file: only reading it all finds that."""
    index.main(index.Config(tmp_path / "index", vectors=vectors))
    folder = tmp_path / "index" / "generation-1" / "index"
    file, manifest = folder / "weights.npy", folder / "manifest.json"
    fields = json.loads(manifest.read_text())["fields"]
    manifest.unlink()
    minute_ago = time.time_ns() - 60 * 10**9
    os.utime(file, ns=(minute_ago, minute_ago))
    write_manifest(folder, "lexforge-inverted-index", fields)
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(minute_ago, minute_ago))
    config = search.Config(tmp_path / "index", "tree")
    search.main(config)
    with pytest.raises(ValueError, match=r"weights\.npy does not have the checksum"):
        search.main(replace(config, verify=True))


def test_bad_input_is_refused(vectors, tmp_path) -> None:
    """An index of another type, blank lines, a width without room, blocks that are missing."""
    with pytest.raises(ValueError, match="the index 'faiss-flat' does not hold sparse vectors"):
        index.main(index.Config(tmp_path / "index", vectors=vectors, index="faiss-flat"))
    index.main(index.Config(tmp_path / "index", vectors=vectors))
    with pytest.raises(ValueError, match="line 2 is blank"):
        search.main(search.Config(tmp_path / "index"), lines=["tree\n", "\n"])
    (vectors / "block-000001.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 3 blocks are missing, the first is 1"):
        index.main(index.Config(tmp_path / "second", vectors=vectors))


def test_documents_come_and_go(tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    """A folder of texts becomes an index in one command, and changes in the next ones."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "tree.md").write_text("# Trees\n\nparse a tree\n")
    (folder / "list.txt").write_text("sort the list " * 30)
    where = tmp_path / "index"
    index.main(index.Config(where, documents=str(folder), model=str(tiny_checkpoint), max_seq_length=16))
    out = capsys.readouterr().out
    assert "documents cut into" in out
    search.main(search.Config(where, "parse a tree", k=9))
    assert "tree.md  Trees parse a tree" in capsys.readouterr().out

    rows = tmp_path / "rows.csv"
    rows.write_text("title,text\nHash,key of a hash\n")
    with pytest.raises(DataError, match=r"rows\.csv has no column of ids, so its rows would take the places"):
        index.main(index.Config(where, add=str(rows)))

    (folder / "tree.md").write_text("# Trees\n\nhash of a node\n")
    (folder / "list.txt").unlink()
    index.main(index.Config(where, add=str(folder), delete=("list.txt",)))
    assert f"{where}: passages added: 1, " in capsys.readouterr().out
    search.main(search.Config(where, "sort the list node", k=9))
    out = capsys.readouterr().out
    assert "list.txt" not in out
    assert "tree.md  Trees hash of a node" in out
    index.main(index.Config(where, add=str(folder)))
    assert "passages added: 0, deleted: 0, there already: 1" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--delimiter tab would be ignored: --delete reads no documents"):
        index.main(index.Config(where, delete=("tree.md",), source=SourceOptions(delimiter="tab")))
    with pytest.raises(ValueError, match=r"has no document 'list\.txt'"):
        index.main(index.Config(where, delete=("list.txt",)))
    with pytest.raises(
        ValueError, match=r"--vectors .* and --collection other would be ignored: --add and --del"
    ):
        index.main(index.Config(where, delete=("tree.md",), vectors=tmp_path, collection="other"))
    with pytest.raises(ValueError, match="--collection other would be ignored: only an index at an address"):
        index.main(index.Config(tmp_path / "new", collection="other"))


@pytest.mark.parametrize("text", ["", "parse a tree"])
def test_a_document_that_says_nothing_new_is_found_by_its_old_text_no_more(
    text: str, tiny_checkpoint: Path, tmp_path: Path, capsys
) -> None:
    """Its text is blank now, or that of another document of the same call, so there is nothing to add."""
    folder = tmp_path / "data"

    def write(**texts: str) -> None:
        write_lines(folder / "corpus.jsonl", [{"_id": key, "text": one} for key, one in texts.items()])

    write(a="open the file", b="sort the list")
    where = tmp_path / "index"
    index.main(index.Config(where, documents=str(folder), model=str(tiny_checkpoint)))
    write(c="parse a tree", b=text)
    index.main(index.Config(where, add=str(folder)))
    assert "passages added: 1, deleted: 1, " in capsys.readouterr().out
    search.main(search.Config(where, "sort the list", k=9))
    out = capsys.readouterr().out
    assert "c  parse a tree" in out
    assert "sort the list\n" not in out.replace("query: sort the list\n", "")


def test_a_text_is_found_as_long_as_one_document_has_it(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only one of equal documents is found. The others were lost when that one was deleted or replaced."""
    folder, where = tmp_path / "texts", tmp_path / "index"

    def write(**texts: str) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
        return str(folder)

    def change(**options: Any) -> str:
        index.main(index.Config(where, **options))
        return capsys.readouterr().out.splitlines()[-1].removeprefix(f"{where}: ")

    def ids() -> list[str]:
        return open_index(where)[0].ids

    documents = write(a="parse a tree", b="parse a tree", c="sort the list")
    change(documents=documents, model=str(tiny_checkpoint))
    assert ids() == ["a.txt", "c.txt"]
    assert change(delete=("a.txt",)) == "passages added: 0, deleted: 1, there already: 0"
    assert ids() == ["c.txt", "b.txt"]
    search.main(search.Config(where, "parse a tree", k=1))
    assert "b.txt  b parse a tree" in capsys.readouterr().out
    # Documents that repeat a text of the index wait for their turn, also if they are given again.
    repeats = write(a="parse a tree", d="parse a tree")
    assert change(add=repeats) == "passages added: 0, deleted: 0, there already: 2"
    assert change(add=repeats) == "passages added: 0, deleted: 0, there already: 2"
    assert ids() == ["c.txt", "b.txt"]
    assert change(add=write(b="hash of a key")) == "passages added: 1, deleted: 1, there already: 0"
    assert ids() == ["c.txt", "a.txt", "b.txt"]
    # One that was left out can be deleted, and does not come back.
    assert change(delete=("d.txt",)) == "passages added: 0, deleted: 1, there already: 0"
    assert change(delete=("a.txt",)) == "passages added: 0, deleted: 1, there already: 0"
    assert ids() == ["c.txt", "b.txt"]
    with pytest.raises(ValueError, match=r"has no document 'd\.txt'"):
        change(delete=("d.txt",))


def test_a_file_that_was_emptied_is_found_no_more(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever empties a file does not want what it said to be found."""
    folder, where = tmp_path / "notes", tmp_path / "index"
    folder.mkdir()
    (folder / "a.txt").write_text("sort the list")
    (folder / "b.txt").write_text("parse a tree")
    index.main(index.Config(where, documents=str(folder), model=str(tiny_checkpoint)))
    (folder / "a.txt").write_text("\n")
    index.main(index.Config(where, add=str(folder)))
    out = capsys.readouterr().out
    assert "passages added: 0, deleted: 1, there already: 1" in out
    assert "blank texts, which were left out: 1, namely a.txt" in out
    search.main(search.Config(where, "sort the list", k=9))
    assert "a.txt" not in capsys.readouterr().out


def test_the_folder_of_a_model_is_found_from_every_folder(
    corpus_folder: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Vectors keep the whole path of their model, however it was given."""
    monkeypatch.chdir(tiny_checkpoint.parent)
    encode.main(encode.Config(tiny_checkpoint.name, str(corpus_folder), tmp_path / "vectors"))
    index.main(index.Config(tmp_path / "index", vectors=tmp_path / "vectors"))
    monkeypatch.chdir(tmp_path)
    search.main(search.Config(tmp_path / "index", "parse a tree", k=1))
    assert "query: parse a tree\n  1." in capsys.readouterr().out


@pytest.mark.parametrize("has_vectors", [False, True])
def test_an_index_may_be_made_in_the_current_folder(
    has_vectors: bool, vectors: Path, corpus_folder: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch
) -> None:
    """`.` has no name beside which the vectors or the new folder could lie."""
    where = tmp_path / "here"
    where.mkdir()
    monkeypatch.chdir(where)
    if has_vectors:
        index.main(index.Config(Path(), vectors=vectors))
    else:
        index.main(index.Config(Path(), documents=str(corpus_folder), model=str(tiny_checkpoint)))
    assert (where / "source.json").is_file()


def test_static_embeddings_are_indexed_searched_and_evaluated(
    corpus_folder: Path, tmp_path: Path, capsys
) -> None:
    """They have no configuration, no limit of tokens and a tokenizer that is none of transformers'."""
    words = sorted({*"[UNK] sort list open file parse tree hash key search index vector the a of".split()})
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    name = str(tmp_path / "model")
    index.main(index.Config(tmp_path / "index", documents=str(corpus_folder), model=name))
    assert read_source(tmp_path / "index").max_seq_length is None
    search.main(search.Config(tmp_path / "index", "parse a tree", k=1))
    assert "1.0000  d2  parse a tree" in capsys.readouterr().out
    (corpus_folder / "queries.jsonl").write_text('{"_id": "q", "text": "parse a tree"}\n')
    (corpus_folder / "qrels").mkdir()
    (corpus_folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    evaluate.main(evaluate.Config(name, str(corpus_folder), metrics=("RR@10",), passages=True))
    assert "RR@10                    1.0000" in capsys.readouterr().out
    with pytest.raises(ValueError, match="without a transformer takes no max_seq_length"):
        evaluate.main(evaluate.Config(name, str(corpus_folder), metrics=("RR@10",), max_seq_length=16))


def test_the_passages_fit_the_encoder_of_documents_where_queries_have_another(
    tiny_dense, tmp_path: Path, capsys
) -> None:
    """Queries without a limit of tokens were taken for documents without one, whose ends no vector held."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "parse": 1, "tree": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    width = tiny_dense.get_embedding_dimension()
    sides = [StaticEmbedding(tokenizer, embedding_dim=width)], list(tiny_dense.children())
    model = SentenceTransformer(modules=[Router.for_query_document(*sides)], device="cpu")
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    (tmp_path / "long.jsonl").write_text('{"_id": "d", "text": "' + "sort the list " * 60 + '"}\n')
    where, name = tmp_path / "index", str(tmp_path / "model")
    index.main(index.Config(where, documents=str(tmp_path / "long.jsonl"), model=name))
    assert f"passages of at most {tiny_dense.max_seq_length} tokens" in capsys.readouterr().out
    search.main(search.Config(where, "parse a tree", k=1))
    assert "d#" in capsys.readouterr().out


def test_a_model_with_a_length_for_documents_alone_searches_its_index(
    tiny_splade, corpus_folder: Path, tmp_path: Path, capsys
) -> None:
    """The index named that length, which cut queries when the model was loaded: it was then another model."""
    tiny_splade[0].document_length = 8
    tiny_splade.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    where = tmp_path / "index"
    index.main(index.Config(where, documents=str(corpus_folder), model=str(tmp_path / "model")))
    search.main(search.Config(where, "parse a tree", k=1))
    assert "  1. " in capsys.readouterr().out


def test_an_index_without_texts_finds_ids(vectors: Path, tmp_path: Path, capsys) -> None:
    """Texts are kept where they are given; without them there are ids and terms, and no BM25."""
    index.main(index.Config(tmp_path / "index", vectors=vectors))
    search.main(search.Config(tmp_path / "index", "parse a tree", k=1))
    assert "  d2\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"BM25 needs the texts, and .* keeps none"):
        search.main(search.Config(tmp_path / "index", "parse a tree", hybrid="bm25"))
    for wrong in ({}, {"documents": "x"}, {"model": "x"}):
        with pytest.raises(ValueError, match="an index is made of --documents and --model, or of the --vec"):
            index.main(index.Config(tmp_path / "second", **wrong))
    with pytest.raises(ValueError, match="--model x would be ignored: --vectors name the model"):
        index.main(index.Config(tmp_path / "second", vectors=vectors, model="x"))


DIES_AFTER_A_BLOCK = """
import os, signal, sys
from functools import partial
from lexforge import cli
from lexforge.corpus import encoded_corpus, stored_index

def dies(*arguments, **others):
    write(*arguments, **others)
    os.kill(os.getpid(), signal.SIGKILL)

write, encoded_corpus.write_block = encoded_corpus.write_block, dies
stored_index.encode_corpus = partial(stored_index.encode_corpus, block_rows=3)
cli.main(sys.argv[1:])
"""


def test_a_killed_index_of_documents_goes_on_where_it_was(
    warm: WarmProcesses,
    corpus_folder: Path,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vectors that were computed before a kill are not computed again, and the index is the same."""
    cfg = index.Config(tmp_path / "index", documents=str(corpus_folder), model=str(tiny_checkpoint))
    index.main(replace(cfg, output=tmp_path / "whole"))
    (tmp_path / "index.vectors").mkdir()
    (tmp_path / "index.vectors" / "own.npy").touch()  # of the user
    words = [
        "index",
        "--documents",
        corpus_folder,
        "--model",
        tiny_checkpoint,
        "--output",
        tmp_path / "index",
    ]
    ended = warm.run("-c", [DIES_AFTER_A_BLOCK, *words])
    assert ended == [-signal.SIGKILL], warm.log.read_text()
    assert [path.name for path in (tmp_path / "index.unfinished").glob("block-*")] == [
        "block-000000.safetensors"
    ]

    whole, _, passages = open_index(tmp_path / "whole")
    seen = []

    def note(module: object, given: Any) -> None:
        if isinstance(module, Transformer):
            rows = given[0]["input_ids"]  # 0 is padding; loading also tries a row of it alone
            seen.extend(row[row > 0].tolist() for row in rows if row.any())

    monkeypatch.setattr(stored_index, "encode_corpus", partial(stored_index.encode_corpus, block_rows=3))
    with register_module_forward_pre_hook(note):  # the command loads its own model
        index.main(cfg)
    expected = [passage.joined for passage in passages.values()][3:]
    assert sorted(seen) == sorted(AutoTokenizer.from_pretrained(tiny_checkpoint)(expected)["input_ids"])
    assert not (tmp_path / "index.unfinished").exists()
    assert (tmp_path / "index.vectors" / "own.npy").is_file()
    found = open_index(tmp_path / "index")[0]
    assert found.ids == whole.ids
    # Other batches have other padding, which changes float32 sums.
    for one, other in zip(
        found.vectors(found.ids).toarray(), whole.vectors(whole.ids).toarray(), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
