"""The embedded corpus: docstrings of the standard library and of lexforge's dependencies.

A query is the first paragraph of a docstring, and its document is the rest of the docstring. That is the
search of a Python programmer who knows what a thing should do but not its name. The sources are parsed with
`ast` and never imported, so reading them has no effect. The text differs between machines only where the
installed versions differ.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lexforge.common.progress import Progress
from lexforge.common.types import DataError, Qrels
from lexforge.data.faults import Faults
from lexforge.data.retrieval_data import RetrievalData, untitled
from lexforge.settings import SourceOptions
from lexforge.storage.files import cache_folder, remove_leftovers, write_file
from lexforge.storage.manifest import MALFORMED, pack_manifest, unpack_manifest

# The dependencies of lexforge and their own, by import name; those that are not installed are left out.
PACKAGES = (
    "accelerate bm25s datasets faiss filelock fsspec huggingface_hub ir_measures jinja2 joblib llvmlite "
    "networkx numba numpy packaging pandas psutil pyarrow rich safetensors scipy sentence_transformers "
    "sklearn sympy tokenizers torch tqdm transformers tyro"
).split()
QUERY_WORDS = (3, 40)
DOCUMENT_WORDS = (12, 256)
NAME = "docstrings (the embedded corpus)"
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
class DocstringPair:
    """One docstring in two parts; `name` is the dotted name of its object, `module` that of its file."""

    module: str
    name: str
    query: str
    document: str


def matches(source: str) -> bool:
    """Return whether a source is the word `docstrings`."""
    return source == "docstrings"


def split_names(source: str, options: SourceOptions) -> None:
    """Return None: the splits are known once the sources have been parsed; see `Format.split_names`."""


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> RetrievalData:
    """Load the set with all its splits; see `Format.open`."""
    return load_docstrings()


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield the documents, which have no titles; see `Format.titled`."""
    return untitled(source, load_docstrings().corpus)


def load_docstrings(
    cache_dir: str | Path | None = None,
    *,
    roots: Mapping[str, Path] | None = None,
    max_pairs: int | None = None,
) -> RetrievalData:
    """Load the docstring retrieval set of this machine; it is parsed once and then read from a cache.

    A pair is left out if the query is too short or too long (`QUERY_WORDS`), if the document is too short
    (`DOCUMENT_WORDS`; a longer one is cut), if UTF-8 cannot hold them, if the document contains the query, if
    the docstring is a licence text, or if query or document occurred before. Doctest blocks and underlined
    section titles are removed from the documents. All docstrings of a module belong to the same split: the
    hash of the module's name sends 80 % of modules to train, 10 % to dev and 10 % to test.

    Args:
        cache_dir: The folder in which the parsed pairs are kept; None takes that of `cache_folder`. The
            file's name holds a hash of path, size and time of change of every source.
        roots: Package name -> folder of Python files to read instead of the default ones; the name "" is for
            modules without a package.
        max_pairs: The number of pairs to keep, chosen by the hash of their names over all splits; None keeps
            all.

    Returns:
        The set `docstrings`. A document's id is a dotted name, and a query's id is `query:` and the name of
        its document. Each query has one positive, of grade 1. A split without a pair is absent.

    Raises:
        ValueError: If `max_pairs` is below 1.
        FileNotFoundError: If a root is not a folder.
        DataError: If there is no pair at all, or if the cache file is broken; the message says what to
            delete.
    """
    if max_pairs is not None and max_pairs < 1:
        raise ValueError(f"max_pairs must be at least 1; received {max_pairs}")
    sources = list(_sources(default_roots() if roots is None else roots))
    cache_file = Path(cache_dir or cache_folder()) / f"docstrings-{_cache_key(sources)}.jsonl"
    if cache_file.exists():
        pairs = _read_cache(cache_file)
    else:
        pairs = extract_pairs(sources)
        _write_cache(cache_file, pairs)
    if max_pairs is not None:
        chosen = {pair.name for pair in sorted(pairs, key=lambda pair: _hash(pair.name))[:max_pairs]}
        pairs = [pair for pair in pairs if pair.name in chosen]
    if not pairs:
        raise DataError(f"no docstring pair in {len(sources)} source files")
    return _retrieval_data(pairs)


def default_roots() -> dict[str, Path]:
    """Return package name -> folder: the standard library (under "") and the installed ones of `PACKAGES`."""
    roots = {"": Path(sysconfig.get_paths()["stdlib"])}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)  # locates a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            roots[name] = Path(next(iter(spec.submodule_search_locations)))
    return roots


def split_of(module: str) -> str:
    """Return the split of all docstrings of a module, chosen by the hash of the module's dotted name."""
    return {0: "dev", 1: "test"}.get(int(_hash(module), 16) % 10, "train")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _sources(roots: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield (dotted module name, file) in a fixed order, without tests."""
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


def extract_pairs(sources: list[tuple[str, Path]]) -> list[DocstringPair]:
    """Parse all sources; of pairs with an equal name, query or document only the first is kept."""
    pairs: list[DocstringPair] = []
    seen: set[str] = set()
    with Progress(len(sources), "reading docstrings", "files") as progress:
        for module, path in sources:
            for name, docstring in _docstrings(module, path.read_bytes()):
                pair = _pair(module, name, docstring)
                if pair is None or not _is_text(pair):
                    continue
                keys = {f"name {name}", f"query {pair.query.lower()}", f"document {pair.document.lower()}"}
                if seen.isdisjoint(keys):
                    seen |= keys
                    pairs.append(pair)
            progress.update(1)
    return pairs


def _docstrings(module: str, source: bytes) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, docstring) of a module and its objects; nothing where Python cannot parse it."""
    if b'"""' not in source and b"'''" not in source:  # a docstring of one line has no second paragraph
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # templates, syntax of other versions, null bytes
        return
    # A stack instead of recursion: the order is that of the source, and depth is not limited.
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


def _pair(module: str, name: str, docstring: str) -> DocstringPair | None:
    """Cut a docstring after its first paragraph; return None where it makes no pair."""
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
    return DocstringPair(module, name, query, document)


def _is_text(pair: DocstringPair) -> bool:
    """Return whether UTF-8 can hold the pair, which an escape for half of a surrogate pair would prevent."""
    try:
        "".join(asdict(pair).values()).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _plain_text(rest: str) -> str:
    """Return the later paragraphs on one line, without doctests and underlined titles, cut to 256 words."""
    lines: list[str] = []
    in_doctest = False
    for line in map(str.strip, rest.splitlines()):
        # A doctest block begins at its prompt and ends at a blank line.
        in_doctest = bool(line) and (in_doctest or line.startswith(">>>"))
        if _UNDERLINE.fullmatch(line) and lines:
            lines.pop()
        elif not in_doctest:
            lines.append(line)
    return " ".join(" ".join(lines).split()[: DOCUMENT_WORDS[1]])


def _retrieval_data(pairs: list[DocstringPair]) -> RetrievalData:
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


def _write_cache(cache_file: Path, pairs: list[DocstringPair]) -> None:
    """Write the manifest and, below it, a line of JSON per pair."""
    body = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs).encode()
    head = pack_manifest(FORMAT, {}, {"pairs": body}).encode()
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(cache_file.parent, r"docstrings-[0-9a-f]{16}\.jsonl")
    write_file(cache_file, head + b"\n" + body)


def _read_cache(cache_file: Path) -> list[DocstringPair]:
    head, _, body = cache_file.read_bytes().partition(b"\n")
    try:
        unpack_manifest(head, FORMAT, {"pairs": body})
        return [DocstringPair(**json.loads(line)) for line in body.decode().split("\n")[:-1]]
    except MALFORMED as error:
        raise DataError(f"{cache_file} is broken ({error!r}); delete it to parse again") from error
