"""A data set in BEIR layout, as the recipes and commands read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def write_beir(
    folder: Path,
    corpus: Mapping[str, str | tuple[str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> Path:
    """Write a folder that may be there already.

    Args:
        folder: The folder.
        corpus: Document id -> text, or title and text.
        queries: Query id -> text.
        qrels: Split -> query id -> document id -> grade.

    Returns:
        The folder.
    """
    documents = {key: text if isinstance(text, tuple) else ("", text) for key, text in corpus.items()}
    write_lines(
        folder / "corpus.jsonl",
        [{"_id": key, "title": title, "text": text} for key, (title, text) in documents.items()],
    )
    write_lines(folder / "queries.jsonl", [{"_id": key, "text": text} for key, text in queries.items()])
    (folder / "qrels").mkdir(exist_ok=True)
    for split, judged in qrels.items():
        rows = [
            f"{query}\t{document}\t{grade}\n"
            for query, grades in judged.items()
            for document, grade in grades.items()
        ]
        file = folder / "qrels" / f"{split}.tsv"
        file.write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")
    return folder


def write_lines(path: Path, rows: list[dict]) -> Path:
    """Write one JSON object a line; returns the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
