"""InfoNCE against a loop over anchors and candidates (docs/losses.md, section 1)."""

from __future__ import annotations

import math

import pytest
import torch

from lexforge.losses import InfoNCELoss
from lexforge.losses.infonce import info_nce


def naive(anchor, positive, negatives, temperature: float, similarity: str) -> float:
    candidates = positive.tolist()
    if negatives is not None:
        candidates += [vector for row in negatives.tolist() for vector in row]
    total = 0.0
    for index, query in enumerate(anchor.tolist()):
        scores = []
        for candidate in candidates:
            score = sum(x * y for x, y in zip(query, candidate, strict=True))
            if similarity == "cosine":
                score /= math.hypot(*query) * math.hypot(*candidate)
            scores.append(score / temperature)
        total -= scores[index] - math.log(math.fsum(math.exp(score) for score in scores))
    return total / len(anchor)


def case(seed: int, with_negatives: bool):
    generator = torch.Generator().manual_seed(seed)
    rows, per_row, width = (int(torch.randint(1, 6, (), generator=generator)) for _ in range(3))
    anchor, positive = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(2))
    negatives = torch.randn(rows, per_row, width, generator=generator, dtype=torch.float64)
    return anchor, positive, negatives if with_negatives else None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_negatives", [False, True])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.07), ("dot", 1.0), ("dot", 0.5)])
def test_equals_a_loop(seed: int, with_negatives: bool, similarity: str, temperature: float) -> None:
    """Every row's candidates are all positives and all hard negatives of the batch."""
    columns = case(seed, with_negatives)
    # float64; one row and no negative gives exactly 0
    assert info_nce(*columns, temperature, similarity).item() == pytest.approx(
        naive(*columns, temperature, similarity), rel=1e-10, abs=1e-12
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_gradcheck(similarity: str) -> None:
    """The gradient of all three inputs is right in float64."""
    torch.manual_seed(0)
    shapes = (3, 4), (3, 4), (3, 2, 4)
    rows = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda a, p, n: info_nce(a, p, n, 0.5, similarity), rows)


def test_all_scores_equal_costs_log_of_the_number_of_candidates() -> None:
    """Zero vectors, as of an untrained sparse model, stay finite in value and gradient."""
    anchor, positive = torch.zeros(3, 4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    loss = info_nce(anchor, positive, torch.zeros(3, 2, 4))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(9), abs=1e-6)
    assert anchor.grad.isfinite().all()
    assert positive.grad.isfinite().all()


def test_extreme_scores_stay_finite() -> None:
    """Dot products of thousands divided by a small temperature overflow a plain exponential."""
    anchor = torch.tensor([[1e3, 0.0], [0.0, 1e3]], requires_grad=True)
    loss = info_nce(anchor, anchor.detach().flip(0), temperature=0.05, similarity="dot")
    loss.backward()
    assert loss.item() == pytest.approx(1e6 / 0.05, rel=1e-6)
    assert anchor.grad.isfinite().all()


def test_no_hard_negative_of_a_batch_equals_none() -> None:
    """K = 0 is a tensor like any other."""
    anchor, positive, _ = case(3, True)
    empty = torch.zeros(len(anchor), 0, anchor.shape[1], dtype=torch.float64)
    assert info_nce(anchor, positive, empty).item() == info_nce(anchor, positive).item()


def test_errors() -> None:
    """Shapes that would broadcast, temperatures and similarities that mean nothing."""
    rows = torch.rand(2, 3)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(1, 3\)"):
        info_nce(rows, rows[:1])
    with pytest.raises(ValueError, match=r"\[2, K, 3\].*\(2, 3\)"):
        info_nce(rows, rows, rows)
    with pytest.raises(ValueError, match=r"\[2, K, 3\].*\(2, 1, 4\)"):
        info_nce(rows, rows, torch.rand(2, 1, 4))
    for temperature in (0.0, -0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            info_nce(rows, rows, temperature=temperature)
    with pytest.raises(ValueError, match="'manhattan'"):
        info_nce(rows, rows, similarity="manhattan")


def columns(seed: int, names: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(names)]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_the_module_takes_any_number_of_negative_columns(tiny_dense, similarity: str, negatives: int) -> None:
    """The data's columns are stacked as the loop reads them."""
    tiny_dense.similarity_fn_name = similarity
    loss = InfoNCELoss(tiny_dense, 0.4)
    anchor, positive, *others = columns(negatives, 2 + negatives)
    stacked = torch.stack(others, dim=1) if others else None
    assert loss.compute_loss_from_embeddings([anchor, positive, *others]).item() == pytest.approx(
        naive(anchor, positive, stacked, 0.4, similarity), rel=1e-10
    )


def test_symmetric_is_the_mean_of_both_directions(tiny_dense) -> None:
    """The mirror has the anchors as candidates, and no hard negative."""
    loss = InfoNCELoss(tiny_dense, 0.4, "cosine", symmetric=True)
    anchor, positive, negative = columns(0, 3)
    expected = naive(anchor, positive, negative.unsqueeze(1), 0.4, "cosine")
    expected = (expected + naive(positive, anchor, None, 0.4, "cosine")) / 2
    found = loss.compute_loss_from_embeddings([anchor, positive, negative]).item()
    assert found == pytest.approx(expected, rel=1e-10)


def test_module_errors_and_settings(tiny_dense, tiny_splade) -> None:
    """Settings fail at construction, columns at the first call; the similarity is the model's."""
    with pytest.raises(ValueError, match="temperature"):
        InfoNCELoss(tiny_dense, temperature=0)
    with pytest.raises(ValueError, match="'euclidean'"):
        InfoNCELoss(tiny_dense, similarity="euclidean")
    with pytest.raises(ValueError, match="1 text column"):
        InfoNCELoss(tiny_dense).compute_loss_from_embeddings([torch.rand(2, 3)])
    assert InfoNCELoss(tiny_dense).similarity == "cosine"
    assert InfoNCELoss(tiny_splade).similarity == "dot"
    loss = InfoNCELoss(tiny_splade, 0.1, "dot", symmetric=True, gather_across_devices=True)
    assert loss.get_config_dict() == {
        "temperature": 0.1,
        "similarity": "dot",
        "symmetric": True,
        "gather_across_devices": True,
        "mini_batch_size": None,
    }
    assert "oord" in loss.citation


# The random sparse model's dot products are near 100: a temperature of 10 makes them scores.
SPARSE_TEMPERATURE = 10.0


@pytest.mark.parametrize("way", ["fit", "trainer", "sparse trainer"])
def test_it_separates_topics(tiny_dense, tiny_splade, topics, way: str) -> None:
    """Through each door of sentence-transformers, on texts that it was not trained on."""
    model, temperature = (tiny_splade, SPARSE_TEMPERATURE) if way == "sparse trainer" else (tiny_dense, 0.1)
    before = topics.separation(model)
    rows = [{"anchor": a, "positive": b} for a, b in topics.pairs(96)]
    topics.train(model, InfoNCELoss(model, temperature), rows, way)
    assert topics.separation(model) > before + 0.2
