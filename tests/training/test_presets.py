"""The presets hold the numbers of docs/losses.md, sections 7 to 9."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from lexforge.losses import NeuralSparseLoss
from lexforge.losses.sparse_numbers import NUMBER_NAMES, SparseLossNumbers
from lexforge.training.presets import PRESETS, V26, Preset

IDF = ("idf_alpha", "special_penalty", "stopword_penalty")
RATES = ("learning_rate", "learning_rate_width", "scratch_learning_rate")
# Typed from the table of docs/losses.md, section 8: infonce, self, positive, margin, flops, min_act, kd.
WEIGHTS = {
    "v22": (2.0, 4.0, 10.0, 2.5, 0.005, 1.0, 0.0),
    "v23": (2.5, 1.0, 3.0, 0.0, 0.003, 1.0, 1.0),
    "v25": (3.0, 0.5, 2.0, 0.0, 0.002, 1.0, 2.0),
    "v26": (3.0, 0.5, 2.0, 0.0, 0.010, 1.0, 2.0),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_weights_are_those_of_the_table(name: str) -> None:
    """A preset that drifts from its source would be published under a wrong name."""
    preset = PRESETS[name]
    found = (
        preset.infonce_weight,
        preset.self_reconstruction_weight,
        preset.positive_activation_weight,
        preset.triplet_margin_weight,
        preset.flops_weight,
        preset.minimum_activation_weight,
        preset.distillation_weight,
    )
    assert found == WEIGHTS[name]


def test_the_other_numbers_of_v26() -> None:
    """Sections 1, 4, 5, 6 and 7 of docs/losses.md, typed again."""
    assert (V26.similarity, V26.temperature, V26.margin) == ("cosine", 0.07, 0.3)
    assert (V26.idf_alpha, V26.special_penalty, V26.stopword_penalty, V26.l2_ratio) == (4.0, 100.0, 15.0, 0.3)
    assert (V26.top_k, V26.activation_threshold) == (5, 0.5)
    assert (V26.distillation_temperature, V26.kl_weight, V26.mse_weight) == (3.0, 0.7, 0.3)
    assert V26.ramp_fraction == 0, "V26 puts its full weights in force at once"
    v25 = PRESETS["v25"]
    assert (v25.idf_alpha, v25.special_penalty, v25.stopword_penalty, v25.l2_ratio) == (2.5, None, 5.0, 0.3)


def test_presets_are_frozen() -> None:
    """A run that changes a preset would change every later run of the process."""
    with pytest.raises(FrozenInstanceError):
        V26.flops_weight = 1.0  # type: ignore[misc]


def test_every_setting_reaches_the_loss_or_the_trainer() -> None:
    """A number that nothing reads is a promise not kept."""
    accepted = {*inspect.signature(NeuralSparseLoss).parameters, *NUMBER_NAMES}
    assert set(V26.loss_arguments()) <= accepted
    elsewhere = {field.name for field in fields(Preset)} - set(V26.loss_arguments())
    assert elsewhere == {
        *IDF,
        *RATES,
        "negatives",
        "teacher",
        "scale_head",
        "idf_bias",
        "start_share",
        "prune_threshold",
        "average_horizon",
        "lr_scheduler_type",
        "ramp_fraction",
        "phases",
    }


def test_a_preset_and_the_loss_have_the_same_defaults() -> None:
    """The numbers have one home; a preset without arguments and a loss without arguments are both V26."""
    arguments = V26.loss_arguments()
    assert arguments.pop("similarity") == "cosine"
    assert SparseLossNumbers(**arguments) == SparseLossNumbers()


def test_a_preset_refuses_a_number_out_of_range() -> None:
    """A wrong flag of a recipe must stop the run before any model is loaded."""
    with pytest.raises(ValueError, match=r"flops.*received -1"):
        Preset(flops_weight=-1.0)
    for name, number in (("start_share", 1.0), ("prune_threshold", -0.1), ("average_horizon", 1.5)):
        with pytest.raises(ValueError, match=f"{name} must .*received {number}"):
            replace(V26, **{name: number})  # type: ignore[arg-type]
