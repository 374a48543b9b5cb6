"""How to install an extra of the package: from a checkout, because the name is not taken on PyPI.

Whoever takes that name later would run code on the machine of each reader who asks PyPI for it.
"""

from __future__ import annotations


def missing_extra(what: str, extra: str, error: ImportError) -> ImportError:
    """Make the error for a package that is missing.

    Args:
        what: What needs it, as the subject of the sentence.
        extra: The extra that brings it.
        error: What the import raised.

    Returns:
        The error, which says how to install the extra.
    """
    how = f"in a checkout of lexforge, pip install '.[{extra}]'"
    return ImportError(f"{what} needs the extra {extra!r}: {how} ({error})")
