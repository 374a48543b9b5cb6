"""Pairs of sentences with a graded similarity (STS) from files, hub data sets and docstrings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexforge.data.docstrings import load_docstrings
from lexforge.data.lines import excerpt, is_finite, json_objects, require_texts
from lexforge.data.retrieval_data import DataError, RetrievalData, split_name
from lexforge.data.tables import (
    PREFIX,
    READERS,
    as_number,
    column_of,
    ending,
    hold_out_rows,
    load_tables,
    missing_shares,
)
from lexforge.settings import StsOptions

ScoredPair = dict[str, str | float]
FIELDS = ("sentence1", "sentence2", "score")
# The score of two docstrings, by how close their objects stand in the code.
SAME_OBJECT, SAME_PARENT, SAME_PACKAGE, APART = 3.0, 2.0, 1.0, 0.0


def load_sts(
    source: str, splits: Sequence[str] | None = None, options: StsOptions | None = None
) -> dict[str, list[ScoredPair]]:
    """Load scored pairs of sentences by the name that a command line takes.

    Args:
        source: `docstrings` (embedded, see `docstring_pairs`), or tables as `lexforge.data.tables` opens
            them. A row has two sentences and a score, a number that is higher for more similar sentences; a
            row of a file may also have `split`.
        splits: The splits that the caller needs; None takes those that exist.
        options: Names of columns, and the share that is held out for a missing split.

    Returns:
        Split -> rows with the columns `sentence1`, `sentence2` and `score`; `validation` is called `dev`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such split.
        DataError: If there is no pair, if a sentence is blank or no text, or if a score is no finite number;
            the message names file and line.
    """
    options = options or StsOptions()
    if source == "docstrings":
        found = docstring_pairs(load_docstrings())
    elif not source.startswith(PREFIX) and not Path(source).exists():
        raise FileNotFoundError(f"{source} is not a file; expected rows (.jsonl, .csv, .tsv or .parquet)")
    elif READERS.get(ending(Path(source))) == "json" and Path(source).is_file():
        found = _collect(source, _file_rows(Path(source), options))
    else:
        found = _collect(source, _table_rows(source, options))
    if splits is None:
        return found
    shares = missing_shares(source, list(found), splits, options.hold_out)
    held_out = hold_out_rows(source, found, shares, lambda row: str(row["sentence1"]))
    return {split: held_out[split] for split in splits}


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


def _columns(where: str, names: Sequence[str], options: StsOptions) -> tuple[str, str, str]:
    """Return the columns of both sentences and of the score."""
    return (
        column_of(where, names, ("sentence1", "text1"), options.sentence1_column, "--sentence1-column"),
        column_of(where, names, ("sentence2", "text2"), options.sentence2_column, "--sentence2-column"),
        column_of(
            where,
            names,
            ("score", "label", "similarity", "similarity_score"),
            options.score_column,
            "--score-column",
        ),
    )


def _table_rows(source: str, options: StsOptions) -> Iterable[tuple[object, str, Sequence[Any]]]:
    """Yield (where the row stands, split, sentences and score) of tables."""
    for split, (rows, origin) in load_tables(source, FIELDS).items():
        columns = _columns(origin.name, rows.column_names, options)
        for row, record in enumerate(rows):
            first, second, score = (record[column] for column in columns)
            # Every cell of a CSV file is a text.
            yield origin.place(row), split, (first, second, as_number(score))


def _file_rows(path: Path, options: StsOptions) -> Iterable[tuple[object, str, Sequence[Any]]]:
    """Yield (where the row stands, split, sentences and score) of a JSON-lines file."""
    for number, record in json_objects(path, ()):
        where = f"{path}:{number}"
        columns = _columns(where, list(record), options)
        split = record.get("split", "train")
        require_texts(where, split=split)
        yield where, split_name(split), [record[column] for column in columns]


def _collect(source: str, rows: Iterable[tuple[object, str, Sequence[Any]]]) -> dict[str, list[ScoredPair]]:
    """Check rows and gather them by split; `rows` yields where a row stands, its split, and its cells."""
    splits: dict[str, list[ScoredPair]] = {}
    for where, split, (first, second, score) in rows:
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
