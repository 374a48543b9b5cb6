"""The controller of the sparsity weights: its arithmetic, its place in the loss, and a resumed run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.losses import InfoNCELoss, NeuralSparseLoss, functional
from lexforge.runs import last_checkpoint
from lexforge.training import ActiveTermsController, CurriculumCallback, SpladeTrainer, TrainingSettings


def drive(controller: ActiveTermsController, counts: list[list[tuple[float, float]]]) -> list[dict]:
    """The factors of each step, when its micro-batches have these active terms (query, document)."""
    arguments: Any = None
    state: Any = SimpleNamespace(global_step=0, max_steps=len(counts))
    seen = []
    controller.on_train_begin(arguments, state, arguments)
    for step in counts:
        controller.on_step_begin(arguments, state, arguments)
        seen.append({name: float(factor) for name, factor in controller.loss.sparsity_factors.items()})
        for place, (query, document) in enumerate(step):
            controller.loss.metrics = {
                "query_active_dims": torch.tensor(query),
                "document_active_dims": torch.tensor(document),
            }
            last = place == len(step) - 1
            if last:
                state.global_step += 1
            (controller.on_step_end if last else controller.on_substep_end)(arguments, state, arguments)
    return seen


def naive_factors(counts: list[float], wanted: float) -> list[float | None]:
    """The documented rule for one side in plain Python; None where no factor is written."""
    steps, average, integral, rate, found = len(counts), 0.0, 0.0, 1.0, []
    share = min(1.0, 1 / (0.02 * steps))

    def error() -> float:
        return -1.0 if average == 0 else max(-1.0, min(1.0, math.log(average / wanted)))

    for step, count in enumerate(counts):
        exponent = integral + 2.0 * rate * error()
        bound = math.log(1e6)
        found.append(math.exp(max(-bound, min(bound, exponent))) if step > 0.1 * steps else None)
        before = error()
        average = count if average == 0 else average + share * (count - average)
        if step + 1 > 0.1 * steps:
            if before * error() < 0:
                rate = max(rate / 2, 1 / 4)
            integral = max(-bound, min(bound, integral + 40.0 / steps * rate * error()))
    return found


def test_the_factors_follow_the_documented_rule(tiny_splade: SparseEncoder) -> None:
    """An oracle in plain Python: average, clipped error, start, bounds, micro-batches, empty texts."""
    controller = ActiveTermsController(
        NeuralSparseLoss(tiny_splade, distillation_weight=0.0), query_terms=16, document_terms=64.0
    )
    queries = [0.0] * 20 + [3 + 0.5 * step for step in range(60)]
    documents = [200.0] * 75 + [50.0] * 5  # the integral reaches its bound and returns from it
    counts = [[(2 * q, d + 9), (0.0, d - 9)] for q, d in zip(queries, documents, strict=True)]
    found = drive(controller, counts)
    for name, expected in (
        ("flops_query", naive_factors(queries, 16)),
        ("flops_document", naive_factors(documents, 64)),
    ):
        for step, (factors, factor) in enumerate(zip(found, expected, strict=True)):
            # float32 in the controller: an exponent of 14 carries 1e-6 of itself into the factor
            assert factors.get(name) == (None if factor is None else pytest.approx(factor, rel=1e-4)), step
    assert max(factors.get("flops_document", 0) for factors in found) == pytest.approx(1e6, rel=1e-5)


def test_swings_around_the_target_die_out(tiny_splade: SparseEncoder) -> None:
    """A model that always answers too late: the factor swings less and less, and the rate stops falling at a
    quarter, so that the controller can still follow.
    """
    controller = ActiveTermsController(
        NeuralSparseLoss(tiny_splade, distillation_weight=0.0), document_terms=64
    )
    counts = [256.0] * 40 + ([16.0] * 20 + [256.0] * 20) * 4
    found = drive(controller, [[(0.0, count)] for count in counts])
    expected = naive_factors(counts, 64)
    logs = [math.log(factors["flops_document"]) for factors in found[30:]]
    assert logs == pytest.approx([math.log(factor) for factor in expected[30:] if factor], rel=1e-4)
    first, last = (max(part) - min(part) for part in (logs[10:50], logs[90:130]))
    assert first > 2 * last
    assert controller.loss.get_buffer("active_terms_rate")[1] == 1 / 4


def test_a_second_training_begins_anew_and_the_other_side_follows(tiny_splade: SparseEncoder) -> None:
    """An earlier training leaves no state to the next. A side without a number has the factor of the other
    one: queries that stayed as long as before ranked worse than with one weight for both."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    controller = ActiveTermsController(loss, document_terms=64)
    counts = [[(5.0, 100.0)]] * 30
    first = drive(controller, counts)
    assert drive(controller, counts) == first
    assert first[-1]["flops_query"] == first[-1]["flops_document"] > 1
    weight = pytest.approx(0.01 * first[-1]["flops_document"], rel=1e-3)
    assert controller.log_values() == {
        "document_terms_wanted": 64,
        "document_terms_mean": 100.0,
        "flops_query_weight": weight,
        "flops_document_weight": weight,
    }
    loss.weights["flops_query"] = 0.0  # an inference-free model has no sparsity term of queries
    assert drive(ActiveTermsController(loss, document_terms=64), counts)[-1].keys() == {"flops_document"}


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
    """Weights to the bit, so the state of the controller is in the checkpoint: with ramp and curriculum, and
    micro-batches, which the average must count.
    """
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    def make(folder: str) -> SpladeTrainer:
        transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
        model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
        wanted = {"query_terms": 20, "document_terms": 50}
        return make_trainer(
            model, tmp_path / folder, ramp_fraction=0.5, gradient_accumulation_steps=2, **wanted
        )

    whole = make("whole")
    whole.train()
    lines = [line for line in whole.state.log_history if "loss" in line]
    weights = [line["flops_document_weight"] for line in lines]
    assert weights[0] == 0.01
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
    trainer = make_trainer(tiny_splade, tmp_path, document_terms=12, arguments={"max_steps": 30})
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert lines[-1]["flops_document_weight"] > 10 * lines[0]["flops_document_weight"]
    assert lines[-1]["document_terms_mean"] < 0.8 * lines[0]["document_terms_mean"]
    rows = Dataset.from_list(training_rows)
    texts = [*rows["positive"][:], *rows["negative_1"][:]]
    vectors = tiny_splade.encode(texts, convert_to_sparse_tensor=False)
    assert float((vectors > 0).sum(dim=1).float().mean()) == pytest.approx(12, abs=1 / len(texts))


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
