"""Distillation against the original formula in plain Python (docs/losses.md, section 7)."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch

from lexforge.losses.distillation import distillation


def softmax(values: list[float]) -> list[float]:
    exponentials = [math.exp(value - max(values)) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def naive(student, teacher, temperature: float, kl_weight: float, mse_weight: float) -> float:
    divergence = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        ours, theirs = softmax([v / temperature for v in s]), softmax([v / temperature for v in t])
        divergence += sum(p * (math.log(p) - math.log(q)) for p, q in zip(theirs, ours, strict=True))
    divergence *= temperature**2 / len(student)
    s, t = student.flatten().tolist(), teacher.flatten().tolist()
    s_mean, s_spread, t_mean, t_spread = fmean(s), stdev(s) + 1e-8, fmean(t), stdev(t) + 1e-8
    errors = [((a - s_mean) / s_spread - (b - t_mean) / t_spread) ** 2 for a, b in zip(s, t, strict=True)]
    return kl_weight * divergence + mse_weight * fmean(errors)


def case(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = [int(torch.randint(2, 8, (), generator=generator)) for _ in range(2)]
    return (
        4 * torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.rand(shape, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kl_weight", "mse_weight"), [(0.7, 0.3), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_equals_a_loop(seed: int, kl_weight: float, mse_weight: float, temperature: float) -> None:
    """KL(teacher || student) a row with T^2; z-scores over the whole batch with the unbiased deviation."""
    student, teacher = case(seed)
    # the original adds 1e-8 to a deviation near 0.3; we leave it out
    assert distillation(student, teacher, temperature, kl_weight, mse_weight).item() == pytest.approx(
        naive(student, teacher, temperature, kl_weight, mse_weight), rel=1e-6
    )


@pytest.mark.parametrize("seed", range(3))
def test_gradcheck(seed: int) -> None:
    """The student's gradient is right in float64."""
    student, teacher = case(seed)
    assert torch.autograd.gradcheck(lambda s: distillation(s, teacher), student.requires_grad_())


def test_kl_by_hand() -> None:
    """Teacher (1/4, 3/4), student (1/2, 1/2): log 2 - (1/4 log 4 + 3/4 log(4/3)) = .130812, x 4 at T = 2."""
    teacher = torch.tensor([[0.0, 2 * math.log(3.0)]])
    loss = distillation(torch.zeros(1, 2), teacher, temperature=2.0, kl_weight=1.0, mse_weight=0.0)
    assert loss.item() == pytest.approx(4 * 0.130812, abs=1e-5)


def test_z_scores_by_hand() -> None:
    """(0, 2) and (5, 1) have z-scores of +-1/sqrt(2) with opposite signs: mean of (sqrt 2)^2 = 2."""
    loss = distillation(
        torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0], [1.0]]), kl_weight=0.0, mse_weight=1.0
    )
    assert loss.item() == pytest.approx(2.0, abs=1e-6)


def test_perfect_agreement_costs_nothing() -> None:
    """Equal scores are the minimum; an affine change of them leaves the z-score part at zero."""
    _, teacher = case(0)
    assert distillation(teacher, teacher).item() == pytest.approx(0, abs=1e-14)
    assert distillation(7 * teacher + 3, teacher, kl_weight=0, mse_weight=1).item() == pytest.approx(
        0, abs=1e-14
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, -7.3, 12345.678])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (700, 900)])
def test_equal_scores_have_no_z_score_and_a_zero_gradient(dtype, value: float, shape) -> None:
    """At the start every score may be equal; the original std has a NaN gradient there, and rounding noise of
    the mean must not be blown up to +-1."""
    student = torch.full(shape, value, dtype=dtype, requires_grad=True)
    teacher = torch.full(shape, 0.3, dtype=dtype)
    loss = distillation(student, teacher, kl_weight=0.0, mse_weight=1.0)
    loss.backward()
    assert loss.item() == 0
    assert not student.grad.any()


def test_equal_teacher_scores_leave_the_student_s_own_spread() -> None:
    """A constant teacher has z-scores 0, so the part is the mean square of the student's: (N - 1) / N."""
    student = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64, requires_grad=True)
    loss = distillation(student, torch.full((2, 2), 0.1).double(), kl_weight=0.0, mse_weight=1.0)
    loss.backward()
    assert loss.item() == pytest.approx(3 / 4)
    assert student.grad.isfinite().all()


def test_a_close_but_real_spread_is_still_normalised() -> None:
    """Scores .999 and 1.0 differ by far more than rounding; their z-scores are +-1/sqrt(2)."""
    student = torch.tensor([[0.999, 1.0]])
    loss = distillation(student, torch.tensor([[1.0, 0.0]]), kl_weight=0.0, mse_weight=1.0)
    # 1e-3 is known to 1e-7 / 1e-3 in float32
    assert loss.item() == pytest.approx(2.0, rel=1e-3)


def test_a_nan_score_is_not_hidden() -> None:
    """The trainer stops on a non-finite part; the constant-score rule must not turn NaN into 0."""
    student = torch.tensor([[float("nan"), 1.0]])
    assert distillation(student, torch.rand(1, 2)).isnan()
    assert distillation(student, torch.rand(1, 2), kl_weight=0.0, mse_weight=1.0).isnan()
    assert distillation(torch.rand(1, 2), student, kl_weight=0.0, mse_weight=1.0).isnan()


def test_no_gradient_reaches_the_teacher() -> None:
    """The teacher is fixed."""
    student, teacher = (scores.requires_grad_() for scores in case(0))
    distillation(student, teacher).backward()
    assert teacher.grad is None


def test_extreme_scores_stay_finite() -> None:
    """Dot products of sparse vectors reach thousands: softmax saturates, log of 0 must not appear."""
    student = torch.tensor([[1e4, -1e4], [0.0, 5e3]], requires_grad=True)
    loss = distillation(student, torch.tensor([[-1e4, 1e4], [1.0, 0.0]]), temperature=1.0)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_an_empty_batch_is_zero_and_connected(shape: tuple[int, int]) -> None:
    """Backward must run through an empty batch."""
    student = torch.zeros(shape, requires_grad=True)
    loss = distillation(student, torch.zeros(shape))
    loss.backward()
    assert loss.item() == 0
    assert student.grad.shape == shape


def test_errors() -> None:
    """Scores of other pairs would broadcast; a temperature of 0 has no softmax."""
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 1\)"):
        distillation(torch.rand(2, 3), torch.rand(2, 1))
    with pytest.raises(ValueError, match=r"\[B, N\]"):
        distillation(torch.rand(3), torch.rand(3))
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature"):
            distillation(torch.rand(2, 3), torch.rand(2, 3), temperature)
