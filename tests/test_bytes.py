"""Bytes from outside: no pickle is read, nothing leaves its directory, a changed byte does not pass."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from scipy import sparse

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("src", "recipes", "scripts") for path in (ROOT / folder).rglob("*.py"))
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


# These two import the subpackages and the names that the source of a subpackage lists, never a name that
# data or a user gives; tests/common/test_lazy.py holds them to it.
IMPORT_OWN_MODULES = {f"src/lexforge/{name}.py" for name in ("__init__", "cli", "common/lazy")}
UNPICKLING = {"torch.load", "torch.serialization.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


def full_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name of a file stands for: `np` for `numpy`, `load` for `torch.load`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def reads_pickle(source: str) -> Iterator[str]:
    """What in a source file could load a pickle, or let a downloaded model run its own code."""
    tree = ast.parse(source)
    names = full_names(tree)
    checked = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            yield from (f"import {name}" for name in modules if name and name.split(".")[0] in PICKLERS)
            yield from (f"import * of {modules[0]}" for alias in node.names if alias.name == "*")
        elif isinstance(node, ast.Call):
            name = resolved(node.func, names)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if "trust_remote_code" in given:
                yield f"{name}(trust_remote_code=...)"
            if given.get("allow_pickle", "False") != "False" or (name == "numpy.load" and len(node.args) > 2):
                yield f"{name}(allow_pickle=...)"
            if name.startswith("torch.") and given.get("weights_only") == "True":
                checked.add(node.func)
            if name.endswith(("import_module", "__import__")) and not isinstance(node.args[0], ast.Constant):
                yield f"{name} of a name that only the run knows"
        elif isinstance(node, (ast.Name, ast.Attribute)) and node not in checked:
            name = resolved(node, names)
            if name in UNPICKLING or name.endswith(("read_pickle", "to_pickle")):
                yield name
        elif isinstance(node, ast.Constant) and node.value in {"trust_remote_code", *PICKLERS}:
            yield f"{node.value} as a key or a name"


def resolved(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what an expression such as `np.load` stands for."""
    first, dot, rest = ast.unparse(node).partition(".")
    return names.get(first, first) + dot + rest


def test_no_source_file_reads_a_pickle_or_trusts_remote_code() -> None:
    """Whoever can hand us a file must not thereby run code; only the user may decide to trust a model's."""
    assert len(SOURCES) > 100
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES}
    found = {name: reads for name, source in files.items() if (reads := set(reads_pickle(source)))}
    importing = {"importlib.import_module of a name that only the run knows"}
    assert found == dict.fromkeys(IMPORT_OWN_MODULES, importing)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import os, dill",
        "def f():\n    import _pickle as p",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "SparseEncoder(name, trust_remote_code=False)",
        'options = {"trust_remote_code": True}',
        "pandas.read_pickle(path)",
        "yaml.load(text)",
        "from torch import load\nload(path)",
        "from torch import load as read\nread(path, weights_only=False)",
        "from torch.serialization import load\nload(path)",
        "import torch as t\nt.load(path)",
        "from torch import *",
        "read = torch.load",
        "list(map(torch.load, paths))",
        "from numpy import load\nload(path, None, True)",
        "import numpy\nnumpy.load(path, allow_pickle=True)",
        "from pandas import read_pickle as read\nread(path)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "importlib.import_module('pickle')",
        "__import__('dill')",
        "__import__(name)",
    ],
)
def test_the_search_finds_each_way(source: str) -> None:
    """A search that finds nothing must be able to find something."""
    assert list(reads_pickle(source))
    assert not list(reads_pickle("np.load(path, allow_pickle=False)\ntorch.load(path, weights_only=True)"))
    assert not list(reads_pickle("from torch import load as read\nread(path, weights_only=True)"))


class Bomb:
    """Unpickling this makes a folder: the harmless form of running what an attacker sent."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def bombs(mark: Path) -> dict[str, bytes]:
    """The bomb in each wrapping that some reader of arrays or weights would open."""
    array, weights, zipped = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    torch.save({"state": Bomb(mark)}, weights)
    with zipfile.ZipFile(zipped, "w") as archive:
        for name in ("data", "indices", "indptr", "format", "shape"):
            archive.writestr(f"{name}.npy", array.getvalue())
    return {
        "pickle": pickle.dumps(Bomb(mark), protocol=2),  # others only warn torch's reader
        "npy": array.getvalue(),
        "npz": zipped.getvalue(),
        "torch": weights.getvalue(),
    }


def test_the_bombs_are_live(tmp_path: Path) -> None:
    """A pickle that does nothing would prove nothing: the careless readers do run it."""
    mark = tmp_path / "mark"
    readers: dict[str, Callable[[bytes], Any]] = {
        "pickle": pickle.loads,
        "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=True),
        "npz": lambda data: np.load(io.BytesIO(data), allow_pickle=True)["data"],
        "torch": lambda data: torch.load(io.BytesIO(data), weights_only=False),
    }
    for format_name, data in bombs(mark).items():
        readers[format_name](data)
        assert mark.is_dir(), format_name
        mark.rmdir()


class Store(NamedTuple):
    """Something that lexforge keeps on disk: how to write it, how to read it, and what reading gives."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    sign: Callable[[Path], object] = lambda folder: None
    """Make the checksums fit the files as they are, as an attacker would."""


class Teacher:
    """Vectors that follow from the text alone."""

    name = "teacher"
    similarity = "cosine"

    def encode(self, texts: Any, kind: str) -> np.ndarray:
        vectors = np.array([[len(text), text.count("a") + 1, 1] for text in texts], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


TEXTS = ["sort a list", "open a file", "mean of an array", "search a text"]
SPARSE = sparse.csr_array(np.array([[0, 1, 2], [3, 0, 1], [0, 0, 2], [1, 0, 0]], np.float32))


def same_vectors(vectors: Any) -> str:
    """Vectors as text, to compare what two readings gave."""
    return str((vectors.toarray() if sparse.issparse(vectors) else vectors).tolist())


def write_teacher(folder: Path) -> None:
    from lexforge.teachers import TeacherCache

    TeacherCache.build(Teacher(), TEXTS[:2], TEXTS, folder / "cache")


def read_teacher(folder: Path) -> str:
    from lexforge.teachers import TeacherCache

    cache = TeacherCache(folder / "cache")
    return same_vectors(cache.lookup(TEXTS[:2], "query")) + same_vectors(cache.lookup(TEXTS, "document"))


class PairTeacher:
    """Scores that follow from the texts alone; one that is told not to score reads all from the cache."""

    name = "pairs"

    def __init__(self, scores: bool) -> None:
        self.scores = scores

    def score(self, pairs: Any) -> np.ndarray:
        assert self.scores, "the cache lacks pairs"
        return np.array([len(query) + len(document) / 100 for query, document in pairs])

    def length(self, pair: tuple[str, str]) -> int:
        return len(pair[1])


def pair_scores(folder: Path, *, scores: bool) -> str:
    from lexforge.teachers import pair_scores as module

    pairs = [(query, document) for query in TEXTS[:2] for document in TEXTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_PAIRS", 5)
        return str(module.score_pairs(PairTeacher(scores), pairs, folder / "cache"))


def docstrings(folder: Path) -> str:
    from lexforge.data import load_docstrings

    (folder / "code").mkdir(exist_ok=True)
    if not (folder / "code" / "m.py").exists():
        rest = "words " * 20
        (folder / "code" / "m.py").write_text(f'"""Sort a long list of names.\n\n{rest}\n"""\n')
    data = load_docstrings(folder / "cache", roots={"p": folder / "code"})
    return str((data.corpus, data.queries, data.qrels))


def write_vectors(folder: Path) -> None:
    from lexforge.corpus import vector_file

    vector_file.write_vectors(folder / "vectors.safetensors", SPARSE.copy(), "corpus and model")


def read_vectors(folder: Path) -> str:
    from lexforge.corpus import vector_file

    return same_vectors(vector_file.read_vectors(folder / "vectors.safetensors", "corpus and model")[0])


def write_corpus(folder: Path) -> None:
    from lexforge.corpus import encoded_corpus as module
    from lexforge.storage.manifest import pack_manifest

    manifest = module.Manifest("m", "f", "sparse", "dot", 32, "c", 4, 2, 1, "fp32")
    folder = folder / "corpus"
    folder.mkdir()
    (folder / module.MANIFEST).write_text(pack_manifest(module.FORMAT, manifest.__dict__))
    for number in range(2):
        part, ids = SPARSE[2 * number : 2 * number + 2], [f"d{2 * number}", f"d{2 * number + 1}"]
        module.write_block(folder, part, ids, manifest, number)


def read_corpus(folder: Path) -> str:
    from lexforge.corpus.encoded_corpus import EncodedCorpus

    corpus = EncodedCorpus(folder / "corpus")
    vectors, ids = corpus.merged()
    return f"{same_vectors(vectors)} {ids} {corpus.manifest.key}"


def index_class(name: str) -> Any:
    import lexforge.retrieval as retrieval

    return getattr(retrieval, name)


def index_store(name: str) -> Store:
    vectors = SPARSE if name != "FaissIndex" else SPARSE.toarray()

    def read(folder: Path) -> str:
        index = index_class(name).load(folder / "index")
        hits = index.search(vectors, 4)
        return f"{hits.ids} {[scores.tolist() for scores in hits.scores]} {index.similarity}"

    def sign(folder: Path) -> None:
        from lexforge.storage.manifest import write_manifest

        file = folder / "index" / "manifest.json"
        manifest = json.loads(file.read_text())
        file.unlink()
        write_manifest(folder / "index", manifest["format"], manifest["fields"])

    ids = ["a", "b", "c", "d"]
    return Store(lambda folder: index_class(name).build(vectors, ids).save(folder / "index"), read, sign)


def own_checksum(manifest: dict[str, Any]) -> dict[str, Any]:
    """A changed manifest with the checksum that an attacker would write."""
    from lexforge.storage.manifest import content_sha256

    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return content | {"sha256": content_sha256(content)}


STORES = {
    "teacher cache": Store(write_teacher, read_teacher),
    "pair scores": Store(partial(pair_scores, scores=True), partial(pair_scores, scores=False)),
    "docstring cache": Store(docstrings, docstrings),
    "corpus vectors": Store(write_vectors, read_vectors),
    "encoded corpus": Store(write_corpus, read_corpus),
    **{name: index_store(name) for name in ("InvertedIndex", "FaissIndex")},
}


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "code" not in path.parts)


@pytest.mark.parametrize(
    ("name", "signed"),
    [*((name, False) for name in STORES), *((name, True) for name in STORES if name.endswith("Index"))],
)
def test_a_planted_pickle_is_refused_and_never_run(name: str, signed: bool, tmp_path: Path) -> None:
    """In the place of each file of each store, also where the attacker has written fitting checksums."""
    store, mark = STORES[name], tmp_path / "executed"
    whole = tmp_path / "whole"
    whole.mkdir()
    store.write(whole)
    expected = store.read(whole)
    planted = 0
    for place in range(len(files_of(whole))):
        for format_name, data in bombs(mark).items():
            folder = tmp_path / f"{place}-{format_name}"
            shutil.copytree(whole, folder)
            victim = files_of(folder)[place]
            if signed and victim.name == "manifest.json":
                continue  # signing writes it anew
            victim.write_bytes(data)
            if signed:
                store.sign(folder)
            if name == "docstring cache":  # its name says which sources it is of, and these are copies
                for file in files_of(folder):
                    shutil.copyfile(file, whole / file.relative_to(folder))
                folder = whole
            with pytest.raises((ValueError, FileNotFoundError)):
                store.read(folder)
            assert not mark.exists(), f"{format_name} in {victim.name} was run"
            planted += 1
    assert planted == 4 * (len(files_of(whole)) - signed)  # one file of an index is its manifest
    assert expected


@pytest.mark.parametrize("name", STORES)
def test_a_flipped_bit_is_refused_or_changes_nothing(name: str, tmp_path: Path) -> None:
    """Any bit of any file: what is read is what was written, or an error; never something else.

    A bit of a field that only people read (the name of a model, a time) may pass.
    """
    store = STORES[name]
    store.write(tmp_path)
    expected = store.read(tmp_path)
    refused = passed = 0
    generator = np.random.default_rng(0)
    for path in files_of(tmp_path):
        content = path.read_bytes()
        places = generator.permutation(len(content))[:60]
        for place in places.tolist():
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(generator.integers(8))
            path.write_bytes(flipped)
            try:
                found = store.read(tmp_path)
            except (ValueError, FileNotFoundError):
                refused += 1
            else:
                assert found == expected, f"{path.name}, byte {place}: read as something else"
                passed += 1
        path.write_bytes(content)
    assert store.read(tmp_path) == expected
    assert refused + passed == 60 * len(files_of(tmp_path))
    assert refused > 3 * passed


@pytest.mark.slow
def test_a_flipped_bit_where_nothing_is_hashed_crashes_nothing(tmp_path: Path) -> None:
    """The large arrays of an index are memory-mapped and trusted while size and time are those of `save`: a
    failing disk keeps both. A term beyond the vocabulary would read foreign memory; a crash ends the tests.
    """
    from lexforge.retrieval import InvertedIndex
    from lexforge.retrieval.inverted import MAPPED

    generator = np.random.default_rng(0)
    width = 100_000  # so that a stray term lies outside of all memory
    rare = sparse.random_array((300, width), density=40 / width, dtype=np.float32, rng=generator)
    frequent = sparse.random_array((300, 20), density=0.4, dtype=np.float32, rng=generator)
    vectors = sparse.csr_array(sparse.hstack([frequent, rare.tocsr()[:, 20:]]))
    index, ids = tmp_path / "index", [f"d{row}" for row in range(300)]
    InvertedIndex.build(vectors, ids).save(index)
    minute_ago = time.time_ns() - 60 * 10**9
    for path in files_of(tmp_path):
        os.utime(path, ns=(minute_ago, minute_ago))
    index_store("InvertedIndex").sign(tmp_path)

    def hits() -> str:
        found = InvertedIndex.load(index).search(vectors[:40], 20)
        assert all(set(row) <= set(ids) for row in found.ids)
        return f"{found.ids} {[row.tolist() for row in found.scores]}"

    expected = hits()
    outcomes = dict.fromkeys(("refused", "same", "other"), 0)
    for name in sorted(MAPPED):
        path = index / name
        content = path.read_bytes()
        places = [*generator.permutation(128)[:12], *generator.integers(128, len(content), 16)]
        for place in places:
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(generator.integers(8))
            path.write_bytes(flipped)
            os.utime(path, ns=(minute_ago, minute_ago))
            try:
                found = hits()
            except ValueError:
                outcomes["refused"] += 1
            else:
                outcomes["same" if found == expected else "other"] += 1
            with pytest.raises(ValueError, match="does not have the checksum"):
                InvertedIndex.load(index, verify=True)
        path.write_bytes(content)
        os.utime(path, ns=(minute_ago, minute_ago))
    assert hits() == expected
    assert sum(outcomes.values()) == 168
    assert min(outcomes.values()) > 0, outcomes  # other: they were not hashed


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pickle_in_a_model_folder_is_refused(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A model from elsewhere is the commonest file from outside; torch's restricted reader stands guard."""
    from lexforge.models import build_splade

    for format_name, data in bombs(tmp_path / "executed").items():
        folder = tmp_path / format_name
        shutil.copytree(tiny_checkpoint, folder)
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(data)
        # as transformers and torch report it; a torch error of a file that is no archive is a RuntimeError
        with pytest.raises((ValueError, OSError, RuntimeError, SafetensorError, pickle.UnpicklingError)):
            build_splade(folder)
        assert not (tmp_path / "executed").exists(), format_name


def test_a_pickle_in_the_state_of_a_loss_is_refused(tmp_path: Path) -> None:
    """Of a checkpoint of the stock trainer, which has no seal."""
    from lexforge.runs.state import STATE_FILE, read_state

    for format_name, data in bombs(tmp_path / "executed").items():
        (tmp_path / STATE_FILE).write_bytes(data)
        with pytest.raises(ValueError, match="is cut, altered or no state of a run"):
            read_state(tmp_path, 1)
        assert not (tmp_path / "executed").exists(), format_name


OUTSIDE = ["../outside.npy", "/tmp/outside.npy", "a/../../outside.npy", "..", ".", "", "sub/terms.npy"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_in_a_manifest_cannot_leave_its_directory(path: str, tmp_path: Path) -> None:
    """A name is read as a file of the directory or not at all, even if what it leads to fits."""
    from lexforge.runs.checkpoint_folders import DamagedCheckpointError, check_seal, seal

    store = STORES["InvertedIndex"]
    store.write(tmp_path)
    file = tmp_path / "index" / "manifest.json"
    manifest = json.loads(file.read_text())
    shutil.copyfile(tmp_path / "index" / "terms.npy", tmp_path / "outside.npy")
    manifest["files"][path] = manifest["files"].pop("terms.npy")
    file.write_text(json.dumps(own_checksum(manifest)))
    (tmp_path / "index" / "terms.npy").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="missing files"):
        store.read(tmp_path)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "weights").write_bytes(b"x")
    seal(checkpoint)
    file = checkpoint / "manifest.json"
    changed = json.loads(file.read_text().replace('"weights"', json.dumps(path)))
    file.write_text(json.dumps(own_checksum(changed)))
    with pytest.raises(DamagedCheckpointError, match="missing files"):
        check_seal(checkpoint)


@pytest.mark.parametrize("name", ["InvertedIndex", "encoded corpus", "corpus vectors", "checkpoint"])
def test_a_link_out_of_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    """What a link leads to can change after the check, and is not what was shipped."""
    from lexforge.runs.checkpoint_folders import check_seal, seal

    def write_checkpoint(folder: Path) -> None:
        (folder / "checkpoint-1").mkdir()
        (folder / "checkpoint-1" / "weights").write_bytes(b"x")
        seal(folder / "checkpoint-1")

    checkpoint = Store(write_checkpoint, lambda folder: check_seal(folder / "checkpoint-1"))
    store = checkpoint if name == "checkpoint" else STORES[name]
    store.write(tmp_path)
    store.read(tmp_path)
    victim = next(path for path in files_of(tmp_path) if path.name != "manifest.json")
    victim.rename(tmp_path / "elsewhere")
    victim.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        store.read(tmp_path)
