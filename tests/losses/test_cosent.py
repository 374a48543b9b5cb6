"""CoSENT against a double loop, a worked example and sentence-transformers (docs/losses.md, section 11)."""

from __future__ import annotations

import math

import pytest
import torch
from sentence_transformers import util
from sentence_transformers.sentence_transformer.losses import CoSENTLoss as PeerCoSENTLoss

from lexforge.losses import CoSENTLoss
from lexforge.losses.cosent import cosent

SEED_SIMILARITIES = torch.tensor([0.1, 0.2, 0.8, 0.9])
SEED_LABELS = torch.tensor([0, 0, 1, 1])


def naive(similarities: list[float], labels: list[float], scale: float) -> float:
    """The original sum, term by term, with the largest exponent taken out."""
    exponents = [0.0]
    for s_i, y_i in zip(similarities, labels, strict=True):
        for s_j, y_j in zip(similarities, labels, strict=True):
            if y_i < y_j:
                exponents.append(scale * (s_i - s_j))
    top = max(exponents)
    return top + math.log(math.fsum(math.exp(value - top) for value in exponents))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
def test_equals_a_double_loop(seed: int, scale: float) -> None:
    """Sorting and cumulative sums replace N^2 pairs; ties in labels and in similarities must not matter."""
    generator = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 30, (), generator=generator))
    similarities = 2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1
    similarities[::3] = similarities[0]
    labels = torch.randint(0, 1 + seed, (rows,), generator=generator)  # seed 0: all labels equal
    # float64; the sums differ in order alone
    assert cosent(similarities, labels, scale).item() == pytest.approx(
        naive(similarities.tolist(), labels.tolist(), scale), rel=1e-12, abs=1e-12
    )


def test_the_seeds_worked_example() -> None:
    """Scores 2, 4, 16, 18 leave the exponents 0, -14, -16, -12, -14."""
    expected = math.log(1 + 2 * math.exp(-14) + math.exp(-16) + math.exp(-12))
    given = cosent(SEED_SIMILARITIES.double(), SEED_LABELS).item()
    # the similarities .1, .2, ... were rounded to float32 before
    assert given == pytest.approx(expected, rel=1e-5)
    # turned upside down: the exponents are 14, 16, 12, 14
    assert cosent(SEED_SIMILARITIES.double().flip(0), SEED_LABELS).item() == pytest.approx(
        math.log(1 + 2 * math.exp(14) + math.exp(16) + math.exp(12)), rel=1e-6
    )


@pytest.mark.parametrize("scale", [20.0, 200.0])
def test_gradcheck(scale: float) -> None:
    """Also at temperature .005, where the largest terms are e^400."""
    torch.manual_seed(0)
    similarities = (2 * torch.rand(9, dtype=torch.float64) - 1).requires_grad_()
    labels = torch.tensor([0.0, 0.5, 0.5, 1.0, 0.2, 0.0, 1.0, 0.7, 0.5])
    assert torch.autograd.gradcheck(lambda s: cosent(s, labels, scale), similarities)


def test_float32_is_exact_at_a_small_temperature() -> None:
    """Scale 200 and similarities in the wrong order: exponents near 400 overflow a plain exponential."""
    similarities = torch.linspace(1, -1, 64)
    labels = torch.arange(64.0)
    found = cosent(similarities, labels, 200.0)
    expected = naive(similarities.double().tolist(), labels.tolist(), 200.0)
    assert found.item() == pytest.approx(expected, rel=1e-6)  # float32 scores of up to 200


@pytest.mark.parametrize(
    ("similarities", "labels"),
    [([], []), ([0.3], [1.0]), ([0.3, 0.9, -1.0], [0.5, 0.5, 0.5])],
    ids=["no pair", "one pair", "all labels equal"],
)
def test_nothing_to_rank_is_zero_and_connected(similarities: list[float], labels: list[float]) -> None:
    """No two labels differ: nothing is wrong with any order."""
    scores = torch.tensor(similarities, requires_grad=True)
    loss = cosent(scores, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.tolist() == [0.0] * len(similarities)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
def test_any_kind_of_label(dtype: torch.dtype) -> None:
    """Only the order of the labels counts."""
    expected = cosent(SEED_SIMILARITIES, SEED_LABELS).item()
    assert cosent(SEED_SIMILARITIES, SEED_LABELS.to(dtype)).item() == expected


def test_errors() -> None:
    """A scale or labels that mean nothing are refused before they train anything."""
    scores = torch.rand(3)
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale"):
            cosent(scores, scores, scale)
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        cosent(scores, torch.rand(2))
    with pytest.raises(ValueError, match=r"\(3, 1\)"):
        cosent(scores.unsqueeze(1), scores.unsqueeze(1))
    with pytest.raises(ValueError, match="NaN in row 1"):
        cosent(scores, torch.tensor([0.0, float("nan"), 1.0]))


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equals_sentence_transformers(tiny_dense, similarity: str) -> None:
    """The peer's loss on the same embeddings, and the same gradients."""
    torch.manual_seed(0)
    pairwise = util.pairwise_cos_sim if similarity == "cosine" else util.pairwise_dot_score
    labels = torch.rand(12).round(decimals=1)
    tiny_dense.similarity_fn_name = similarity
    losses = CoSENTLoss(tiny_dense, 7.0), PeerCoSENTLoss(tiny_dense, 7.0, pairwise)
    rows = [torch.randn(12, 5) for _ in range(2)]
    results = []
    for loss in losses:
        embeddings = [row.clone().requires_grad_() for row in rows]
        value = loss.compute_loss_from_embeddings(embeddings, labels)
        value.backward()
        results.append((value.detach(), [row.grad for row in embeddings]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)  # float32, sums of 66 terms


def test_gathering_keeps_labels_apart(tiny_dense) -> None:
    """Labels that only float64 tells apart stay ordered when they are sent to other ranks."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    others = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # similarities 1 and 0, against the order of the labels
    labels = torch.tensor([0.5, 0.5 + 1e-12], dtype=torch.float64)
    loss = CoSENTLoss(tiny_dense, scale=1.0, gather_across_devices=True)
    found = loss.compute_loss_from_embeddings([rows, others], labels)
    assert found.item() == pytest.approx(math.log(1 + math.e), rel=1e-6)


def test_module_errors(tiny_dense) -> None:
    """Settings fail at construction, columns and labels at the first call."""
    with pytest.raises(ValueError, match="scale"):
        CoSENTLoss(tiny_dense, scale=0)
    with pytest.raises(ValueError, match="'manhattan'"):
        CoSENTLoss(tiny_dense, similarity="manhattan")
    loss = CoSENTLoss(tiny_dense)
    rows = torch.rand(4, 3)
    for embeddings, labels in (
        ([rows], torch.rand(4)),
        ([rows] * 3, torch.rand(4)),
        ([rows, rows], None),
        ([rows, rows], torch.rand(4, 2)),
        ([rows, rows], torch.rand(3)),
    ):
        with pytest.raises(ValueError, match="sentence1, sentence2"):
            loss.compute_loss_from_embeddings(embeddings, labels)


def pairs(topics) -> list[dict]:
    """Half of the pairs of one topic, half of two."""
    texts = topics.pairs(48)
    same = [{"sentence1": a, "sentence2": b, "label": 1.0} for a, b in texts]
    return same + [
        {"sentence1": a, "sentence2": b, "label": 0.0}
        for (a, _), (_, b) in zip(texts, texts[1:] + texts[:1], strict=True)
    ]


def test_it_separates_topics(tiny_dense, topics) -> None:
    """Through the trainer of sentence-transformers, on texts that it was not trained on."""
    before = topics.separation(tiny_dense)
    topics.train(tiny_dense, CoSENTLoss(tiny_dense), pairs(topics), "trainer", steps=60)
    assert topics.separation(tiny_dense) > before + 0.3
