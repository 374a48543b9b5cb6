"""Data sets of the Hugging Face hub, in one of two layouts, read by the package `datasets`.

The first layout is BEIR's on the hub: the configurations `corpus` (`_id`, `text`, optional `title`) and
`queries` (`_id`, `text`), and judgements (`query-id`, `corpus-id`, optional `score`, 1 by default) in the
configuration `qrels` or `default`, or in the data set `<name>-qrels`. The second is rows of texts, as
`lexforge.data.pairs` recognises them; a set that is named with a configuration has this one. The split
`validation` is called `dev`, as in BEIR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexforge.common.types import DataError, Qrels
from lexforge.data.faults import Faults
from lexforge.data.formats.beir import record_parts
from lexforge.data.formats.rows import titled_tables
from lexforge.data.lines import check_grade
from lexforge.data.pair_data import PairData
from lexforge.data.retrieval_data import (
    RetrievalData,
    collect_judgements,
    collect_texts,
    join_titles,
)
from lexforge.data.splits import TRAIN
from lexforge.data.tables import Table, load_by_datasets, named_tables
from lexforge.settings import SourceOptions

NAME = "hf:organisation/name or hf:organisation/name:configuration"
PREFIX = "hf:"
CORPUS = "corpus"  # the configuration with the documents of BEIR's layout


def matches(source: str) -> bool:
    """Return whether a name has the prefix of the hub."""
    return source.startswith(PREFIX)


def split_names(source: str, options: SourceOptions) -> None:
    """Return None: the splits are known once the data set has been found; see `Format.split_names`."""
    _parts(source)  # refuses a name without a data set


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


def titled(
    source: str, options: SourceOptions, notes: list[str]
) -> Iterator[tuple[object, str | int, str, str]]:
    """Yield the documents, of either layout; see `Format.titled`."""
    import datasets

    path, configuration = _parts(source)
    if configuration is None and CORPUS in load_by_datasets(path, datasets.get_dataset_config_names, path):
        return _records(f"{path} [{CORPUS}]", load_by_datasets(path, datasets.load_dataset, path, CORPUS))
    return titled_tables(source, tables(source), options, Faults(source, options.bad_rows), notes)


def tables(source: str) -> dict[str, Table]:
    """Open the splits of a data set of rows; `validation` is called `dev`.

    Args:
        source: `hf:` and the name; the data set may also be a folder that `load_dataset` reads.

    Raises:
        DataError: If the data set cannot be loaded; the message says why.
    """
    import datasets

    path, configuration = _parts(source)
    if configuration is None and not load_by_datasets(path, datasets.get_dataset_default_config_name, path):
        known = load_by_datasets(path, datasets.get_dataset_config_names, path)
        raise DataError(
            f"{path} has several configurations and no default: expected {PREFIX}{path}:NAME with a name out "
            f"of {known}"
        )
    return named_tables(path, load_by_datasets(path, datasets.load_dataset, path, configuration))


def _parts(name: str) -> tuple[str, str | None]:
    """Return data set and configuration of `hf:organisation/name:configuration`; the second may be None."""
    path, _, configuration = name.removeprefix(PREFIX).partition(":")
    if not path:
        raise DataError(f"expected {NAME}; received {name!r}")
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
    loaded = load_by_datasets(source, datasets.load_dataset, source, *configuration)
    judged: dict[str, Qrels] = {}
    for split, table in named_tables(source, loaded).items():
        judged[split] = collect_judgements(
            table.name,
            _grades(table, faults),
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
    table = Table(next(iter(loaded.values())), source)
    for row, record in enumerate(table.rows):
        where = table.place(row)
        for field in ("_id", "text"):
            if field not in record:
                raise DataError(f"{source}: expected a column {field!r}; received {sorted(record)}")
        yield where, record["_id"], *record_parts(where, record)


def _grades(table: Table, faults: Faults) -> Iterator[tuple[object, str, str, int]]:
    """Yield (where it stands, query id, document id, grade) for each judgement; wrong grades are counted."""
    for row, record in enumerate(table.rows):
        if not {"query-id", "corpus-id"} <= record.keys():
            raise DataError(
                f"{table.name}: expected the columns query-id and corpus-id; received {sorted(record)}"
            )
        where = table.place(row)
        query, document = (_identifier(where, record[name]) for name in ("query-id", "corpus-id"))
        try:
            grade = check_grade(None, record.get("score", 1))
        except DataError as error:
            faults.rows += 1
            faults.bad("wrong grades", where, str(error), f"{query}, {document}")
        else:
            yield where, query, document, grade


def _identifier(where: object, value: object) -> str:
    """Return the id of a text as a string; some published judgements hold integers."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise DataError(f"{where}: an id must be a string or an integer; received {value!r}")
    return str(value)
