"""The controller of the sparsity weights: its arithmetic, its place in the loss, and a resumed run."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.common.types import TextKind
from lexforge.losses import InfoNCELoss, NeuralSparseLoss, functional
from lexforge.runs import last_checkpoint
from lexforge.training import ActiveTermsController, CurriculumCallback, SpladeTrainer, TrainingSettings
from lexforge.training import trainer as trainer_module

WORDS = "list array search index query document vector sparse token model train file".split()


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
    """The documented rule for one side in plain Python, for counts every fortieth of training."""
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
    # A side whose number is the only wanted one has a lower limit.
    alone = ActiveTermsController(loss, counts_of(*counted), document_terms=64.0)
    weights = [0.5 * factors["flops_document"] for factors in drive(alone, 80)]
    expected = naive_weights(documents, 64, 80, limit=0.12)
    assert weights == pytest.approx(expected, rel=1e-4)
    assert max(expected) == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("power", "needed"), [(0.1, 9e-3), (0.18, 9e-3), (0.3, 9e-3), (0.18, 0.1), (0.18, 1e-3), (0.18, 1e-4)]
)
def test_a_model_that_answers_late_arrives_without_a_swing(
    tiny_splade: SparseEncoder, power: float, needed: float
) -> None:
    """A model that behaves as in training: its terms follow the weight to the power of -.1 to -.3, by a delay
    of a sixth of training, and its average follows the model. The weight that it needs is up to 7 times as
    high, or 130 times as low, as the first count says. Then at most 15 % are left to the calibration, and the
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


def test_a_second_training_begins_anew_and_the_other_side_follows(tiny_splade: SparseEncoder) -> None:
    """An earlier training leaves no state to the next. A side without a number has the factor of the other
    one: queries that stayed as long as before ranked worse than with one weight for both."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    controller = ActiveTermsController(loss, counts_of({"document": 100.0}), document_terms=64)
    assert controller.log_values() == {
        "document_terms_wanted": 64,
        "flops_query_weight": 0.01,
        "flops_document_weight": 0.01,
    }
    first = drive(controller, 30)
    assert drive(controller, 30) == first
    assert first[-1]["flops_query"] == first[-1]["flops_document"] > 1
    assert all(buffer.isfinite().all() for buffer in loss.buffers())  # a checkpoint holds them
    weight = pytest.approx(0.01 * first[-1]["flops_document"], rel=1e-3)
    assert controller.log_values() == {
        "document_terms_wanted": 64,
        "document_terms_mean": 100.0,
        "flops_query_weight": weight,
        "flops_document_weight": weight,
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


def test_a_resumed_run_has_the_factors_of_one_never_stopped(
    tiny_checkpoint: Path, tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Weights to the bit, so the state of the controller is in the checkpoint: with ramp and curriculum,
    micro-batches, and an average of the weights, which the counts read.
    """
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    def make(folder: str) -> SpladeTrainer:
        transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
        model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
        wanted = {"query_terms": 20, "document_terms": 50}
        return make_trainer(
            model,
            tmp_path / folder,
            ramp_fraction=0.5,
            gradient_accumulation_steps=2,
            average_horizon=0.5,
            start_share=0.3,
            **wanted,
        )

    whole = make("whole")
    whole.train()
    lines = [line for line in whole.state.log_history if "loss" in line]
    weights = [line["flops_document_weight"] for line in lines]
    assert len(set(weights)) > 4  # the controller does act
    assert {line["document_terms_wanted"] for line in lines} == {50}
    assert "calibrated_document_terms" in whole.state.log_history[-1]

    class Stop(Exception):
        pass

    stopped = make("stopped")
    step = stopped.training_step

    def stop_after_five(*args: Any, **kwargs: Any) -> torch.Tensor:
        if stopped.state.global_step == 5:
            raise Stop
        return step(*args, **kwargs)

    stopped.training_step = stop_after_five  # type: ignore[method-assign]
    with pytest.raises(Stop):
        stopped.train()
    resumed = make("stopped")
    resumed.train(resume_from_checkpoint=last_checkpoint(tmp_path / "stopped"))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=0, atol=0, msg=name)
    again = make("stopped")
    again.train(resume_from_checkpoint=last_checkpoint(tmp_path / "stopped"))  # the run has finished
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_a_training_with_a_low_number_ends_sparser(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """The sign of the whole loop, and what `train` leaves: the texts of training have the number."""
    trainer = make_trainer(tiny_splade, tmp_path, document_terms=40, arguments={"max_steps": 30})
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert lines[-1]["flops_document_weight"] > 10 * lines[0]["flops_document_weight"]
    counted = [line["document_terms_mean"] for line in lines if "document_terms_mean" in line]
    assert counted[-1] < 0.8 * counted[0]
    rows = Dataset.from_list(training_rows)
    texts = [*rows["positive"][:], *rows["negative_1"][:]]
    vectors = tiny_splade.encode(texts, convert_to_sparse_tensor=False)
    assert float((vectors > 0).sum(dim=1).float().mean()) == pytest.approx(40, abs=1 / len(texts))


def test_the_terms_of_the_finished_model_are_counted(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the weights are those of the start, which has few terms, and there is a threshold. To count
    changes nothing."""
    texts = [f"the {first} of a {second}" for first in WORDS for second in WORDS]
    monkeypatch.setattr(trainer_module, "COUNTED_TEXTS", len(texts))
    bias = tiny_splade[0].model.get_output_embeddings().bias
    with torch.no_grad():
        bias -= 0.4
    given = {"start_share": 0.5, "prune_threshold": 0.1, "calibration_texts": {"document": texts}}
    trainer = make_trainer(tiny_splade, tmp_path, document_terms=12, **given)

    def terms(shift: float) -> float:
        with torch.no_grad():
            bias.add_(shift)
            rows = tiny_splade.encode(texts, convert_to_sparse_tensor=False)
            bias.sub_(shift)
        return float((rows > 0).sum() / len(texts))

    with torch.no_grad():
        bias += 1.0  # what training did
    before = {name: value.clone() for name, value in tiny_splade.state_dict().items()}
    tiny_splade.train()
    assert trainer._count_terms() == {"document": pytest.approx(terms(-0.5 - 0.1), rel=1e-3)}
    assert terms(0.0) > 1.1 * terms(-0.6)
    tiny_splade.train()
    trainer._count_terms()
    assert tiny_splade.training
    torch.testing.assert_close(dict(tiny_splade.state_dict()), before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "numbers", "message"),
    [
        ({"document_terms": 0}, {}, "document_terms must .* received 0"),
        ({"query_terms": -3}, {}, "query_terms must .* received -3"),
        ({"document_terms": math.nan}, {}, "document_terms must .* received nan"),
        ({"query_terms": 10**6}, {}, "query_terms must lie between 0 and the .* received 1e"),
        (
            {"query_terms": 8},
            {"query_flops_weight": 0.0},
            "query_terms multiplies the weight of flops_query.*received 0",
        ),
    ],
)
def test_what_cannot_be_held_is_refused_before_training(
    tiny_splade: SparseEncoder, wanted: dict[str, float], numbers: dict[str, float], message: str
) -> None:
    """A wrong number, or a weight of 0, which no factor moves, would train a whole run for nothing."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0, **numbers)
    with pytest.raises(ValueError, match=message):
        SpladeTrainer(tiny_splade, loss, **wanted)


def test_a_loss_that_is_built_late_is_controlled_and_another_loss_is_refused(
    tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """A function from a model to a loss is built by the trainer; a loss without the two weights has none."""
    trainer = SpladeTrainer(
        tiny_splade,
        lambda model: NeuralSparseLoss(model, distillation_weight=0.0),
        args=TrainingSettings(steps=1, precision="fp32").arguments(tmp_path),
        document_terms=9,
    )
    assert trainer.controller is not None
    assert trainer.controller.loss is trainer.loss
    assert trainer.controller in trainer.callback_handler.callbacks
    with pytest.raises(ValueError, match=r"need a single NeuralSparseLoss.*received InfoNCELoss"):
        SpladeTrainer(tiny_splade, InfoNCELoss(tiny_splade), document_terms=9)
