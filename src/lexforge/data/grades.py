"""Grades of relevance: the one rule for those in files, in hub data sets and in Python."""

from __future__ import annotations

import re
from numbers import Integral

from lexforge.data.lines import excerpt
from lexforge.data.retrieval_data import DataError

# trec_eval, which ir-measures calls, keeps a counter for every grade up to the largest, for each query: at a
# grade of 10,000 that costs nothing yet, at a million it is 20 times slower, at 100 million it takes 0.8 GB,
# and beyond 32 bits the values are wrong (nDCG 0) or the process dies.
MAX_GRADE = 9999
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def check_grade(where: str, grade: object) -> int:
    """A grade as an integer.

    Args:
        where: File and line, or query and document.
        grade: An integer, or a float that is one.

    Returns:
        The grade; above 0 is relevant.

    Raises:
        DataError: It is something else, or beyond `MAX_GRADE` (or below its negative).
    """
    if isinstance(grade, Integral) or (isinstance(grade, float) and grade.is_integer()):
        number = int(grade)
        if abs(number) <= MAX_GRADE:
            return number
    raise DataError(
        f"{where}: the score must be an integer grade, got {excerpt(grade)}; "
        f"allowed are {-MAX_GRADE} to {MAX_GRADE}"
    )


def parse_grade(where: str, text: str) -> int:
    """The grade that a column of a file holds: decimal digits, with a sign or without.

    Raises:
        DataError: As `check_grade`.
    """
    return check_grade(where, int(text) if _INTEGER.fullmatch(text) else text)
