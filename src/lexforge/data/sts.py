"""Pairs of sentences with a graded similarity (STS) from files, hub data sets and docstrings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexforge.data.docstrings import load_docstrings
from lexforge.data.lines import excerpt, is_finite, json_objects, require_texts
from lexforge.data.retrieval_data import DataError, RetrievalData, split_name
from lexforge.data.tables import PREFIX, hub_tables

ScoredPair = dict[str, str | float]
FIELDS = ("sentence1", "sentence2", "score")
# The score of two docstrings, by how close their objects stand in the code.
SAME_OBJECT, SAME_PARENT, SAME_PACKAGE, APART = 3.0, 2.0, 1.0, 0.0


def load_sts(source: str) -> dict[str, list[ScoredPair]]:
    """Load scored pairs of sentences by the name that a command line takes.

    Args:
        source: `docstrings` (embedded, see `docstring_pairs`), `hf:organisation/name`, or a JSON-lines file
            (`.jsonl`, `.jsonl.gz`). A row has `sentence1`, `sentence2` and `score`, a number that is higher
            for more similar sentences; a line of a file also has `split`.

    Returns:
        Split -> rows with the columns `sentence1`, `sentence2` and `score`; `validation` is called `dev`.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If there is no pair, if a sentence is blank or no text, or if a score is no finite number;
            the message names file and line.
    """
    if source == "docstrings":
        return docstring_pairs(load_docstrings())
    if source.startswith(PREFIX):
        return _collect(source, _hub_rows(source.removeprefix(PREFIX)))
    if not Path(source).is_file():
        raise FileNotFoundError(f"{source} is not a file; expected JSON lines (.jsonl or .jsonl.gz)")
    return _collect(source, _file_rows(Path(source)))


def docstring_pairs(data: RetrievalData) -> dict[str, list[ScoredPair]]:
    """Pair the first paragraph of a docstring with the rest of a docstring that is near to it or far from it.

    The score says how near both stand in the code: 3 for the same object, 2 for the same class or module, 1
    for the same package and 0 for another package. The queries of a split take the four scores in turn; a
    query without such a neighbour is left out. Both texts of a pair belong to the same split.

    Args:
        data: The set of `load_docstrings`, whose document ids are dotted names.

    Returns:
        Split -> rows, as from `load_sts`.
    """
    return {split: _graded_pairs(data, judged) for split, judged in data.qrels.items()}


def _graded_pairs(data: RetrievalData, judged: Mapping[str, Mapping[str, int]]) -> list[ScoredPair]:
    """Make the pairs of one split."""
    names = [next(iter(documents)) for documents in judged.values()]
    siblings: dict[str, list[int]] = defaultdict(list)
    relatives: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        siblings[_parent(name)].append(place)
        relatives[_package(name)].append(place)
    # For each score, the places among which the second docstring of a pair is looked for.
    candidates: dict[float, Callable[[int], Sequence[int]]] = {
        SAME_OBJECT: lambda place: [place],
        SAME_PARENT: lambda place: siblings[_parent(names[place])],
        SAME_PACKAGE: lambda place: relatives[_package(names[place])],
        APART: lambda place: range(len(names)),
    }
    pairs: list[ScoredPair] = []
    for place, query_id in enumerate(judged):
        score = list(candidates)[place % 4]
        places = candidates[score](place)
        start = place * 7919  # the search starts at a far place, as if it were drawn at random
        turns = (places[(start + turn) % len(places)] for turn in range(len(places)))
        other = next((found for found in turns if _nearness(names[place], names[found]) == score), None)
        if other is not None:
            document = data.corpus[names[other]]
            pairs.append({"sentence1": data.queries[query_id], "sentence2": document, "score": score})
    return pairs


def _nearness(name: str, other: str) -> float:
    """Return the score of two objects by their dotted names."""
    if name == other:
        return SAME_OBJECT
    if _parent(name) == _parent(other):
        return SAME_PARENT
    return SAME_PACKAGE if _package(name) == _package(other) else APART


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _package(name: str) -> str:
    return name.partition(".")[0]


def _hub_rows(name: str) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """Yield (where the row stands, split, row) of a hub data set."""
    for split, rows in hub_tables(name).items():
        if missing := [field for field in FIELDS if field not in rows.column_names]:
            raise DataError(
                f"{name} [{split}]: expected a column {missing[0]!r}; received {sorted(rows.column_names)}"
            )
        for row, record in enumerate(rows):
            yield f"{name} [{split}]:{row}", split_name(split), record


def _file_rows(path: Path) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """Yield (where the row stands, split, row) of a JSON-lines file."""
    for number, record in json_objects(path, (*FIELDS, "split")):
        where = f"{path}:{number}"
        require_texts(where, split=record["split"])
        yield where, split_name(record["split"]), record


def _collect(source: str, rows: Iterable[tuple[str, str, Mapping[str, Any]]]) -> dict[str, list[ScoredPair]]:
    """Check rows and gather them by split; `rows` yields where a row stands, its split, and the row."""
    splits: dict[str, list[ScoredPair]] = {}
    for where, split, record in rows:
        first, second, score = (record[field] for field in FIELDS)
        require_texts(where, sentence1=first, sentence2=second)
        if not first.strip() or not second.strip():
            raise DataError(f"{where}: a sentence is blank")
        if not is_finite(score):
            raise DataError(f"{where}: the score must be a finite number; received {excerpt(score)}")
        pair: ScoredPair = {"sentence1": first, "sentence2": second, "score": float(score)}
        splits.setdefault(split, []).append(pair)
    if not splits:
        raise DataError(f"{source} holds no pair of sentences")
    return splits
