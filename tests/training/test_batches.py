"""Data that would end training before its first step."""

from __future__ import annotations

import pytest

from lexforge.training import TrainingSettings, check_full_batch


def test_data_for_less_than_one_batch_is_refused() -> None:
    """The Trainer takes no step then, and the run would report its first model as the trained one."""
    settings = TrainingSettings(batch_size=4)
    check_full_batch(8, settings, processes=2)
    with pytest.raises(
        ValueError, match=r"has 7 rows, and one batch needs 8 \(batch size 4, number of processes 2\)"
    ):
        check_full_batch(7, settings, processes=2)
