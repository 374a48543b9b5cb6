"""Chinese, Japanese and Korean: whether a corpus is written in them, and letters that have no spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LETTER = re.compile(r"[^\W\d_]")
_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"  # letters, compatibility letters, syllables
_KANA_AND_HAN = (  # kana (with half-width) and Han (with extensions)
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_CJK = re.compile(f"[{_HANGUL}{_KANA_AND_HAN}]")
UNSPACED = re.compile(rf"(?=\w)[{_KANA_AND_HAN}]")
"""A letter of Chinese or Japanese, which have no spaces between words; Korean has them."""


def mostly_cjk(texts: Iterable[str]) -> bool:
    """Tell whether more than half of the letters of a corpus are Hangul, kana or Han.

    Args:
        texts: The corpus.

    Returns:
        Whether they are; False for a corpus without a letter.
    """
    letters = cjk = 0
    for text in texts:
        letters += len(_LETTER.findall(text))
        cjk += len(_CJK.findall(text))
    return 2 * cjk > letters
