"""The callback that keeps the tile sizes of the GPU kernels over an interruption."""

from __future__ import annotations

import sys
from typing import Any

from lexforge.training.rank_record import RankRecordCallback

KERNELS = "lexforge.kernels.triton.splade_head_kernels"


class KernelTilesCallback(RankRecordCallback):
    """Saves the tile sizes that the Triton SPLADE head has chosen, and sets them in a resumed run.

    The kernels choose them by timing, in each process of its own, and other tile sizes sum in another order:
    without this a resumed run would round differently from the run that it continues. A run that does not use
    the kernels writes no file.
    """

    def __init__(self) -> None:
        super().__init__("kernel_tiles")

    def record(self) -> dict[str, Any] | None:
        """Return the tile sizes that this rank has chosen; None if no kernel has run."""
        if KERNELS not in sys.modules:  # Triton may not be installed
            return None
        from lexforge.kernels.triton.tiles import chosen_tiles

        chosen = chosen_tiles()
        return chosen if chosen["kernels"] else None

    def restore(self, record: dict[str, Any]) -> None:
        """Use the tile sizes that the interrupted run had chosen."""
        from lexforge.kernels.triton.tiles import set_tiles

        set_tiles(record)
