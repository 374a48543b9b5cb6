"""The training rows of a recipe, and where their negatives come from, by the options of its command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentence_transformers.base.model import BaseModel

from lexforge.common.command_line import printable
from lexforge.common.samples import evenly_spaced
from lexforge.common.types import DataError, Run
from lexforge.corpus import unknown_shares
from lexforge.data import TrainingData, load_teacher_scores, read_training_rows
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.data.pairs import NEGATIVE
from lexforge.data.splits import TRAIN
from lexforge.evaluation import RetrievalEvaluator
from lexforge.negatives import NEGATIVE_RULE, NegativeRule, judged_run, rankings, rows_of_judgements
from lexforge.retrieval import BM25Index
from lexforge.settings import NegativesName, PresetNegatives

if TYPE_CHECKING:
    from datasets import Dataset

LOOKED_AT = 1000  # rows whose tokens are counted
MOSTLY_UNKNOWN = 0.5  # share of unknown tokens of a text in a script that a tokenizer does not know
BATCHES = 4  # in a collection that is large enough for the negatives of a preset


def choose_negatives(
    negatives: NegativesName | Path,
    of_preset: PresetNegatives,
    loaded: TrainingData,
    *,
    per_batch: int,
    say: Callable[[str], None],
) -> NegativesName | Path:
    """Return where negatives come from: the preset decides where the user and the data leave it open.

    A text may stand in a batch only once. If each row also has a negative, a small collection has too few
    texts to fill the batches, so the negatives of a preset are not taken there.

    Args:
        negatives: The value of `--negatives`; `given` is its default.
        of_preset: The negatives of the preset.
        loaded: The data. Rows of texts keep the negatives that they are given with, if any.
        per_batch: Number of documents in a batch whose rows have negatives.
        say: Prints one line if the negatives of the preset are left out.

    Returns:
        The value of `--negatives` to go by.
    """
    if negatives != "given":
        return negatives
    if loaded.retrieval is None:
        columns = loaded.pairs.split(TRAIN).column_names if loaded.pairs else []
        if of_preset != "none" and not any(name.startswith(NEGATIVE) for name in columns):
            say(
                f"no negatives: the preset takes them ({of_preset}), and the rows hold none (`lexforge mine` "
                "makes rows that do)"
            )
        return negatives
    held, needed = len(loaded.retrieval.corpus), BATCHES * per_batch
    if of_preset != "none" and held < needed:
        say(
            f"no negatives: the preset takes them ({of_preset}) where the collection holds {needed} "
            f"documents, which are {BATCHES} batches; it holds {held} (--negatives {of_preset} takes them "
            "here too)"
        )
        return "none"
    return of_preset


def load_rows(
    loaded: TrainingData,
    evaluator: RetrievalEvaluator,
    negatives: NegativesName | Path,
    rule: NegativeRule = NEGATIVE_RULE,
    *,
    teacher_scores: Path | None = None,
) -> list[dict[str, Any]] | Dataset:
    """Load the training rows: a query, a document that answers it, and its negatives, if any.

    Args:
        loaded: The data.
        evaluator: Its BM25 finds the negatives `bm25` if it searches the whole corpus; otherwise a new index
            of the whole corpus does.
        negatives: Where the negatives come from. `given` keeps those of rows of texts, `judged` draws among
            the documents that were judged not relevant, `bm25` among the best of BM25 that score clearly less
            than the positive of the row, and a path is a file of `lexforge.data.write_training_rows`. With
            `none` the rows have none, and with `mined` none until `mine_once` makes others of them.
        rule: Which documents become negatives of rows that are made of judgements; documents judged not
            relevant need no margin.
        teacher_scores: A file in qrels format with the scores of a teacher, which become the column `label`.

    Returns:
        Rows under the column contract.

    Raises:
        ValueError: If negatives are to be mined for rows of texts, which have no corpus.
        DataError: If the data cannot be used, or if a file of rows holds a query that is measured and
            is none of train; the message names the place.
    """
    if isinstance(negatives, Path):
        mined = read_training_rows(negatives)
        _refuse_measured(mined, loaded, negatives)
        return mined
    if loaded.retrieval is None:
        if negatives == "mined":
            raise ValueError(
                "--negatives mined needs a corpus with judgements; "
                f"{loaded.measured.name} holds rows of texts"
            )
        return loaded.training_rows(negatives=negatives == "given")

    whole = loaded.retrieval
    runs: Iterable[Run] | None = None
    if negatives == "judged":
        judged = judged_run(whole)  # all of them are sure, and none has a score
        rule = replace(rule, last_rank=max([1, *map(len, judged.values())]), margin=None)
        runs = [judged]
    elif negatives == "bm25":
        if len(evaluator.document_ids) == len(whole.corpus):
            bm25 = evaluator.bm25
        else:  # a sample is evaluated
            texts, ids = list(whole.corpus.values()), list(whole.corpus)
            bm25 = BM25Index.build(texts, ids, show_progress_bar=True)
        runs = rankings(bm25.search, whole.split_queries(TRAIN), rule.last_rank)

    scores = None if teacher_scores is None else load_teacher_scores(teacher_scores, whole)
    return rows_of_judgements(whole, runs, rule, scores=scores)


def _refuse_measured(rows: Sequence[Mapping[str, Any]], loaded: TrainingData, path: Path) -> None:
    """Refuse rows of a file whose queries are measured and are none of train."""
    measured, whole = loaded.measured, loaded.retrieval
    own = loaded.training_rows()[ANCHOR] if whole is None else whole.split_queries(TRAIN).values()
    for split in (split for split in measured.splits if split != TRAIN):
        queries = set(measured.split_queries(split).values()).difference(own)
        if leaking := [row[ANCHOR] for row in rows if row[ANCHOR] in queries]:
            raise DataError(
                f"{path}: {len(leaking)} of {len(rows)} rows have a query of the split {split!r}, which is "
                f"measured, such as {leaking[0]!r}; mine the split {TRAIN!r}, with the same --hold-out"
            )


def check_triplet_rows(rows: Sequence[Mapping[str, Any]] | Dataset, weight: float, source: str) -> None:
    """Refuse rows without negatives for a loss that compares each positive with one.

    Args:
        rows: The training rows, at least one.
        weight: The weight of the triplet margin in the loss.
        source: The name of the data, for the message.

    Raises:
        ValueError: If the weight is above 0 and the rows have no negative.
    """
    if weight > 0 and "negative_1" not in rows[0]:
        raise ValueError(
            f"the triplet margin needs negatives, and the rows of {source} have none: give --negatives, or "
            "--loss.triplet-margin-weight 0"
        )


def unknown_rows(model: BaseModel, loaded: TrainingData) -> list[str]:
    """Tell of training rows in a script that the tokenizer of a model does not know.

    Args:
        model: The encoder that is to be trained.
        loaded: The data. At most `LOOKED_AT` rows, evenly spaced, are looked at.

    Returns:
        One line with the number of rows of which half of the tokens of the query or of the document are
        unknown, and up to three places; no line if there are none.
    """
    found: list[tuple[object, str, str]] = []  # the place, the query and a document of each row
    if loaded.pairs is not None:
        rows, place = loaded.pairs.split(TRAIN), loaded.pairs.places(TRAIN)
        for at in evenly_spaced(len(rows), LOOKED_AT):
            found.append((place(at), rows[at][ANCHOR], rows[at][POSITIVE]))
    else:
        assert loaded.retrieval is not None  # what has no tables has judgements
        judged = list(loaded.retrieval.split(TRAIN).items())
        for query, documents in (judged[at] for at in evenly_spaced(len(judged), LOOKED_AT)):
            best = loaded.retrieval.corpus[max(documents, key=documents.__getitem__)]
            found.append((f"the query {query}", loaded.retrieval.queries[query], best))
    places, queries, texts = zip(*found, strict=True)
    shares = np.maximum(unknown_shares(model, queries, "query"), unknown_shares(model, texts, "document"))
    unknown = np.flatnonzero(shares >= MOSTLY_UNKNOWN)
    if not len(unknown):
        return []
    shown = "namely " if len(unknown) <= 3 else "such as "
    shown += ", ".join(printable(str(places[at])) for at in unknown[:3])
    return [
        f"the tokenizer of the model does not know half of the tokens or more in {len(unknown):,} of "
        f"{len(found):,} rows that were looked at, {shown}: it may not know their script"
    ]
