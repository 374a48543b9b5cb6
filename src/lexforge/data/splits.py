"""Splits of a data set: their names, those that are missing, and queries held out for them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError
from lexforge.data.lines import counted, excerpt

TRAIN, DEV, TEST = "train", "dev", "test"
Rows = TypeVar("Rows")
Row = TypeVar("Row")


def split_name(split: str) -> str:
    """Return the name of a split in this package: `validation`, `valid` and `val` are called `dev`."""
    return DEV if split in ("validation", "valid", "val") else split


def split_of_row(cell: object) -> str:
    """Return the split that a cell of a row names: train where it is missing or blank.

    Capital letters do not matter in the names that this package knows.
    """
    name = "" if cell is None else str(cell).strip()
    usual = split_name(name.lower())
    return (usual if usual in (TRAIN, DEV, TEST) else name) or TRAIN


def missing_split(name: str, split: str, known: Sequence[str]) -> ValueError:
    """Return the error for a split that a set lacks; it names those that exist and the way to make one."""
    hint = ": --hold-out .05 takes that share of its queries" if TRAIN in known and split != TRAIN else ""
    if split_name(split) in known:
        hint = f": {split!r} is called {split_name(split)!r} here"
    return ValueError(f"{name} has no split {split!r}; its splits are {list(known)}{hint}")


def no_judgements(source: str, found: str) -> DataError:
    """Return the error for documents alone, which name no split; it names the command that takes them.

    Args:
        source: The name that a command line took.
        found: What it is, such as "the file holds documents".
    """
    return DataError(
        f"{source}: {found} without judged queries; training needs judged queries or rows. "
        f"`lexforge adapt --documents {shlex.quote(source)}` trains on documents alone"
    )


def missing_shares(
    name: str, known: Sequence[str], wanted: Sequence[str], share: float | None
) -> dict[str, float]:
    """Return the share of train that test and dev get where the data lack them.

    Both are held out, whichever the caller needs, so that every command divides the same data alike: what one
    trains on or mines from is measured by no other.

    Args:
        name: The name of the set, for the message.
        known: The splits of the data.
        wanted: The splits that the caller needs.
        share: The share of each; None holds nothing out.

    Returns:
        Split -> share, empty if nothing is held out.

    Raises:
        ValueError: If a split is missing that cannot be held out.
    """
    held_out: dict[str, float] = {}
    if share is not None and TRAIN in known:
        held_out = {split: share for split in (TEST, DEV) if split not in known}
    for split in wanted:
        if split not in known and split not in held_out:
            raise missing_split(name, split, known)
    return held_out


def unread_splits(rows: Mapping[str, int], wanted: Sequence[str]) -> list[str]:
    """Return a line for each split that nobody asked for and that no recipe reads, such as a misspelt one.

    Args:
        rows: Split -> number of its rows.
        wanted: The splits that the caller needs.
    """
    read, lines = {TRAIN, DEV, TEST, *wanted}, []
    for split, number in rows.items():
        if split not in read:
            amount = f"{number:,} {'row' if number == 1 else 'rows'} of the split {split!r}"
            verb = "is" if number == 1 else "are"
            lines.append(
                f"{amount} {verb} neither trained on nor measured; those of {TRAIN}, {DEV} and {TEST} are"
            )
    return lines


def trained_texts(
    source: str, trained: Iterable[str], measured: Mapping[str, Iterable[str]], what: str
) -> list[str]:
    """Return a line for each measured split of which train holds some texts too.

    Args:
        source: The name of the set, for the lines.
        trained: The texts of train; they may be read from the disk.
        measured: Split -> its texts; train is left out.
        what: What the texts are, in the plural.
    """
    splits = {split: set(texts) for split, texts in measured.items() if split != TRAIN}
    known = set[str]().union(*splits.values())
    repeated = {text: None for text in trained if text in known} if known else {}  # in the order of train
    return [
        f"{source}: {what} of the split {split!r} that train holds too, which flatters its measures: "
        f"{counted([excerpt(text) for text in found])}"
        for split, texts in splits.items()
        if (found := [text for text in repeated if text in texts])
    ]


def with_held_out(
    name: str,
    splits: Mapping[str, Rows],
    fractions: Mapping[str, float],
    texts: Callable[[Rows], Iterable[str]],
    select: Callable[[Rows, NDArray[np.int64]], Rows],
    needed: Sequence[str],
) -> dict[str, Rows]:
    """Move rows of train to new splits, chosen by the hash of a text; rows of one text stay together.

    Args:
        name: The name of the set, for messages.
        splits: Split -> its rows, whatever holds them.
        fractions: New split -> share of the texts of train; empty changes nothing.
        texts: Returns the text of each row.
        select: Returns the rows at some places, `[n]` from 0 and ascending.
        needed: New splits that must not be empty; an empty one of the others is left out.

    Returns:
        The splits, with the new ones.

    Raises:
        ValueError: If there is no train, if a new split exists already, if the shares are not above 0 or
            leave nothing for train, or if a split that is needed would be empty.
    """
    if not fractions:
        return dict(splits)
    if any(share <= 0 for share in fractions.values()) or sum(fractions.values()) >= 1:
        raise ValueError(f"fractions must be above 0 and sum to less than 1; received {dict(fractions)}")
    if found := [new for new in fractions if new in splits]:
        raise ValueError(f"{name} has the splits {found} already")
    if TRAIN not in splits:
        raise missing_split(name, TRAIN, list(splits))
    rows, names = splits[TRAIN], [*fractions, TRAIN]
    # Memory holds one number per row, because tables may have millions of rows.
    owners = np.fromiter((names.index(_owner(text, fractions)) for text in texts(rows)), np.int8)
    parts = {}
    for number, part in enumerate(names):
        places = np.flatnonzero(owners == number)
        if not len(places) and part not in (*needed, TRAIN):
            continue
        if not len(places):
            hint = f"; {fractions[part]:g} of them are too few" if part in fractions else ""
            raise ValueError(f"{name}: no query of the split {TRAIN!r} falls to {part!r}{hint}")
        parts[part] = select(rows, places)
    return {**splits, **parts}


def wanted_rows(
    name: str,
    splits: Mapping[str, list[Row]],
    wanted: Sequence[str],
    share: float | None,
    text: Callable[[Row], str],
) -> dict[str, list[Row]]:
    """Return the splits that are wanted of rows in memory; missing ones are held out of train.

    Args:
        name: The name of the set, for messages.
        splits: Split -> rows.
        wanted: The splits that the caller needs.
        share: The share of train that each missing split gets; None holds nothing out.
        text: Returns the text by which a row is held out.

    Raises:
        ValueError: If a split is missing that cannot be held out, or if a split would be empty.
    """
    shares = missing_shares(name, list(splits), wanted, share)

    def select(rows: list[Row], places: NDArray[np.int64]) -> list[Row]:
        return [rows[place] for place in places]

    held_out = with_held_out(name, splits, shares, lambda rows: map(text, rows), select, needed=wanted)
    return {split: held_out[split] for split in wanted}


def _owner(text: str, fractions: Mapping[str, float]) -> str:
    """Return the split that owns a text: each owns an interval of [0, 1), in which the text's hash falls."""
    position = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") / 2**64
    for name, share in fractions.items():
        if position < share:
            return name
        position -= share
    return TRAIN
