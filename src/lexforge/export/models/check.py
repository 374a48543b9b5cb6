"""Whether an exported model gives the vectors of the encoder, measured in the runtime that will load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from sentence_transformers import SparseEncoder
from torch import Tensor

from lexforge.common.types import TextKind
from lexforge.export.models.sides import EncoderSide, reference_vectors

RunTexts: TypeAlias = Callable[[Sequence[str]], Tensor]
"""Runs the written files over B texts, prompts included, and returns `[B, V] float32`."""

TOLERANCE = 1e-4
"""Largest difference of a weight, relative to the largest weight of its text or to 1: about a hundred times
what another order of float32 sums makes, and far below what changes a ranking."""

SMALLEST_COSINE = 0.9
"""Of a vector in 8 bits with the encoder's: below it, rounding has changed what the text is about."""

_BATCHES = (1, 5, 2)  # texts per call, in turn: one text alone, and batches with padding
_LONG_CHARACTERS = 20_000  # of a text that models of up to about 4,000 tokens cut


@dataclass(frozen=True)
class Written:
    """One side of an export on the disk.

    Args:
        side: What was written.
        folder: Where its files are.
        load: Reads the files and returns what runs them.
        zeroed_ids: Terms whose weight the target sets to 0; they are left out of the comparison.
        runtime: What runs the files, in words.
        cuts_earlier: Whether the target cuts these texts after fewer tokens than the encoder, so that no long
            text can agree.
    """

    side: EncoderSide
    folder: Path
    load: Callable[[], RunTexts]
    zeroed_ids: tuple[int, ...] = ()
    runtime: str = "onnxruntime"
    cuts_earlier: bool = False


@dataclass(frozen=True)
class Agreement:
    """How the vectors of an export differ from those of the encoder.

    Args:
        kind: Whether the texts are queries or documents.
        runtime: What ran the export.
        texts: Number of texts.
        largest_difference: Of any weight, absolute.
        largest_relative: Of any weight, relative to the largest weight of its text or to 1.
        active_terms: Mean number of terms of the encoder's vectors.
        active_agreement: Terms that both vectors have, as a share of those that either has, in [0, 1].
        smallest_cosine: Of the two vectors of a text.
    """

    kind: TextKind
    runtime: str
    texts: int
    largest_difference: float
    largest_relative: float
    active_terms: float
    active_agreement: float
    smallest_cosine: float

    def __str__(self) -> str:
        """Return one line for a reader."""
        return (
            f"{self.texts} {self.kind} texts in {self.runtime}: largest difference "
            f"{self.largest_difference:.1e}, same active terms {100 * self.active_agreement:.2f} % of "
            f"{self.active_terms:.0f} per text, smallest cosine {self.smallest_cosine:.6f}"
        )


def compare(
    model: SparseEncoder,
    written: Written,
    texts: Sequence[str],
    kind: TextKind,
    *,
    quantized: bool = False,
) -> Agreement:
    """Run an export over texts and compare its vectors with those of the encoder.

    One text that every model cuts is added, made of the others.

    Args:
        model: The encoder.
        written: The export of the side that encodes these texts.
        texts: At least one text.
        kind: What the texts are.
        quantized: Whether the export has 8-bit weights, which are judged by the direction of the vectors.

    Returns:
        The comparison.

    Raises:
        ValueError: If there is no text, the export's vectors have another width, or they differ by more than
            `TOLERANCE`; in 8 bits, if a cosine is below `SMALLEST_COSINE`.
    """
    if not texts:
        raise ValueError(f"an export is checked with at least one {kind}; received none")
    texts = list(texts) if written.cuts_earlier else [*texts, _long_text(texts)]
    prompt, run = written.side.prompts[kind], written.load()
    differences, relative, active, both, either, cosines = [], [], [], [], [], []
    for batch in _batches(texts):
        expected = reference_vectors(model, batch, kind)  # [B, V]
        found = run([prompt + text for text in batch]).float()  # [B, V]
        if found.shape != expected.shape:
            raise ValueError(
                f"the export gives vectors {list(found.shape)}, the encoder {list(expected.shape)}"
            )
        for rows in (expected, found):
            rows[:, list(written.zeroed_ids)] = 0.0
        difference = (expected - found).abs().amax(dim=1)  # [B]; NaN stays NaN
        differences.append(difference)
        relative.append(difference / expected.amax(dim=1).clamp_min(1.0))
        active.append((expected != 0).sum(dim=1))
        both.append(((expected != 0) & (found != 0)).sum())
        either.append(((expected != 0) | (found != 0)).sum())
        norms = expected.norm(dim=1) * found.norm(dim=1)
        cosine = (expected * found).sum(dim=1) / norms
        # Two empty vectors agree; an empty one does not agree with any other.
        cosines.append(torch.where(norms > 0, cosine, (difference == 0).float()))
    agreement = Agreement(
        kind,
        written.runtime,
        len(texts),
        float(torch.cat(differences).amax()),
        float(torch.cat(relative).amax()),
        float(torch.cat(active).float().mean()),
        float(torch.stack(both).sum() / torch.stack(either).sum().clamp_min(1)),
        float(torch.cat(cosines).amin()),
    )
    if quantized and not agreement.smallest_cosine >= SMALLEST_COSINE:
        raise ValueError(
            f"the 8-bit export is refused, because a vector's cosine with the encoder's is below "
            f"{SMALLEST_COSINE}: {agreement}"
        )
    if not quantized and not agreement.largest_relative <= TOLERANCE:  # NaN is refused too
        raise ValueError(
            f"the export is refused, because it differs from the encoder by more than {TOLERANCE} of the "
            f"largest weight: {agreement}"
        )
    return agreement


def _long_text(texts: Sequence[str]) -> str:
    joined = " ".join(texts) or "a"
    return ((joined + " ") * (1 + _LONG_CHARACTERS // len(joined)))[:_LONG_CHARACTERS]


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    start = turn = 0
    while start < len(texts):
        size = _BATCHES[turn % len(_BATCHES)]
        yield list(texts[start : start + size])
        start, turn = start + size, turn + 1
