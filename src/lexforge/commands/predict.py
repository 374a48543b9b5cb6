"""Give texts the labels that a model of the recipe `nws_multilabel` has learned, as JSON lines.

    lexforge predict --model RUN --texts texts.txt
    lexforge predict --model RUN --texts rows.jsonl --output labelled.jsonl

RUN is the directory of a run, the folder of its model, or the name of that model on the hub. The texts are a
.txt file with one text per line, or rows with a column of texts (.jsonl, .csv, .tsv, .parquet). Each line of
the result has `text`, the names of its `labels` and their `scores`, the best first, and the `id` of the row
if it has one. A text gets each label whose score reaches the threshold that the run chose on dev.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from lexforge import corpus, data
from lexforge.common.progress import Progress
from lexforge.settings import NO_PREFIX, TableOptions
from lexforge.storage.files import check_output_file, write_text

BLOCK = 8192  # texts whose vectors are in memory at a time


@dataclass(frozen=True)
class Config:
    """What is labelled, by which model, and where to."""

    model: str  # a run directory, the folder of a model, or a name on the hub
    texts: str  # one text per line (.txt), or rows with a column of texts
    output: Path | None = None  # None prints the lines
    text_column: str | None = None  # column of the texts; None recognises text and sentence
    threshold: float | None = None  # the score from which a label is given; None is the one chosen on dev
    batch_size: int = 32  # texts per forward pass
    tables: Annotated[TableOptions, NO_PREFIX] = TableOptions()


def labelled(
    classifier: corpus.LabelClassifier, texts: list[tuple[str | None, str]], batch_size: int
) -> Iterator[str]:
    """Yield one line of JSON per text."""
    with Progress(len(texts), "Predict labels", "texts") as progress:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            found = classifier.predict([text for _, text in block], batch_size=batch_size)
            for (key, text), scores in zip(block, found, strict=True):
                line: dict[str, Any] = {} if key is None else {"id": key}
                line |= {"text": text, "labels": list(scores)}
                line["scores"] = [round(score, 6) for score in scores.values()]
                yield json.dumps(line, ensure_ascii=False) + "\n"
            progress.update(len(block))


def main(cfg: Config) -> None:
    """Read the texts, label them, and write the lines."""
    if cfg.output is not None:
        check_output_file(cfg.output)
    texts = data.load_texts(cfg.texts, cfg.text_column, cfg.tables)
    classifier = corpus.load_label_classifier(cfg.model)
    if cfg.threshold is not None:
        classifier = replace(classifier, threshold=cfg.threshold)
    if cfg.output is None:
        sys.stdout.writelines(labelled(classifier, texts, cfg.batch_size))
        return
    write_text(cfg.output, "".join(labelled(classifier, texts, cfg.batch_size)))
    print(f"{len(texts)} texts labelled: {cfg.output}")
