"""Grades of relevance: one rule for files, hub data sets and Python values."""

from __future__ import annotations

import re
from numbers import Integral

from lexforge.data.lines import excerpt
from lexforge.data.retrieval_data import DataError

# trec_eval, which ir-measures calls, keeps a counter for every grade up to the largest, for each query. A
# grade of 10,000 costs nothing measurable; a million makes it 20 times slower; 100 million takes 0.8 GB; and
# beyond 32 bits the values are wrong (nDCG 0) or the process dies.
MAX_GRADE = 9999
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def check_grade(where: object, grade: object) -> int:
    """Return a grade as an integer.

    Args:
        where: Where the grade stands, for error messages: file and line, query and document, or what names
            them as text.
        grade: An integer, or a float without a fraction.

    Returns:
        The grade; a document with a grade above 0 is relevant.

    Raises:
        DataError: If the grade is something else, or if its absolute value exceeds `MAX_GRADE`.
    """
    if isinstance(grade, Integral) or (isinstance(grade, float) and grade.is_integer()):
        number = int(grade)
        if abs(number) <= MAX_GRADE:
            return number
    raise DataError(
        f"{where}: the score must be an integer grade from {-MAX_GRADE} to {MAX_GRADE}; "
        f"received {excerpt(grade)}"
    )


def parse_grade(where: str, text: str) -> int:
    """Return the grade that a column of a file holds.

    Args:
        where: Where the grade stands, for error messages: file and line.
        text: Decimal digits, with or without a sign.

    Returns:
        The grade.

    Raises:
        DataError: If `check_grade` refuses it.
    """
    return check_grade(where, int(text) if _INTEGER.fullmatch(text) else text)
