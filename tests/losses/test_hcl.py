"""HCL against the formula in plain exponentials (docs/losses.md, section 13), where those do not overflow."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lexforge.losses import HCLLoss
from lexforge.losses.hcl import hcl


def naive(view_a, view_b, temperature, tau_plus, beta, estimator) -> float:
    """The original lines, row by row and number by number."""
    rows = view_a.tolist() + view_b.tolist()
    batch = len(view_a)
    total = 0.0
    for i, row in enumerate(rows):
        scores = [sum(x * y for x, y in zip(row, other, strict=True)) / temperature for other in rows]
        pos = math.exp(scores[(i + batch) % (2 * batch)])
        neg = [math.exp(score) for j, score in enumerate(scores) if j % batch != i % batch]
        if estimator == "easy":
            ng = sum(neg)
        else:
            n = 2 * batch - 2
            imp = [value**beta for value in neg]
            reweighted = sum(w * value for w, value in zip(imp, neg, strict=True)) / (sum(imp) / n)
            ng = (-tau_plus * n * pos + reweighted) / (1 - tau_plus)
            ng = max(ng, n * math.exp(-1 / temperature))
        total -= math.log(pos / (pos + ng))
    return total / len(rows)


def views(seed: int, rows: int | None = None, noise: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = rows or int(torch.randint(2, 7, (), generator=generator))
    first = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    second = first + noise * torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return [F.normalize(first, dim=-1), F.normalize(second, dim=-1)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.5, 0.05, 0.005])
@pytest.mark.parametrize(("tau_plus", "beta"), [(0.1, 1.0), (0.0, 0.5), (0.4, 0.0), (0.01, 2.0)])
def test_hard_equals_the_seeds_formula(seed: int, temperature: float, tau_plus: float, beta: float) -> None:
    """In float64 the plain exponentials still hold e^600, so the original code is an oracle."""
    rows = views(seed)
    expected = naive(*rows, temperature, tau_plus, beta, "hard")
    # a subtraction of nearly equal terms loses digits, in the oracle as here
    assert hcl(*rows, temperature, tau_plus, beta).item() == pytest.approx(expected, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.5, 0.005])
def test_easy_equals_cross_entropy(seed: int, temperature: float) -> None:
    """Without reweighting it is the softmax cross-entropy of each row over all other rows."""
    rows = views(seed)
    found = hcl(*rows, temperature, estimator="easy").item()
    everything = torch.cat(rows)
    scores = (everything @ everything.T / temperature).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(everything)).roll(len(rows[0]))
    assert found == pytest.approx(F.cross_entropy(scores, partner).item(), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("estimator", ["hard", "easy"])
@pytest.mark.parametrize("noise", [0.05, 1.0], ids=["at the bound", "above the bound"])
def test_gradcheck(estimator: str, noise: float) -> None:
    """Both branches of the clamp have the right gradient in float64."""
    rows = [row.requires_grad_() for row in views(0, rows=4, noise=noise)]
    for temperature, tau_plus, beta in ((0.5, 0.1, 1.0), (0.1, 0.0, 0.0), (0.05, 0.3, 2.0)):
        assert torch.autograd.gradcheck(
            lambda a, b, t=temperature, tau=tau_plus, w=beta: hcl(a, b, t, tau, w, estimator), rows
        )


@pytest.mark.parametrize("estimator", ["hard", "easy"])
def test_finite_where_the_formula_overflows(estimator: str) -> None:
    """exp(1 / .005) is infinite in float32; so are products of 1e4 at temperature .5."""
    for scale, temperature in ((1.0, 0.005), (1.0, 0.001), (100.0, 0.5)):
        for noise in (0.0, 0.05, 1.0):
            rows = [(scale * row.float()).requires_grad_() for row in views(1, rows=6, noise=noise)]
            loss = hcl(*rows, temperature, estimator=estimator)
            loss.backward()
            assert loss.isfinite()
            assert all(row.grad.isfinite().all() for row in rows)
    small = [row.float() for row in views(1, rows=6)]
    expected = naive(*[row.double() for row in small], 0.005, 0.1, 1.0, estimator)
    assert hcl(*small, 0.005, estimator=estimator).item() == pytest.approx(expected, rel=1e-5)  # float32


@pytest.mark.parametrize("estimator", ["hard", "easy"])
@pytest.mark.parametrize("fill", [0.0, 1.0], ids=["zero vectors", "all texts equal"])
def test_rows_that_cannot_be_told_apart(estimator: str, fill: float) -> None:
    """An untrained or collapsed model: the debiased sum may be exactly 0, whose log has no gradient."""
    for tau_plus in (0.0, 0.1, 0.5):
        rows = [torch.full((4, 1), fill, requires_grad=True) for _ in range(2)]
        loss = hcl(*rows, tau_plus=tau_plus, estimator=estimator)
        loss.backward()
        # Ng = N for both estimators: a mean negative is as large as the positive
        assert loss.item() == pytest.approx(math.log(7), rel=1e-6)
        assert all(row.grad.isfinite().all() for row in rows)


def test_no_negative_is_zero_and_connected() -> None:
    """The mean over no negative is NaN in the original formula."""
    given = [torch.rand(1, 3, requires_grad=True) for _ in range(2)]
    loss = hcl(*given)
    loss.backward()
    assert loss.item() == 0
    assert not any(row.grad.any() for row in given)


def test_errors(tiny_dense) -> None:
    """Out of range, the estimator would be another formula or NaN; module and function refuse alike."""
    rows = torch.rand(2, 3)
    for settings, message in (
        ({"temperature": 0.0}, "temperature"),
        ({"tau_plus": 1.0}, r"tau_plus must lie in \[0, 1\); received 1.0"),
        ({"tau_plus": -0.1}, "tau_plus"),
        ({"tau_plus": float("nan")}, "tau_plus"),
        ({"beta": -1.0}, "beta"),
        ({"beta": float("inf")}, "beta"),
        ({"estimator": "medium"}, "'medium'"),
    ):
        with pytest.raises(ValueError, match=message):
            hcl(rows, rows, **settings)
        with pytest.raises(ValueError, match=message):
            HCLLoss(tiny_dense, **settings)
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(1, 3\)"):
        hcl(rows, rows[:1])
    with pytest.raises(ValueError, match="3 text columns"):
        HCLLoss(tiny_dense).compute_loss_from_embeddings([rows] * 3)


def test_the_module_normalises_and_passes_its_settings_on(tiny_dense) -> None:
    """A setting that does not arrive trains another loss without a word."""
    settings = {"temperature": 0.3, "tau_plus": 0.05, "beta": 0.5, "estimator": "hard"}
    loss = HCLLoss(tiny_dense, **settings)
    assert loss.get_config_dict() == {
        **settings,
        "gather_across_devices": False,
        "mini_batch_size": None,
    }
    assert "Robinson" in loss.citation
    rows = views(2)
    found = loss.compute_loss_from_embeddings([3 * rows[0], 0.5 * rows[1]]).item()
    assert found == pytest.approx(naive(*rows, *settings.values()), rel=1e-9)


def test_a_zero_row_has_no_gradient(tiny_dense) -> None:
    """A query without a known term is zero; clipping would leave nothing beside a gradient of 1e12."""
    start = torch.zeros(2, 3, requires_grad=True)
    HCLLoss(tiny_dense).compute_loss_from_embeddings([start, torch.rand(2, 3)]).backward()
    assert not start.grad.any()


def test_it_separates_topics(tiny_dense, topics) -> None:
    """Through the trainer of sentence-transformers, on texts that it was not trained on."""
    before = topics.separation(tiny_dense)
    rows = [{"anchor": a, "positive": b} for a, b in topics.pairs(96)]
    topics.train(tiny_dense, HCLLoss(tiny_dense), rows, "trainer")
    assert topics.separation(tiny_dense) > before + 0.3
