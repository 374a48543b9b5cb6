"""Distillation against the original formula in plain Python (docs/losses.md, section 7)."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch

from lexforge.losses.distillation import distillation, margin_mse


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


def without(rows: list[int], *scores: torch.Tensor) -> list[torch.Tensor]:
    kept = [row for row in range(len(scores[0])) if row not in rows]
    return [side[kept] for side in scores]


@pytest.mark.parametrize("match_scale", [False, True])
@pytest.mark.parametrize("value", [0.0, -7.3, 0.1])
def test_a_row_without_spread_teaches_nothing(match_scale: bool, value: float) -> None:
    """BM25 gives a query that shares no word with any document equal scores: that says nothing of them, and
    must neither pull the query's positive to the others nor count in a mean."""
    torch.manual_seed(0)
    student, teacher = (torch.randn(4, 5, dtype=torch.float64) for _ in range(2))
    left_out = torch.zeros(4, 5, dtype=torch.bool)
    left_out[2, 3] = left_out[1, 0] = True
    teacher[0] = teacher[2] = value
    teacher[2, 3] = value + 1  # a left-out candidate is no spread
    student.requires_grad_()
    loss = distillation(student, teacher, match_scale=match_scale, left_out=left_out)
    (gradient,) = torch.autograd.grad(loss, student)
    rest = [side.detach() for side in without([0, 2], student, teacher)]
    expected = distillation(*rest, match_scale=match_scale, left_out=left_out[[1, 3]])
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=0)
    assert not gradient[[0, 2]].any()
    assert gradient[[1, 3]].any()

    margins = margin_mse(student, teacher, left_out=left_out)
    (gradient,) = torch.autograd.grad(margins, student)
    torch.testing.assert_close(
        margins.detach(), margin_mse(*rest, left_out=left_out[[1, 3]]), rtol=1e-9, atol=0
    )
    assert not gradient[[0, 2]].any()


@pytest.mark.parametrize("match_scale", [False, True])
@pytest.mark.parametrize("left_out", [None, torch.ones(2, 3, dtype=torch.bool)])
def test_a_batch_that_teaches_nothing_is_zero_and_connected(match_scale: bool, left_out) -> None:
    """No row with a spread, or no candidate at all: no mean over nothing, and backward runs through."""
    student = torch.rand(2, 3, requires_grad=True)
    teacher = torch.full((2, 3), 0.1) if left_out is None else torch.rand(2, 3)
    loss = distillation(student, teacher, match_scale=match_scale, left_out=left_out)
    loss = loss + margin_mse(student, teacher, left_out=left_out)
    loss.backward()
    assert loss.item() == 0
    assert not student.grad.any()


def test_a_spread_of_rounding_is_none() -> None:
    """The cosines of one teacher's vector to equal ones may differ in the last bit, which says nothing."""
    teacher = torch.tensor([[0.7, 0.7, 0.7], [0.9, 0.2, 0.1]])
    teacher[0, 1] = torch.nextafter(teacher[0, 1], torch.tensor(1.0))
    student = torch.rand(2, 3, requires_grad=True)
    distillation(student, teacher).backward()
    assert not student.grad[0].any()
    assert student.grad[1].any()


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


def test_no_candidate_is_zero_and_connected() -> None:
    """Backward must run through rows without a document."""
    student = torch.zeros(3, 0, requires_grad=True)
    loss = distillation(student, torch.zeros(3, 0))
    loss.backward()
    assert loss.item() == 0
    assert student.grad.shape == (3, 0)


def test_errors() -> None:
    """Scores of other pairs would broadcast; a temperature of 0 has no softmax."""
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 1\)"):
        distillation(torch.rand(2, 3), torch.rand(2, 1))
    with pytest.raises(ValueError, match=r"\[B, N\]"):
        distillation(torch.rand(3), torch.rand(3))
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature"):
            distillation(torch.rand(2, 3), torch.rand(2, 3), temperature)


@pytest.mark.parametrize("seed", range(6))
def test_scaling_the_student_changes_nothing_and_is_not_rewarded(seed: int) -> None:
    """The value is the same at every scale, and no part of the gradient points along it."""
    student, teacher = case(seed)
    student.requires_grad_()
    expected = distillation(student, teacher, match_scale=True)
    (gradient,) = torch.autograd.grad(expected, student)
    # d/dc loss(c * s) at c = 1 is the inner product of gradient and scores
    assert (gradient * student).sum().item() == pytest.approx(0, abs=1e-10)
    for scale in (1e-4, 0.05, 3.0, 20.0, 1e4):
        found = distillation(scale * student, teacher, match_scale=True)
        assert found.item() == pytest.approx(expected.item(), rel=1e-9)


def test_matched_scale_equals_a_loop() -> None:
    """Both scores over their spread within rows, then the plain form."""
    student, teacher = case(2)

    def spread(scores) -> float:
        rows = scores.tolist()
        return math.sqrt(fmean((value - fmean(row)) ** 2 for row in rows for value in row))

    expected = naive(student / spread(student), teacher / spread(teacher), 2.0, 0.6, 0.4)
    found = distillation(student, teacher, 2.0, 0.6, 0.4, match_scale=True)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_one_temperature_serves_teachers_of_every_scale() -> None:
    """Cosines, logits or BM25: a teacher times a number and plus a number teaches the same."""
    student, teacher = case(4)
    expected = distillation(student, teacher, 2.0, match_scale=True).item()
    for scale in (1e-2, 5.0, 300.0):
        found = distillation(student, scale * teacher - 7, 2.0, match_scale=True).item()
        assert found == pytest.approx(expected, rel=1e-9)
    assert distillation(student, 5 * teacher, 2.0).item() != pytest.approx(expected, rel=0.1)


def test_gradcheck_at_the_students_own_scale() -> None:
    """The factor carries gradient; without it the scale would be rewarded."""
    student, teacher = case(1)
    left_out = torch.zeros_like(teacher, dtype=torch.bool)
    left_out[0, -1] = True
    assert torch.autograd.gradcheck(
        lambda s: distillation(s, teacher, match_scale=True, left_out=left_out), student.requires_grad_()
    )


def test_a_constant_student_has_a_gradient_at_its_own_scale() -> None:
    """An untrained model may score all candidates alike; it must be able to leave that state, without NaN."""
    student = torch.zeros(2, 3, requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, 0.5], [0.2, 0.9, 0.1]])
    loss = distillation(student, teacher, match_scale=True)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()
    assert student.grad.any()


@pytest.mark.parametrize("match_scale", [False, True])
def test_left_out_candidates_count_nowhere(match_scale: bool) -> None:
    """Whatever score stands there, even NaN-free infinities of a mask, value and gradient are the same."""
    student, teacher = case(3)
    left_out = torch.zeros_like(teacher, dtype=torch.bool)
    left_out[:, 1] = True
    results = []
    for filler in (0.0, 55.0, -1e6):
        scores = student.clone()
        scores[:, 1] = filler
        scores.requires_grad_()
        loss = distillation(scores, teacher, match_scale=match_scale, left_out=left_out)
        loss.backward()
        assert not scores.grad[:, 1].any()
        results.append((loss.detach(), scores.grad))
    kept = [column for column in range(teacher.shape[1]) if column != 1]
    expected = distillation(student[:, kept], teacher[:, kept], match_scale=match_scale)
    for value, gradient in results:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_margin_mse_equals_a_loop(seed: int, scale: float) -> None:
    """Every margin of every row, the positive where it stands, left-out candidates skipped."""
    student, teacher = case(seed)
    rows, columns = student.shape
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randint(columns, (rows,), generator=generator)
    left_out = torch.rand(rows, columns, generator=generator) < 0.3
    errors = []
    for row in range(rows):
        own = int(positive[row])
        for other in range(columns):
            if other != own and not left_out[row, other]:
                ours = scale * (student[row, own] - student[row, other])
                errors.append(((ours - (teacher[row, own] - teacher[row, other])) ** 2).item())
    found = margin_mse(student, teacher, scale, positive=positive, left_out=left_out).item()
    assert found == pytest.approx(fmean(errors) if errors else 0.0, rel=1e-10)


def test_margin_mse_without_a_negative_is_zero_and_connected() -> None:
    """One candidate per row, an empty batch, or all left out: no margin at all."""
    for shape, left_out in (((2, 1), None), ((0, 3), None), ((2, 3), torch.ones(2, 3, dtype=torch.bool))):
        student = torch.rand(shape, requires_grad=True)
        loss = margin_mse(student, torch.rand(shape), left_out=left_out)
        loss.backward()
        assert loss.item() == 0
        assert not student.grad.any()
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 1\)"):
        margin_mse(torch.rand(2, 3), torch.rand(2, 1))
