"""Which candidates of a batch are no negatives of an anchor (docs/losses.md, section 15)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lexforge.common.ranks import first_gathered_row, rows_of_all_ranks
from lexforge.common.text_identity import NO_TEXT
from lexforge.losses.base import IDENTITY_KEY, RELEVANT_KEY, Features
from lexforge.losses.gradient_cache import can_be_cut


@dataclass(frozen=True)
class BatchTexts:
    """The texts of a batch as identities, from which the candidates to leave out follow.

    Args:
        anchors: `[P]` int64, of all ranks that are gathered.
        candidates: `[N]` int64, the positives of the same ranks, then their negatives column by column.
        own: `[B]` int64, the places of this rank's rows among the anchors and the positives.
        relevant: `[B, M]` int64, the documents that are judged relevant to each anchor of this rank, sorted
            within each row and filled up with `NO_TEXT`; None where nothing is known.
    """

    anchors: Tensor
    candidates: Tensor
    own: Tensor
    relevant: Tensor | None

    @classmethod
    def of(cls, features: list[Features] | None, gather: bool) -> BatchTexts | None:
        """Read the identities of the columns (anchor, positive, negative_1, ...).

        Args:
            features: One dict per column, as the collator makes them; None where only embeddings are at hand.
            gather: Whether the candidates are those of all ranks.

        Returns:
            The texts of the batch; None without features, or where a column holds neither an identity nor one
            row of tokens per text, as in a batch of images.
        """
        if features is None or (texts := _identities(features)) is None:  # [B, C]
            return None
        everywhere = rows_of_all_ranks(texts) if gather else texts  # [P, C]
        first = first_gathered_row(len(texts)) if gather else 0
        return cls(
            anchors=everywhere[:, 0],
            candidates=everywhere[:, 1:].T.contiguous().flatten(),
            own=torch.arange(first, first + len(texts), device=texts.device),
            relevant=features[0].get(RELEVANT_KEY),
        )

    @property
    def positives(self) -> Tensor:
        """The positives of all ranks that are gathered, `[P]` int64."""
        return self.candidates[: len(self.anchors)]

    def answers(self, texts: Tensor) -> Tensor:
        """Find the texts that are known to answer an anchor of this rank.

        Args:
            texts: `[N]` int64, any texts.

        Returns:
            `[B, N]` bool: the text is the positive of a row with the same anchor, the anchor's own row among
            them, or it is judged relevant to the anchor.
        """
        ordered = torch.cat([self.positives, self.positives.new_full((1,), NO_TEXT)]).sort().values  # [P + 1]
        # Equal texts have one place in this order, so a mark there speaks for every copy of a text.
        same_anchor = (self.anchors == self.anchors[self.own, None]).int()  # [B, P]
        marks = same_anchor.new_zeros(len(self.own), len(ordered))
        marks.index_add_(1, torch.searchsorted(ordered, self.positives), same_anchor)
        place = torch.searchsorted(ordered, texts)  # [N]
        found = (marks > 0)[:, place] & (ordered[place] == texts)
        return found if self.relevant is None else found | contained(texts, self.relevant)

    @cached_property
    def known(self) -> Tensor:
        """The candidates that are known to answer an anchor of this rank, `[B, N]` bool."""
        return self.answers(self.candidates)

    @cached_property
    def answered(self) -> Tensor:
        """The anchors of all ranks that this rank's positives are known to answer, `[B, P]` bool."""
        answers = self.known[:, : len(self.anchors)]  # [B, P]
        if len(self.anchors) > len(self.own):
            answers = rows_of_all_ranks(answers)  # [P, P]
        return answers[:, self.own].T

    def left_out(self) -> Tensor:
        """Find the candidates that are left out of an anchor's softmax over the whole batch.

        Returns:
            `[B, N]` bool: those that answer the anchor, and all but the first of those with the same text.
            The anchor's own positive is never left out.
        """
        return (self.known | repeated(self.candidates)).scatter_(1, self.own[:, None], False)

    def left_out_within_rows(self, own: Tensor) -> Tensor:
        """Find the documents that are left out where an anchor meets those of its own row alone.

        A text that another row has too is no copy here, because that row's document is not compared.

        Args:
            own: `[B, C]` int64, the places of each row's documents among the candidates, the positive first.

        Returns:
            `[B, C]` bool: those that answer the anchor, and all but the first of those with the same text.
            The positive is never left out.
        """
        found = self.known.gather(1, own) | repeated(self.candidates[own])
        found[:, 0] = False
        return found

    def mirrored(self) -> Tensor:
        """Find the anchors that are left out where each positive picks its anchor.

        Returns:
            `[B, P]` bool: the positive is known to answer the anchor, or the anchor repeats an earlier one.
            The positive's own anchor is never left out.
        """
        return (self.answered | repeated(self.anchors)).scatter_(1, self.own[:, None], False)

    def same_meaning(self) -> Tensor:
        """Find the rows of all ranks whose two texts say the same as those of a row of this rank.

        Returns:
            `[B, P]` bool: the two rows share a text, or a positive is known to answer the other anchor.
            The row itself is not among them.
        """
        same = self.known[:, : len(self.anchors)] | self.answered  # [B, P]
        same |= self.positives == self.anchors[self.own, None]
        same |= self.anchors == self.positives[self.own, None]
        return same.scatter_(1, self.own[:, None], False)


def _identities(features: list[Features]) -> Tensor | None:
    """Return the identity of every text of a batch, `[B, C]` int64, or None where they are not known.

    Our collators carry them beside the tokens. Where a column lacks them, those of all columns are made of
    their token ids.
    """
    if all(IDENTITY_KEY in column for column in features):
        return torch.stack([column[IDENTITY_KEY] for column in features], dim=1)
    if not can_be_cut(features) or not all("attention_mask" in column for column in features):
        return None
    return torch.stack(
        [token_identity(column["input_ids"], column["attention_mask"]) for column in features], dim=1
    )


def token_identity(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the identity of each sequence of tokens, whichever side it is padded on.

    Each token is mixed with its place among the unmasked tokens by the 64-bit finaliser of SplitMix64, and
    the results are added with wrap-around: sequences that differ share an identity with a chance near 2^-64.

    Args:
        input_ids: `[B, L]` integer.
        attention_mask: `[B, L]` integer or bool, 0 at padding.

    Returns:
        `[B]` int64 other than `NO_TEXT`.

    Source: the finaliser: Steele et al. 2014, "Fast splittable pseudorandom number generators".
    """
    kept = attention_mask.bool()
    place = kept.long().cumsum(dim=1)  # [B, L], from 1
    mixed = _mix(_mix(input_ids.long()) + place)
    return _mix(mixed.masked_fill(~kept, 0).sum(dim=1)).clamp_max(NO_TEXT - 1)


def _mix(values: Tensor) -> Tensor:
    """Mix the bits of int64 numbers; products wrap around."""
    values = values + -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
    values = (values ^ _shifted(values, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    values = (values ^ _shifted(values, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros; the shift of signed numbers copies their sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def contained(values: Tensor, sets: Tensor) -> Tensor:
    """Say which values are in which row's set.

    Args:
        values: `[N]` int64.
        sets: `[B, M]` int64, each row sorted and filled up with `NO_TEXT`.

    Returns:
        `[B, N]` bool.
    """
    if not sets.shape[1]:
        return torch.zeros(len(sets), len(values), dtype=torch.bool, device=values.device)
    wanted = values.expand(len(sets), -1).contiguous()  # [B, N]
    place = torch.searchsorted(sets, wanted).clamp_max(sets.shape[1] - 1)
    return sets.gather(1, place) == wanted


def repeated(values: Tensor) -> Tensor:
    """Mark every value that occurs earlier in its list.

    Args:
        values: `[N]` int64, or `[B, N]`, where each row is a list.

    Returns:
        Bool of the same shape.
    """
    ordered, order = values.sort(stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return torch.zeros_like(again).scatter_(-1, order, again)


def share_left_out(left_out: Tensor | None) -> dict[str, Tensor]:
    """Return the share of negatives that are left out, for the metrics of a loss, without a host sync.

    Args:
        left_out: `[B, N]` bool; one candidate of each row, its positive, is no negative in any case. None
            where nothing is known of the texts.

    Returns:
        `candidates/left_out` -> a 0-dim float in [0, 1], 0 where there is no negative; empty for None.
    """
    if left_out is None:
        return {}
    negatives = len(left_out) * max(left_out.shape[1] - 1, 0)
    return {"candidates/left_out": left_out.sum().float() / max(negatives, 1)}
