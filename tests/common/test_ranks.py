"""Sums and rows across ranks in a single process; two ranks are in tests/distributed."""

from __future__ import annotations

import torch

from lexforge.common.ranks import first_gathered_row, rows_of_all_ranks, sum_over_ranks, world_size


def test_a_single_process_needs_no_process_group() -> None:
    """Without ranks both operations hand back the very tensor: no copy, no group to initialise."""
    rows = torch.rand(2, 3, requires_grad=True)
    assert world_size() == 1
    assert sum_over_ranks(rows) is rows
    assert rows_of_all_ranks(rows) is rows
    assert first_gathered_row(5) == 0
