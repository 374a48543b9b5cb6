"""Other packages that log what no user can act on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent(name: str | None = None) -> Iterator[None]:
    """A block in which another package logs nothing; what it cannot do is raised all the same.

    Args:
        name: The name of its logger; None is the root logger, to which some packages write.
    """
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
