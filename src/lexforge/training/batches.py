"""Words and a check for data that cannot fill one batch."""

from __future__ import annotations

from lexforge.settings import TrainingSettings


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
    if rows < settings.batch_size * processes:
        raise ValueError(no_whole_batch(rows, settings.batch_size, processes))


def no_whole_batch(rows: int | dict[str, int], batch_size: int, processes: int) -> str:
    """Say that the training data cannot fill one batch.

    Args:
        rows: Number of training rows, or the numbers of several data sets by name.
        batch_size: Rows per batch and process.
        processes: Number of processes that train together.

    Returns:
        One sentence for an error.
    """
    return (
        f"the training data has {rows} rows, and one batch needs {batch_size * processes} (batch size "
        f"{batch_size}, number of processes {processes}): lower the batch size, because no step would be "
        "taken"
    )


def no_batch(batch_size: int) -> str:
    """Say that the training data yielded no batch.

    Args:
        batch_size: Rows per batch and process.

    Returns:
        One sentence for an error.
    """
    return (
        f"no step was taken: the training data yielded no whole batch of {batch_size} rows per device; lower "
        "the batch size or look at the data"
    )
