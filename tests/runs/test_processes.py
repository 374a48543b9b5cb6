"""The processes of a run repeat themselves."""

from __future__ import annotations

import random

import numpy as np
import torch

from lexforge.runs import start_processes


def test_the_seed_makes_every_generator_repeat_itself() -> None:
    """Two runs with one seed start from the same weights, whichever library draws them."""
    drawn = []
    for _ in range(2):
        state = start_processes(7)
        legacy = np.random.rand()  # noqa: NPY002 - the generator that set_seed seeds
        drawn.append((random.random(), legacy, torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert state.is_main_process
    assert state.num_processes == 1
