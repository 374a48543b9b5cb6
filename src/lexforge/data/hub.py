"""Data sets of the Hugging Face hub by name, through the real `datasets` code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lexforge.common.types import Qrels
from lexforge.data.beir import TRAINING_SPLIT, record_text
from lexforge.data.grades import check_grade
from lexforge.data.lines import require_texts
from lexforge.data.retrieval_data import (
    DataError,
    RetrievalData,
    collect_judgements,
    collect_texts,
)

PREFIX = "hf:"
_ALIASES = {
    "anchor": ("anchor", "query", "question"),
    "positive": ("positive", "pos", "document", "passage", "answer"),
}


def load_hub(
    name: str,
    splits: Sequence[str] | None = None,
    *,
    qrels: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> RetrievalData:
    """Load a retrieval set by its name on the hub, or from a folder that `datasets.load_dataset` reads.

    Two layouts are known. One is BEIR's on the hub: the configurations `corpus` (`_id`, `text`, optional
    `title`) and `queries` (`_id`, `text`), and judgements (`query-id`, `corpus-id`, optional `score`, 1 by
    default) in the configuration `qrels` or `default`, or in the data set `<name>-qrels`. The other is pairs
    or triplets, a row each: a query, a positive, and any number of columns `negative...` or
    `hard_negative...`. Equal texts become one query or document there; a negative is judged with grade 0, so
    that `judged_negatives` returns it, unless its text is also a positive of the query. The split
    `validation` is called `dev`, as in BEIR.

    Args:
        name: `hf:organisation/name`; the prefix may be left out.
        splits: The splits to keep; all by default.
        qrels: The configuration or data set with the judgements, where it is none of those above.
        columns: `{"anchor": ..., "positive": ...}`: which columns of the pairs these are. By default anchor,
            query or question, and positive, pos, document, passage or answer.

    Returns:
        The set, called by its name.

    Raises:
        DataError: The set cannot be loaded, is in neither layout, or holds wrong data (with configuration and
            row).
        ValueError: An unknown split.
        ImportError: `datasets` is not installed.
    """
    datasets = import_datasets()
    path = name.removeprefix(PREFIX)
    configurations = from_hub(path, datasets.get_dataset_config_names, path)
    if {"corpus", "queries"} <= set(configurations):
        data = _beir_layout(path, configurations, qrels)
    else:
        data = _pair_layout(path, from_hub(path, datasets.load_dataset, path), columns or {})
    for split in splits or ():
        data.split(split)
    chosen = data.splits if splits is None else tuple(splits)
    return RetrievalData(data.name, data.corpus, data.queries, {split: data.split(split) for split in chosen})


def from_hub(path: str, load: Callable[..., Any], *arguments: Any) -> Any:
    """Call a loader of `datasets`; what it raises becomes a `DataError` that names the data set."""
    from datasets.exceptions import DatasetsError

    try:
        return load(*arguments)
    except (OSError, ValueError, DatasetsError) as error:
        reason = error if error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DataError(f"the data set {path!r} cannot be loaded: {reason}") from error


def import_datasets() -> Any:
    """The package `datasets`, imported where it is needed.

    Returns:
        The module.

    Raises:
        ImportError: It is not installed; the message says how to.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"this needs the package datasets: pip install datasets ({error})") from None
    return datasets


def _beir_layout(path: str, configurations: Sequence[str], qrels: str | None) -> RetrievalData:
    datasets = import_datasets()
    texts = {
        part: collect_texts(
            f"{path} [{part}]",
            _records(f"{path} [{part}]", from_hub(path, datasets.load_dataset, path, part)),
            blank_allowed=part == "corpus",
        )
        for part in ("corpus", "queries")
    }
    inside = [known for known in ([qrels] if qrels else ["qrels", "default"]) if known in configurations]
    source, *configuration = (path, inside[0]) if inside else (qrels or f"{path}-qrels",)
    judged: dict[str, Qrels] = {}
    for split, rows in from_hub(source, datasets.load_dataset, source, *configuration).items():
        where = f"{source} [{split}]"
        judged[split_name(split)] = collect_judgements(
            where, _grades(where, rows), texts["corpus"], texts["queries"], training=split == TRAINING_SPLIT
        )
    return RetrievalData(path, texts["corpus"], texts["queries"], judged)


def _records(source: str, loaded: Mapping[str, Any]) -> Iterator[tuple[int, str, str]]:
    if len(loaded) != 1:
        raise DataError(f"{source}: expected one split of texts, got {list(loaded)}")
    for row, record in enumerate(next(iter(loaded.values()))):
        where = f"{source}:{row}"
        for field in ("_id", "text"):
            if field not in record:
                raise DataError(f"{source}: no column {field!r}, only {sorted(record)}")
        yield row, record["_id"], record_text(where, record)


def _grades(source: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str, str, int]]:
    for row, record in enumerate(rows):
        if not {"query-id", "corpus-id"} <= record.keys():
            raise DataError(f"{source}: expected the columns query-id and corpus-id, got {sorted(record)}")
        where = f"{source}:{row}"
        grade = check_grade(where, record.get("score", 1))
        yield row, _identifier(where, record["query-id"]), _identifier(where, record["corpus-id"]), grade


def _pair_layout(path: str, loaded: Mapping[str, Any], columns: Mapping[str, str]) -> RetrievalData:
    if unknown := set(columns) - set(_ALIASES):
        raise ValueError(f"columns names {sorted(unknown)}; it may name {sorted(_ALIASES)}")
    query_ids: dict[str, str] = {}
    document_ids: dict[str, str] = {}
    judged: dict[str, Qrels] = {}
    for split, rows in loaded.items():
        anchor, positive = (
            _column(path, rows.column_names, role, columns) for role in ("anchor", "positive")
        )
        negatives = [
            column for column in rows.column_names if column.startswith(("negative", "hard_negative"))
        ]
        judgements = judged.setdefault(split_name(split), {})
        for row, record in enumerate(rows):
            require_texts(f"{path} [{split}]:{row}", **{c: record[c] for c in (anchor, positive, *negatives)})
            if not record[anchor].strip() or not record[positive].strip():
                raise DataError(f"{path} [{split}]:{row}: the {anchor} or {positive} is blank")
            query_id = query_ids.setdefault(record[anchor].strip(), f"q{len(query_ids)}")
            grades = judgements.setdefault(query_id, {})
            for column, grade in ((positive, 1), *((negative, 0) for negative in negatives)):
                document_id = document_ids.setdefault(record[column].strip(), f"d{len(document_ids)}")
                grades[document_id] = max(grade, grades.get(document_id, 0))
    if not query_ids:
        raise DataError(f"{path} holds no row")
    corpus = {document_id: text for text, document_id in document_ids.items()}
    return RetrievalData(path, corpus, {query_id: text for text, query_id in query_ids.items()}, judged)


def _column(path: str, names: Sequence[str], role: str, columns: Mapping[str, str]) -> str:
    candidates = (columns[role],) if role in columns else _ALIASES[role]
    found = [name for name in candidates if name in names]
    if len(found) != 1:
        raise DataError(
            f"{path}: expected one {role} column out of {list(candidates)}, found {found} among "
            f"{list(names)}; name it by columns="
        )
    return found[0]


def split_name(split: str) -> str:
    """The name of a split here: the hub's `validation` is called `dev`, as in BEIR."""
    return "dev" if split == "validation" else split


def _identifier(where: str, value: object) -> str:
    """The id of a text as judgements name it; some published ones hold it as an integer."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise DataError(f"{where}: an id must be a string or an integer, got {value!r}")
    return str(value)
