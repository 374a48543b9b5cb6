"""A check of the size of the data that comes before training."""

from __future__ import annotations

from lexforge.training.arguments import TrainingSettings


def check_full_batch(rows: int, settings: TrainingSettings, processes: int) -> None:
    """Refuse data that cannot fill one batch on every process.

    `TrainingSettings.arguments` drops an incomplete batch, so the Trainer would end without a single step and
    without an error.

    Args:
        rows: Number of training rows.
        settings: Gives the number of rows per batch and process.
        processes: Number of processes that train together.

    Raises:
        ValueError: If there are fewer rows than one batch of each process needs.
    """
    needed = settings.batch_size * processes
    if rows < needed:
        raise ValueError(
            f"the training data has {rows} rows, and one batch needs {needed} (batch size "
            f"{settings.batch_size}, number of processes {processes}): lower the batch size, because no step "
            "would be taken"
        )
