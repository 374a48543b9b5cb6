"""Data sets of the Hugging Face hub, in one of two layouts, read by the package `datasets`.

The first layout is BEIR's on the hub: the configurations `corpus` (`_id`, `text`, optional `title`) and
`queries` (`_id`, `text`), and judgements (`query-id`, `corpus-id`, optional `score`, 1 by default) in the
configuration `qrels` or `default`, or in the data set `<name>-qrels`. The second is rows of texts, as
`lexforge.data.pairs` recognises them; a set that is named with a configuration has this one. The split
`validation` is called `dev`, as in BEIR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lexforge.common.types import DataError, Qrels
from lexforge.data.faults import Faults
from lexforge.data.formats.beir import record_parts
from lexforge.data.lines import check_grade
from lexforge.data.pair_data import PairData
from lexforge.data.retrieval_data import (
    RetrievalData,
    collect_judgements,
    collect_texts,
    join_titles,
    untitled,
)
from lexforge.data.splits import TRAIN, split_name
from lexforge.data.tables import Origin, Table, load_by_datasets, named_tables
from lexforge.settings import SourceOptions

NAME = "hf:organisation/name or hf:organisation/name:configuration"
PREFIX = "hf:"
CORPUS = "corpus"  # the configuration with the documents of BEIR's layout


def matches(source: str) -> bool:
    """Return whether a name has the prefix of the hub."""
    return source.startswith(PREFIX)


def split_names(source: str, options: SourceOptions) -> None:
    """Return None: the splits are known once the data set has been found; see `Format.split_names`."""


def open(
    source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults
) -> RetrievalData | PairData:
    """Open a data set in either layout, with all its splits; see `Format.open`."""
    import datasets

    path, configuration = _parts(source)
    if configuration is None:  # those that it has tell its layout
        configurations = load_by_datasets(path, datasets.get_dataset_config_names, path)
        if {"corpus", "queries"} <= set(configurations):
            return _beir_layout(path, configurations, faults)
    return PairData.of_tables(path, tables(source), options.columns, faults)


def documents(source: str, options: SourceOptions) -> Mapping[str, str]:
    """Read the documents of a data set, and log what was left out; see `Format.documents`."""
    if _is_beir(source):
        rows = join_titles(titled(source, options, []))
        return collect_texts(source, rows, blank_allowed=True)
    return _texts_of_rows(source, options)


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield the documents; those of rows have no titles. See `Format.titled`."""
    import datasets

    path, _ = _parts(source)
    if _is_beir(source):
        return _records(f"{path} [{CORPUS}]", load_by_datasets(path, datasets.load_dataset, path, CORPUS))
    return untitled(source, _texts_of_rows(source, options))


def _texts_of_rows(source: str, options: SourceOptions) -> Mapping[str, str]:
    """Return the positives and negatives of rows, and log what was left out."""
    faults = Faults(source, options.bad_rows)
    opened = open(source, options, None, faults)
    faults.log()
    return (opened.retrieval() if isinstance(opened, PairData) else opened).corpus


def _is_beir(source: str) -> bool:
    """Return whether the documents of a data set are a configuration of it, as in BEIR's layout."""
    import datasets

    path, configuration = _parts(source)
    return configuration is None and CORPUS in load_by_datasets(path, datasets.get_dataset_config_names, path)


def tables(source: str) -> dict[str, Table]:
    """Open the splits of a data set of rows; `validation` is called `dev`.

    Args:
        source: `hf:` and the name; the data set may also be a folder that `load_dataset` reads.

    Raises:
        DataError: If the data set cannot be loaded; the message says why.
    """
    import datasets

    path, configuration = _parts(source)
    arguments = (path,) if configuration is None else (path, configuration)
    return named_tables(path, load_by_datasets(path, datasets.load_dataset, *arguments))


def _parts(name: str) -> tuple[str, str | None]:
    """Return data set and configuration of `hf:organisation/name:configuration`; the second may be None."""
    path, _, configuration = name.removeprefix(PREFIX).partition(":")
    return path, configuration or None


def _beir_layout(path: str, configurations: Sequence[str], faults: Faults) -> RetrievalData:
    """Load texts and judgements from the configurations that BEIR uses on the hub."""
    import datasets

    texts = {
        part: collect_texts(
            f"{path} [{part}]",
            join_titles(
                _records(f"{path} [{part}]", load_by_datasets(path, datasets.load_dataset, path, part))
            ),
            blank_allowed=part == CORPUS,
        )
        for part in (CORPUS, "queries")
    }
    # The judgements are a configuration of the same data set, or a data set of their own.
    inside = [known for known in ("qrels", "default") if known in configurations]
    source, *configuration = (path, inside[0]) if inside else (f"{path}-qrels",)
    judged: dict[str, Qrels] = {}
    for split, rows in load_by_datasets(source, datasets.load_dataset, source, *configuration).items():
        where = f"{source} [{split}]"
        if split_name(split) in judged:
            raise DataError(f"{source} holds the split {split_name(split)!r} twice, as dev and as validation")
        judged[split_name(split)] = collect_judgements(
            where,
            _grades(where, rows, faults),
            texts["corpus"],
            texts["queries"],
            training=split == TRAIN,
            faults=faults,
        )
    return RetrievalData(path, texts["corpus"], texts["queries"], judged)


def _records(source: str, loaded: Mapping[str, Any]) -> Iterator[tuple[object, str, str, str]]:
    """Yield (where it stands, id, title, text) for each document or query."""
    if len(loaded) != 1:
        raise DataError(f"{source}: expected one split of texts; received {list(loaded)}")
    for row, record in enumerate(next(iter(loaded.values()))):
        where = Origin(source).place(row)
        for field in ("_id", "text"):
            if field not in record:
                raise DataError(f"{source}: expected a column {field!r}; received {sorted(record)}")
        yield where, record["_id"], *record_parts(where, record)


def _grades(
    source: str, rows: Iterable[Mapping[str, Any]], faults: Faults
) -> Iterator[tuple[object, str, str, int]]:
    """Yield (where it stands, query id, document id, grade) for each judgement; wrong grades are counted."""
    for row, record in enumerate(rows):
        if not {"query-id", "corpus-id"} <= record.keys():
            raise DataError(
                f"{source}: expected the columns query-id and corpus-id; received {sorted(record)}"
            )
        where = Origin(source).place(row)
        query, document = (_identifier(where, record[name]) for name in ("query-id", "corpus-id"))
        try:
            grade = check_grade("", record.get("score", 1))
        except DataError as error:
            faults.rows += 1
            faults.bad("wrong grades", where, str(error).removeprefix(": "), f"{query}, {document}")
        else:
            yield where, query, document, grade


def _identifier(where: object, value: object) -> str:
    """Return the id of a text as a string; some published judgements hold integers."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise DataError(f"{where}: an id must be a string or an integer; received {value!r}")
    return str(value)
