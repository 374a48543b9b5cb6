"""Pairs of sentences with a graded similarity (STS) from files, hub data sets and docstrings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from lexforge.common.types import DataError
from lexforge.data.faults import BLANK, BadRow, Faults
from lexforge.data.formats import detect_rows, docstrings, read_records
from lexforge.data.formats.docstrings import load_docstrings
from lexforge.data.lines import as_number, excerpt, require_texts, stripped
from lexforge.data.retrieval_data import RetrievalData
from lexforge.data.splits import TRAIN, trained_texts, unread_splits, wanted_rows
from lexforge.data.tables import find_column
from lexforge.settings import StsOptions

ScoredPair = dict[str, str | float]
# The score of two docstrings, by how close their objects stand in the code.
SAME_OBJECT, SAME_PARENT, SAME_PACKAGE, APART = 3.0, 2.0, 1.0, 0.0


def load_sts(
    source: str,
    splits: Sequence[str] | None = None,
    options: StsOptions | None = None,
    notes: list[str] | None = None,
) -> dict[str, list[ScoredPair]]:
    """Load scored pairs of sentences by the name that a command line takes.

    Args:
        source: `docstrings` (embedded, see `docstring_pairs`), or rows of a format of
            `lexforge.data.formats.OF_ROWS`. A row has two sentences and a score, a number that is higher for
            more similar sentences; a row of a file may also have `split`.
        splits: The splits that the caller needs; None takes those that exist.
        options: Names of columns, and the share that is held out for a missing split.
        notes: What was guessed and left out is added here, one line each; None logs it.

    Returns:
        Split -> rows with the columns `sentence1`, `sentence2` and `score`; `validation` is called `dev`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such split.
        DataError: If there is no pair, if a sentence is blank or no text, or if a score is no finite number;
            the message names file and line.
    """
    options = options or StsOptions()
    if detect_rows(source, options) is docstrings:
        found = docstring_pairs(load_docstrings())
    else:
        faults = Faults(source, options.bad_rows)
        found = _scored_pairs(source, options, faults)
        sizes = {split: len(rows) for split, rows in found.items()}
        for line in [] if splits is None else unread_splits(sizes, splits):
            faults.note(f"{source}: {line}")
        texts = {
            split: [f"{row['sentence1']} | {row['sentence2']}" for row in rows]
            for split, rows in found.items()
            if splits is None or split in (TRAIN, *splits)
        }
        for line in trained_texts(source, texts.get(TRAIN, ()), texts, "pairs"):
            faults.note(line)
        if notes is None:
            faults.log()
        else:
            notes += faults.finish()
    if splits is None:
        return found
    return wanted_rows(source, found, splits, options.hold_out, lambda row: str(row["sentence1"]).strip())


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


def _scored_pairs(source: str, options: StsOptions, faults: Faults) -> dict[str, list[ScoredPair]]:
    """Read and check rows, and gather them by split."""
    splits: dict[str, list[ScoredPair]] = {}
    columns: list[str] = []
    roles = _roles(options)
    headers = [name for _, usual, given in roles for name in (*usual, given or "")]
    for where, split, record in read_records(source, tuple(filter(None, headers)), options, faults):
        columns = columns or [
            find_column(where, list(record), *role, f"--{role[0]}-column") for role in roles
        ]
        with faults.reading(where):
            pair = _pair(*(record.get(column) for column in columns))
            splits.setdefault(split, []).append(pair)  # a split of bad rows alone is missing
    if not splits:
        faults.finish()
        raise DataError(f"{source} holds no pair of sentences")
    return splits


def _pair(first: object, second: object, score: object) -> ScoredPair:
    """Check the cells of a row; a message names no place."""
    if any(isinstance(text, str) and not stripped(text) for text in (first, second)):
        raise BadRow(BLANK, "a sentence is blank")
    require_texts(None, sentence1=first, sentence2=second)
    number = as_number(score)
    if number is None:
        raise DataError(f"the score must be a finite number; received {excerpt(score)}")
    return {"sentence1": str(first), "sentence2": str(second), "score": number}


def _roles(options: StsOptions) -> list[tuple[str, tuple[str, ...], str | None]]:
    """Return each column that is needed, with its usual names and the name that the user gave."""
    return [
        ("sentence1", ("sentence1", "text1"), options.sentence1_column),
        ("sentence2", ("sentence2", "text2"), options.sentence2_column),
        ("score", ("score", "label", "similarity", "similarity_score"), options.score_column),
    ]
