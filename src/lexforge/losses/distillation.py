"""Distillation of a teacher's scores: KL with z-scores, and margins (docs/losses.md, section 7)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.settings import check_positive


@in_float32
def distillation(
    student_scores: Tensor,
    teacher_scores: Tensor,
    temperature: float = 3.0,
    kl_weight: float = 0.7,
    mse_weight: float = 0.3,
    *,
    match_scale: bool = False,
    left_out: Tensor | None = None,
) -> Tensor:
    """Match the teacher's distribution over each row's candidates and its z-scores over the whole batch.

    L = kl_weight * T^2 * KL(softmax(teacher / T) || softmax(student / T)) + mse_weight * MSE(z(teacher),
    z(student)). KL is averaged over rows; z subtracts the mean and divides by the standard deviation of all B
    * N scores.

    With `match_scale` the KL part compares student / spread(student) with teacher / spread(teacher), where a
    spread is the root mean square of the scores around the mean of their row, with gradient. T then counts
    spreads, so that one T serves every teacher, whether it gives cosines, logits or the scores of BM25. The
    loss does not change if all scores of one side are multiplied by a positive number: its gradient has no
    part along the student's scale, and a student that is an increasing linear function of the teacher costs
    nothing. Without gradient in the spread that would fail: away from the minimum the KL part would reward
    shrinking.

    A row in which the teacher's scores are all equal, up to rounding, teaches nothing: it is left out of both
    parts, of their means and of the spreads.

    Args:
        student_scores: `[B, N]` float.
        teacher_scores: `[B, N]` float, of the same pairs; no gradient flows into it.
        temperature: T, > 0; in units of the scores, or of their spread with `match_scale`.
        kl_weight: Weight of the KL part.
        mse_weight: Weight of the z-score part.
        match_scale: Whether to compare scores in units of their own spread, as dot products need it.
        left_out: `[B, N]` bool, candidates that are not compared; None compares all.

    Returns:
        0-dim float; 0 where no row is left, connected to the graph. A student's scores that are all equal
        have z-scores 0.

    Raises:
        ValueError: If the shapes differ or the temperature is not positive.

    Source: docs/losses.md, section 7; the factor T^2 after Hinton et al. 2015 (arXiv 1503.02531), section 2.
    """
    _check_scores(student_scores, teacher_scores)
    check_positive(temperature=temperature)
    if not student_scores.numel():
        return student_scores.sum()
    teacher_scores = teacher_scores.detach()
    kept = torch.ones_like(teacher_scores, dtype=torch.bool) if left_out is None else ~left_out
    teaches = _differ(teacher_scores, kept)  # [B, 1]
    # A row that teaches nothing keeps all of its softmax, which is then not read: one over nothing is NaN.
    outside, kept = ~kept & teaches, kept & teaches
    student, teacher = student_scores, teacher_scores
    if match_scale:
        student, teacher = _in_spreads(student_scores, teacher_scores, kept)
    student_log = F.log_softmax((student / temperature).masked_fill(outside, -torch.inf), dim=-1)
    teacher_log = F.log_softmax((teacher / temperature).masked_fill(outside, -torch.inf), dim=-1)
    gap = teacher_log.masked_fill(~kept, 0) - student_log.masked_fill(~kept, 0)  # [B, N]
    divergence = (teacher_log.exp() * gap).sum() / teaches.sum().clamp_min(1)
    squared = (_z_scores(student_scores, kept) - _z_scores(teacher_scores, kept)).square()
    error = squared.sum() / kept.sum().clamp_min(1)
    return kl_weight * temperature**2 * divergence + mse_weight * error


@in_float32
def margin_mse(
    student_scores: Tensor,
    teacher_scores: Tensor,
    scale: float | Tensor = 1.0,
    *,
    positive: Tensor | None = None,
    left_out: Tensor | None = None,
) -> Tensor:
    """Match the margins by which a teacher prefers the positive to each other candidate.

    L = mean over rows and candidates j, without the positive, of
    `(scale * (s_pos - s_j) - (t_pos - t_j))^2`.

    The scale stands at the student, so that learning it cannot collapse the student: where the student's
    margins shrink, the scale grows and the teacher's margins are still to be met. A row in which the
    teacher's scores are all equal, up to rounding, is left out.

    Args:
        student_scores: `[B, N]` float.
        teacher_scores: `[B, N]` float, of the same pairs; no gradient flows into it.
        scale: Multiplies the student's margins; a number, or a 0-dim tensor that is learned.
        positive: `[B]` int64, the column of each row's positive; None is column 0.
        left_out: `[B, N]` bool, candidates that are not compared; None compares all.

    Returns:
        0-dim float; 0 where there is no margin to compare, connected to the graph.

    Raises:
        ValueError: If the shapes differ.

    Source: Hofstaetter et al. 2020 (arXiv 2010.02666), equation 5; the scale is ours.
    """
    _check_scores(student_scores, teacher_scores)
    if not student_scores.numel():
        return student_scores.sum()
    if positive is None:
        positive = torch.zeros(len(student_scores), dtype=torch.int64, device=student_scores.device)
    column = positive[:, None]  # [B, 1]
    teacher_scores = teacher_scores.detach()
    student_margin = student_scores.gather(1, column) - student_scores  # [B, N]
    teacher_margin = teacher_scores.gather(1, column) - teacher_scores
    kept = torch.ones_like(teacher_scores, dtype=torch.bool) if left_out is None else ~left_out
    teaches = _differ(teacher_scores, kept.scatter(1, column, True))
    kept = kept.scatter(1, column, False) & teaches
    squared = (scale * student_margin - teacher_margin).square().where(kept, 0)
    return squared.sum() / kept.sum().clamp_min(1)


def _check_scores(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape or student.dim() != 2:
        raise ValueError(
            "student_scores and teacher_scores must be of one shape [B, N]; "
            f"received {tuple(student.shape)} and {tuple(teacher.shape)}"
        )


def _differ(scores: Tensor, kept: Tensor) -> Tensor:
    """Whether the kept scores of a row differ by more than rounding, `[B, 1]`; NaN and infinities do."""
    highest = scores.masked_fill(~kept, -torch.inf).amax(dim=1, keepdim=True)
    lowest = scores.masked_fill(~kept, torch.inf).amin(dim=1, keepdim=True)
    rounding = torch.finfo(scores.dtype).eps * torch.minimum(highest.abs(), lowest.abs())
    return ~(highest - lowest <= rounding)


def _in_spreads(student: Tensor, teacher: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Divide both by their spread within rows. A constant student stays; a constant teacher makes both 0."""
    per_own, per_wanted = _inverse_spread(student, kept), _inverse_spread(teacher, kept)
    factor = torch.where(per_own > 0, per_own, 1.0) * (per_wanted > 0)
    return student * factor, teacher * per_wanted


def _inverse_spread(scores: Tensor, kept: Tensor) -> Tensor:
    """One over the root mean square of the kept scores around the mean of their row; 0 if they are equal."""
    # Each row is shifted by a score of its own first, so that equal scores become exactly 0.
    shifted = (scores - scores[:, :1].detach()).where(kept, 0)
    mean = shifted.sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True).clamp_min(1)
    variance = (shifted - mean).where(kept, 0).square().sum() / kept.sum().clamp_min(1)
    largest = scores.detach().abs().where(kept, 0).max()
    varies = variance > (torch.finfo(scores.dtype).eps * largest) ** 2
    return torch.where(varies, variance.where(varies, 1).rsqrt(), 0.0)


def _z_scores(scores: Tensor, kept: Tensor) -> Tensor:
    """Shift and scale the kept scores to mean 0 and (unbiased) standard deviation 1; the others become 0.

    Constant scores become 0, with zero gradient.

    Dividing by `std + 1e-8`, as is often done, gives a gradient of NaN where all scores are equal. Here a
    spread within the rounding error of the largest score counts as constant, and nothing is added elsewhere.
    """
    # z-scores do not change under a shift; this shift makes equal scores exactly 0 before the mean rounds.
    largest = scores.detach().masked_fill(~kept, -torch.inf).max()
    shifted = (scores - largest).where(kept, 0)
    count = kept.sum()
    centred = (shifted - shifted.sum() / count.clamp_min(1)).where(kept, 0)
    variance = centred.square().sum() / (count - 1).clamp_min(1)
    magnitude = scores.detach().abs().where(kept, 0).max()
    varies = variance > (torch.finfo(scores.dtype).eps * magnitude) ** 2
    return torch.where(varies, centred * variance.where(varies, 1).rsqrt(), 0)
