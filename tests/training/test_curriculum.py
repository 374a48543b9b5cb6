"""The curriculum returns the table of docs/losses.md, section 9, and nothing but a function of progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexforge.settings import V26, LossSettings, Phase
from lexforge.training.curriculum import phase_at, ramp_at

# Epoch (1-based) -> temperature, InfoNCE weight, distillation weight, learning-rate factor; typed from the
# design.
TABLE = (
    dict.fromkeys(range(1, 9), (0.08, 2.5, 2.5, 1.0))
    | dict.fromkeys(range(9, 18), (0.05, 3.0, 1.5, 0.5))
    | dict.fromkeys(range(18, 26), (0.04, 3.0, 0.8, 0.25))
)


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 7, 101, 4096])
def test_every_step_of_every_epoch_has_the_values_of_the_table(steps_per_epoch: int) -> None:
    """A boundary that falls a step early or late would train a whole step with another phase's weights."""
    for epoch, expected in TABLE.items():
        for step in {(epoch - 1) * steps_per_epoch, epoch * steps_per_epoch - 1}:
            phase = V26.loss.phases[phase_at(V26.loss.phases, step / (25 * steps_per_epoch))]
            found = (
                phase.temperature,
                phase.infonce_weight,
                phase.distillation_weight,
                phase.learning_rate_factor,
            )
            assert found == expected, (epoch, step)


def test_the_end_of_training_belongs_to_the_last_phase() -> None:
    """The scheduler asks for the value after the last step."""
    assert phase_at(V26.loss.phases, 1.0) == 2


@pytest.mark.parametrize("ends", [(0.5,), (0.5, 0.5, 1.0), (0.6, 0.4, 1.0), (0.0, 1.0), (0.5, 1.1)])
def test_phases_that_do_not_cover_training_are_refused(ends: tuple[float, ...]) -> None:
    """A gap or an overlap is a typing error in somebody's configuration."""
    with pytest.raises(ValueError, match="increasing shares"):
        LossSettings(phases=tuple(Phase(end, 0.1, 1.0, 1.0) for end in ends))


@pytest.mark.parametrize(
    "numbers", [(0.0, 1.0, 1.0), (float("inf"), 1.0, 1.0), (0.1, -1.0, 1.0), (0.1, 1.0, 1.0, float("nan"))]
)
def test_the_numbers_of_a_phase_are_in_range(numbers: tuple[float, ...]) -> None:
    """A temperature of 0 was found out when the phase began, by a loss that is no number."""
    with pytest.raises(ValueError, match=r"must be (finite and >=|a finite number above) 0"):
        Phase(1.0, *numbers)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_ramp_grows_from_zero_to_one(one: float, other: float, length: float) -> None:
    """Sparsity pressure that falls during training would let a model grow dense again."""
    low, high = sorted((one, other))
    assert 0 <= ramp_at(low, length) <= ramp_at(high, length) <= 1
    assert ramp_at(length, length) == 1


def test_the_ramp_is_quadratic_and_absent_at_length_zero() -> None:
    """Worked by hand: half way through the ramp a quarter of the weight is in force; length 0 is the original
    form.
    """
    assert ramp_at(0.1, 0.2) == 0.25
    assert ramp_at(0.0, 0.2) == 0.0
    assert ramp_at(0.0, 0.0) == 1.0
