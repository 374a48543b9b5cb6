"""Distillation of a teacher's scores: softened KL plus MSE of z-scores (docs/losses.md, section 7)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(
    student_scores: Tensor,
    teacher_scores: Tensor,
    temperature: float = 3.0,
    kl_weight: float = 0.7,
    mse_weight: float = 0.3,
) -> Tensor:
    """Match the teacher's distribution over each row's candidates and its z-scores over the whole batch.

    L = kl_weight * T^2 * KL(softmax(teacher / T) || softmax(student / T)) + mse_weight * MSE(z(teacher),
    z(student)). KL is averaged over rows; z subtracts the mean and divides by the standard deviation of all B
    * N scores.

    Args:
        student_scores: `[B, N]` float.
        teacher_scores: `[B, N]` float, of the same pairs; no gradient flows into it.
        temperature: T, > 0.
        kl_weight: Weight of the KL part.
        mse_weight: Weight of the z-score part.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph. Scores that are all equal have z-scores 0.

    Raises:
        ValueError: If the shapes differ or the temperature is not positive.

    Source: docs/losses.md, section 7; the factor T^2 after Hinton et al. 2015 (arXiv 1503.02531), section 2.
    """
    if student_scores.shape != teacher_scores.shape or student_scores.dim() != 2:
        raise ValueError(
            "student_scores and teacher_scores must be of one shape [B, N]; "
            f"received {tuple(student_scores.shape)} and {tuple(teacher_scores.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0; received {temperature}")
    if not student_scores.numel():
        return student_scores.sum()
    teacher_scores = teacher_scores.detach()
    divergence = F.kl_div(
        F.log_softmax(student_scores / temperature, dim=-1),
        F.log_softmax(teacher_scores / temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )
    error = F.mse_loss(_z_scores(student_scores), _z_scores(teacher_scores))
    return kl_weight * temperature**2 * divergence + mse_weight * error


def _z_scores(scores: Tensor) -> Tensor:
    """Shift and scale all elements to mean 0 and (unbiased) standard deviation 1.

    Constant scores become 0, with zero gradient.

    Dividing by `std + 1e-8`, as is often done, gives a gradient of NaN where all scores are equal. Here a
    spread within the rounding error of the largest score counts as constant, and nothing is added elsewhere.
    """
    # z-scores do not change under a shift; this shift makes equal scores exactly 0 before the mean rounds.
    shifted = scores - scores.detach().max()
    centred = shifted - shifted.mean()
    variance = centred.square().sum() / max(scores.numel() - 1, 1)
    varies = variance > (torch.finfo(scores.dtype).eps * scores.detach().abs().max()) ** 2
    return torch.where(varies, centred * variance.where(varies, 1).rsqrt(), 0)
