"""Checks of what a command line names, before any data is read."""

from __future__ import annotations

from lexforge.settings import FITTED_TEACHERS


def check_teacher(name: str | None) -> None:
    """Refuse a teacher whose files cannot be found; its weights are not loaded.

    Args:
        name: A name that `load_teacher` takes; the fitted teachers need no file. None is no teacher.

    Raises:
        FileNotFoundError: If neither a folder, the hub nor its cache has the teacher.
        ValueError: If the name is that of a file.
    """
    if name is not None and name not in FITTED_TEACHERS:
        from lexforge.models.names import check_model

        check_model(name)
