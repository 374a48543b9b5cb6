"""The controller of the sparsity weights: its arithmetic, and its place in the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, pairwise, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder

from lexforge.common.types import TextKind
from lexforge.losses import NeuralSparseLoss, functional
from lexforge.sparsity import ActiveTermsController
from lexforge.training.curriculum import CurriculumCallback


def drive(controller: ActiveTermsController, steps: int) -> list[dict]:
    """The factors of each step of a training."""
    arguments: Any = None
    state: Any = SimpleNamespace(global_step=0, max_steps=steps)
    seen = []
    controller.on_train_begin(arguments, state, arguments)
    for _ in range(steps):
        controller.on_step_begin(arguments, state, arguments)
        seen.append({name: float(factor) for name, factor in controller.loss.sparsity_factors.items()})
        state.global_step += 1
    return seen


def counts_of(*counts: dict[TextKind, float]) -> Callable[[], dict[TextKind, float]]:
    """What a controller counts, one after the other, and then the last of them for ever."""
    places = chain(range(len(counts)), repeat(len(counts) - 1))
    return lambda: counts[next(places)]


def naive_weights(
    counts: list[float], wanted: float, steps: int, *, limit: float, first_base: float = 1.2e-4
) -> list[float]:
    """The documented rule for one kind of text in plain Python, for counts every fortieth of training."""
    weights: list[float] = []
    start = math.log(1.2e-4)
    base = weight = math.log(first_base)
    bound = math.log(limit / 1.2e-4)
    for step in range(steps):
        if step % (steps // 40) == 0:
            far = math.log(max(counts[step // (steps // 40)], 0.01) / wanted)
            base += 0.075 * (weight - base) if step >= steps / 10 else 0.0
            weight = base + max(-1.5, min(1.5, far)) / 0.18
            weight = max(start - bound, min(start + bound, weight))
        weights.append(math.exp(weight))
    return weights


def test_the_weights_follow_the_documented_rule(tiny_splade: SparseEncoder) -> None:
    """An oracle in plain Python: first count, time between counts, clipped distance, bounds, empty texts. The
    weights that were given do not matter."""
    queries = [0.0] * 6 + [3 + 1.5 * place for place in range(34)]
    documents = [200.0] * 34 + [50.0] * 6  # the weight reaches its bound and returns from it
    counted = [{"query": q, "document": d} for q, d in zip(queries, documents, strict=True)]
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0, flops_weight=0.5, query_flops_weight=2.0)
    controller = ActiveTermsController(loss, counts_of(*counted), query_terms=16, document_terms=64.0)
    found = drive(controller, 80)
    expected_documents = naive_weights(documents, 64, 80, limit=0.6)
    expected_queries = naive_weights(queries, 16, 80, limit=0.6, first_base=expected_documents[0])
    for name, given, expected in (
        ("flops_query", 2.0, expected_queries),
        ("flops_document", 0.5, expected_documents),
    ):
        # float32 in the controller: an exponent of 9 carries 1e-6 of itself into the factor
        assert [given * factors[name] for factors in found] == pytest.approx(expected, rel=1e-4), name
    assert max(factors["flops_document"] for factors in found) == pytest.approx(1.2, rel=1e-4)
    # Documents alone have a lower limit, because they are trimmed at the end; queries alone have the same.
    for name, given, counts, wanted, limit in (
        ("document", 0.5, documents, 64.0, 0.12),
        ("query", 2.0, documents, 64.0, 0.6),
    ):
        counted_alone = [{name: count} for count in counts]
        alone = ActiveTermsController(loss, counts_of(*counted_alone), **{f"{name}_terms": wanted})
        weights = [given * factors[f"flops_{name}"] for factors in drive(alone, 80)]
        expected = naive_weights(counts, wanted, 80, limit=limit)
        assert weights == pytest.approx(expected, rel=1e-4)
        assert max(expected) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("power", "needed"), [(0.1, 9e-3), (0.18, 9e-3), (0.3, 9e-3), (0.18, 0.1), (0.18, 1e-3), (0.18, 1e-4)]
)
def test_a_model_that_answers_late_arrives_without_a_swing(
    tiny_splade: SparseEncoder, power: float, needed: float
) -> None:
    """A model that behaves as in training: its terms follow the weight to the power of -.1 to -.3, by a delay
    of a sixth of training, and its average follows the model. The weight that it needs is up to 7 times as
    high, or 130 times as low, as the first count says. Then at most 15 % are left to the trimming, and the
    number turns round once at most."""
    steps, terms, averaged = 200, 150.0, 150.0
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    seen = []

    def count() -> dict[TextKind, float]:
        return {"document": averaged}

    controller = ActiveTermsController(loss, count, document_terms=64)
    state: Any = SimpleNamespace(global_step=0, max_steps=steps)
    controller.on_train_begin(state, state, state)
    for step in range(steps):
        controller.on_step_begin(state, state, state)
        weight = 0.01 * float(loss.sparsity_factors["flops_document"])
        steady = 64 * (weight / needed) ** -power
        terms *= (steady / terms) ** (6 / steps)
        averaged *= (terms / averaged) ** (6 / max(step, 10))
        seen.append(averaged)
        state.global_step += 1
    assert seen[-1] == pytest.approx(64, rel=0.15)
    moves = [after - before for before, after in pairwise(seen)]
    assert sum(before * after < 0 for before, after in pairwise(moves)) <= 1


def test_a_second_training_begins_anew_and_the_other_kind_follows(tiny_splade: SparseEncoder) -> None:
    """An earlier training leaves no state to the next. A kind of text without a number has the factor of
    the other one: queries that stayed as long as before ranked worse than with one weight for both."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    controller = ActiveTermsController(loss, counts_of({"document": 100.0}), document_terms=64)
    assert controller.log_values() == {
        "terms/document_wanted": 64,
        "weight/flops_query": 0.01,
        "weight/flops_document": 0.01,
    }
    first = drive(controller, 30)
    assert drive(controller, 30) == first
    assert first[-1]["flops_query"] == first[-1]["flops_document"] > 1
    assert all(value.isfinite().all() for value in controller.state().values())  # a checkpoint holds them
    weight = pytest.approx(0.01 * first[-1]["flops_document"], rel=1e-3)
    assert controller.log_values() == {
        "terms/document_wanted": 64,
        "terms/document_counted": 100.0,
        "weight/flops_query": weight,
        "weight/flops_document": weight,
    }
    loss.weights["flops_query"] = 0.0  # an inference-free model has no sparsity term of queries
    alone = ActiveTermsController(loss, counts_of({"document": 100.0}), document_terms=64)
    assert drive(alone, 30)[-1].keys() == {"flops_document"}


def test_the_factor_multiplies_its_term_alone(tiny_splade: SparseEncoder) -> None:
    """Weight, ramp and factor together, against the formula of FLOPS; an evaluation is without the factor."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0, flops_weight=0.5)
    loss.weights = dict.fromkeys(loss.weights, 0.0) | {"flops_query": 0.2, "flops_document": 0.5}
    loss.regularizer_ramp = 0.25
    loss.sparsity_factors = {"flops_document": torch.tensor(3.0)}
    anchor, positive = torch.rand(4, 9), torch.rand(4, 9)

    def parts() -> dict[str, torch.Tensor]:
        found = loss.compute_loss_from_embeddings([anchor, positive])
        assert isinstance(found, dict)
        return found

    torch.testing.assert_close(parts()["flops_query"], 0.2 * 0.25 * functional.flops(anchor))
    torch.testing.assert_close(parts()["flops_document"], 0.5 * 0.25 * 3 * functional.flops(positive))
    with CurriculumCallback(loss).final_values():
        torch.testing.assert_close(parts()["flops_document"], 0.5 * functional.flops(positive))
    assert loss.sparsity_factors == {"flops_document": torch.tensor(3.0)}
