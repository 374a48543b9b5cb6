"""CIFF, the Common Index File Format: one file of postings that PISA, JASS, Terrier and others import.

The format is `CommonIndexFileFormat.proto` of Lin et al., "Supporting Interoperability Between Open-Source
Search Engines with the Common Index File Format" (arXiv 2003.08276): a header, one list of postings per term
in lexicographic order, and one record per document, each as a protocol buffer after its length.

Documents come in one after another, and CIFF wants them term by term. So each file of documents is a run: the
postings of its documents, term by term. At the end the runs are merged, and removed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from scipy import sparse

from lexforge.export.vectors.base import MEGABYTE, Row, Survey, VectorTarget, scaled

INDEX = "index.ciff"
_HEAD = 3  # numbers before the columns of a document: its position, its terms, the bytes of its id
_VARINT_BYTES = 5  # the most bytes of a whole number below 2**35


class Ciff(VectorTarget):
    """One file `index.ciff` of whole weights, and queries as repeated terms in PISA's format."""

    suffix = "run"
    queries_file = "queries.txt"
    shard_bytes = 50 * MEGABYTE  # memory holds a run, and at the end the postings of one term
    scales = (20, 50, 100, 200, 500)
    separator = ":"  # as PISA reads it
    commands = """\
ciff2pisa --ciff-file index.ciff --output index
create_wand_data -c index -o index.bmw -b 64 -s quantized
compress_inverted_index -e block_simdbp -c index -o index.simdbp
lexicon build index.terms index.termlex && lexicon build index.documents index.doclex
evaluate_queries -e block_simdbp -a block_max_wand -i index.simdbp -w index.bmw -s quantized -k 10 \\
    --terms index.termlex --documents index.doclex --tokenizer whitespace --weighted -q example-query.txt
"""

    def refuses(self, term: str) -> bool:
        """PISA keeps the terms as lines of a text file, and splits queries at white space."""
        return any(letter.isspace() for letter in term)

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse ids of several lines: PISA keeps the ids as lines too, so all later ones would shift."""
        for id in ids:
            if id.splitlines() != [id]:
                raise ValueError(f"PISA keeps the id of each document as one line; received {id!r}")

    def document(self, row: Row) -> bytes:
        """Return a document as numbers: its head, the columns, the weights, and the id."""
        name = row.id.encode()
        numbers = [row.position, len(row.columns), len(name), *row.columns, *map(int, row.weights)]
        return np.array(numbers, "<i4").tobytes() + name

    def shard(self, documents: Sequence[bytes]) -> bytes:
        """Return a run: the postings of its documents by term."""
        places, terms, weights, names, lengths = [], [], [], [], []
        for document in documents:
            position, count, _ = np.frombuffer(document, "<i4", _HEAD).tolist()
            numbers = np.frombuffer(document, "<i4", 2 * count, offset=4 * _HEAD)
            terms.append(numbers[:count])
            weights.append(numbers[count:])
            places.append(np.full(count, position, np.int32))
            names.append(document[4 * (_HEAD + 2 * count) :].decode())
            lengths.append(int(numbers[count:].sum(dtype=np.int64)))
        columns = np.concatenate(terms)  # [postings]
        order = np.argsort(columns, kind="stable")  # keeps the documents of a term in ascending order
        starts = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=len(self.terms)))])
        # For `finish` alone, which reads the runs term by term: no manifest, and nothing read whole.
        return save(
            {
                "starts": starts.astype(np.int64),  # [V + 1]
                "places": np.concatenate(places)[order],
                "weights": np.ascontiguousarray(np.concatenate(weights)[order]),
                "lengths": np.array(lengths, np.int64),  # [documents]
                "names": np.frombuffer(json.dumps(names).encode(), np.uint8),
            }
        )

    def finish(self, folder: Path, shards: Sequence[str]) -> list[str]:
        """Merge the runs into `index.ciff`, and remove them."""
        with (folder / INDEX).open("wb") as file, ExitStack() as stack:
            runs = [stack.enter_context(safe_open(folder / name, framework="numpy")) for name in shards]
            for message in self._messages(runs):
                file.write(_varint(len(message)) + message)
        for name in shards:
            (folder / name).unlink()
        return [INDEX]

    def limits(self, survey: Survey) -> list[str]:
        """Return what CIFF holds."""
        return [
            scaled(survey),
            "A term that holds white space is called by its number in brackets.",
            "Queries are cut at white space (--tokenizer whitespace): PISA's default tokenizer keeps ASCII "
            "letters and digits alone.",
            "A query names each term as often as its weight says: weigh terms by how often they occur "
            "(--weighted), and score by the stored numbers (-s quantized), not by BM25.",
            "The format numbers documents in 31 bits.",
        ]

    def _messages(self, runs: Sequence[Any]) -> Iterator[bytes]:
        """Yield the messages of the file in their order: header, lists of postings, records of documents."""
        frequencies = np.zeros(len(self.terms), np.int64)  # [V] documents per term
        for run in runs:
            frequencies += np.diff(run.get_tensor("starts"))
        documents = sum(run.get_slice("lengths").get_shape()[0] for run in runs)
        total = sum(int(run.get_tensor("lengths").sum()) for run in runs)
        present = sorted((term, column) for column, term in enumerate(self.terms) if frequencies[column])
        yield _header(len(present), documents, total)
        slices = [tuple(run.get_slice(name) for name in ("starts", "places", "weights")) for run in runs]
        for term, column in present:
            last, total_weight, postings = 0, 0, []
            for starts, places, weights in slices:
                first, end = starts[column : column + 2].tolist()
                if first < end:
                    found, numbers = places[first:end], weights[first:end]
                    postings.append(encode_postings(np.diff(found, prepend=last), numbers))
                    last, total_weight = int(found[-1]), total_weight + int(numbers.sum(dtype=np.int64))
            head = _text(1, term) + _number(2, int(frequencies[column])) + _number(3, total_weight)
            yield head + b"".join(postings)
        position = 0
        for run in runs:
            names = json.loads(run.get_tensor("names").tobytes())
            for name, length in zip(names, run.get_tensor("lengths").tolist(), strict=True):
                yield _number(1, position) + _text(2, name) + _number(3, length)
                position += 1


def encode_postings(gaps: NDArray[np.integer], weights: NDArray[np.integer]) -> bytes:
    """Return postings as the repeated field 4 of a list of postings.

    Each is `0x22, length, 0x08, gap, 0x10, weight`, where gap and weight are varints: seven bits per byte,
    the lowest first, with the highest bit set in all bytes but the last.

    Args:
        gaps: Number of each document minus that of the one before, `[n]`, in [0, 2**31).
        weights: Whole weights `[n]`, in [0, 2**31).

    Returns:
        The bytes.
    """
    numbers = np.stack([gaps, weights]).astype(np.int64)  # [2, n]
    lengths = np.ones_like(numbers)  # [2, n] bytes of each varint
    for byte in range(1, _VARINT_BYTES):
        lengths += numbers >> 7 * byte > 0
    body = 2 + lengths.sum(axis=0)  # [n] two tags and two varints
    ends = np.cumsum(body + 2)
    starts = ends - body - 2
    out = np.zeros(int(ends[-1]), np.uint8)
    out[starts], out[starts + 1] = 0x22, body
    tags = np.stack([starts + 2, starts + 3 + lengths[0]])  # [2, n] places of the two tags
    out[tags[0]], out[tags[1]] = 0x08, 0x10
    for byte in range(_VARINT_BYTES):
        inside = byte < lengths
        more = np.where(byte + 1 < lengths, 0x80, 0)
        out[tags[inside] + 1 + byte] = ((numbers >> 7 * byte & 0x7F) | more)[inside]
    return out.tobytes()


def _header(lists: int, documents: int, total: int) -> bytes:
    """Return the header: version, counts of lists and documents (exported, and in all), lengths, a name."""
    counts = (1, lists, documents, lists, documents, total)
    numbers = b"".join(_number(field, value) for field, value in enumerate(counts, start=1))
    return (
        numbers
        + b"\x39"
        + struct.pack("<d", total / documents)
        + _text(8, "lexforge: learned sparse weights")
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    content = value.encode()
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
