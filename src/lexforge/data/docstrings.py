"""The embedded corpus: docstrings of the standard library and of lexforge's dependencies.

A query is the first paragraph of a docstring, its document the rest of it: the search a Python programmer
does when they know what a thing should do and not its name. The sources are parsed with `ast` and never
imported, so reading them has no effect; the text differs between machines only as far as the installed
versions do.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from lexforge.common.files import remove_leftovers, write_file
from lexforge.common.manifest import pack_manifest, unpack_manifest
from lexforge.common.types import Qrels
from lexforge.data.cache import cache_folder
from lexforge.data.retrieval_data import DataError, RetrievalData

# Dependencies of lexforge and theirs, by import name; those that are not installed are left out.
PACKAGES = (
    "accelerate bm25s datasets faiss filelock fsspec huggingface_hub ir_measures jinja2 joblib llvmlite "
    "networkx numba numpy packaging pandas psutil pyarrow rich safetensors scipy sentence_transformers "
    "sklearn sympy tokenizers torch tqdm transformers tyro"
).split()
QUERY_WORDS = (3, 40)
DOCUMENT_WORDS = (12, 256)
FORMAT = "lexforge-docstrings"
_VERSION = 2  # part of the cache key: raise it when the same sources would give another file
_SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
_WORD = re.compile(r"[^\W\d_]{2,}")
_UNDERLINE = re.compile(r"([-=~^*#])\1{2,}")
_NOT_A_SUMMARY = re.compile(
    r">>>|->|::$|^([\w.]+\(|\.\.|:\w|@|usage\b|parameters?\b|args?\b|arguments?:|returns?:|notes?:"
    r"|examples?\b|references?:)",
    re.IGNORECASE,
)
_LICENCE = re.compile(
    r"copyright|all rights reserved|licensed (to|under)|permission is hereby", re.IGNORECASE
)


@dataclass(frozen=True)
class Pair:
    """One docstring, cut in two: `name` is the dotted name of its object, `module` that of its file."""

    module: str
    name: str
    query: str
    document: str


def load_docstrings(
    cache_dir: str | Path | None = None,
    *,
    roots: Mapping[str, Path] | None = None,
    max_pairs: int | None = None,
) -> RetrievalData:
    """The docstring retrieval set of this machine; parsed once, then read from a cache.

    A pair is left out where either side is too short or too long to be one (`QUERY_WORDS`, `DOCUMENT_WORDS`;
    a longer document is cut), where UTF-8 cannot hold them, where the document holds the query, at licence
    texts, and where query or document occurred before. Doctest blocks and underlined section titles are taken
    out of the documents. A module, as a whole, belongs to train, dev or test (80, 10 and 10 % of modules, by
    the hash of its name), so no file is on two sides.

    Args:
        cache_dir: Where the parsed pairs are kept; by default `lexforge` in `$XDG_CACHE_HOME` or `~/.cache`.
            The file's name holds a hash over path, size and time of change of every source.
        roots: Package name -> folder of Python files to read instead of the default ones; "" for modules
            without a package.
        max_pairs: Keep this many pairs, chosen by the hash of their names over all splits; all by default.

    Returns:
        The set `docstrings`. Document ids are dotted names, a query's id is `query:` and the name of its
        document; each query has one positive, of grade 1. A split without any pair is absent.

    Raises:
        ValueError: `max_pairs` below 1.
        FileNotFoundError: A root that is not a folder.
        DataError: No pair at all, or a broken cache file; the message says what to delete.
    """
    if max_pairs is not None and max_pairs < 1:
        raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
    sources = list(_sources(default_roots() if roots is None else roots))
    cache_file = Path(cache_dir or cache_folder()) / f"docstrings-{_cache_key(sources)}.jsonl"
    if cache_file.exists():
        pairs = _read_cache(cache_file)
    else:
        pairs = _extract(sources)
        _write_cache(cache_file, pairs)
    if max_pairs is not None:
        chosen = {pair.name for pair in sorted(pairs, key=lambda pair: _hash(pair.name))[:max_pairs]}
        pairs = [pair for pair in pairs if pair.name in chosen]
    if not pairs:
        raise DataError(f"no docstring pair in {len(sources)} source files")
    return _retrieval_data(pairs)


def default_roots() -> dict[str, Path]:
    """Package name -> folder: the standard library (under "") and the installed ones of `PACKAGES`."""
    roots = {"": Path(sysconfig.get_paths()["stdlib"])}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)  # locates a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            roots[name] = Path(next(iter(spec.submodule_search_locations)))
    return roots


def split_of(module: str) -> str:
    """The split that all docstrings of a module belong to, by the hash of its dotted name."""
    return {0: "dev", 1: "test"}.get(int(_hash(module), 16) % 10, "train")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _sources(roots: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) in a fixed order, without tests."""
    for package, root in roots.items():
        if not Path(root).is_dir():
            raise FileNotFoundError(f"the root {str(root)!r} of package {package!r} is not a folder")
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
            for file in sorted(files):
                if file.endswith(".py") and not file.startswith("test_"):
                    path = Path(folder, file)
                    parts = path.relative_to(root).with_suffix("").parts
                    parts = parts[:-1] if parts[-1] == "__init__" else parts
                    yield ".".join(part for part in (package, *parts) if part), path


def _extract(sources: list[tuple[str, Path]]) -> list[Pair]:
    pairs: list[Pair] = []
    seen: set[str] = set()
    for module, path in tqdm(sources, desc="reading docstrings", unit="file", disable=None):
        for name, docstring in _docstrings(module, path.read_bytes()):
            pair = _pair(module, name, docstring)
            if pair is None or not _is_text(pair):
                continue
            keys = {f"name {name}", f"query {pair.query.lower()}", f"document {pair.document.lower()}"}
            if seen.isdisjoint(keys):
                seen |= keys
                pairs.append(pair)
    return pairs


def _docstrings(module: str, source: bytes) -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of a module and what it defines; nothing where this Python cannot parse it."""
    if b'"""' not in source and b"'''" not in source:  # one line has no second paragraph
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # templates, other versions' syntax, null bytes
        return
    waiting: list[tuple[str, ast.AST]] = [(module, tree)]
    while waiting:
        name, node = waiting.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield name, docstring
        inner: list[tuple[str, ast.AST]] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                inner.append((f"{name}.{child.name}", child))
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                inner.append((name, child))
        waiting += reversed(inner)


def _pair(module: str, name: str, docstring: str) -> Pair | None:
    """The docstring cut after its first paragraph, or None where it makes no pair."""
    first, _, rest = docstring.strip().partition("\n\n")
    query = " ".join(line.strip() for line in first.splitlines() if not _UNDERLINE.fullmatch(line.strip()))
    query = " ".join(query.split())
    document = _plain_text(rest)
    if (
        not QUERY_WORDS[0] <= len(_WORD.findall(query)) <= QUERY_WORDS[1]
        or len(_WORD.findall(document)) < DOCUMENT_WORDS[0]
        or query.lower().rstrip(".") in document.lower()
        or _NOT_A_SUMMARY.search(query)
        or _LICENCE.search(docstring)
    ):
        return None
    return Pair(module, name, query, document)


def _is_text(pair: Pair) -> bool:
    """Whether UTF-8 can hold the pair: an escape or a byte of a file's name may be half a surrogate pair."""
    try:
        "".join(asdict(pair).values()).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _plain_text(rest: str) -> str:
    """The prose of the later paragraphs on one line: no doctest, no underlined title, at most 256 words."""
    lines: list[str] = []
    in_doctest = False
    for line in map(str.strip, rest.splitlines()):
        in_doctest = bool(line) and (in_doctest or line.startswith(">>>"))
        if _UNDERLINE.fullmatch(line) and lines:
            lines.pop()
        elif not in_doctest:
            lines.append(line)
    return " ".join(" ".join(lines).split()[: DOCUMENT_WORDS[1]])


def _retrieval_data(pairs: list[Pair]) -> RetrievalData:
    qrels: dict[str, Qrels] = {"train": {}, "dev": {}, "test": {}}
    for pair in pairs:
        qrels[split_of(pair.module)][f"query:{pair.name}"] = {pair.name: 1}
    return RetrievalData(
        "docstrings",
        {pair.name: pair.document for pair in pairs},
        {f"query:{pair.name}": pair.query for pair in pairs},
        {split: judgements for split, judgements in qrels.items() if judgements},
    )


def _cache_key(sources: list[tuple[str, Path]]) -> str:
    digest = hashlib.sha256(f"{_VERSION} {QUERY_WORDS} {DOCUMENT_WORDS}".encode())
    for module, path in sources:
        status = path.stat()
        digest.update(os.fsencode(f"\n{module} {path} {status.st_size} {status.st_mtime_ns}"))
    return digest.hexdigest()[:16]


def _write_cache(cache_file: Path, pairs: list[Pair]) -> None:
    """Write the manifest and, below it, a line of JSON per pair."""
    body = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs).encode()
    head = pack_manifest(FORMAT, {}, {"pairs": body}).encode()
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(cache_file.parent, r"docstrings-[0-9a-f]{16}\.jsonl")
    write_file(cache_file, head + b"\n" + body)


def _read_cache(cache_file: Path) -> list[Pair]:
    head, _, body = cache_file.read_bytes().partition(b"\n")
    try:
        unpack_manifest(head, FORMAT, {"pairs": body})
        return [Pair(**json.loads(line)) for line in body.decode().split("\n")[:-1]]
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{cache_file} is broken ({error!r}); delete it to parse again") from error
