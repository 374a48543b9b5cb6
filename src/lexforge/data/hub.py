"""Data sets of the Hugging Face hub, loaded by name with the package `datasets`."""

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
    split_name,
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

    Two layouts are known. The first is BEIR's on the hub: the configurations `corpus` (`_id`, `text`,
    optional `title`) and `queries` (`_id`, `text`), and judgements (`query-id`, `corpus-id`, optional
    `score`, 1 by default) in the configuration `qrels` or `default`, or in the data set `<name>-qrels`. The
    second is pairs or triplets: each row holds a query, a positive, and any number of columns `negative...`
    or `hard_negative...`. Equal texts of pairs become one query or one document. A negative is judged with
    grade 0, so that `judged_negatives` returns it, unless its text is also a positive of the query. The
    split `validation` is called `dev`, as in BEIR.

    Args:
        name: `hf:organisation/name`; the prefix may be left out.
        splits: The splits to keep; None keeps all.
        qrels: The configuration or data set with the judgements, if it is none of those above.
        columns: The names of the pairs' columns, `{"anchor": ..., "positive": ...}`. A column that is not
            named here is found by its usual names: anchor, query or question; positive, pos, document,
            passage or answer.

    Returns:
        The set, named as on the hub.

    Raises:
        DataError: If the set cannot be loaded, is in neither layout, or holds wrong data; the message names
            configuration and row.
        ValueError: If a split is unknown.
    """
    import datasets

    path = name.removeprefix(PREFIX)
    configurations = from_hub(path, datasets.get_dataset_config_names, path)
    if {"corpus", "queries"} <= set(configurations):
        data = _beir_layout(path, configurations, qrels)
    else:
        data = _pair_layout(path, from_hub(path, datasets.load_dataset, path), columns or {})
    return data if splits is None else data.only(splits)


def from_hub(path: str, load: Callable[..., Any], *arguments: Any) -> Any:
    """Call a loader of `datasets`, and turn its errors into a `DataError` that names the data set.

    Args:
        path: The name of the data set.
        load: A function of `datasets`.
        *arguments: The arguments of the function.

    Returns:
        What the function returns.

    Raises:
        DataError: If the function fails.
    """
    from datasets.exceptions import DatasetsError

    try:
        return load(*arguments)
    except (OSError, ValueError, DatasetsError) as error:
        reason = error if error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DataError(f"the data set {path!r} cannot be loaded: {reason}") from error


def _beir_layout(path: str, configurations: Sequence[str], qrels: str | None) -> RetrievalData:
    """Load texts and judgements from the configurations that BEIR uses on the hub."""
    import datasets

    texts = {
        part: collect_texts(
            f"{path} [{part}]",
            _records(f"{path} [{part}]", from_hub(path, datasets.load_dataset, path, part)),
            blank_allowed=part == "corpus",
        )
        for part in ("corpus", "queries")
    }
    # The judgements are a configuration of the same data set, or a data set of their own.
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
    """Yield (row, id, title and text joined) for each document or query."""
    if len(loaded) != 1:
        raise DataError(f"{source}: expected one split of texts; received {list(loaded)}")
    for row, record in enumerate(next(iter(loaded.values()))):
        where = f"{source}:{row}"
        for field in ("_id", "text"):
            if field not in record:
                raise DataError(f"{source}: expected a column {field!r}; received {sorted(record)}")
        yield row, record["_id"], record_text(where, record)


def _grades(source: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str, str, int]]:
    """Yield (row, query id, document id, grade) for each judgement."""
    for row, record in enumerate(rows):
        if not {"query-id", "corpus-id"} <= record.keys():
            raise DataError(
                f"{source}: expected the columns query-id and corpus-id; received {sorted(record)}"
            )
        where = f"{source}:{row}"
        grade = check_grade(where, record.get("score", 1))
        yield row, _identifier(where, record["query-id"]), _identifier(where, record["corpus-id"]), grade


def _pair_layout(path: str, loaded: Mapping[str, Any], columns: Mapping[str, str]) -> RetrievalData:
    """Make queries, documents and judgements of rows of texts; equal texts get one id."""
    if unknown := set(columns) - set(_ALIASES):
        raise ValueError(f"columns may name {sorted(_ALIASES)}; received {sorted(unknown)}")
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
                # A text that is a positive of the query in any row stays a positive.
                grades[document_id] = max(grade, grades.get(document_id, 0))
    if not query_ids:
        raise DataError(f"{path} holds no row")
    corpus = {document_id: text for text, document_id in document_ids.items()}
    return RetrievalData(path, corpus, {query_id: text for text, query_id in query_ids.items()}, judged)


def _column(path: str, names: Sequence[str], role: str, columns: Mapping[str, str]) -> str:
    """Return the one column that plays a role, "anchor" or "positive"."""
    candidates = (columns[role],) if role in columns else _ALIASES[role]
    found = [name for name in candidates if name in names]
    if len(found) != 1:
        raise DataError(
            f"{path}: expected one {role} column out of {list(candidates)}; received {found} among "
            f"{list(names)}. Name it by columns="
        )
    return found[0]


def _identifier(where: str, value: object) -> str:
    """Return the id of a text as a string; some published judgements hold integers."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise DataError(f"{where}: an id must be a string or an integer; received {value!r}")
    return str(value)
