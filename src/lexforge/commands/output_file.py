"""The check of a file that a command is to write."""

from __future__ import annotations

from pathlib import Path


def check_output_file(path: Path, flag: str = "--output") -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold.

    Args:
        path: The file.
        flag: The option that names it.

    Raises:
        FileNotFoundError: If its folder does not exist.
        IsADirectoryError: If it is a folder.
    """
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"{flag} must name a file; {path} is a folder")
